"""One-row updates against conditioning the fitted Gaussian over functions in dense float64."""

import numpy as np
import pytest
import torch

from bdl_decisions import Agent
from bdl_decisions.recursive import recursive
from bdl_pipe.seeds import Seed

RANDOM = np.random.default_rng(3)
ROWS = RANDOM.normal(size=(24, 3))
TARGETS = np.sin(ROWS[:, 0]) + ROWS[:, 1] + 0.1 * RANDOM.normal(size=24)
EXACT = {"layer": {"posterior": "exact"}}
AGENTS = {
    "linear": Agent("thompson", "linear", updates=True),
    "map_blr": Agent("thompson", "map_blr", updates=True),
    "gbll": Agent("thompson", "gbll", updates=True),
    "gbll, noise of each input": Agent("thompson", "gbll", updates=True, override={"noise": "each input"}),
    "vbll": Agent("thompson", "vbll", updates=True),
    "vbll exact": Agent("thompson", "vbll", updates=True, override=EXACT),
    "vbll, noise of each input": Agent("thompson", "vbll", updates=True, override={"layer": {"noise": "each input"}}),
}


@pytest.mark.parametrize("name", AGENTS)
def test_updates_equal_conditioning_the_fitted_posterior_on_the_new_rows(name: str) -> None:
    """Against conditioning the fitted posterior's own Gaussian over functions at old and new inputs (Bishop 2.81)."""
    belief = AGENTS[name].fit(ROWS[:16], TARGETS[:16], (), Seed(0))
    assert belief is not None and belief.learns
    predictor = belief._predictor
    inputs, after = predictor.transform.inputs(ROWS), predictor.transform.targets(TARGETS[16:, None]).double()[:, 0]
    fitted = predictor.posterior.functions(inputs[None], rng=Seed(0))
    mean, covariance = fitted.mean[0, 0, :, 0].double(), fitted.covariance[0, 0, 0].double()
    before = recursive(predictor.posterior)
    assert before is not None
    start = before.functions(inputs[None], rng=Seed(0))
    assert torch.allclose(start.mean[0, 0, :, 0], mean, atol=2e-4)
    assert torch.allclose(start.covariance[0, 0, 0], covariance, atol=2e-3 * float(covariance.diagonal().max()))

    old, new = slice(0, 16), slice(16, 24)
    each = fitted.noise[0, 0, new, 0].double() if "each" in name else fitted.noise[0, 0].double().expand(8)
    assert ("each" in name) == (float(each.std()) > 0)
    noisy = covariance[new, new] + each.diag()
    gain = covariance[old, new] @ torch.linalg.inv(noisy)
    expected = mean[old] + gain @ (after - mean[new])
    left = covariance[old, old] - gain @ covariance[new, old]
    for row in range(16, 24):
        belief.learn(ROWS[[row]], TARGETS[[row]])
    found = belief._updated.functions(inputs[None, old], rng=Seed(0))
    assert torch.allclose(found.mean[0, 0, :, 0], expected, atol=2e-3)
    assert torch.allclose(found.covariance[0, 0, 0], left, atol=2e-3 * float(covariance.diagonal().max()))
    phi = before.features(inputs[new]).double()
    added = belief._updated.layer.precision - before.layer.precision
    assert torch.allclose(added, phi.mT @ (phi / each[:, None]), rtol=1e-5, atol=1e-6 * float(added.abs().max()))
