"""The extended Matheron rule against the dense Gaussian conditional, built explicitly in float64.

vec stacks columns, as in the paper, so that the covariance of vec(W) is (column covariance) ⊗ (row covariance).
"""

import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence

from bdl_pipe.inducing.matheron import Noise, Side, conditional_draw, conditional_kl, conditional_mean, inner_rank, side

OUT, IN, ROWS, COLS = 4, 5, 3, 2
SIZE = OUT * IN


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def parameters(rows: int = ROWS, cols: int = COLS, out: int = OUT, columns: int = IN) -> tuple[Tensor, ...]:
    """Z_r, the diagonal of D_r, Z_c, that of D_c, with D far from small."""
    g = generator(3)
    z_out, z_in = (torch.randn(s, generator=g).double() for s in ((rows, out), (cols, columns)))
    d_out, d_in = (0.3 + torch.rand(m, generator=g).double() for m in (rows, cols))
    return z_out, d_out, z_in, d_in


def vec(matrix: Tensor) -> Tensor:
    return matrix.mT.flatten(-2)


def noise(draws: int, rows: int = ROWS, cols: int = COLS, out: int = OUT, columns: int = IN) -> Noise:
    g = generator(4)
    rank = inner_rank(cols, columns)
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


def unwhitened_draw(u, scale, rescale, numbers, z_out, d_out, z_in, d_in) -> Tensor:
    """Eqs 11–12 to the letter, with four terms: numbers are E₁ … E₄."""
    e1, e2, e3, e4 = numbers
    hat_r, hat_c = (torch.linalg.cholesky(z @ z.mT) for z in (z_out, z_in))
    inv_r, inv_c = (torch.linalg.inv(z @ z.mT + d.diag() ** 2) for z, d in ((z_out, d_out), (z_in, d_in)))
    prior = z_out @ e1 @ z_in.mT + hat_r @ e2 @ d_in.diag() + d_out.diag() @ e3 @ hat_c.mT
    prior = prior + d_out.diag() @ e4 @ d_in.diag()
    return rescale * scale * e1 + scale * z_out.mT @ inv_r @ (u - rescale * prior) @ inv_c @ z_in


SHAPES = [(3, 2, 4, 5), (6, 2, 4, 5), (3, 7, 4, 5), (6, 7, 4, 5)]  # U smaller and larger than W, on either side


@pytest.mark.parametrize("shape", SHAPES)
def test_the_mean_is_that_of_the_dense_conditional(shape: tuple[int, int, int, int]) -> None:
    p = parameters(*shape)
    u = torch.randn(shape[:2], generator=generator(1)).double()
    expected, _ = dense_conditional(u, 0.7, *p)
    mean = conditional_mean(whitened(u, *p), side(*p[:2]), side(*p[2:]), 0.7)
    torch.testing.assert_close(vec(mean), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_draw_is_a_linear_map_of_noise_with_the_dense_covariance(shape: tuple[int, int, int, int]) -> None:
    """Without statistics: J from the noise to vec(W) has JJᵀ = λ²Σ to rounding."""
    p, lam = parameters(*shape), torch.tensor(0.6, dtype=torch.float64)
    rows, columns = side(*p[:2]), side(*p[2:])
    like = Noise(*(n[0] for n in noise(1, *shape)))
    sizes = [n.numel() for n in like]

    def draw(flat: Tensor) -> Tensor:
        parts = Noise(*(f.view_as(n) for f, n in zip(flat.split(sizes), like, strict=True)))
        return vec(conditional_draw(torch.zeros(shape[:2]).double(), rows, columns, lam, 0.7, parts))

    jacobian = torch.func.jacrev(draw)(torch.zeros(sum(sizes)).double())
    _, covariance = dense_conditional(torch.zeros(shape[:2]).double(), 0.7, *p)
    torch.testing.assert_close(jacobian @ jacobian.mT, 0.36 * covariance, rtol=1e-9, atol=1e-12)


def worst_p_value(draws: Tensor, mean: Tensor, covariance: Tensor) -> float:
    """The least p-value of the tests that draws [n, size] are N(mean, covariance), times their number (Bonferroni).

    Whitened by the dense covariance's factor, the mean's squared norm is χ²(size)/n and the entries of the second
    moment are asymptotically normal around I with variance (1 + [i = j])/n.
    """
    n, size = draws.shape
    factor = torch.linalg.cholesky(covariance)
    z = torch.linalg.solve_triangular(factor, (draws - mean).mT, upper=False).mT  # [n, size]
    p_mean = stats.chi2.sf(float(n * z.mean(0).square().sum()), size)
    eye = torch.eye(size, dtype=z.dtype)
    scores = (z.mT @ z / n - eye) * (n / (1 + eye)).sqrt()
    p_second = 2 * stats.norm.sf(float(scores.abs().max())) * size * (size + 1) / 2
    p_trace = 2 * stats.norm.sf(abs(float(z.square().sum() - n * size) / (2 * n * size) ** 0.5))
    return 3 * min(p_mean, p_second, p_trace)


@pytest.mark.parametrize(("used", "stated", "fits"), [(0.6, 0.6, True), (0.6, 0.63, False), (0.6, 1.0, False)])
def test_draws_have_the_dense_conditional_distribution(used: float, stated: float, fits: bool) -> None:
    """False-alarm rate 1e-3 (seeded); a λ that is off by a twentieth fails."""
    p = parameters()
    u = torch.randn(ROWS, COLS, generator=generator(1)).double()
    lam = torch.tensor(used, dtype=torch.float64)
    drawn = conditional_draw(whitened(u, *p), side(*p[:2]), side(*p[2:]), lam, 0.7, noise(20_000))
    mean, covariance = dense_conditional(u, 0.7, *p)
    assert (worst_p_value(vec(drawn), mean, stated**2 * covariance) > 1e-3) == fits


@pytest.mark.parametrize("scale_off", [False, True])
def test_the_prior_of_w_is_what_it_was(scale_off: bool) -> None:
    """U ~ N(0, I) and λ = 1 give W ~ N(0, σ²I) whatever Z and D; false-alarm rate 1e-3. λ = 0.9 does not."""
    p, count = parameters(), 20_000
    u = torch.randn(count, ROWS, COLS, generator=generator(8)).double()
    lam = torch.tensor(0.9 if scale_off else 1.0, dtype=torch.float64)
    drawn = conditional_draw(u, side(*p[:2]), side(*p[2:]), lam, 0.7, noise(count))
    identity = torch.eye(SIZE, dtype=torch.float64)
    assert (worst_p_value(vec(drawn), torch.zeros(SIZE).double(), 0.49 * identity) > 1e-3) != scale_off


def test_whitened_is_unwhitened() -> None:
    """At the same E₁ and the same residual noise, our two terms stand for the paper's three: Ũ_rest equal, W equal."""
    p = parameters()
    l_r = torch.linalg.cholesky(p[0] @ p[0].mT + p[1].diag() ** 2)
    l_c = torch.linalg.cholesky(p[2] @ p[2].mT + p[3].diag() ** 2)
    g = generator(5)
    e1 = torch.randn(OUT, IN, generator=g).double()
    e2, e3, e4, u = (torch.randn(ROWS, COLS, generator=g).double() for _ in range(4))
    rows, columns = side(*p[:2]), side(*p[2:])
    hat_r = torch.linalg.cholesky(p[0] @ p[0].mT)
    # ours E₂ = L_r⁻¹(L̂_r e₂ + D_r e₄), and E₃ = e₃ seen through P_c, the Cholesky factor of A_cA_cᵀ = L_c⁻¹L̂_cL̂_cᵀL_c⁻ᵀ
    outer = torch.linalg.inv(l_r) @ (hat_r @ e2 + p[1].diag() @ e4)
    hat_c = torch.linalg.inv(l_c) @ torch.linalg.cholesky(p[2] @ p[2].mT)
    inner = e3 @ hat_c.mT @ torch.linalg.inv(columns.root).mT
    lam = torch.tensor(0.6, dtype=torch.float64)
    ours = conditional_draw(whitened(u, *p), rows, columns, lam, 0.7, Noise(e1, outer, inner))
    theirs = unwhitened_draw(u, 0.7, 0.6, (e1, e2, e3, e4), *p)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)


def test_kl_of_the_rescaled_conditional_is_that_of_the_dense_gaussians() -> None:
    p = parameters()
    mean, covariance = dense_conditional(torch.ones(ROWS, COLS).double(), 0.7, *p)
    for lam in (0.03, 0.5, 1.0, 1.7):
        q, prior = MultivariateNormal(mean, lam**2 * covariance), MultivariateNormal(mean, covariance)
        value = torch.tensor(lam, dtype=torch.float64)
        ours = conditional_kl(value, value.log(), SIZE)
        torch.testing.assert_close(ours, kl_divergence(q, prior), rtol=1e-9, atol=1e-9)


def test_factors_survive_what_single_precision_would_not() -> None:
    """More inducing rows than rows, D = 1e-3: Ψ is singular to float32; AᵀA is I − (I + ZᵀD⁻²Z)⁻¹ (Woodbury)."""
    z = torch.randn(64, 10, generator=generator(2)) / 8
    found: Side = side(z, torch.full((64,), 1e-3))
    inverse = torch.linalg.inv(torch.eye(10, dtype=torch.float64) + z.double().mT @ z.double() * 1e6)
    expected = torch.eye(10, dtype=torch.float64) - inverse
    torch.testing.assert_close(found.project.mT @ found.project, expected, rtol=1e-8, atol=1e-9)


def test_a_row_of_zeros_is_allowed() -> None:
    """As pruning leaves them."""
    z = torch.randn(3, 5, generator=generator(2))
    z[1] = 0
    found = side(z, torch.full((3,), 1e-3))
    torch.testing.assert_close(found.root @ found.root.mT, found.project @ found.project.mT, rtol=0, atol=1e-12)
