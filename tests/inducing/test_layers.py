"""Converted layers against plain ones, and the extended Matheron rule against the dense Gaussian conditional."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import MultivariateNormal, kl_divergence

from bdl_pipe.inducing import bayesianize
from bdl_pipe.inducing.matheron import Noise, Side, conditional_draw, conditional_kl, conditional_mean, side
from bdl_pipe.seeds import Seed

from .cases import ALL, RIVALS, conv_net, normal, one_noise, shaken

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
    layers = []
    for part in inputs.chunk(layer.groups, 1):
        probe = copy.deepcopy(layer)
        probe.groups, probe.in_channels, probe.out_channels, probe.bias = 1, part.shape[1], width, None
        probe.weight = nn.Parameter(units)
        layers.append(probe(part).flatten(2))
    return torch.stack(layers, 2)


@pytest.mark.parametrize(
    ("layer", "kind"),
    [(CONVOLUTIONS[0], k) for k in (*ALL, *RIVALS)] + [(c, "ffg_u") for c in CONVOLUTIONS[1:]],
    ids=str,
)
def test_a_convolution_equals_the_linear_layer_on_its_patches(layer: nn.Module, kind: str) -> None:
    net = shaken(bayesianize(layer, kind, rows=3, cols=4))
    inputs = normal(2, layer.in_channels, *[6] * (layer.weight.ndim - 2))
    (drawn,), noise, inside = net.layers.values(), one_noise(net), layer.weight[0].numel()
    part = {k.removeprefix("network:"): v for k, v in noise.items()}
    matrix = drawn(part, drawn.factors())  # [out, in·kernel (+ 1)]
    assert matrix.shape == (len(layer.weight), inside + (layer.bias is not None))
    grouped = matrix[:, :inside].unflatten(0, (layer.groups, -1))  # [group, out/group, in·kernel]
    expected = torch.einsum("goi,bigp->bgop", grouped, patches(layer, inputs).detach()).flatten(1, 2)
    if layer.bias is not None:
        expected = expected + matrix[:, -1, None]
    torch.testing.assert_close(net(inputs, noise).flatten(2), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shared", [None, (3, 2)])
def test_a_network_without_spread_equals_the_network_of_conditional_means(shared: tuple[int, int] | None) -> None:
    expected, inputs = conv_net(), normal(5, 3, 6, 6)
    net = shaken(bayesianize(expected, rows=3, cols=4, lambda_max=0, sd_max=0, shared=shared))
    assert net.draw(2, torch.Generator()) == {}
    means = {name.replace("layer.", ""): value.detach() for name, value in net.centre().items()}
    expected.load_state_dict(expected.state_dict() | net.network.state_dict() | means)
    for training in (True, False):
        torch.testing.assert_close(net.train(training)(inputs), expected.train(training)(inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["ffg_w", "fcg_w", *RIVALS])
def test_weight_space_means_start_at_the_given_weights(kind: str) -> None:
    plain = conv_net().eval()
    net = bayesianize(plain, kind, spread=0.0).eval()
    zeros = {k: v if k == "member" else torch.zeros_like(v) for k, v in one_noise(net).items()}
    inputs = normal(5, 3, 6, 6)
    torch.testing.assert_close(net(inputs, zeros), plain(inputs))


def test_the_draw_of_a_layer_equals_equation_39() -> None:
    """W by eq. 39 in float64 from the layer's own parameters, with λ and sd above 0."""
    net = shaken(bayesianize(nn.Linear(6, 5, bias=False), rows=3, cols=2)).double()
    layer = net.layers["network"]
    noise = {k.split(":")[1]: v.double() for k, v in one_noise(net).items()}
    sides = ((layer.z_out, layer.log_d_out.exp().diag()), (layer.z_in, layer.log_d_in.exp().diag()))
    inverses = [torch.linalg.inv(torch.linalg.cholesky(z @ z.mT + d @ d)) for z, d in sides]
    (a_r, q_r), (a_c, q_c) = ((inverse @ z, inverse @ d) for inverse, (z, d) in zip(inverses, sides, strict=True))
    u, p_c = layer.posterior.mean + layer.posterior.sd * noise["inducing"], torch.linalg.cholesky(a_c @ a_c.mT)
    prior = a_r @ noise["weight"] @ a_c.mT + noise["outer"] @ q_c.mT + q_r @ noise["inner"] @ p_c.mT
    expected = 6**-0.5 * (a_r.mT @ (u - layer.rescale * prior) @ a_c + layer.rescale * noise["weight"])
    torch.testing.assert_close(layer(noise, layer.factors()), expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("kind", ["ffg_w", "matrix_normal_w", "k_tied_w"])
def test_drawn_outputs_and_weights_have_the_mean_and_deviation_of_the_closed_form(kind: str) -> None:
    """E[W]x + E[b] and Var[W]x² + Var[b], with a normal number for each output of each row and place."""
    net, inputs = shaken(bayesianize(nn.Conv2d(2, 3, 2), kind, sd_init=0.05, sd_max=0.3)), normal(4, 2, 3, 3)
    mean, sd = net.layers["network"].mean, net.layers["network"].sd
    (z,) = (v[0] for v in net.draw(1, Seed(3).generator(), inputs).values())
    expected = F.conv2d(inputs, mean[:, :-1].reshape(3, 2, 2, 2), mean[:, -1])
    spread = F.conv2d(inputs.square(), sd[:, :-1].square().reshape(3, 2, 2, 2), sd[:, -1].square())
    assert z.shape == expected.shape
    torch.testing.assert_close(net(inputs, {"network:outputs": z}), expected + spread.sqrt() * z, rtol=1e-4, atol=1e-5)
    (z,) = one_noise(net).values()
    drawn = net.layers["network"]({"weight": z}, net.layers["network"].factors())
    torch.testing.assert_close(drawn, mean + sd * z, rtol=1e-6, atol=1e-7)


def test_local_draws_differ_by_row_and_weight_draws_do_not() -> None:
    net = bayesianize(nn.Linear(3, 2), "ffg_w", sd_init=0.05)
    inputs = normal(1, 3).expand(2, 3)
    trained, judged = net.train()(inputs), net.eval()(inputs)
    assert not torch.equal(trained[0], trained[1]) and torch.equal(judged[0], judged[1])


OUT, IN, ROWS, COLS = 4, 5, 3, 2


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def parameters(rows: int = ROWS, cols: int = COLS, out: int = OUT, columns: int = IN) -> tuple[Tensor, ...]:
    """Z_r, the diagonal of D_r, Z_c and the diagonal of D_c; no entry of D is small."""
    g = generator(3)
    z_out, z_in = (torch.randn(s, generator=g).double() for s in ((rows, out), (cols, columns)))
    d_out, d_in = (0.3 + torch.rand(m, generator=g).double() for m in (rows, cols))
    return z_out, d_out, z_in, d_in


def vec(matrix: Tensor) -> Tensor:
    return matrix.mT.flatten(-2)


def dense_conditional(u: Tensor, scale: float, z_out: Tensor, d_out: Tensor, z_in: Tensor, d_in: Tensor):
    """Mean and covariance of vec(W) | vec(U) for unwhitened U, from eq. 6's joint by the textbook rule."""
    psi_r, psi_c = z_out @ z_out.mT + d_out.diag() ** 2, z_in @ z_in.mT + d_in.diag() ** 2
    cross, both = scale * torch.kron(z_in.mT.contiguous(), z_out.mT.contiguous()), torch.kron(psi_c, psi_r)
    gain = cross @ torch.linalg.inv(both)
    prior = scale**2 * torch.eye(cross.shape[0], dtype=torch.float64)
    return gain @ vec(u), prior - gain @ cross.mT


def whitened(u: Tensor, z_out: Tensor, d_out: Tensor, z_in: Tensor, d_in: Tensor) -> Tensor:
    """L_r⁻¹ U L_c⁻ᵀ."""
    l_r, l_c = (torch.linalg.cholesky(z @ z.mT + d.diag() ** 2) for z, d in ((z_out, d_out), (z_in, d_in)))
    return torch.linalg.inv(l_r) @ u @ torch.linalg.inv(l_c).mT


SHAPES = [(3, 2, 4, 5), (6, 2, 4, 5), (3, 7, 4, 5), (6, 7, 4, 5)]  # U smaller and larger than W, on either side


@pytest.mark.parametrize("shape", SHAPES)
def test_a_draw_has_the_mean_and_the_covariance_of_the_dense_conditional(shape: tuple[int, int, int, int]) -> None:
    """Without noise the draw is the mean; the Jacobian J from the noise to vec(W) has JJᵀ = λ²Σ to rounding."""
    p, lam, (rows, cols, out, columns) = parameters(*shape), torch.tensor(0.6, dtype=torch.float64), shape
    u = torch.randn(shape[:2], generator=generator(1)).double()
    conditioned = whitened(u, *p), side(*p[:2]), side(*p[2:])
    shapes = (out, columns), (rows, cols), (rows, min(cols, columns))
    sizes = [a * b for a, b in shapes]

    def draw(flat: Tensor) -> Tensor:
        parts = Noise(*(f.view(s) for f, s in zip(flat.split(sizes), shapes, strict=True)))
        return vec(conditional_draw(*conditioned, lam, 0.7, parts))

    none = torch.zeros(sum(sizes)).double()
    jacobian, (mean, covariance) = torch.func.jacrev(draw)(none), dense_conditional(u, 0.7, *p)
    for centre in (draw(none), vec(conditional_mean(*conditioned, 0.7))):
        torch.testing.assert_close(centre, mean, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(jacobian @ jacobian.mT, 0.36 * covariance, rtol=1e-9, atol=1e-12)
    for part in jacobian.split(sizes, 1):  # a rule without one of the three matrices of noise misses the covariance
        assert float((part @ part.mT).abs().max()) > 1e-2 * float(covariance.abs().max())


def test_the_kl_of_the_rescaled_conditional_equals_the_kl_of_dense_gaussians() -> None:
    mean, covariance = dense_conditional(torch.ones(ROWS, COLS).double(), 0.7, *parameters())
    for lam in torch.tensor([0.03, 0.5, 1.0, 1.7], dtype=torch.float64):
        q, prior = MultivariateNormal(mean, lam**2 * covariance), MultivariateNormal(mean, covariance)
        ours = conditional_kl(lam, lam.log(), OUT * IN)
        torch.testing.assert_close(ours, kl_divergence(q, prior), rtol=1e-9, atol=1e-9)


def test_factors_are_accurate_where_float32_would_be_singular() -> None:
    """More inducing rows than rows, D = 1e-3: Ψ is singular to float32; AᵀA is I − (I + ZᵀD⁻²Z)⁻¹ (Woodbury)."""
    z = torch.randn(64, 10, generator=generator(2)) / 8
    inducing: Side = side(z, torch.full((64,), 1e-3))
    inverse = torch.linalg.inv(torch.eye(10, dtype=torch.float64) + z.double().mT @ z.double() * 1e6)
    expected = torch.eye(10, dtype=torch.float64) - inverse
    torch.testing.assert_close(inducing.project.mT @ inducing.project, expected, rtol=1e-8, atol=1e-9)


def test_a_row_of_zeros_is_allowed() -> None:
    """Pruning can leave such rows."""
    z = torch.randn(3, 5, generator=generator(2))
    z[1] = 0
    inducing = side(z, torch.full((3,), 1e-3))
    torch.testing.assert_close(
        inducing.root @ inducing.root.mT, inducing.project @ inducing.project.mT, rtol=0, atol=1e-12
    )
