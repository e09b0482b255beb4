"""The start of a fit at a trajectory, and the networks and settings that are refused with it."""

import pytest
import torch

from bdl_pipe.artifacts import State
from bdl_pipe.config import read
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.errors import ConfigError
from bdl_pipe.networks import MlpConfig, build
from bdl_pipe.progress import Silent
from bdl_pipe.registry import METHODS
from bdl_pipe.seeds import Seed
from bdl_pipe.training.fit import last_snapshot
from bdl_pipe.training.learner import TrainingConfig, begin
from bdl_pipe.training.loop import OptimiserConfig
from tests.baselines.cases import trajectory
from tests.cases import CASES, CONFIGS, Case
from tests.conftest import make_tiny_images, make_tiny_table

NETWORK = MlpConfig("mlp", (6, 5))
LEARN = TrainingConfig(4, 32, OptimiserConfig("adam", 1e-2))


def test_a_fit_without_a_trajectory_starts_at_fresh_weights() -> None:
    for inputs in ({}, {"trajectory": []}):
        assert last_snapshot(inputs, NETWORK, LEARN, make_tiny_table()) is None
    fresh, kept = (build(NETWORK, (4,), 1, rng=Seed(0)) for _ in range(2))
    for name, value in begin(kept, None).state_dict().items():
        assert torch.equal(value, fresh.state_dict()[name])


@pytest.mark.parametrize("data", [make_tiny_images(), make_tiny_table()], ids=["classes", "numbers"])
def test_the_start_is_the_last_snapshot_without_log_variances(data: FitData) -> None:
    path = trajectory(NETWORK, data)
    start = last_snapshot({"trajectory": [path]}, NETWORK, LEARN, data)
    begun = begin(build(NETWORK, data.input_shape, data.outputs, rng=Seed(0)), start).state_dict()
    for name, snapshots in path.tensors.items():
        last = snapshots[-1, : data.outputs] if name.startswith("head.") else snapshots[-1]
        assert torch.equal(begun[name], last)
        assert "bias" in name or not torch.equal(snapshots[0], snapshots[1])  # otherwise the first snapshot would pass


def trains(case: Case) -> bool:
    """Return whether a method trains from the end of a trajectory; chains also start there (test_method.py)."""
    section = CONFIGS[case.method, case.task]
    optional = case.stage.input_optional and "trajectory" in case.stage.needs
    return optional and ("training" in section or "optimiser" in section)


@pytest.mark.parametrize("case", {c.stage.fit or c.stage.fit_many: c for c in filter(trains, CASES)}.values(), ids=str)
def test_another_network_and_early_stopping_are_refused_with_a_trajectory(case: Case) -> None:
    method, section = METHODS[case.method], CONFIGS[case.method, case.task]
    data = make_tiny_images() if case.task == "classification" else make_tiny_table()

    def make(network: object, early_stopping: object) -> State:
        constant = {"optimiser": section["optimiser"] | {"schedule": "constant"}} if "training" not in section else {}
        training = section.get("training", section | constant) | {"early_stopping": early_stopping}
        whole = section | {"training": training} if "training" in section else training
        config = read(method.config, whole | {"network": network}, "methods.x")
        return case.stage.fit_one(data, {"trajectory": [path]}, config, rng=Seed(0), report=Silent())

    path = trajectory(MlpConfig("mlp", (6,)), data)
    with pytest.raises(ConfigError, match=r"^network must be the trajectory's .*\(6,\).*, got .*\(6, 5\)"):
        make({"name": "mlp", "hidden": [6, 5]}, None)
    with pytest.raises(ConfigError, match=r"^(training\.)?early_stopping must be null with a trajectory as input"):
        make({"name": "mlp", "hidden": [6]}, {"every": 1, "patience": None})
