"""Diagnostics: mixed chains pass, stuck or separated chains give a warning; the benchmark's curves of chains."""

import math
import sys

import pytest
import torch

from bdl_pipe.config import read
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.method import Summary
from bdl_pipe.networks import MlpConfig
from bdl_pipe.posterior import NetworkDraws, NetworkSpec
from bdl_pipe.predictive import Categorical
from bdl_pipe.progress import Silent
from bdl_pipe.seeds import Seed
from bdl_pipe.sgmcmc import diagnostics
from bdl_pipe.sgmcmc.method import average, teacher
from bdl_pipe.sgmcmc.sampler import SamplerConfig
from benchmarks.chain_curves import POINTS, Chains, page
from tests.sgmcmc import cases

CONFIG = diagnostics.DiagnosticsConfig(rows=6, max_rhat=1.05, min_ess=100)
LIMITS = diagnostics.DiagnosticsConfig(rows=6, max_rhat=1.1, min_ess=50)
NAMES = ("rhat_log_likelihood", "ess_log_likelihood", "rhat_prediction", "ess_prediction", "ess_tail_prediction")


def summarise(chains: list[NetworkDraws], data: FitData | None = None) -> Summary:
    return diagnostics.over_splits([diagnostics.of_split(chains, data or cases.table(), CONFIG)], CONFIG)


def figures(*values: float) -> dict[str, float]:
    return dict(zip(NAMES, values, strict=True))


def chain(member: int, draws: int, shift: float = 0.0, memory: float = 0.0) -> NetworkDraws:
    """A chain whose network is a constant plus AR(1) noise of coefficient ``memory`` around ``shift``."""
    spec = NetworkSpec(MlpConfig("mlp", (2,)), (2,), 1, "gaussian", 1.0)
    zero = {k: torch.zeros(draws, *v.shape) for k, v in spec.build(Seed(0)).state_dict().items()}
    noise = torch.randn(draws, generator=Seed(member).generator())
    path = [noise[0]]
    for z in noise[1:]:
        path.append(memory * path[-1] + math.sqrt(1 - memory**2) * z)
    return NetworkDraws(spec, zero | {"head.bias": shift + torch.stack(path)[:, None]})


def test_traces_are_the_functionals_of_each_chain():
    """The network is a constant, so that all rows have its prediction; traces are rounded to five digits."""
    chains = [chain(m, 5) for m in range(2)]
    traces = summarise(chains).traces
    assert list(traces) == ["log-likelihood", *(f"prediction of row {row}" for row in range(3))]
    biases = [c.weights["head.bias"][:, 0].tolist() for c in chains]
    for row in range(3):
        assert [pytest.approx(values, rel=1e-4) for values in biases] == list(traces[f"prediction of row {row}"])
    x, y = cases.table().tensors("train")
    total, _ = diagnostics.functionals(chains[1], x[:6], y[:6])
    assert traces["log-likelihood"][1] == pytest.approx(total.tolist(), rel=1e-4)


def test_independent_draws_pass_the_diagnostics():
    """4×500 independent draws: ESS near 2000 (its standard error is far below the 15 % allowed), R-hat near 1.

    ESS of an AR(1) mean is S (1 − φ)/(1 + φ): 8000·(0.2/1.8) = 889 for φ = 0.8.
    """
    summary = summarise([chain(m, 500) for m in range(4)])
    assert summary.warnings == [] and set(summary.metrics) == {*NAMES}
    assert summary.metrics["rhat_prediction"] < 1.01
    assert summary.metrics["ess_prediction"] == pytest.approx(2000, rel=0.15)
    assert 1000 < summary.metrics["ess_tail_prediction"] < 2500
    correlated = summarise([chain(m, 2000, memory=0.8) for m in range(4)])
    assert correlated.metrics["ess_prediction"] == pytest.approx(889, rel=0.2)


def test_separated_chains_give_a_warning():
    summary = summarise([chain(m, 200, shift=2.0 * m) for m in range(4)])
    assert summary.metrics["rhat_prediction"] > 1.5
    (line,) = summary.warnings
    assert line.startswith("chains disagree and have few effective draws: R-hat ")


def test_too_few_or_equal_draws_and_a_missing_arviz_give_a_warning_and_no_metrics(monkeypatch):
    equal = [chain(0, 10), chain(0, 10)]
    for c in equal:
        c.weights["head.bias"].zero_()
    few = "need 2 chains of 4 draws"
    for chains, words in (([chain(0, 100)], few), ([chain(0, 3), chain(1, 3)], few), (equal, "all equal")):
        summary = summarise(chains)
        assert summary.metrics == {} and words in summary.warnings[0]
    monkeypatch.setitem(sys.modules, "arviz", None)
    summary = summarise([chain(m, 10) for m in range(2)])
    assert summary.metrics == {}
    assert summary.warnings == ["R-hat and ESS were not computed: arviz is not installed"]


def test_only_diagnostics_beyond_a_limit_give_a_warning():
    """At each limit there is no warning; beyond one, a line with the worst R-hat and the fewest effective draws."""
    assert diagnostics.judge(figures(1.1, 50, 1.1, 50, 50), LIMITS) == []
    assert diagnostics.judge({"noise_mean": 9.0}, LIMITS) == []
    draws = "{} effective draws in the bulk and {} in the tails (at least 50)"
    for values, ills, rhat, bulk, tail in (
        ((1.5, 60, 1.2, 70, 80), "disagree", "1.500", "60", "80"),
        ((1.05, 49, 1.06, 70, 80), "have few effective draws", "1.060", "49", "80"),
        ((1.05, 90, 1.06, 70, 12.345), "have few effective draws", "1.060", "70", "12.3"),
        ((1.05, 9, 3.9321, 70, 80), "disagree and have few effective draws", "3.932", "9", "80"),
    ):
        expected = f"chains {ills}: R-hat {rhat} (limit 1.1), {draws.format(bulk, tail)}: run them longer"
        assert diagnostics.judge(figures(*values), LIMITS) == [expected]
    for place in range(5):
        odd = [1.0, 99, 1.0, 99, 99]
        odd[place] = math.nan
        (warning,) = diagnostics.judge(figures(*odd), LIMITS)
        assert warning.startswith("chains are constant or not finite: R-hat ") and "nan" in warning


def test_the_worst_of_several_splits_counts():
    """The mean of the R-hats, 1.075, is within the limit of 1.1, and the mean of the bulk ESS, 75, is above 50."""
    splits = [
        Summary(figures(1.0, 200, 1.0, 110, 60) | {"noise_worst": 3.0}, traces={"a": [[1.0]]}),
        Summary(figures(1.0, 200, 1.15, 40, 90) | {"noise_worst": 2.0}, traces={"a": [[2.0]]}),
        Summary({}, ["the draws' predictions are all equal"]),
    ]
    summary = diagnostics.over_splits(splits, LIMITS)
    assert summary.metrics == figures(1.0, 200, 1.15, 40, 60) | {"noise_worst": 3.0}
    assert summary.traces == {"a": [[1.0]]}
    equal, warning = summary.warnings
    assert equal == "the draws' predictions are all equal (in 1 of 3 splits)"
    assert warning.startswith(
        "chains disagree and have few effective draws: R-hat 1.150 (limit 1.1), 40 effective draws"
    )
    assert warning.endswith(" 60 in the tails (at least 50), each of the worst of 3 splits: run them longer")
    mean = {name: sum(s.metrics[name] for s in splits[:2]) / 2 for name in NAMES}
    assert diagnostics.judge(mean, LIMITS) == []  # the wrong variant


def test_functionals_of_classification_equal_their_definition():
    data = cases.images()
    spec = NetworkSpec(MlpConfig("mlp", (3,)), data.input_shape, 2, "categorical")
    draws = NetworkDraws.of(spec, [dict(spec.build(Seed(i)).state_dict()) for i in range(5)])
    x, y = data.tensors("validation")
    total, each = diagnostics.functionals(draws, x, y)
    by_hand = torch.stack([p[torch.arange(len(y)), y] for p in draws.predict(x).draw_log_probs.exp()])
    torch.testing.assert_close(each, by_hand)
    torch.testing.assert_close(total, by_hand.log().sum(1))


def test_functionals_of_regression_equal_their_definition():
    x, y = cases.table().tensors("train")
    total, each = diagnostics.functionals(chain(0, 3), x, y)
    mean = chain(0, 3).weights["head.bias"]  # the network is its bias
    torch.testing.assert_close(each, mean.expand(-1, len(x)))
    by_hand = torch.stack([torch.distributions.Normal(m, 1.0).log_prob(y).sum() for m in mean])
    torch.testing.assert_close(total, by_hand)


def test_diagnostics_of_data_with_validation_rows_are_finite():
    summary = summarise([chain(m, 50) for m in range(2)], cases.table(40, validation=10))
    assert math.isfinite(summary.metrics["rhat_log_likelihood"])


DATA = {"classification": cases.images(), "regression": cases.table(validation=10)}


@pytest.mark.parametrize("task", DATA)
def test_a_curve_ends_at_the_average_and_the_diagnostics_of_all_draws(task: str) -> None:
    data = DATA[task]
    settings = cases.settings(thinning={"steps": 140, "burn_in": 20, "every": 5})
    rows = list(Chains(data, data.validation, 2, ()).run("name", settings))
    rngs = [Seed(0).fold("chain_curves", "name", chain) for chain in range(2)]
    states = teacher([data] * 2, [{}] * 2, settings, rngs=rngs, report=Silent())
    predictive = average(states).predict(data.transform.inputs(data.validation.inputs))
    targets = torch.tensor(data.validation.targets)
    if not isinstance(predictive, Categorical):
        assert data.transform.shift is not None and data.transform.scale is not None
        predictive = predictive.rescale(data.transform.shift, data.transform.scale)
    assert rows[-1]["nll"] == pytest.approx(-float(predictive.log_prob(targets).mean()), abs=2e-4)
    limits = diagnostics.DiagnosticsConfig(rows=12, max_rhat=1.05, min_ess=100)
    summary = diagnostics.of_split([NetworkDraws.from_state(state) for state in states], data, limits)
    assert rows[-1]["rhat"] == pytest.approx(summary.metrics["rhat_prediction"], abs=1e-3)
    assert rows[-1]["ess"] == pytest.approx(summary.metrics["ess_prediction"], rel=0.05)
    assert len(rows) == POINTS and rows[0]["nll"] != rows[-1]["nll"]
    share = min(1, 16 / len(data.train))
    assert [row["passes"] for row in rows] == pytest.approx(
        [(20 + 10 * point) * share for point in range(1, 13)], abs=0.1
    )


def test_the_page_says_which_rows_a_step_sees() -> None:
    for batch, seen in ((None, "all rows in each step"), (128, "minibatches of 128 rows")):
        text = page("boston", [], {}, batch)
        assert f"Network, prior, {seen} and number of chains are the teacher's" in text and "``" not in text


def test_a_pass_is_one_gradient_of_every_row() -> None:
    data = DATA["classification"]
    chains, plain = Chains(data, data.validation, 2, ()), {"name": "scaled", "rate": 0.1}
    hmc = {"kernel": {"name": "hmc", "leapfrogs": 7}, "step_size": plain, "batch": None}
    sgld = {"kernel": {"name": "sgld"}, "step_size": plain, "batch": 15}
    settings = {name: read(SamplerConfig, section, name) for name, section in (("hmc", hmc), ("sgld", sgld))}
    assert chains.passes(settings["hmc"]) == 7 and chains.passes(settings["sgld"]) == 15 / 60
