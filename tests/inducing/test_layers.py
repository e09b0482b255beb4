"""Converted layers against plain ones: unfolded convolutions, deterministic limits, local reparameterisation."""

import copy

import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import Tensor, nn

from bdl_pipe.inducing import Bayesian, bayesianize
from bdl_pipe.inducing.layers import Inducing

from .cases import ALL, conv_net, normal, one_noise, shaken

CONVOLUTIONS = [
    nn.Conv1d(4, 6, 3, stride=2, padding=1, dilation=2),
    nn.Conv2d(4, 6, (3, 2), padding=(1, 0), dilation=(2, 1), groups=2),
    nn.Conv2d(4, 6, 3, padding="same", padding_mode="circular", bias=False),
    nn.Conv3d(2, 4, 2, stride=(1, 2, 1), groups=2),
]


def patches(layer: nn.Module, inputs: Tensor) -> Tensor:
    """The inputs of a group's outputs: [batch, in/groups·kernel, groups, places], by convolving with unit weights."""
    width = layer.weight[0].numel()
    units = torch.eye(width).reshape(width, *layer.weight.shape[1:])
    found = []
    for part in inputs.chunk(layer.groups, 1):
        probe = copy.deepcopy(layer)
        probe.groups, probe.in_channels, probe.out_channels, probe.bias = 1, part.shape[1], width, None
        probe.weight = nn.Parameter(units)
        found.append(probe(part).flatten(2))
    return torch.stack(found, 2)


@pytest.mark.parametrize("layer", CONVOLUTIONS, ids=str)
@pytest.mark.parametrize("kind", ALL)
def test_a_convolution_equals_the_linear_layer_on_its_patches(layer: nn.Module, kind: str) -> None:
    net = shaken(bayesianize(layer, kind, rows=3, cols=4))
    inputs = normal(2, layer.in_channels, *[6] * (layer.weight.ndim - 2))
    noise = one_noise(net)
    out, inside = layer.weight.shape[0], layer.weight[0].numel()
    drawn = next(iter(net.layers.values()))
    part = {k.removeprefix("network:"): v for k, v in noise.items()}
    matrix = drawn(part, drawn.factors())  # [out, in·kernel (+ 1)]
    assert matrix.shape == (out, inside + (layer.bias is not None))
    seen = patches(layer, inputs).detach()  # [batch, in·kernel, group, place]
    grouped = matrix[:, :inside].unflatten(0, (layer.groups, -1))  # [group, out/group, in·kernel]
    expected = torch.einsum("goi,bigp->bgop", grouped, seen).flatten(1, 2)
    if layer.bias is not None:
        expected = expected + matrix[:, -1, None]
    torch.testing.assert_close(net(inputs, noise).flatten(2), expected, rtol=1e-4, atol=1e-5)


def set_to_means(net: Bayesian, plain: nn.Module) -> nn.Module:
    plain = copy.deepcopy(plain)
    means = {name.replace("layer.", ""): value.detach() for name, value in net.centre().items()}
    plain.load_state_dict(plain.state_dict() | net.network.state_dict() | means)
    return plain


@pytest.mark.parametrize("shared", [None, (3, 2)])
def test_a_network_without_spread_equals_the_network_of_conditional_means(shared: tuple[int, int] | None) -> None:
    plain = conv_net()
    net = shaken(bayesianize(plain, rows=3, cols=4, lambda_max=0, sd_max=0, shared=shared))
    assert net.draw(2, torch.Generator()) == {}
    expected = set_to_means(net, plain)
    inputs = normal(5, 3, 6, 6)
    for training in (True, False):
        torch.testing.assert_close(net.train(training)(inputs), expected.train(training)(inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["ffg_w", "fcg_w"])
def test_weight_space_means_start_at_the_given_weights(kind: str) -> None:
    plain = conv_net().eval()
    net = bayesianize(plain, kind).eval()
    zeros = {k: torch.zeros_like(v) for k, v in one_noise(net).items()}
    inputs = normal(5, 3, 6, 6)
    torch.testing.assert_close(net(inputs, zeros), plain(inputs))


def test_the_draw_of_a_layer_equals_equation_39() -> None:
    """W by eq. 39 in float64 from the layer's own parameters, with λ and sd above 0."""
    net = shaken(bayesianize(nn.Linear(6, 5, bias=False), rows=3, cols=2)).double()
    layer = net.layers["network"]
    assert isinstance(layer, Inducing)
    noise = {k.split(":")[1]: v.double() for k, v in one_noise(net).items()}
    d_r, d_c = layer.log_d_out.exp().diag(), layer.log_d_in.exp().diag()
    l_r = torch.linalg.cholesky(layer.z_out @ layer.z_out.mT + d_r @ d_r)
    l_c = torch.linalg.cholesky(layer.z_in @ layer.z_in.mT + d_c @ d_c)
    a_r, a_c = torch.linalg.inv(l_r) @ layer.z_out, torch.linalg.inv(l_c) @ layer.z_in
    u = layer.posterior.mean + layer.posterior.sd * noise["inducing"]
    q_r, q_c, p_c = torch.linalg.inv(l_r) @ d_r, torch.linalg.inv(l_c) @ d_c, torch.linalg.cholesky(a_c @ a_c.mT)
    prior = a_r @ noise["weight"] @ a_c.mT + noise["outer"] @ q_c.mT + q_r @ noise["inner"] @ p_c.mT
    expected = 6**-0.5 * (a_r.mT @ (u - layer.rescale * prior) @ a_c + layer.rescale * noise["weight"])
    torch.testing.assert_close(layer(noise, layer.factors()), expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("wrong", [1.0, 1.1])
def test_local_draws_have_the_mean_and_variance_of_the_closed_form(wrong: float) -> None:
    """E[W]x + E[b] and Var[W]x² + Var[b]; false-alarm rate 1e-3, a variance 1.1 times as large fails."""
    plain = nn.Conv2d(2, 3, 2, groups=1)
    net = shaken(bayesianize(plain, "ffg_w", sd_init=0.05, sd_max=0.3)).train()
    inputs, layer = normal(1, 2, 3, 3), net.layers["network"]
    mean, variance = layer.mean.detach(), layer.sd.detach().square()
    expected = F.conv2d(inputs, mean[:, :-1].reshape(3, 2, 2, 2), mean[:, -1])
    spread = F.conv2d(inputs.square(), variance[:, :-1].reshape(3, 2, 2, 2), variance[:, -1]) * wrong
    with torch.no_grad():
        drawn = torch.cat([net(inputs.expand(1000, -1, -1, -1)) for _ in range(8)])
    z = ((drawn - expected) / spread.sqrt()).flatten(1).double()  # independent N(0, 1)
    n = z.numel()
    p_mean = 2 * stats.norm.sf(abs(float(z.sum())) / n**0.5)
    p_square = 2 * stats.norm.sf(abs(float(z.square().sum()) - n) / (2 * n) ** 0.5)
    assert (2 * min(p_mean, p_square) > 1e-3) == (wrong == 1.0)


def test_local_draws_differ_by_row_and_weight_draws_do_not() -> None:
    net = bayesianize(nn.Linear(3, 2), "ffg_w", sd_init=0.05)
    inputs = normal(1, 3).expand(2, 3)
    trained, judged = net.train()(inputs), net.eval()(inputs)
    assert not torch.equal(trained[0], trained[1]) and torch.equal(judged[0], judged[1])
