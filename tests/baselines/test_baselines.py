"""The deterministic baseline and the ensemble against last snapshots by hand; the fits of BNN, dropout and TabM."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from bdl_pipe.artifacts import State, stack
from bdl_pipe.baselines.bnn import BnnConfig, BnnPosterior
from bdl_pipe.baselines.deterministic import DETERMINISTIC, DeterministicConfig
from bdl_pipe.baselines.dropout import DropoutConfig, DropoutPosterior
from bdl_pipe.baselines.ensemble import ENSEMBLE, EnsembleConfig
from bdl_pipe.config import to_mapping
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.errors import ArtifactError, ConfigError
from bdl_pipe.method import FitMany, Method
from bdl_pipe.networks import MlpConfig
from bdl_pipe.posterior import NetworkSpec
from bdl_pipe.progress import Silent
from bdl_pipe.registry import posterior_of
from bdl_pipe.seeds import Seed
from tests.baselines.cases import LEARN, STILL, table, trajectory

SPEC = NetworkSpec(MlpConfig("mlp", (4,)), (1, 8, 8), 3, "categorical")


def past(member: int, spec: NetworkSpec = SPEC) -> State:
    return State(stack([spec.build(Seed(member).fold(e)).state_dict() for e in range(3)]), {"spec": to_mapping(spec)})


def student(method: Method, data: FitData, members: list[State], config: object) -> State:
    make = method.stages["student"].fit_one
    return make(data, {"trajectory": members}, config, rng=Seed(0), report=Silent())


@torch.no_grad()
@pytest.mark.parametrize(
    ("method", "config", "members"),
    [(DETERMINISTIC, DeterministicConfig(), [5]), (ENSEMBLE, EnsembleConfig(), range(3))],
)
def test_the_last_snapshots_predict_and_an_ensemble_averages_their_probabilities(
    method: Method, config: object, members: Sequence[int], tiny_images: FitData
) -> None:
    inputs, _ = tiny_images.tensors("validation")
    state = student(method, tiny_images, [past(m) for m in members], config)
    last = [torch.softmax(SPEC.build(Seed(m).fold(2))(inputs), -1) for m in members]
    torch.testing.assert_close(posterior_of(state).predict(inputs, rng=Seed(0)).mean, sum(last) / len(last))


def test_an_ensemble_of_different_networks_is_refused(tiny_images: FitData) -> None:
    other = NetworkSpec(MlpConfig("mlp", (5,)), (1, 8, 8), 3, "categorical")
    with pytest.raises(ConfigError, match="ensemble must be made of trajectories of one network"):
        student(ENSEMBLE, tiny_images, [past(0), past(1, other)], EnsembleConfig())


def test_a_state_that_names_no_posterior_is_refused() -> None:
    with pytest.raises(ArtifactError, match=r"posterior must be one of .*network_draws.*, got 'None'"):
        posterior_of(State())


NETWORK = MlpConfig("mlp", (6, 5))
BNN = BnnConfig(NETWORK, LEARN, "all", initial_sd=0.02, draws=20, validation_draws=2)
DROPOUT = DropoutConfig(NETWORK, LEARN, rate=0.05, draws=20, validation_draws=2)
HEAD = dataclasses.replace(BNN, stochastic="head")


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
    states = fit(data, inputs, still, rngs=rngs, report=Silent())
    for state, path in zip(states, paths, strict=True):
        assert torch.equal(state.tensors[trunk], path.tensors["trunk.1.weight"][-1])
        assert torch.equal(state.tensors[head], path.tensors["head.weight"][-1, :1])  # without the log-variance
