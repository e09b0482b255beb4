"""Kronecker factors against dense Gauss–Newton matrices, the package curvlinops, inverses and scipy's maximiser."""

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
import torch
from curvlinops import KFACLinearOperator
from torch import Tensor, nn
from torch.func import functional_call, hessian, jacrev

from bdl_pipe.networks import ConvNetConfig, MlpConfig
from bdl_pipe.posterior import NetworkSpec
from bdl_pipe.seeds import Seed
from bdl_pipe.trajectory.curvature import Factors, decompose, evidence_precision, kronecker_factors, layers_of

from .cases import covariance

LIKELIHOODS = ("categorical", "gaussian", "gaussian_head", "floored")  # the last: gaussian_head with a floor


def spec_of(name: str, activation: str = "tanh") -> NetworkSpec:
    network = MlpConfig("mlp", (5, 3), activation)  # type: ignore[arg-type]
    if name == "floored":
        return NetworkSpec(network, (4,), 2, "gaussian_head", variance_floor=0.2)
    return NetworkSpec(network, (4,), 2, name, noise_variance=0.3)  # type: ignore[arg-type]


def inputs(count: int, *shape: int) -> Tensor:
    return torch.randn(count, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(5))


def product(found: Factors) -> Tensor:
    return torch.kron(found.outputs, found.inputs)


def fisher(spec: NetworkSpec, outputs: Tensor) -> Tensor:
    """E_y of the Hessian of −log p(y | outputs) [output, output], by autograd of torch.distributions."""

    def loss(f: Tensor, y: Tensor) -> Tensor:
        if spec.likelihood == "categorical":
            return -torch.distributions.Categorical(logits=f).log_prob(y)
        if spec.likelihood == "gaussian":
            return -torch.distributions.Normal(f, spec.noise_variance**0.5).log_prob(y).sum()
        mean, free = f.chunk(2)
        return -torch.distributions.Normal(mean, variance(free).sqrt()).log_prob(y).sum()

    def variance(free: Tensor) -> Tensor:
        return free.exp() if spec.variance_floor is None else spec.variance_floor + torch.log1p(free.exp())

    if spec.likelihood == "categorical":
        return sum(p * hessian(loss)(outputs, torch.tensor(y)) for y, p in enumerate(outputs.softmax(0)))  # type: ignore[return-value]
    mean = outputs[: spec.outputs]
    sd = variance(outputs[spec.outputs :]).sqrt() if spec.likelihood == "gaussian_head" else 1.0
    return (hessian(loss)(outputs, mean + sd) + hessian(loss)(outputs, mean - sd)) / 2  # quadratic in y: exact


def dense_block(module: nn.Module, layer: str, spec: NetworkSpec, rows: Tensor) -> Tensor:
    """Σ_n J_nᵀ H_n J_n of one layer's weights, its bias as the last column, row-major."""
    weights, total = dict(module.named_parameters()), 0.0
    part = {name: weights[name].detach() for name in (f"{layer}.weight", f"{layer}.bias")}
    for row in rows:
        jacobian = jacrev(lambda p, row=row: functional_call(module, p, (row[None],))[0])(part)
        weight, bias = jacobian.values()
        j = torch.cat([weight.flatten(2), bias[..., None]], 2).flatten(1)  # [output, weight]
        total = total + j.T @ fisher(spec, module(row[None])[0].detach()) @ j
    return total.detach()


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("activation", ["tanh", "leaky_relu"])
def test_the_factors_of_one_row_equal_the_dense_gauss_newton_blocks(likelihood: str, activation: str) -> None:
    spec, row = spec_of(likelihood, activation), inputs(1, 4)
    network = spec.build(Seed(1)).double().eval()
    factors = kronecker_factors(network, row, spec)
    assert list(factors) == ["trunk.1", "trunk.3", "head"]
    for name, layer in factors.items():
        torch.testing.assert_close(product(layer), dense_block(network, name, spec, row), rtol=1e-9, atol=1e-12)


class OneLocation(nn.Module):
    """A convolution whose kernel covers the image, so that its weights are used once a row."""

    def __init__(self, **changes: object) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(2, 4, 3, **changes), nn.Linear(4, 2)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv(x).flatten(1).tanh())


@pytest.mark.parametrize(
    "changes",
    [{}, {"bias": True, "stride": 3, "padding": 1, "padding_mode": "reflect"}, {"stride": 3, "padding": (1, 1)}],
)
def test_the_factors_of_a_convolution_at_one_location_equal_the_dense_block(changes: dict[str, object]) -> None:
    torch.manual_seed(0)
    module, row, spec = OneLocation(**changes).double(), inputs(1, 2, 3, 3), spec_of("categorical")
    factors = kronecker_factors(module, row, spec)["conv"]
    torch.testing.assert_close(product(factors), dense_block(module, "conv", spec, row), rtol=1e-9, atol=1e-12)
    if "padding_mode" in changes:  # zeros in the place of the image's other side are noticed
        zeros = OneLocation(stride=3, padding=1).double()
        zeros.load_state_dict(module.state_dict())
        assert not torch.allclose(factors.inputs, kronecker_factors(zeros, row, spec)["conv"].inputs, rtol=0.05)


def test_an_activation_in_place_changes_no_factor() -> None:
    torch.manual_seed(0)
    first, last = nn.Linear(4, 5).double(), nn.Linear(5, 2).double()
    apart, within = (
        kronecker_factors(nn.Sequential(first, nn.ReLU(inplace=p), last), inputs(20, 4), spec_of("categorical"))
        for p in (False, True)
    )
    for name, layer in apart.items():
        assert torch.equal(within[name].inputs, layer.inputs) and torch.equal(within[name].outputs, layer.outputs)


def by_curvlinops(network: nn.Module, rows: Tensor, batch: int, classes: bool) -> dict[str, Factors]:
    """Return curvlinops' factors of all layers, of class probabilities or of a squared error."""
    layers = layers_of(network)
    targets = torch.zeros(len(rows), *(() if classes else (3,)), dtype=torch.long if classes else rows.dtype)
    kfac = KFACLinearOperator(
        network,
        nn.CrossEntropyLoss(reduction="sum") if classes else nn.MSELoss(reduction="sum"),
        [p for m in layers.values() for p in m.parameters()],
        list(zip(rows.split(batch), targets.split(batch), strict=True)),
        check_deterministic=False,
        fisher_type="type-2",
        num_data=len(rows),
        num_per_example_loss_terms=1,
        separate_weight_and_bias=False,
    )
    kfac.compute_kronecker_factors()
    a, g = (kfac.state_dict()[f"{key}_covariances"] for key in ("input", "gradient"))
    return {name: Factors(a[name], g[name]) for name in layers}


NORMS = [("none", "average"), ("none", "max"), ("instance", "average"), ("group", "max"), ("batch", "max")]


@pytest.mark.parametrize(("norm", "pool"), NORMS)
@pytest.mark.parametrize("likelihood", ["categorical", "gaussian"])
def test_the_factors_of_a_convnet_equal_the_factors_of_curvlinops(likelihood: str, norm: str, pool: str) -> None:
    """Of 300 rows, three batches; a squared error is a Gaussian of variance 1/2."""
    config = ConvNetConfig("convnet", 4 if norm != "group" else 8, 2, norm=norm, pool=pool)  # type: ignore[arg-type]
    spec = NetworkSpec(config, (1, 8, 8), 3, likelihood, noise_variance=0.5)  # type: ignore[arg-type]
    network, rows = spec.build(Seed(2)).double().eval(), inputs(300, 1, 8, 8)
    factors_of = kronecker_factors(network, rows, spec)
    right = by_curvlinops(network, rows, 64, likelihood == "categorical")
    assert list(factors_of) == list(right)
    for name, layer in factors_of.items():
        torch.testing.assert_close(layer.inputs, right[name].inputs, rtol=1e-10, atol=1e-14)
        torch.testing.assert_close(layer.outputs, right[name].outputs, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize(("dtype", "below"), [(torch.float32, True), (torch.bfloat16, False)])
def test_float32_moves_the_posterior_by_far_less_than_its_width(dtype: torch.dtype, below: bool) -> None:
    """The covariance in the float64 posterior's units is the identity to 1e-3; passes in bfloat16 are noticed."""
    config = ConvNetConfig("convnet", 4, 2, norm="none")
    spec, rows = NetworkSpec(config, (1, 8, 8), 3, "categorical"), inputs(300, 1, 8, 8)
    network = spec.build(Seed(2)).eval()
    rough = kronecker_factors(network.to(dtype), rows, spec)
    exact = kronecker_factors(network.double(), rows, spec)
    worst = 0.0
    for name, layer in exact.items():
        weights = torch.zeros(len(layer.outputs), len(layer.inputs), dtype=torch.float64)
        other = covariance(decompose(weights, rough[name]), PRECISION)
        root = np.linalg.cholesky(np.linalg.inv(dense(layer, PRECISION)))  # of the precision
        worst = max(worst, np.abs(root.T @ other @ root - np.eye(len(root))).max())
    assert (worst < 1e-3) == below


PRECISION, TEMPERATURE, ROWS = 0.7, 0.3, 20


def factors(fan_out: int, fan_in: int, seed: int = 0) -> Factors:
    """Factors of 20 rows, which leave one direction of the inputs unseen."""
    random = torch.Generator().manual_seed(seed)
    a, g = (torch.randn(ROWS, width, dtype=torch.float64, generator=random) for width in (fan_in, fan_out))
    a[:, 0] = a[:, -1]
    return Factors(a.T @ a / ROWS, g.T @ g)


def mean(fan_out: int, fan_in: int) -> Tensor:
    return torch.linspace(-1, 2, fan_out * fan_in, dtype=torch.float64).reshape(fan_out, fan_in)


def dense(found: Factors, precision: float) -> np.ndarray:
    """(G ⊗ A + τI)⁻¹ of the row-major weights."""
    product = np.kron(found.outputs.numpy(), found.inputs.numpy())
    return np.linalg.inv(product + precision * np.eye(len(product)))


@pytest.mark.parametrize(("fan_out", "fan_in"), [(3, 4), (1, 5), (4, 1)])
def test_the_covariance_equals_the_dense_inverse(fan_out: int, fan_in: int) -> None:
    precision = factors(fan_out, fan_in)
    layer = decompose(mean(fan_out, fan_in), precision)
    right = TEMPERATURE * dense(precision, PRECISION)
    np.testing.assert_allclose(covariance(layer, PRECISION, TEMPERATURE), right, rtol=1e-9, atol=1e-12)
    # a prior counted once a row, and a deviation in the place of a variance, are noticed
    assert not np.allclose(covariance(layer, PRECISION * ROWS, TEMPERATURE), right, rtol=0.05)
    assert not np.allclose(covariance(layer, PRECISION, TEMPERATURE**2), right, rtol=0.05)


def dense_evidence(layers: list[tuple[Tensor, Factors]], log_precision: float) -> float:
    """log N(w | 0, I/τ) − ½ log |H + τI| of all layers, by scipy and dense determinants."""
    total, precision = 0.0, np.exp(log_precision)
    for weights, weights_of in layers:
        total += scipy.stats.norm(0, precision**-0.5).logpdf(weights.numpy()).sum()
        total += 0.5 * np.linalg.slogdet(dense(weights_of, precision))[1]
    return float(total)


@pytest.mark.parametrize("scale", [0.05, 1.0, 3.0])
def test_the_prior_precision_equals_scipys_maximum_of_the_evidence(scale: float) -> None:
    layers = [(scale * mean(3, 4), factors(3, 4)), (scale * mean(2, 3), factors(2, 3, seed=1))]
    best = scipy.optimize.minimize_scalar(
        lambda x: -dense_evidence(layers, x), bounds=(-15, 15), method="bounded", options={"xatol": 1e-9}
    )
    precision = evidence_precision([decompose(*layer) for layer in layers])
    assert precision == pytest.approx(np.exp(best.x), rel=1e-5)
    per_row = [(w, Factors(f.inputs, f.outputs / ROWS)) for w, f in layers]  # the prior counted once a row
    assert evidence_precision([decompose(*layer) for layer in per_row]) != pytest.approx(np.exp(best.x), rel=0.05)


def test_weights_or_curvature_of_zero_have_no_best_precision() -> None:
    layer = factors(3, 4)
    without = Factors(layer.inputs, 0 * layer.outputs)
    for weights, curvature in ((torch.zeros(3, 4).double(), layer), (mean(3, 4), without)):
        with pytest.raises(ValueError, match="has no maximum"):
            evidence_precision([decompose(weights, curvature)])
