"""The Kronecker-factored Gaussian against dense inverses and scipy's maximiser."""

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
import torch
from torch import Tensor

from bdl_pipe.trajectory.kronecker import Factors, decompose, evidence_precision

from .cases import covariance

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
