"""What the baselines that are trained by draws share: that they fit, and where they start."""

import dataclasses
from typing import Any

import pytest
import torch

from bdl_pipe.baselines.bnn import BnnConfig, BnnPosterior
from bdl_pipe.baselines.dropout import DropoutConfig, DropoutPosterior
from bdl_pipe.method import FitMany
from bdl_pipe.networks import MlpConfig
from bdl_pipe.progress import Silent
from bdl_pipe.registry import posterior_of
from bdl_pipe.seeds import Seed
from bdl_pipe.training.loop import OptimiserConfig
from tests.baselines.cases import LEARN, STILL, table, trajectory
from tests.conftest import make_tiny_table

NETWORK = MlpConfig("mlp", (6, 5))
BNN = BnnConfig(NETWORK, LEARN, "all", initial_sd=0.02, draws=20, validation_draws=2)
DROPOUT = DropoutConfig(NETWORK, LEARN, rate=0.05, draws=20, validation_draws=2)
HEAD = dataclasses.replace(BNN, stochastic="head")


@pytest.mark.parametrize(
    ("fit", "config"), [(BnnPosterior.fit, BNN), (DropoutPosterior.fit, DROPOUT)], ids=["bnn", "dropout"]
)
def test_it_fits_what_can_be_fitted(fit: FitMany, config: Any) -> None:
    how = dataclasses.replace(LEARN, epochs=120, batch=80, optimiser=OptimiserConfig("adam", 2e-2, "one_cycle"))
    data = make_tiny_table()
    config = dataclasses.replace(config, network=MlpConfig("mlp", (20,)), training=how)
    (state,) = fit([data], [{}], config, rngs=[Seed(0)], report=Silent())
    inputs, targets = data.tensors("validation")
    predictive = posterior_of(state).predict(inputs, rng=Seed(0))
    assert (predictive.mean - targets).square().mean() < 0.3 * targets.var()
    assert (predictive.epistemic_variance > 0).all()


@pytest.mark.parametrize(
    ("fit", "config", "trunk", "head"),
    [
        (BnnPosterior.fit, BNN, "random.module.trunk.1.weight", "random.module.head.weight"),
        (BnnPosterior.fit, HEAD, "fixed.1.weight", "random.module.weight"),
        (DropoutPosterior.fit, DROPOUT, "network.trunk.1.weight", "network.head.weight"),
    ],
    ids=["bnn", "bnn-head", "dropout"],
)
def test_each_member_starts_at_the_end_of_its_trajectory(fit: FitMany, config: Any, trunk: str, head: str) -> None:
    data, rngs = [table(m) for m in range(2)], [Seed(1).fold(m) for m in range(2)]
    paths = [trajectory(NETWORK, d, seed) for d, seed in zip(data, (3, 4), strict=True)]
    still, inputs = dataclasses.replace(config, training=STILL), [{"trajectory": [path]} for path in paths]
    made = fit(data, inputs, still, rngs=rngs, report=Silent())
    for state, path in zip(made, paths, strict=True):
        assert torch.equal(state.tensors[trunk], path.tensors["trunk.1.weight"][-1])
        assert torch.equal(state.tensors[head], path.tensors["head.weight"][-1, :1])  # without the log-variance
