"""The image tables of papers, whole, at toy size: their params files, shrunk, on small archives of the real format."""

import csv
import re
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from bdl_pipe.data import corrupt
from bdl_pipe.data.catalog import CATALOG
from bdl_pipe.data.sources.archive import FOLDER_VARIABLE
from bdl_pipe.networks import PreResNetConfig, VggConfig, WideResNetConfig
from bdl_pipe.training.loop import learning_rate
from bdl_pipe.training.snapshots import SnapshotPolicy
from pipeline import cli, papers
from pipeline.core import params, scores
from pipeline.core.params import Run
from pipeline.core.scores import Quantity
from tests.data import archives as made

ROOT = Path(__file__).parents[2]
SMALL = {"depth": 10, "widen": 1, "epochs": 1, "batch": 16, "seeds": 1, "validation": 10, "features": 16, "draws": 2}
KINDS = ("fog", "elastic_transform")  # of corruptions, in place of 19
CORRUPTED = 3  # images under each corruption
FEW = {"rows": 4, "cols": 4, "members": 2, "start": 0, "end": 1, "corrupted_images": CORRUPTED}
AVERAGED = {"epochs": 2, "snapshots": 2, "every": 1, "count": 2, "rank": 2, "steps": 4, "burn_in": 2, "rows": 4}
CONVNET = {"name": "convnet", "width": 4, "blocks": 2}  # for networks that have no small form
TABLES = {"table1": "cifar10", "table4": "cifar100"}
DENSITIES = {Quantity("auroc", "ood", "svhn", score=s) for s in ("max_prob", "feature_density", "refit_density")}
FILES = {  # params file -> the tables that it is for, in the order of asking; a run and what its scores have
    "vbll-table1": (
        ["table1"],
        "cifar10-g_vbll",
        DENSITIES | {Quantity("auroc", "ood", "cifar100", score="refit_density")},
    ),
    "vbll-table4": (
        ["table4"],
        "cifar100-g_vbll",
        DENSITIES | {Quantity("auroc", "ood", "cifar10", score="refit_density")},
    ),
    "inducing-table2": (
        [f"table{n}" for n in (2, 3, 11, 12, 13, 14, 5, 6, 7, 8, 15, 16, 17, 18)],
        "cifar100-ensemble_u-128",
        {
            Quantity("aupr_in", "ood", "cifar10", score="max_prob"),
            Quantity("ece", "corrupted", "fog", 5),
            Quantity("brier"),
            Quantity("mutual_information"),
        },
    ),
    "ciber-table3": (
        ["table7", "table3", "table8", "table9", "table4", "table10"],
        "cifar10-preresnet-ciber",
        {*map(Quantity, ("nll", "ece")), *(Quantity(metric, "transfer", "stl10") for metric in ("accuracy", "ece"))},
    ),
}
SHRUNK = {"vbll": SMALL, "inducing": SMALL | FEW, "ciber": SMALL | AVERAGED}
PART = {"ciber": "CIFAR10"}  # of its tables; its rows of CIFAR-100 take minutes, of curvature of 100 outputs
NOT_RUN = {"SGLD (PreResNet-164)", "SGLD (WideResNet)"}  # a chain has no batch norm


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project, small archives and releases of corrupted images, no tracking."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BDL_TRACKING", "off")
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "data"))
    for name in ("cifar10", "cifar100", "svhn", "stl10"):
        monkeypatch.setitem(CATALOG._values, name, made.small_entry(name, tmp_path / "data" / name))
    monkeypatch.setattr(corrupt, "NAMES", KINDS)
    for name in ("cifar10", "cifar100"):
        folder = tmp_path / "data" / f"{name}_corrupted"
        folder.mkdir()
        for i, kind in enumerate(KINDS):
            np.save(folder / f"{kind}.npy", made.images(5 * CORRUPTED, (32, 32, 3), i))
    (tmp_path / "params/paper").mkdir(parents=True)
    return tmp_path


def shrunk(value: Any, small: dict[str, int]) -> Any:
    """The same with small numbers, where their key says how small; nothing is added and nothing left out."""
    if isinstance(value, dict):
        if value.get("name") == "resnet":
            return CONVNET | {"norm": "batch"}
        if value.get("name") == "vgg":
            return CONVNET | {"norm": value["norm"], "dropout": value["dropout"]}
        if value.get("name") == "preresnet":
            return value | {"depth": 11}
        return {k: small[k] if k in small and type(v) is int else shrunk(v, small) for k, v in value.items()}
    return [shrunk(v, small) for v in value] if isinstance(value, list) else value


def optimisers(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield from [value["optimiser"]] if "optimiser" in value else []
        for part in value.values():
            yield from optimisers(part)


@pytest.mark.parametrize("name", FILES)
def test_image_tables_run_from_data_to_the_table(name: str, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tables, run, expected = FILES[name]
    paper = name.split("-")[0]
    part = ["--dataset", PART[paper]] if paper in PART else []
    raw = params.read_yaml(ROOT / f"params/paper/{name}.yaml")
    (project / f"params/paper/{name}.yaml").write_text(yaml.safe_dump(shrunk(raw, SHRUNK[paper]), sort_keys=False))
    ran = set[str]()
    for table in tables:
        assert cli.main(["paper", f"{paper}:{table}", "--executor", "inline", *part]) == 0, capsys.readouterr().err
        more = {line for line in capsys.readouterr().out.splitlines() if line.endswith(": done")}
        assert not ran & more, "made twice"
        ran |= more
        known = papers.load(f"{paper}:{table}")
        for dataset, figures in known.figures.items():
            if part and dataset != PART[paper]:
                continue
            stem = f"results/{known.folder}/{table}-{known.names.datasets[dataset]}"
            text = (project / f"{stem}.md").read_text()
            assert text.count("not run") == len(NOT_RUN & {*figures}) and (paper == "vbll" or "nan" not in text)
            with open(project / f"{stem}.csv", newline="") as file:
                rows = list(csv.DictReader(file))
            added = {row["method"] for row in rows} - {*figures}
            assert bool(added) == (paper == "ciber") and {*figures} <= {row["method"] for row in rows}
            assert all(row["ours"] for row in rows if row["paper"] and row["method"] not in NOT_RUN)
    keys = [key for key in raw["runs"] if not part or key.startswith("cifar10-")]
    assert {f"evaluate@{key}: done" for key in keys} <= ran
    scored = project / f"work/paper/{name}/evaluate/{run}/scores.parquet"
    assert expected <= {*scores.RunScores(scores.read(scored)).quantities}


@pytest.mark.parametrize("table", TABLES)
def test_the_numbers_are_those_of_harrison(table: str) -> None:
    """Harrison, Willes & Snoek 2024, appendix G.3."""
    raw = params.read_yaml(ROOT / f"params/paper/vbll-{table}.yaml")
    methods = raw["methods"]
    found = list(optimisers(methods))
    assert len(found) == 7
    for optimiser in found:
        assert optimiser == {
            "name": "sgd",
            "lr": 0.1,
            "momentum": 0.9,
            "schedule": "cosine",
            "weight_decay": 5e-4,
            "grad_clip_norm": 2.0,
        }
    for name in ("bnn", "d_vbll_bnn", "g_vbll_bnn"):
        assert methods[name]["training"]["epochs"] == 400 and methods[name]["training"]["batch"] == 128
    for name, epochs in (("d_vbll", "training"), ("g_vbll", "training"), ("sngp", "training")):
        assert methods[name][epochs]["epochs"] == 300 and methods[name]["network"]["depth"] == 28
    assert methods["bnn"]["kl_weight"] == 50 and methods["bnn"]["head_prior_variance"] == 0.01
    assert methods["d_vbll_bnn"]["features"]["kl_weight"] == 0.5 and methods["d_vbll_bnn"]["features"]["draws"] == 10
    assert all(row["seeds"] == 3 for row in raw["runs"].values())


def test_the_numbers_are_those_of_ritter() -> None:
    """Ritter et al. 2021, appendix J.2, for 50,000 rows in batches of 100."""
    found = params.load(ROOT / "params/paper/inducing-table2.yaml")
    for (kind, key), row in found.runs.items():
        wide = key.startswith("cifar100")
        how = row.config if kind == "trajectory" else getattr(row.config, "training", None)
        if how is None:
            continue
        u, name = row.method.name.endswith("_u"), row.method.name
        assert row.config.network.depth == 50 and row.spec.seeds == 5 and how.batch == 100
        if "student" in row.sources:
            as_in_appendix_k(row, found)
            continue
        assert how.epochs == (300 if u or (name == "ffg_w" and wide) else 200)
        steps, rate = 500 * how.epochs, how.optimiser.lr
        rates = [learning_rate(how.optimiser, 500 * epoch, steps) / rate for epoch in range(how.epochs)]
        falls = [epoch for epoch in range(1, how.epochs) if rates[epoch] < rates[epoch - 1]]
        if name == "sgd":
            assert (rate, falls) == ((0.1, [60, 120, 160]) if wide else (3e-4, []))
            continue
        assert (rate, falls) == ((1e-3, [200]) if u or wide else (3e-4, []))
        assert (row.config.annealing.start, row.config.annealing.end, row.config.draws) == (100, 150, 20)
        weights, head = row.config.weights, row.config.kinds().get("head", {})
        if name == "ffg_w":
            assert (weights.start_sd, weights.sd_max, weights.prior_sd) == (1e-4, 0.1, 1)
            continue
        size = 128 if key.endswith("128") else 64
        assert (weights.rows, weights.cols, row.spec.setting) == (size, size, f"M={size}")
        assert weights.lambda_max == (0.03 if name == "ffg_u" else 0.1) and weights.members == 5
        assert head.get("rows", size) == ((100 if size == 128 else 64) if wide else 10)
        assert head.get("cols", size) == size and head.get("kind", name) == name


def as_in_appendix_k(row: Run, found: params.Params) -> None:
    """A pruned run: 50 epochs of Adam at 1e-4 on its full run's members; what is left stands in its setting, in %."""
    source = found.run("student", row.sources["student"])
    assert row.key.startswith(source.key) and source.sources == {} and source.spec.seeds == 5
    left = re.fullmatch(r"(.+) \((.+)%\)", row.spec.setting)
    assert left is not None and left[1] == source.spec.setting
    assert Fraction(str(row.config.prune)) == 1 - Fraction(left[2]) / 100
    training, before = row.config.training, source.config.training
    assert (training.epochs, training.optimiser.name, training.optimiser.lr) == (50, "adam", 1e-4)
    assert {learning_rate(training.optimiser, step, 25_000) for step in range(0, 25_000, 500)} == {1e-4}
    assert (training.augmentation, training.batch) == (before.augmentation, before.batch)
    assert row.config.annealing is None and row.config.kl_weight == 1 and row.config.draws == source.config.draws


def test_the_numbers_are_those_of_maddox() -> None:
    """Maddox et al. 2019, as their published code has them, in the protocol of Zeng & Van den Broeck 2023 (C.3)."""
    found = params.load(ROOT / "params/paper/ciber-table3.yaml")
    own = {"vgg": (0.05, 5e-4), "preresnet": (0.1, 3e-4), "wrn": (0.1, 5e-4)}
    ends = {"vgg": (0.01, 0.01), "preresnet": (0.01, 0.05), "wrn": (0.05, 0.05)}  # of SWA on CIFAR-10, CIFAR-100
    rows = {key: row for (kind, key), row in found.runs.items() if kind == "trajectory"}
    assert set(rows) == {f"cifar{n}-{net}-{kind}" for n in (10, 100) for net in own for kind in ("swa", "sgd")}
    for key, row in rows.items():
        dataset, network, kind = key.split("-")
        config, optimiser = row.config, row.config.optimiser
        assert (config.epochs, config.batch, row.spec.seeds) == (300, 128, 3)
        assert (optimiser.name, optimiser.momentum, optimiser.grad_clip_norm) == ("sgd", 0.9, None)
        assert (optimiser.lr, optimiser.weight_decay) == own[network]
        start, ratio = (161, ends[network][dataset == "cifar100"] / optimiser.lr) if kind == "swa" else (300, 0.01)
        for epoch in range(300):
            t = epoch / start
            factor = 1.0 if t <= 0.5 else 1 - (1 - ratio) * (t - 0.5) / 0.4 if t <= 0.9 else ratio
            assert learning_rate(optimiser, 390 * epoch, 390 * 300) == pytest.approx(optimiser.lr * factor, rel=1e-5)
        keep = SnapshotPolicy(config.snapshots, config.every, 0, config.moments)
        assert [e for e in range(1, 301) if keep.snapshot(300 - e)] == (
            [*range(165, 301, 5)] if kind == "swa" else [300]
        )
        assert [e for e in range(1, 301) if keep.counts(300 - e)] == ([*range(162, 301)] if kind == "swa" else [])
    networks = {row.config.network for row in rows.values()}
    assert networks == {
        VggConfig("vgg", "none", 0.5),
        PreResNetConfig("preresnet", 164),
        WideResNetConfig("wide_resnet", 28, 10),
    }
    for (kind, key), row in found.runs.items():
        if kind == "student" and row.method.name in ("deterministic", "kfac_laplace"):
            assert row.sources["trajectory"].endswith("-sgd"), key
        elif kind == "student" and row.method.name != "sgld":
            assert row.sources["trajectory"].endswith("-swa"), key


def test_the_chains_steps_are_those_of_maddox() -> None:
    """The rate of WideResNet on the mean loss, 38.0348 (13928.7 + t)^-.55; noise of 5e-4 times its root."""
    found = params.load(ROOT / "params/paper/ciber-table3.yaml")
    target = found.run("teacher", "cifar10-vgg-sgld").config.target
    drift = 50_000 / (2 * target.temperature)  # the rate of an η
    assert target.step_size.at(0) * drift == pytest.approx(0.2, rel=0.01)
    assert target.step_size.at(39_000) * drift == pytest.approx(0.1, rel=0.05)
    assert target.step_size.at(0) == pytest.approx(5e-4**2 * 0.2, rel=0.01)
    assert target.prior_precision / 50_000 == pytest.approx(5e-4)
