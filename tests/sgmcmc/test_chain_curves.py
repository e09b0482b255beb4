"""The benchmark's curves of chains: they end at the average's scores and the chains' diagnostics; passes over data."""

import pytest
import torch

from bdl_pipe.config import read
from bdl_pipe.posterior import NetworkDraws
from bdl_pipe.predictive import Categorical
from bdl_pipe.progress import Silent
from bdl_pipe.seeds import Seed
from bdl_pipe.sgmcmc import diagnostics
from bdl_pipe.sgmcmc.method import average, teacher
from bdl_pipe.sgmcmc.sampler import SamplerConfig
from benchmarks.chain_curves import POINTS, Chains, page
from tests.sgmcmc import cases

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
