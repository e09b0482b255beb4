"""Which runs a search fits once and which in every trial, for runs with several inputs; and trials that diverge.

A search continues after a sample whose fit diverges, whichever part of the method raises the error.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from bdl_pipe import config
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.evaluation import EvaluateConfig
from bdl_pipe.method import StageSpec
from bdl_pipe.progress import Silent
from bdl_pipe.registry import METHODS
from bdl_pipe.seeds import Seed
from pipeline.core.load import load as load_params
from pipeline.core.load import typed
from pipeline.core.model import Run, RunSpec
from pipeline.core.settings import Settings
from pipeline.search import branch_of, load_data, make_upstream, trial
from tests.cases import CONFIGS
from tests.pipeline.fake_work import REGISTRY, walk
from tests.pipeline.params_cases import changed, params
from tests.pipeline.walk import prepared as prepared_project

SETTINGS = Settings(executor="inline")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    raw = changed(params("several"), {"runs.b-pair.seeds": 1})
    return prepared_project(tmp_path_factory.mktemp("branch"), raw, registry=REGISTRY)


@pytest.fixture
def project(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(prepared)


load = partial(load_params, registry=REGISTRY)


def names(runs: tuple[Run, ...]) -> list[str]:
    return [f"{run.kind}/{run.key}" for run in runs]


def test_the_chain_begins_at_the_first_run_of_the_method(project: None) -> None:
    branch = branch_of(load(), "pair", "boston", "b-pair", SETTINGS)
    assert names(branch.upstream) == ["trajectory/b-walk"]
    assert names(branch.runs) == ["coreset/b-pair", "student/b-pair"]
    whole = branch_of(load(), "walk", "boston", "b-pair", SETTINGS)
    assert whole.upstream == ()
    assert names(whole.runs) == ["trajectory/b-walk", "coreset/b-pair", "student/b-pair"]


def test_a_trial_gets_the_upstream_fits_and_its_own_coreset(project: None) -> None:
    """The run takes both trajectories, which are fitted once, and the trial's own coreset."""
    loaded = load()
    branch = branch_of(loaded, "pair", "boston", "b-pair", SETTINGS)
    data = load_data(branch, loaded, SETTINGS)
    upstream = make_upstream(branch, data, loaded, SETTINGS)
    ((run, trajectories),) = upstream.items()
    assert run == ("trajectory", "b-walk") and len(trajectories) == 2
    configs = branch.configs({"steps": 3})
    coreset = branch.make(data, upstream, configs, Silent())
    state = branch.finish(coreset, data, configs, upstream)
    assert torch.equal(state.tensors["coreset"], coreset.tensors["x"])
    assert torch.equal(state.tensors["trajectories"], torch.stack([t.tensors["x"] for t in trajectories]))
    shared = typed(params("several"), REGISTRY)  # two seeds of the run, each of which takes one of the two trajectories
    upstream = make_upstream(branch_of(shared, "pair", "boston", "b-pair", SETTINGS), data, shared, SETTINGS)
    assert [len(states) for states in upstream.values()] == [1]
    for seed, trajectory in enumerate(trajectories):
        rng = Seed(loaded.seed).fold("tune", "trajectory", "b-walk", 0, seed)
        again = walk(data, {}, loaded.run("trajectory", "b-walk").config, rng=rng, report=Silent())
        assert torch.equal(again.tensors["x"], trajectory.tensors["x"])


def test_each_seed_of_an_upstream_run_has_its_own_input(
    project: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trajectory that continues from another one has as many seeds; each continues the same seed of the other."""
    stages = REGISTRY["walk"].stages | {
        "trajectory": StageSpec(walk, needs={"trajectory": "one_to_one"}, input_optional=True),
        "student": StageSpec(walk, needs={"trajectory": "all"}),
    }
    raw = params("several")
    following = {"input": "trajectory/b-walk", "override": {"steps": 4}}
    raw["trajectories"]["b-next"] = raw["trajectories"]["b-walk"] | following
    raw["runs"] = {"b-run": raw["runs"]["b-run"] | {"seeds": 1, "method": "all", "input": "trajectory/b-next"}}
    raw["methods"]["all"] = {"steps": 1}
    registry = REGISTRY | {name: replace(REGISTRY["walk"], name=name, stages=stages) for name in ("walk", "all")}
    loaded = typed(raw, registry)
    asked = ("all", "boston", None, SETTINGS)
    branch = branch_of(loaded, *asked)
    assert names(branch.upstream) == ["trajectory/b-walk", "trajectory/b-next"]
    data = load_data(branch, loaded, SETTINGS)
    upstream = make_upstream(branch, data, loaded, SETTINGS)
    assert [s.config["count"] for s in upstream["trajectory", "b-walk"]] == [0, 0]
    assert [s.config["count"] for s in upstream["trajectory", "b-next"]] == [1, 1]
    raw["methods"]["walk"]["steps"] += 1  # The first run changes; the run that is made from it is fitted again, too.
    monkeypatch.setenv("WALK_LOG", str(tmp_path / "steps"))
    changed = typed(raw, registry)
    make_upstream(branch_of(changed, *asked), data, changed, SETTINGS)
    assert (tmp_path / "steps").read_text().count("\n") == 2 * (6 + 4)


EVALUATE = EvaluateConfig(calibration_bins=15, batch=1000, joint_pairs=0)
PLAIN = {"name": "convnet", "width": 4, "blocks": 2, "norm": "none"}
SEARCHES: dict[str, tuple[str, str, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    # what diverges: (method, task, numbers in place of the smallest case's, a sample that diverges, one that does not)
    "a chain": ("sgmcmc", "regression", {}, {"sampler.step_size.value": 1e3}, {"sampler.step_size.value": 1e-4}),
    "a coreset": ("vbpc", "classification", {"network": PLAIN}, {"coreset.lr": 1e30}, {"coreset.lr": 1e-2}),
    "its pool": ("vbpc", "classification", {"network": PLAIN}, {"coreset.pool.lr": 1e30}, {"rho": 2.0}),
    "its student": ("vbpc", "classification", {"network": PLAIN}, {"student.lr": 1e30}, {"student.lr": 1e-3}),
    "a network": ("bnn", "regression", {}, {"training.optimiser.lr": 1e30}, {"training.optimiser.lr": 1e-3}),
    "an exact layer": ("gbll", "regression", {}, {"optimiser.lr": 1e30}, {"optimiser.lr": 1e-3}),
    "inducing weights": ("ffg_u", "regression", {}, {"training.optimiser.lr": 1e30}, {"training.optimiser.lr": 1e-3}),
}


def chain_of(name: str, task: str, numbers: dict[str, Any], members: int = 1) -> trial.Branch:
    """Return a branch of all stages of the method, with the hyperparameters of its smallest case."""
    method, rows, below = METHODS[name], list[Run](), "prepare/data"
    merged = config.merge(CONFIGS[name, task], numbers)
    for kind in ("teacher", "coreset", "student"):
        if kind in method.stages:
            entry = RunSpec("data", name, members, below, setting="s")
            sources = {row.kind: row.key for row in rows[-1:]}
            rows.append(Run(kind, "key", entry, method, config.read(method.config, merged, name), sources))  # type: ignore[arg-type]
            below = f"{kind}/key"
    return trial.Branch(tuple(rows), seed=0)


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[dict[str, float]]]:
    """A function that runs a trial of each sample, and returns what each reports at its end."""
    from ray import tune

    def run(chain: trial.Branch, data: FitData, *samples: dict[str, Any]) -> list[dict[str, float]]:
        reported = list[dict[str, float]]()
        monkeypatch.setattr(tune, "report", lambda metrics, checkpoint=None: reported.append(metrics))
        monkeypatch.setattr(tune, "get_checkpoint", lambda: None)
        for sample in samples:
            trial.trial(sample, chain, data, {})
        return [metrics for metrics in reported if metrics[trial.TIME] == trial.MILESTONES]

    return run


@pytest.mark.ray
@pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES.keys())
def test_a_diverged_trial_is_reported_and_the_next_trial_is_scored(
    search: Any, tiny: dict[str, FitData], tried: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """A trial prints the fit's error, one line that says what to lower."""
    name, task, numbers, diverging, sound = search
    chain = chain_of(name, task, numbers)
    first, last = tried(chain, tiny[task], diverging, sound)
    assert first[trial.METRIC] == trial.DIVERGED and last[trial.METRIC] < 1e4
    samples = [{**sample, trial.SEED: 0} for sample in (diverging, sound)]
    first, last = tried(replace(chain, evaluate=EVALUATE, verb="study"), tiny[task], *samples)
    assert not {trial.METRIC, "nll"} & {*first} and "nll" in last
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and all("lower" in line for line in lines)


@pytest.mark.ray
def test_a_sample_with_invalid_hyperparameters_is_reported_as_diverged(
    tiny: dict[str, FitData], tried: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """A search space cannot state rules between its numbers, for example at least as many steps as epochs ahead."""
    reported = tried(chain_of("vbpc", "classification", {}), tiny["classification"], {"coreset.steps": 0})
    assert reported == [{trial.METRIC: trial.DIVERGED, trial.TIME: trial.MILESTONES}]
    assert capsys.readouterr().out == "methods.vbpc.coreset.steps must be > 0, got 0\n"
