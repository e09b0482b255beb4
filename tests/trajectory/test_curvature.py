"""Kronecker factors against dense Gauss–Newton matrices, inverses and scipy's maximiser."""

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, hessian, jacrev

from bdl_pipe.networks import ConvNetConfig, MlpConfig
from bdl_pipe.posterior import NetworkSpec
from bdl_pipe.seeds import Seed
from bdl_pipe.trajectory.curvature import kronecker_factors, layers_of
from bdl_pipe.trajectory.kronecker import Factors, decompose, evidence_precision

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
    weights = dict(module.named_parameters())
    names = [f"{layer}.weight", f"{layer}.bias"]
    total = 0.0
    for row in rows:

        def outputs(part: dict[str, Tensor], row: Tensor = row) -> Tensor:
            return functional_call(module, part, (row[None],))[0]

        jacobian = jacrev(outputs)({k: weights[k].detach() for k in names})
        j = torch.cat([jacobian[names[0]].flatten(2), jacobian[names[1]][..., None]], 2).flatten(1)  # [output, weight]
        total = total + j.T @ fisher(spec, module(row[None])[0].detach()) @ j
    assert isinstance(total, Tensor)
    return total.detach()


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("activation", ["tanh", "leaky_relu"])
def test_one_row_has_the_dense_blocks(likelihood: str, activation: str) -> None:
    spec, row = spec_of(likelihood, activation), inputs(1, 4)
    network = spec.build(Seed(1)).double().eval()
    found = kronecker_factors(network, row, spec)
    assert list(found) == ["trunk.1", "trunk.3", "head"]
    for name, layer in found.items():
        torch.testing.assert_close(product(layer), dense_block(network, name, spec, row), rtol=1e-9, atol=1e-12)
    head = dense_block(network, "head", spec, row)  # curvlinops' own factor 2 of a squared error would be noticed
    assert not torch.allclose(2 * product(found["head"]), head, rtol=0.1)


def test_a_linear_model_of_gaussian_noise_has_the_dense_matrix_of_all_rows() -> None:
    spec, rows = spec_of("gaussian"), inputs(300, 3)  # three batches
    head = nn.Linear(3, 2).double()
    (found,) = kronecker_factors(head, rows, spec).values()
    phi = torch.cat([rows, torch.ones(300, 1)], 1).numpy()
    right = np.kron(np.eye(2), phi.T @ phi) / 0.3
    np.testing.assert_allclose(product(found).numpy(), right, rtol=1e-10)
    assert not np.allclose(product(found).numpy() / 300, right, rtol=0.05)  # a mean over rows is not the sum


def test_many_rows_have_the_product_of_the_means() -> None:
    """And not the mean of the products: the approximation that Kronecker factors are."""
    spec, rows = spec_of("categorical"), inputs(40, 4)
    network = spec.build(Seed(1)).double().eval()
    found = kronecker_factors(network, rows, spec)["trunk.3"]
    each = [kronecker_factors(network, row[None], spec)["trunk.3"] for row in rows]
    torch.testing.assert_close(found.inputs, sum(f.inputs for f in each) / 40, rtol=1e-10, atol=1e-14)
    torch.testing.assert_close(found.outputs, sum(f.outputs for f in each), rtol=1e-10, atol=1e-14)
    exact = dense_block(network, "trunk.3", spec, rows)
    assert not torch.allclose(product(found), exact, rtol=0.01)
    assert 0.5 < float((product(found).trace() / exact.trace()).detach()) < 2


class OneLocation(nn.Module):
    """A convolution whose kernel covers the image, so that its weights are used once a row."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(2, 3, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv(x).flatten(1).tanh())


def test_a_convolution_at_one_location_has_the_dense_block() -> None:
    torch.manual_seed(0)
    module, row, spec = OneLocation().double(), inputs(1, 2, 3, 3), spec_of("categorical")
    found = kronecker_factors(module, row, spec)["conv"]
    torch.testing.assert_close(product(found), dense_block(module, "conv", spec, row), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("norm", ["batch", "instance", "group", "none"])
@pytest.mark.parametrize("pool", ["max", "average"])
def test_a_convnet_has_the_factors_of_its_patches(norm: str, pool: str) -> None:
    """The second block's: patches by ``unfold``, gradients at its locations by ``jacrev``, of two rows."""
    config = ConvNetConfig("convnet", 8, 2, norm=norm, pool=pool)  # type: ignore[arg-type]
    spec, rows = NetworkSpec(config, (1, 8, 8), 3, "categorical"), inputs(2, 1, 8, 8)
    network = spec.build(Seed(2)).double().eval()
    found = kronecker_factors(network, rows, spec)
    assert list(found) == list(layers_of(network))
    trunk = list(network.trunk)  # type: ignore[call-overload]
    (at,) = [i for i, m in enumerate(trunk) if isinstance(m, nn.Conv2d) and i > 0]
    before, after = nn.Sequential(*trunk[:at]), nn.Sequential(*trunk[at + 1 :], network.head)
    seen = before(rows).detach()
    patches = F.unfold(seen, 3, padding=1).transpose(1, 2).flatten(0, 1)  # [row·location, in]
    patches = torch.cat([patches, torch.ones(len(patches), 1)], 1)
    torch.testing.assert_close(found[f"trunk.{at}"].inputs, patches.T @ patches / len(patches), rtol=1e-9, atol=1e-12)
    outputs = torch.zeros(16, 16, dtype=torch.float64)
    for convolved in trunk[at](seen).detach():
        j = jacrev(lambda z: after(z[None])[0])(convolved).flatten(2).detach()  # [class, channel, location]
        h = fisher(spec, after(convolved[None])[0].detach())
        outputs += torch.einsum("kcs,kl,lds->cd", j, h, j)
    torch.testing.assert_close(found[f"trunk.{at}"].outputs, outputs, rtol=1e-9, atol=1e-12)


PRECISION, TEMPERATURE, ROWS = 0.7, 0.3, 20


def factors(fan_out: int, fan_in: int, seed: int = 0) -> Factors:
    """Of 20 rows; one direction of the inputs is not seen."""
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
def test_the_covariance_is_the_dense_inverse(fan_out: int, fan_in: int) -> None:
    found = factors(fan_out, fan_in)
    layer = decompose(mean(fan_out, fan_in), found)
    right = TEMPERATURE * dense(found, PRECISION)
    np.testing.assert_allclose(covariance(layer, PRECISION, TEMPERATURE), right, rtol=1e-9, atol=1e-12)
    # a prior counted once a row, and a deviation in the place of a variance, are noticed
    assert not np.allclose(covariance(layer, PRECISION * ROWS, TEMPERATURE), right, rtol=0.05)
    assert not np.allclose(covariance(layer, PRECISION, TEMPERATURE**2), right, rtol=0.05)


def dense_evidence(layers: list[tuple[Tensor, Factors]], log_precision: float) -> float:
    """log N(w | 0, I/τ) − ½ log |H + τI| of all layers, by scipy and dense determinants."""
    total, precision = 0.0, np.exp(log_precision)
    for weights, found in layers:
        total += scipy.stats.norm(0, precision**-0.5).logpdf(weights.numpy()).sum()
        total += 0.5 * np.linalg.slogdet(dense(found, precision))[1]
    return float(total)


@pytest.mark.parametrize("scale", [0.05, 1.0, 3.0])
def test_the_prior_precision_is_scipys_maximum(scale: float) -> None:
    layers = [(scale * mean(3, 4), factors(3, 4)), (scale * mean(2, 3), factors(2, 3, seed=1))]
    best = scipy.optimize.minimize_scalar(
        lambda x: -dense_evidence(layers, x), bounds=(-15, 15), method="bounded", options={"xatol": 1e-9}
    )
    found = evidence_precision([decompose(*layer) for layer in layers])
    assert found == pytest.approx(np.exp(best.x), rel=1e-5)
    per_row = [(w, Factors(f.inputs, f.outputs / ROWS)) for w, f in layers]  # the prior counted once a row
    assert evidence_precision([decompose(*layer) for layer in per_row]) != pytest.approx(np.exp(best.x), rel=0.05)


def test_weights_or_curvature_of_zero_have_no_best_precision() -> None:
    found = factors(3, 4)
    for weights, curvature in [
        (torch.zeros(3, 4).double(), found),
        (mean(3, 4), Factors(found.inputs, 0 * found.outputs)),
    ]:
        with pytest.raises(ValueError, match="no largest value"):
            evidence_precision([decompose(weights, curvature)])
