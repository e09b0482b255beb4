"""A search continues after a sample whose fit diverges, whichever part of the method raises the error."""

from dataclasses import replace
from typing import Any

import pytest

from bdl_pipe import config
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.errors import UserError
from bdl_pipe.evaluation import EvaluateConfig
from bdl_pipe.progress import Silent
from bdl_pipe.registry import METHODS
from pipeline.core.model import Run, RunSpec
from pipeline.search import trial
from tests.cases import CONFIGS

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


@pytest.mark.ray
@pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES.keys())
def test_a_diverged_trial_is_reported_and_the_next_trial_is_scored(
    search: Any, tiny: dict[str, FitData], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray import tune

    name, task, numbers, diverging, sound = search
    reported = list[dict[str, float]]()
    monkeypatch.setattr(tune, "report", lambda metrics, checkpoint=None: reported.append(metrics))
    monkeypatch.setattr(tune, "get_checkpoint", lambda: None)
    chain = chain_of(name, task, numbers)
    for sample in (diverging, sound):
        trial.trial(sample, chain, tiny[task], {})
    first, last = [metrics for metrics in reported if metrics[trial.TIME] == trial.MILESTONES]
    assert first[trial.METRIC] == trial.DIVERGED
    assert last[trial.METRIC] < 1e4
    reported.clear()
    for sample in (diverging, sound):
        trial.trial({**sample, trial.SEED: 0}, replace(chain, evaluate=EVALUATE, verb="study"), tiny[task], {})
    first, last = [metrics for metrics in reported if metrics[trial.TIME] == trial.MILESTONES]
    assert not {trial.METRIC, "nll"} & {*first}
    assert "nll" in last


@pytest.mark.ray
def test_a_sample_with_invalid_hyperparameters_is_reported_as_diverged(
    tiny: dict[str, FitData], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A search space cannot state rules between its numbers, for example at least as many steps as epochs ahead."""
    from ray import tune

    reported = list[dict[str, float]]()
    monkeypatch.setattr(tune, "report", lambda metrics, checkpoint=None: reported.append(metrics))
    trial.trial({"coreset.steps": 0}, chain_of("vbpc", "classification", {}), tiny["classification"], {})
    assert reported == [{trial.METRIC: trial.DIVERGED, trial.TIME: trial.MILESTONES}]
    assert capsys.readouterr().out == "methods.vbpc.coreset.steps must be > 0, got 0\n"


@pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES.keys())
def test_a_diverged_fit_is_one_line_that_says_what_to_lower(search: Any, tiny: dict[str, FitData]) -> None:
    name, task, numbers, diverging, _ = search
    chain = chain_of(name, task, numbers)
    configs = chain.configs(diverging)
    with pytest.raises(UserError, match=r"\A[^\n]*lower[^\n]*\Z"):
        chain.finish(chain.make(tiny[task], {}, configs, Silent()), tiny[task], configs, {})
