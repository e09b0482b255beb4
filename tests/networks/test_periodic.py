"""The periodic encoding of numbers: its values, a perceptron of encoded rows, and the rule of its key."""

import math
from typing import Any

import pytest
import torch

from bdl_pipe.config import read
from bdl_pipe.errors import ConfigError
from bdl_pipe.networks import MlpConfig, build
from bdl_pipe.networks.periodic import Periodic
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
