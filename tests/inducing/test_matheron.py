"""The extended Matheron rule against the dense Gaussian conditional, built explicitly in float64.

vec stacks columns, as in the paper, so that the covariance of vec(W) is (column covariance) ⊗ (row covariance).
"""

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence

from bdl_pipe.inducing.matheron import Noise, Side, conditional_draw, conditional_kl, conditional_mean, side

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


def noise(draws: int, rows: int = ROWS, cols: int = COLS, out: int = OUT, columns: int = IN) -> Noise:
    g = generator(4)
    rank = min(cols, columns)
    return Noise(*(torch.randn(draws, *s, generator=g).double() for s in ((out, columns), (rows, cols), (rows, rank))))


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
def test_the_mean_equals_the_mean_of_the_dense_conditional(shape: tuple[int, int, int, int]) -> None:
    p = parameters(*shape)
    u = torch.randn(shape[:2], generator=generator(1)).double()
    expected, _ = dense_conditional(u, 0.7, *p)
    mean = conditional_mean(whitened(u, *p), side(*p[:2]), side(*p[2:]), 0.7)
    torch.testing.assert_close(vec(mean), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_draw_has_the_mean_and_the_covariance_of_the_dense_conditional(shape: tuple[int, int, int, int]) -> None:
    """Without noise the draw is the mean; the Jacobian J from the noise to vec(W) has JJᵀ = λ²Σ to rounding."""
    p, lam = parameters(*shape), torch.tensor(0.6, dtype=torch.float64)
    u = torch.randn(shape[:2], generator=generator(1)).double()
    rows, columns = side(*p[:2]), side(*p[2:])
    like = Noise(*(n[0] for n in noise(1, *shape)))
    sizes = [n.numel() for n in like]

    def draw(flat: Tensor) -> Tensor:
        parts = Noise(*(f.view_as(n) for f, n in zip(flat.split(sizes), like, strict=True)))
        return vec(conditional_draw(whitened(u, *p), rows, columns, lam, 0.7, parts))

    none = torch.zeros(sum(sizes)).double()
    jacobian, (mean, covariance) = torch.func.jacrev(draw)(none), dense_conditional(u, 0.7, *p)
    torch.testing.assert_close(draw(none), mean, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(jacobian @ jacobian.mT, 0.36 * covariance, rtol=1e-9, atol=1e-12)


def test_the_kl_of_the_rescaled_conditional_equals_the_kl_of_dense_gaussians() -> None:
    p = parameters()
    mean, covariance = dense_conditional(torch.ones(ROWS, COLS).double(), 0.7, *p)
    for lam in (0.03, 0.5, 1.0, 1.7):
        q, prior = MultivariateNormal(mean, lam**2 * covariance), MultivariateNormal(mean, covariance)
        value = torch.tensor(lam, dtype=torch.float64)
        ours = conditional_kl(value, value.log(), OUT * IN)
        torch.testing.assert_close(ours, kl_divergence(q, prior), rtol=1e-9, atol=1e-9)


def test_factors_are_accurate_where_float32_would_be_singular() -> None:
    """More inducing rows than rows, D = 1e-3: Ψ is singular to float32; AᵀA is I − (I + ZᵀD⁻²Z)⁻¹ (Woodbury)."""
    z = torch.randn(64, 10, generator=generator(2)) / 8
    found: Side = side(z, torch.full((64,), 1e-3))
    inverse = torch.linalg.inv(torch.eye(10, dtype=torch.float64) + z.double().mT @ z.double() * 1e6)
    expected = torch.eye(10, dtype=torch.float64) - inverse
    torch.testing.assert_close(found.project.mT @ found.project, expected, rtol=1e-8, atol=1e-9)


def test_a_row_of_zeros_is_allowed() -> None:
    """Pruning can leave such rows."""
    z = torch.randn(3, 5, generator=generator(2))
    z[1] = 0
    found = side(z, torch.full((3,), 1e-3))
    torch.testing.assert_close(found.root @ found.root.mT, found.project @ found.project.mT, rtol=0, atol=1e-12)
