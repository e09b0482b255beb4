"""Every file of params/ is valid, and all that it resolves to has its stored digest.

The digests are in params_files.json beside this file. After a change on purpose, write the digests again with
``python -m tests.pipeline.test_params_files``; git then shows which files mean something else.
"""

import functools
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import pytest

from bdl_pipe import config
from bdl_pipe.errors import ConfigError, DataError
from bdl_pipe.seeds import Seed
from bdl_pipe.training.loop import learning_rate
from bdl_pipe.training.snapshots import SnapshotPolicy
from bdl_pipe.yaml_files import read_yaml
from bdl_report import papers
from benchmarks.pages import unfamiliar
from pipeline.core.load import typed
from pipeline.core.model import Params
from pipeline.core.params_files import read_params, written_out
from tests.pipeline.params_cases import REFUSED

ROOT: Final = Path(__file__).parents[2]
DIGESTS: Final = Path(__file__).with_name("params_files.json")
FILES: Final = [
    "params.yaml",
    *sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("params/**/*.yaml") if p.parent.name not in ("tuned", "base")),
]
PRINTED: Final = sorted(path.name for path in papers.HERE.glob("*.csv"))


@functools.cache
def whole() -> Mapping[str, Any]:
    return config.merge(*(read_params(ROOT / name) for name in ("params.yaml", "params/comparison.yaml")))


@functools.cache
def load(name: str) -> Params:
    """Check a file; an overlay, or a study with one, is on top of params.yaml and of the whole comparison."""
    path = ROOT / name
    if name.startswith("params/study/"):
        return typed(config.merge(whole(), written_out(read_yaml(path)["overlay"], path)))
    raw = read_params(path)
    return typed(raw if name.startswith(("params.yaml", "params/paper/")) else config.merge(whole(), raw))


def digest(params: Params) -> str:
    """Return a digest of every data set and of every run with its inputs and its whole config."""
    content: dict[str, Any] = {"seed": params.seed, "evaluate": config.to_mapping(params.evaluate)}
    content |= {f"datasets.{key}": config.to_mapping(dataset) for key, dataset in params.datasets.items()}
    content |= {f"decisions.{key}": params.raw["decisions"][key] for key in params.decisions}
    for (kind, key), run in params.runs.items():
        about = [run.spec.dataset, run.method.name, run.spec.setting, run.spec.seeds, dict(run.sources)]
        content[f"{kind}.{key}"] = [*about, config.to_mapping(run.config)]
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:16]


def digest_of_figures(name: str) -> str:
    """Return a digest of the figures that were read off a paper's printed tables."""
    return hashlib.sha256((papers.HERE / name).read_bytes()).hexdigest()[:16]


@pytest.mark.parametrize("name", FILES)
def test_a_params_file_is_valid_and_has_its_stored_digest(name: str) -> None:
    assert digest(load(name)) == json.loads(DIGESTS.read_text())[name]


@pytest.mark.parametrize("name", PRINTED)
def test_the_printed_figures_of_a_paper_have_their_stored_digest(name: str) -> None:
    assert digest_of_figures(name) == json.loads(DIGESTS.read_text())[name]


def test_a_changed_override_changes_the_digest_of_the_file() -> None:
    raw = load("params.yaml").raw
    key = next(iter(raw["trajectories"]))
    changed = config.merge(raw, {"trajectories": {key: {"override": {"epochs": 77}}}})
    assert digest(typed(changed)) != digest(load("params.yaml"))


def test_a_file_is_merged_into_its_base_and_its_repeated_entries_are_written_out(tmp_path: Path) -> None:
    texts = {
        "lowest.yaml": "seed: 0\nmethods: {a: {steps: 1, network: {name: mlp, hidden: [50]}}}\nruns: {x: {seeds: 1}}\n",
        "sub/base.yaml": "base: ../lowest.yaml\neach: {set: [p, q]}\n"
        "runs: {<set>-a: {input: prepare/<set>, seeds: 1}}\n",
        "top.yaml": "base: sub/base.yaml\neach: {n: [1, 2]}\nmethods: {a: {network: {hidden: [5]}}}\n"
        "runs: {q-a: {seeds: 3}, <set>-a<n>: {ipc: <n>, setting: [ipc<n>], <other>: 0}}\n",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    content = read_params(tmp_path / "top.yaml")
    assert content["methods"] == {"a": {"steps": 1, "network": {"name": "mlp", "hidden": [5]}}}
    several = {f"{p}-a{n}": {"ipc": n, "setting": [f"ipc{n}"], "<other>": 0} for p in "pq" for n in (1, 2)}
    stages = {"p-a": {"input": "prepare/p", "seeds": 1}, "q-a": {"input": "prepare/q", "seeds": 3}}
    assert content["runs"] == {"x": {"seeds": 1}} | stages | several and list(content) == ["seed", "methods", "runs"]
    (tmp_path / "each.yaml").write_text("base: top.yaml\neach: {set: [r], n: []}\n")
    assert [*read_params(tmp_path / "each.yaml")["runs"]] == ["x", "r-a", "q-a"], "a list replaces"


@pytest.mark.parametrize(("text", "message"), REFUSED["base"])
def test_a_wrong_base_or_list_is_an_error_with_the_file_and_the_key(text: str, message: str, tmp_path: Path) -> None:
    for name, content in {"a.yaml": text, "b.yaml": "base: a.yaml", "c.yaml": "[1, "}.items():
        (tmp_path / name).write_text(content)
    with pytest.raises((ConfigError, DataError), match=re.escape(message)):
        read_params(tmp_path / "a.yaml")


def test_params_yaml_has_no_base_since_dvc_reads_it() -> None:
    with pytest.raises(ConfigError, match=r"base is not a known section"):
        typed({"base": "params/base/paper.yaml"})


def test_the_params_have_the_rates_and_snapshots_of_maddox() -> None:
    """Maddox et al. 2019 as published: when the rate falls, and which epochs SWA and SWAG average over."""
    settings = {"vgg": (0.05, 5e-4), "preresnet": (0.1, 3e-4), "wrn": (0.1, 5e-4)}
    ends = {"vgg": (0.01, 0.01), "preresnet": (0.01, 0.05), "wrn": (0.05, 0.05)}  # of SWA on CIFAR-10, CIFAR-100
    for run in load("params/paper/ciber-table3.yaml").of("trajectory"):
        dataset, network, kind = run.key.split("-")
        optimiser = run.config.optimiser
        assert (optimiser.lr, optimiser.weight_decay) == settings[network]
        start, ratio = (161, ends[network][dataset == "cifar100"] / optimiser.lr) if kind == "swa" else (300, 0.01)
        for epoch in range(300):
            t = epoch / start
            factor = 1.0 if t <= 0.5 else 1 - (1 - ratio) * (t - 0.5) / 0.4 if t <= 0.9 else ratio
            assert learning_rate(optimiser, 390 * epoch, 390 * 300) == pytest.approx(optimiser.lr * factor, rel=1e-5)
        keep = SnapshotPolicy(run.config.snapshots, run.config.every, 0, run.config.moments)
        swa = kind == "swa"
        assert [e for e in range(1, 301) if keep.snapshot(300 - e)] == ([*range(165, 301, 5)] if swa else [300])
        assert [e for e in range(1, 301) if keep.counts(300 - e)] == ([*range(162, 301)] if swa else [])


def test_the_chains_have_the_step_sizes_of_maddox() -> None:
    """The rate of WideResNet on the mean loss, 38.0348 (13928.7 + t)^-.55; noise of 5e-4 times its root."""
    config = load("params/paper/ciber-table3.yaml").run("teacher", "cifar10-vgg-sgld").config
    sampler, drift = config.sampler, 50_000 / 2  # turns a step size into a rate
    assert sampler.step_size.at(0) * drift == pytest.approx(0.2, rel=0.01)
    assert sampler.step_size.at(39_000) * drift == pytest.approx(0.1, rel=0.05)
    assert sampler.step_size.at(0) * sampler.temperature == pytest.approx(5e-4**2 * 0.2, rel=0.01)
    assert config.target.prior_precision / 50_000 == pytest.approx(5e-4)


def test_the_params_have_the_rates_and_pruned_runs_of_ritter() -> None:
    """Ritter et al. 2021, appendices J.2 and K: 50,000 rows in batches of 100; a setting says what is left, in %."""
    params = load("params/paper/inducing-table2.yaml")
    for (kind, key), run in params.runs.items():
        training = run.config if kind == "trajectory" else getattr(run.config, "training", None)
        if training is None:
            continue
        steps, rate = 500 * training.epochs, training.optimiser.lr
        rates = [learning_rate(training.optimiser, 500 * epoch, steps) / rate for epoch in range(training.epochs)]
        falls = [epoch for epoch in range(1, training.epochs) if rates[epoch] < rates[epoch - 1]]
        wide, name = key.startswith("cifar100"), run.method.name
        if "student" in run.sources:
            source = params.run("student", run.sources["student"])
            match = re.fullmatch(r"(.+) \((.+)%\)", run.spec.setting)
            assert match is not None and match[1] == source.spec.setting and (rate, falls) == (1e-4, [])
            assert Fraction(str(run.config.prune)) == 1 - Fraction(match[2]) / 100
        elif name == "sgd":
            assert (rate, falls) == ((0.1, [60, 120, 160]) if wide else (3e-4, []))
        else:
            assert (rate, falls) == ((1e-3, [200]) if name.endswith("_u") or wide else (3e-4, []))


def test_the_params_have_the_rates_of_korattikara() -> None:
    """SGD's rate 5e-6 and precision 1 on 50,000 rows as a rate on their mean; online and offline are one student."""
    params = load("params/paper/dark_knowledge-mnist.yaml")
    sgd, teacher = params.run("trajectory", "mnist-sgd").config, params.run("teacher", "mnist-sgld").config
    online, offline = (params.run("student", f"mnist-{name}").config for name in ("online", "offline"))
    rows = 60_000 - params.datasets["mnist"].validation
    assert sgd.optimiser.lr == pytest.approx(5e-6 / 2 * rows) and sgd.optimiser.weight_decay == pytest.approx(1 / rows)
    steps = sgd.epochs * rows // sgd.batch
    assert steps == teacher.thinning.steps == online.steps == offline.steps == 1_000_000
    assert (online.mode.target, online.mode.sampler) == (teacher.target, teacher.sampler)
    assert replace(online, mode=offline.mode) == offline
    assert online.inputs.noise == pytest.approx(0.001 * 126 / 255 / 0.3081, rel=0.01)
    short = params.run("trajectory", "mnist5k-sgd").config
    assert short.optimiser.lr == sgd.optimiser.lr and short.optimiser.weight_decay == pytest.approx(1 / 4000)
    small = params.run("teacher", "mnist5k-sgld").config.sampler
    assert small.step_size.at(0) * 4000 / 2 == pytest.approx(teacher.sampler.step_size.at(0) * rows / 2)


@pytest.mark.slow
def test_the_pseudo_coresets_have_the_step_size_of_lee() -> None:
    """A step of ½·step_size on the sum over rows is a step of .01 on their mean; VBPC's coresets and runs agree."""
    for name, rows in (("params/paper/vbpc-table1.yaml", None), ("params/paper/vbpc-table9.yaml", 400)):
        params = load(name)
        for coreset in params.of("coreset"):
            classes = 100 if coreset.spec.dataset == "cifar100" else 10
            if coreset.method.name == "bpc_cd":
                count = rows or coreset.config.ipc * classes
                assert coreset.config.step_size / 2 * count == pytest.approx(0.01)
        for run in params.of("student"):
            if run.method.name == "vbpc":
                assert run.config == params.run("coreset", run.sources["coreset"]).config


def test_the_held_out_classes_of_near_ood_are_the_seeded_folds() -> None:
    """No score has chosen them; the page joins the folds, and no other data set, to one table."""
    params = load("params/near-ood.yaml")
    drawn = Seed(0).fold("held out classes", "fashion_mnist").numpy().permutation(10)[:9].reshape(3, 3).tolist()
    folds = {key: number for key, (title, number) in unfamiliar.folds_of(params).items() if title == "fashion_near"}
    assert [list(params.datasets[key].held_out) for key in folds] == drawn and [*folds.values()] == [0, 1, 2]
    assert unfamiliar.folds_of(params)["boston"] == ("boston", 0)


if __name__ == "__main__":
    digests = {name: digest(load(name)) for name in FILES} | {name: digest_of_figures(name) for name in PRINTED}
    DIGESTS.write_text(json.dumps(digests, indent=1) + "\n")
