"""The whole network: the conversion of layers, where noise comes from, batching, torch's machinery."""

import copy
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bdl_pipe.errors import ConfigError, UserError
from bdl_pipe.inducing import bayesianize, kl, prune
from bdl_pipe.inducing.layers import Inducing
from bdl_pipe.inducing.weightspace import FactorisedWeights, FullCovarianceWeights, LocalLayer
from bdl_pipe.seeds import Seed
from tests.case_files import cases_of, tupled

from .cases import ALL, RIVALS, conv_net, mlp, normal, one_noise, shaken

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("kind", (*ALL, *RIVALS))
def test_every_parameter_gets_a_gradient(kind: str) -> None:
    net = bayesianize(conv_net(), kind, rows=3, cols=4)
    fit = F.cross_entropy(net(normal(12, 3, 6, 6)), torch.arange(12) % 3)
    (fit + kl(net)).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())


def test_conversion_leaves_the_given_network_unchanged() -> None:
    plain = conv_net()
    before, net = copy.deepcopy(plain.state_dict()), bayesianize(plain)
    with torch.no_grad():
        for p in net.parameters():
            p.add_(1)
    assert all(torch.equal(v, plain.state_dict()[k]) for k, v in before.items())
    assert isinstance(plain[0].weight, nn.Parameter)


def test_the_global_random_state_is_neither_read_nor_changed() -> None:
    plain = conv_net()
    state = torch.random.get_rng_state()
    first = bayesianize(plain, rng=Seed(4)).eval()(normal(2, 3, 6, 6))
    assert torch.equal(state, torch.random.get_rng_state())
    torch.manual_seed(99)
    assert torch.equal(first, bayesianize(plain, rng=Seed(4)).eval()(normal(2, 3, 6, 6)))


def test_calls_differ_and_a_reseeded_network_repeats_them() -> None:
    net, inputs = bayesianize(mlp(), "ensemble_u"), normal(2, 3)
    first, second = net(inputs), net(inputs)
    assert not torch.equal(first, second)
    net.reseed(Seed(0))
    assert torch.equal(first, net(inputs)) and torch.equal(second, net(inputs))


_COMPILED = Path(__file__).with_name("compiled.txt").read_text()


@pytest.mark.slow
def test_a_compiled_network_equals_the_eager_network() -> None:
    """All kinds in one network, dense and pruned: in one graph with given noise, and in training, where calls draw it.

    It runs in another process, because the run-time type checks of the tests cannot be compiled.
    """
    ran = subprocess.run([sys.executable, "-c", _COMPILED], capture_output=True, text=True, cwd=ROOT)
    assert ran.stdout.split() == ["equal"], ran.stderr


@pytest.mark.parametrize("kind", (*ALL, *RIVALS))
def test_autocast_rounds_the_network_and_not_the_weights(kind: str) -> None:
    net, inputs = shaken(bayesianize(conv_net(), kind, rows=3, cols=4)).eval(), normal(4, 3, 6, 6)
    noise = one_noise(net)
    exact, weights = net(inputs, noise), net.weights(noise)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded, same = net(inputs, noise), net.weights(noise)
        assert torch.isfinite(kl(net)) and kl(net).dtype == torch.float32
    assert rounded.dtype == torch.bfloat16
    assert all(torch.equal(weights[k], same[k]) for k in weights)
    torch.testing.assert_close(rounded.float(), exact, rtol=0.05, atol=0.05 * float(exact.detach().abs().max()))


@pytest.mark.parametrize("kind", ("ffg_u", "ffg_w"))
@pytest.mark.parametrize("pruned", [False, True])
def test_gradients_under_autocast_are_near_the_exact_gradients(kind: str, pruned: bool) -> None:
    net, inputs, labels = shaken(bayesianize(conv_net(), kind, rows=3, cols=4)), normal(12, 3, 6, 6), torch.arange(12)
    net = (prune(net, 0.3) if pruned else net).eval()
    noise, gradients = one_noise(net), []
    for on in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=on):
            loss = F.cross_entropy(net(inputs, noise), labels % 3) + 1e-3 * kl(net)
        each = torch.autograd.grad(loss, list(net.parameters()))
        assert all(gradient.dtype == torch.float32 for gradient in each)
        gradients.append(torch.cat([gradient.flatten() for gradient in each]))
    exact, rounded = gradients
    assert 0 < (rounded - exact).norm() < 0.03 * exact.norm()


@pytest.mark.parametrize("shared", [None, (3, 2)])
def test_loaded_copied_and_pickled_networks_have_equal_outputs(shared: tuple[int, int] | None) -> None:
    plain = conv_net()
    net = shaken(bayesianize(plain, rows=3, cols=4, shared=shared)).eval()
    other = bayesianize(plain, rows=3, cols=4, shared=shared, rng=Seed(8)).eval()
    other.load_state_dict(net.state_dict())
    noise, inputs = one_noise(net), normal(2, 3, 6, 6)
    expected = net(inputs, noise)
    for twin in (other, copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert torch.equal(twin(inputs, noise), expected)
    assert not any(k.endswith(("weight", "bias")) for k in net.state_dict() if not k.startswith("network.1."))


def test_shared_inducing_weights_tie_layers_together() -> None:
    """One q(U) for all; moving it moves every layer, and the KL counts it once."""
    net = bayesianize(conv_net(), rows=3, cols=4, shared=(2, 2))
    assert all(layer.posterior is None for layer in net.layers.values())
    total = sum(layer.kl(None) for layer in net.layers.values())
    torch.testing.assert_close(kl(net), total + net.shared.weights.kl(None))
    before = net.centre()
    with torch.no_grad():
        net.shared.weights.posterior.mean[0, 0] += 1
    assert all(not torch.equal(before[k], v) for k, v in net.centre().items() if k.endswith("weight"))


def test_all_layers_use_the_same_member_and_draws_take_members_in_turn() -> None:
    net = bayesianize(mlp(), "ensemble_u", members=3, rows=2, cols=2, lambda_max=0)
    noise = net.draw(7, Seed(0).generator())["member"]
    assert noise.shape == (7, 3) and torch.equal(noise.sum(1), torch.ones(7))
    at = noise.argmax(1)
    assert torch.equal((at[1:] - at[:-1]) % 3, torch.ones(6, dtype=torch.int64))
    for k in range(3):
        one = nn.functional.one_hot(torch.tensor(k), 3).float()
        only = bayesianize(mlp(), rows=2, cols=2, lambda_max=0, sd_max=0)
        with torch.no_grad():
            for key, layer in only.layers.items():
                layer.load_state_dict(net.layers[key].state_dict(), strict=False)
                layer.posterior.mean.copy_(net.layers[key].posterior.members[k])
        weights, expected = net.weights({"member": one}), only.weights({})
        assert all(torch.equal(weights[name], expected[name]) for name in expected)


@pytest.mark.parametrize("pruned", [False, True])
def test_data_parallel_with_one_process_has_the_gradients_of_the_network(tmp_path: Path, pruned: bool) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        net = bayesianize(conv_net(), rows=3, cols=4)
        net = prune(net, 0.3) if pruned else net
        alone = copy.deepcopy(net)
        for forward in (DistributedDataParallel(net), alone):
            forward(normal(4, 3, 6, 6)).sum().backward()
        for ours, theirs in zip(net.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad)
    finally:
        dist.destroy_process_group()


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layer(self.layer(inputs))


def test_a_layer_called_twice_draws_one_weight_and_refuses_to_draw_outputs() -> None:
    net, inputs = bayesianize(Twice(), "ffg_w"), normal(2, 3)
    weights = net.weights(one_noise(net))
    matrix, bias = weights["layer.layer.weight"], weights["layer.layer.bias"]
    torch.testing.assert_close(net(inputs, one_noise(net)), F.linear(F.linear(inputs, matrix, bias), matrix, bias))
    with pytest.raises(UserError, match="'layer' is called 2 times"):
        net.train()(inputs)


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
