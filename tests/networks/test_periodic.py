"""The periodic encoding of numbers: its values, a perceptron of encoded rows, and the rule of its key."""

import math
from typing import Any

import pytest
import torch

from bdl_pipe.config import read
from bdl_pipe.errors import ConfigError
from bdl_pipe.networks import MlpConfig, build
from bdl_pipe.networks.mlp import Periodic
from bdl_pipe.seeds import Seed

FREQUENCIES = (0.1, 0.35)


def test_the_encoding_matches_its_formula() -> None:
    encoded = Periodic(FREQUENCIES).double()(torch.tensor([[0.0, 2.5], [-1.0, 3.0]], dtype=torch.float64))
    for row, numbers in enumerate([[0.0, 2.5], [-1.0, 3.0]]):
        expected = []
        for x in numbers:
            angles = [2 * math.pi * c * x for c in FREQUENCIES]
            expected += [x, *(math.sin(a) for a in angles), *(math.cos(a) - 1 for a in angles)]
        assert encoded[row].tolist() == pytest.approx(expected, abs=1e-6)


def test_a_periodic_perceptron_equals_a_plain_perceptron_of_encoded_rows() -> None:
    config = MlpConfig("mlp", (6,), "mish", frequencies=FREQUENCIES)
    network = build(config, (3,), 2, rng=Seed(4))
    plain = build(MlpConfig("mlp", (6,), "mish"), (15,), 2, rng=Seed(4))
    plain.load_state_dict({name.replace("trunk.2.", "trunk.1."): v for name, v in network.state_dict().items()})
    rows = torch.randn(5, 3, generator=Seed(5).generator())
    assert torch.equal(network(rows), plain(Periodic(FREQUENCIES)(rows)))
    assert sorted(network.state_dict()) == ["head.bias", "head.weight", "trunk.2.bias", "trunk.2.weight"]


def test_inputs_that_are_not_encoded_stay_as_they_are_and_lose_no_function() -> None:
    some = build(MlpConfig("mlp", (6,), frequencies=FREQUENCIES, encoded=(1,)), (3,), 2, rng=Seed(4))
    every = build(MlpConfig("mlp", (6,), frequencies=FREQUENCIES), (3,), 2, rng=Seed(4))
    rows = torch.randn(5, 3, generator=Seed(5).generator())
    rows[:, 0], rows[:, 2] = torch.tensor([0.0, 1, 1, 0, 1]), 0.5
    assert isinstance(some.trunk, torch.nn.Sequential) and isinstance(every.trunk, torch.nn.Sequential)
    features = some.trunk[1](rows)
    assert features.shape == (5, 7)
    assert torch.equal(features[:, :3], rows)
    assert torch.equal(features[:, 3:], Periodic(FREQUENCIES)(rows[:, 1:2])[:, 1:])
    # Input 0 is 0 or 1, so its five features are multiples of it, and one weight can replace their five weights.
    angles = 2 * math.pi * torch.tensor(FREQUENCIES)
    at_one = torch.cat([torch.ones(1), angles.sin(), angles.cos() - 1])
    weight, state = every.trunk[2].weight, some.state_dict()
    state["trunk.2.weight"] = torch.cat([weight[:, :5] @ at_one[:, None], weight[:, 5:6], torch.zeros(6, 1)], 1)
    state["trunk.2.weight"] = torch.cat([state["trunk.2.weight"], weight[:, 6:10]], 1)
    state |= {name: value for name, value in every.state_dict().items() if name != "trunk.2.weight"}
    some.load_state_dict(state)
    rows[:, 2] = 0
    assert torch.allclose(some(rows), every(rows), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("key", "rule"),
    [
        ({"encoded": [0]}, "needs frequencies"),
        ({"frequencies": [0.1], "encoded": [1, 1]}, "each once"),
        ({"frequencies": [0.1], "encoded": [-1]}, "must be indices"),
    ],
)
def test_encoded_inputs_must_be_inputs(key: dict[str, Any], rule: str) -> None:
    with pytest.raises(ConfigError, match=rule):
        read(MlpConfig, {"name": "mlp", "hidden": [3], **key}, "network")


def test_an_encoded_input_that_the_rows_lack_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"encoded must be indices of the 3 inputs, got \[3\]"):
        build(MlpConfig("mlp", (3,), frequencies=(0.1,), encoded=(3,)), (3,), 2, rng=Seed(0))


def test_mish_matches_its_formula() -> None:
    network = build(MlpConfig("mlp", (4,), "mish"), (3,), 0, rng=Seed(0)).double()
    rows = torch.randn(7, 3, generator=Seed(1).generator(), dtype=torch.float64)
    assert isinstance(network.trunk, torch.nn.Sequential)
    before = network.trunk[:2](rows)
    assert torch.allclose(network(rows), before * torch.log1p(before.exp()).tanh(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("frequencies", [[0.0], [-1.0], [0.1, 0.0]])
def test_frequencies_that_are_not_positive_are_refused(frequencies: list[Any]) -> None:
    with pytest.raises(ConfigError, match=r"frequencies must be > 0"):
        read(MlpConfig, {"name": "mlp", "hidden": [3], "frequencies": frequencies}, "network")
