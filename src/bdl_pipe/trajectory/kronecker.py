"""The Gaussian over one layer's weights whose precision is a Kronecker product plus a multiple of the identity.

With W [out, in] the layer's weights (a bias is the last column), the curvature of the row-major vec W is G ⊗ A, and the
posterior precision is G ⊗ A + τI. In the basis of the factors' eigenvectors, A = QDQᵀ and G = PEPᵀ, this matrix is
diagonal with entries e_i d_j + τ, so a draw around M is

    W = M + √T · P (Z ∘ (e dᵀ + τ)^−½) Qᵀ,   Z standard normal [out, in].

Deviation: Ritter, Botev & Barber 2018 add √τI to each factor, (G + √τI) ⊗ (A + √τI). The sum above is exact and costs
the same (as in Immer et al. 2021).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Factors:
    """The curvature G ⊗ A of one layer, summed over rows, in float64.

    Attributes:
        inputs: A, the mean outer product of the layer's inputs, with a last entry 1 if the layer has a bias.
        outputs: G, the summed outer product of the gradients at the layer's outputs.
    """

    inputs: Float[Tensor, "fan_in fan_in"]
    outputs: Float[Tensor, "fan_out fan_out"]


@dataclass(frozen=True)
class LayerPosterior:
    """The posterior N(M, T (G ⊗ A + τI)⁻¹) of one layer's weights, for any τ and T.

    Attributes:
        mean: M.
        input_vectors, output_vectors: Q and P, eigenvectors as columns.
        curvature: e dᵀ, the eigenvalues of G ⊗ A.
    """

    mean: Float[Tensor, "fan_out fan_in"]
    input_vectors: Float[Tensor, "fan_in fan_in"]
    output_vectors: Float[Tensor, "fan_out fan_out"]
    curvature: Float[Tensor, "fan_out fan_in"]

    def draw(
        self, z: Float[Tensor, "*draw fan_out fan_in"], prior_precision: float, temperature: float
    ) -> Float[Tensor, "*draw fan_out fan_in"]:
        """Return the weights W for the standard normal numbers Z, a linear map."""
        scaled = z * (self.curvature + prior_precision).rsqrt()
        return self.mean + math.sqrt(temperature) * self.output_vectors @ scaled @ self.input_vectors.T

    def to(self, dtype: torch.dtype) -> "LayerPosterior":
        """Return the posterior in another floating type."""
        return LayerPosterior(**{name: value.to(dtype) for name, value in vars(self).items()})


def decompose(mean: Float[Tensor, "fan_out fan_in"], factors: Factors) -> LayerPosterior:
    """Return the posterior of the weights ``mean``; eigenvalues that are negative by rounding are set to zero."""
    (d, q), (e, p) = torch.linalg.eigh(factors.inputs), torch.linalg.eigh(factors.outputs)
    return LayerPosterior(mean, q, p, torch.outer(e.clamp_min(0), d.clamp_min(0)))


def evidence_precision(layers: Sequence[LayerPosterior]) -> float:
    """Return the prior precision τ of all layers together that maximises Laplace's evidence at their means.

    Up to terms without τ the log evidence is ½[P log τ − τ‖w‖² − Σ_k log(λ_k + τ)], with P weights w and the
    curvature's eigenvalues λ_k (Immer et al. 2021). Its slope is zero where τ‖w‖² = Σ_k λ_k/(λ_k + τ), the number of
    weights that the data determine (MacKay 1992). The left side rises with τ and the right side falls, so there is one
    such τ.

    Raises:
        ValueError: the means or the curvature are all zero, so that the evidence has no maximum at τ > 0.
    """
    eigenvalues = np.concatenate([layer.curvature.flatten().numpy(force=True) for layer in layers])
    squared = sum(float(layer.mean.square().sum()) for layer in layers)
    if squared == 0 or not eigenvalues.any():
        raise ValueError("the evidence has no maximum, because weights or curvature are all zero")
    from scipy.optimize import brentq  # here, because the import takes half a second

    def slope(log_precision: float) -> float:
        precision = math.exp(log_precision)
        return precision * squared - float((eigenvalues / (eigenvalues + precision)).sum())

    high = math.log(eigenvalues.size / squared)  # at ``high`` the left side is P, and the right side is less than P
    low = high - 1.0
    while slope(low) > 0:
        low -= 2 * (high - low)
    return math.exp(brentq(slope, low, high, xtol=1e-12, rtol=1e-12))
