"""The image tables of a paper, whole, at toy size: their params files, shrunk, on small archives of the real format."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from bdl_pipe.data.sources import archive
from bdl_pipe.data.sources.archive import FOLDER_VARIABLE
from pipeline import cli, papers, params, tracking
from tests.data import archives as made

ROOT = Path(__file__).parents[2]
SMALL = {"depth": 10, "widen": 1, "epochs": 1, "batch": 16, "members": 1, "validation": 10, "features": 16, "draws": 2}
TABLES = {"table1": ("cifar10", "CIFAR10", "cifar100"), "table4": ("cifar100", "CIFAR100", "cifar10")}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project, small archives, no tracking."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tracking, "_stopped", True)
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "data"))
    for name in ("cifar10", "cifar100", "svhn"):
        monkeypatch.setitem(archive.ARCHIVES, name, made.small(name, tmp_path / "data" / name))
    (tmp_path / "params/paper").mkdir(parents=True)
    return tmp_path


def shrunk(value: Any) -> Any:
    """The same with small numbers, where their key says how small; nothing is added and nothing left out."""
    if isinstance(value, dict):
        return {k: SMALL[k] if k in SMALL and type(v) is int else shrunk(v) for k, v in value.items()}
    return [shrunk(v) for v in value] if isinstance(value, list) else value


def optimisers(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield from [value["optimiser"]] if "optimiser" in value else []
        for part in value.values():
            yield from optimisers(part)


@pytest.mark.parametrize("table", TABLES)
def test_an_image_table_runs_from_data_to_the_table(
    table: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset, printed, near = TABLES[table]
    raw = params.read_yaml(ROOT / f"params/paper/vbll-{table}.yaml")
    (project / f"params/paper/vbll-{table}.yaml").write_text(yaml.safe_dump(shrunk(raw), sort_keys=False))
    assert cli.main(["paper", f"vbll:{table}", "--executor", "inline"]) == 0, capsys.readouterr().err
    known = papers.load(f"vbll:{table}")
    assert "not run" not in (project / f"results/vbll/{table}-{dataset}.md").read_text()
    with open(project / f"results/vbll/{table}-{dataset}.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["method"] for row in rows} == {*known.figures[printed]}
    scored = project / f"work/paper/vbll-{table}/evaluate/{dataset}-g_vbll/scores.parquet"
    scores = {(row["split"], row["metric"]) for row in pq.read_table(scored).to_pylist()}
    for other in ("svhn", near):
        names = ("auroc", "auroc_feature_density", "auroc_refit_density")
        assert {(f"ood:{other}", name) for name in names} <= scores


@pytest.mark.parametrize("table", TABLES)
def test_the_numbers_are_those_of_the_paper(table: str) -> None:
    """Harrison, Willes & Snoek 2024, appendix G.3."""
    raw = params.read_yaml(ROOT / f"params/paper/vbll-{table}.yaml")
    methods = raw["methods"]
    found = list(optimisers(methods))
    assert len(found) == 7
    for optimiser in found:
        assert optimiser == {
            "name": "sgd",
            "rate": 0.1,
            "momentum": 0.9,
            "schedule": "cosine",
            "weight_decay": 5e-4,
            "clip": 2.0,
        }
    for name in ("bnn", "d_vbll_bnn", "g_vbll_bnn"):
        assert methods[name]["learn"]["epochs"] == 400 and methods[name]["learn"]["batch"] == 128
    for name, epochs in (("d_vbll", "learn"), ("g_vbll", "learn"), ("sngp", "training")):
        assert methods[name][epochs]["epochs"] == 300 and methods[name]["network"]["depth"] == 28
    assert methods["bnn"]["kl_weight"] == 50 and methods["bnn"]["head_prior_variance"] == 0.01
    assert methods["d_vbll_bnn"]["features"]["kl_weight"] == 0.5 and methods["d_vbll_bnn"]["features"]["draws"] == 10
    assert all(row["members"] == 3 for row in raw["runs"].values())
