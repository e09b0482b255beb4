"""Gaussian weights conditioned on a small matrix of inducing weights, and a draw from them in O(M) passes.

For one layer, W [out, in] with prior N(0, σ²I) is joined to U [rows, cols] (Ritter, Kukla, Zhang & Li 2021,
eqs 5–6, 46–48). With Ψ_r = Z_rZ_rᵀ + D_r² = L_rL_rᵀ, Ψ_c likewise, A = L⁻¹Z and Q = L⁻¹D, whitened U ~ N(0, I) and

    vec W | U ~ N(σ vec(A_rᵀ U A_c), λ²σ² (I − A_cᵀA_c ⊗ A_rᵀA_r))                                    (eq. 34)

is drawn by the extended Matheron rule (eqs 11–12, 37)

    W = σ[A_rᵀ(U − λŨ)A_c + λE₁],   Ũ = A_rE₁A_cᵀ + E₂Q_cᵀ + Q_rE₃P_cᵀ,   P_cP_cᵀ = A_cA_cᵀ.

Deviations. Ũ is their L_r⁻¹ŪL_c⁻ᵀ with two of its four terms combined: A_rA_rᵀ + Q_rQ_rᵀ = I, so their second and
fourth terms add up to E₂Q_cᵀ with one matrix of noise and one root fewer; the distribution is the same. σ also
multiplies the mean (the last display of their appendix F omits it). If a side is not longer than M, P equals A and
needs no factor; otherwise it is a Cholesky factor of A_cA_cᵀ, with a jitter of the type's rounding error. Factors are
computed in float64 for every type of the weights, because D² = 1e-6 is below float32's resolution of Ψ.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


class Side(NamedTuple):
    """The factors of the ``size`` rows or columns of W, which are the same for all draws.

    Attributes:
        project: A = L⁻¹Z.
        residual: Q = L⁻¹D, lower triangular.
        root: P with PPᵀ = AAᵀ; A if size <= M.
    """

    project: Float[Tensor, "*member m size"]
    residual: Float[Tensor, "*member m m"]
    root: Float[Tensor, "*member m rank"]


class Noise(NamedTuple):
    """The standard normal numbers of one draw of W | U.

    Attributes:
        weight: E₁, of W's shape.
        outer: E₂, of U's shape.
        inner: E₃ [rows, min(cols, columns of W)].
    """

    weight: Float[Tensor, "*#draw out in"]
    outer: Float[Tensor, "*#draw rows cols"]
    inner: Float[Tensor, "*#draw rows rank"]


def side(z: Float[Tensor, "*member m size"], d: Float[Tensor, "*member m"]) -> Side:
    """Return the factors of Z and the diagonal of D, in float64."""
    z, d = z.double(), d.double()
    factor = torch.linalg.cholesky(z @ z.mT + torch.diag_embed(d.square()))
    both = torch.cat([z, torch.diag_embed(d)], -1)
    whitened = torch.linalg.solve_triangular(factor, both, upper=False)  # L⁻¹[Z D]
    project, residual = whitened.split([z.shape[-1], z.shape[-2]], -1)
    root, rows = project, z.shape[-2]
    if z.shape[-1] > rows:
        jitter = rows * torch.finfo(project.dtype).eps  # eigenvalues of AAᵀ are in [0, 1]; pruned rows of Z give zeros
        identity = torch.eye(rows, dtype=project.dtype, device=project.device)
        root = torch.linalg.cholesky(project @ project.mT + jitter * identity)
    return Side(project, residual, root)


def conditional_mean(
    inducing: Float[Tensor, "*#draw rows cols"], row: Side, column: Side, scale: float
) -> Float[Tensor, "*draw out in"]:
    """Return σ A_rᵀ U A_c, the mean of W | U for whitened U; ``scale`` is σ."""
    return row.project.mT @ (scale * inducing) @ column.project


def conditional_draw(
    inducing: Float[Tensor, "*#draw rows cols"],
    row: Side,
    column: Side,
    rescale: Float[Tensor, "*#draw"],
    scale: float,
    noise: Noise,
) -> Float[Tensor, "*draw out in"]:
    """Return a draw of W from q(W | U) for whitened U; ``rescale`` is λ and ``scale`` is σ."""
    rescale = rescale[..., None, None]
    prior = row.project @ (noise.weight @ column.project.mT)  # A_rE₁A_cᵀ, the large product first
    prior = prior + noise.outer @ column.residual.mT + row.residual @ (noise.inner @ column.root.mT)  # Ũ
    short = row.project.mT @ (scale * (inducing - rescale * prior))  # [out, cols]
    return torch.addcmul(short @ column.project, scale * rescale, noise.weight)


def conditional_kl(
    rescale: Float[Tensor, "*member"], log_rescale: Float[Tensor, "*member"], size: int
) -> Float[Tensor, "*member"]:
    """Return R(λ) = KL[q(W | U) ‖ p(W | U)] = d(λ²/2 − log λ − 1/2) in nats, d = ``size`` weights (eq. 8)."""
    return size * (0.5 * rescale.square() - log_rescale - 0.5)
