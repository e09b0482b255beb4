"""The baselines against averages formed by hand from the trajectories' last snapshots."""

import pytest
import torch

from bdl_pipe.artifacts import State, stack
from bdl_pipe.baselines.deterministic import DETERMINISTIC, DeterministicConfig
from bdl_pipe.baselines.ensemble import ENSEMBLE, EnsembleConfig
from bdl_pipe.config import to_mapping
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.errors import ArtifactError, ConfigError
from bdl_pipe.method import Method
from bdl_pipe.networks import MlpConfig
from bdl_pipe.posterior import NetworkSpec
from bdl_pipe.progress import Silent
from bdl_pipe.registry import posterior_of
from bdl_pipe.seeds import Seed

SPEC = NetworkSpec(MlpConfig("mlp", (4,)), (1, 8, 8), 3, "categorical")


def trajectory(member: int, spec: NetworkSpec = SPEC) -> State:
    return State(stack([spec.build(Seed(member).fold(e)).state_dict() for e in range(3)]), {"spec": to_mapping(spec)})


def student(method: Method, data: FitData, members: list[State], config: object) -> State:
    make = method.stages["student"].fit_one
    return make(data, {"trajectory": members}, config, rng=Seed(0), report=Silent())


def probabilities(inputs: torch.Tensor, member: int) -> torch.Tensor:
    with torch.no_grad():
        return torch.softmax(SPEC.build(Seed(member).fold(2))(inputs), -1)


def test_deterministic_is_the_last_snapshot(tiny_images: FitData) -> None:
    inputs, _ = tiny_images.tensors("validation")
    state = student(DETERMINISTIC, tiny_images, [trajectory(5)], DeterministicConfig())
    mean = posterior_of(state).predict(inputs, rng=Seed(0)).mean
    torch.testing.assert_close(mean, probabilities(inputs, 5))


def test_the_ensemble_averages_probabilities(tiny_images: FitData) -> None:
    inputs, _ = tiny_images.tensors("validation")
    state = student(ENSEMBLE, tiny_images, [trajectory(m) for m in range(3)], EnsembleConfig())
    mean = posterior_of(state).predict(inputs, rng=Seed(0)).mean
    torch.testing.assert_close(mean, sum(probabilities(inputs, m) for m in range(3)) / 3)


def test_an_ensemble_is_of_one_network(tiny_images: FitData) -> None:
    other = NetworkSpec(MlpConfig("mlp", (5,)), (1, 8, 8), 3, "categorical")
    with pytest.raises(ConfigError, match="ensemble must be made of trajectories of one network"):
        student(ENSEMBLE, tiny_images, [trajectory(0), trajectory(1, other)], EnsembleConfig())


def test_what_the_registry_lacks() -> None:
    with pytest.raises(ArtifactError, match=r"posterior must be one of .*network_draws.*, got 'None'"):
        posterior_of(State())
