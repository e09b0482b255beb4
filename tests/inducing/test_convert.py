"""The conversion of layers, and the errors for networks that cannot be converted."""

import pytest
import torch
from torch import nn

from bdl_pipe.errors import ConfigError, UserError
from bdl_pipe.inducing import bayesianize
from bdl_pipe.inducing.layers import Inducing
from bdl_pipe.inducing.weightspace import FactorisedWeights, FullCovarianceWeights, LocalLayer
from tests.case_files import cases_of, tupled

from .cases import conv_net, normal

cases = cases_of(__file__)


def test_the_first_pattern_that_fits_a_layer_chooses_its_distribution() -> None:
    net = bayesianize(conv_net(), {"7": {"kind": "fcg_w"}, "3": {"rows": 5}, "[37]": {"kind": "ffg_w"}}, cols=6)
    assert sorted(net.layers) == ["3", "7"]
    assert isinstance(net.layers["7"], FullCovarianceWeights) and isinstance(net.layers["3"], Inducing)
    assert net.layers["3"].posterior.mean.shape == (5, 6)
    assert isinstance(net.network[0].weight, nn.Parameter)
    assert net(normal(2, 3, 6, 6)).shape == (2, 3)


def test_layers_of_a_pattern_with_none_and_of_no_pattern_stay_point_estimates() -> None:
    net = bayesianize(conv_net(), {"[03]": None, "*": {"kind": "ffg_w"}})
    assert sorted(net.layers) == ["7"]
    assert isinstance(net.network[0].weight, nn.Parameter) and isinstance(net.network[7], LocalLayer)
    odd = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 2))
    for patterns in ({"0": None, "*": {"kind": "ffg_w"}}, {"1": {}}):
        assert sorted(bayesianize(odd, patterns).layers) == ["1"]


def test_a_layer_in_two_places_is_converted_once() -> None:
    layer = nn.Linear(3, 3)
    net = bayesianize(nn.Sequential(layer, nn.Tanh(), layer), "ffg_w")
    assert sorted(net.layers) == ["0"] and isinstance(net.layers["0"], FactorisedWeights)
    assert isinstance(net.network[0], LocalLayer) and net.network[0] is net.network[2]


class Attention(nn.Module):
    """Layers with names that are also methods of the dictionary that holds their distributions."""

    def __init__(self) -> None:
        super().__init__()
        self.keys, self.shared, self.network = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.network(self.shared(self.keys(inputs)))


def test_layers_with_the_names_of_dictionary_methods_are_converted() -> None:
    net = bayesianize(Attention(), rows=2, cols=2, shared=(2, 2))
    assert sorted(net.layers) == ["keys/", "network", "shared"]
    net(normal(2, 3)).sum().backward()
    assert all(p.grad is not None for p in net.parameters())


def tied() -> nn.Module:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    return nn.Sequential(first, second)


class Token(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 1, 4))


UNFIT = [
    (bayesianize(nn.Linear(2, 2)), "Bayesian"),
    (nn.Sequential(nn.Linear(2, 2), nn.ConvTranspose2d(3, 4, 2)), r"layer '1' \(ConvTranspose2d\) cannot be converted"),
    (nn.Sequential(nn.LSTM(3, 4)), r"layer '0' \(LSTM\)"),
    (nn.Sequential(nn.Embedding(3, 4)), r"layer '0' \(Embedding\)"),
    (nn.ModuleDict({"attention": nn.MultiheadAttention(4, 2)}), r"layer 'attention' \(MultiheadAttention\)"),
    (nn.Sequential(nn.Linear(2, 2), Token()), r"layer '1' \(Token\)"),
    (nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(3, 4))), r"layer '0' \(ParametrizedLinear\)"),
    (tied(), r"layer '1' \(Linear\) cannot be converted: it shares its weight with '0'"),
    (nn.Sequential(nn.ReLU(), nn.BatchNorm1d(3)), "no linear or convolutional layer"),
]


@pytest.mark.parametrize(("network", "message"), UNFIT)
def test_a_network_that_cannot_be_converted_is_refused(network: nn.Module, message: str) -> None:
    with pytest.raises(UserError, match=message):
        bayesianize(network)


@cases("options", "options message")
def test_options_that_break_their_rule_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        bayesianize(conv_net(), **{"full_limit": 4000} | tupled(options))
