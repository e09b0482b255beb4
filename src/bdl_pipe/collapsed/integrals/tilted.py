"""The convolution of uniforms on [0, 2w_i] and intervals [0, ∞), at 1, by a Fourier series of the tilted density.

Tilted by exp(−θv), they become truncated exponentials V_i of variance v_i. θ is the saddle point, E ΣV = 1 (Daniels
1954, "Saddlepoint approximations in statistics"), for which q, the tilted density at its mean, is of the order of 1/σ
even if the density is tiny. q is not approximated; its Fourier series over a period P is summed, with the terms

    E exp(−itV_i) = [θ + Q_i sin(w_it)(sin(w_it) + i cos(w_it))]/(θ + it),   Q_i = 2θ/(exp(2w_iθ) − 1),   t = 2πk/P.

A sum of truncated exponentials is log-concave, so q ≥ 1/(e√12 σ) (Fradelizi 1997). Two bounds give P and the last t:

    aliasing     ≤ 2 Pr(|ΣV − 1| ≥ P − σ)/σ, by Chernoff's bound; 0 once P exceeds the support
    truncation   |E exp(−itV_i)|² ≤ 1/(1 + v_it²), equal for an exponential: it says sin²b/b² ≤ 1/(1 + b²/3) at θ = 0

Narrow widths, with w|θ + it| < 1 for all t, are combined through the cumulants of their sum.
"""

import math
from typing import Final

import torch
from torch import Tensor

LOG_ERROR: Final = 23.0  # −log of the errors by aliasing and by truncation, each relative to the density times σ
SMALLEST_TILT: Final = 1e-3  # at the centre the saddle point is zero, and any tilt is valid
NEWTON: Final = 6  # Newton steps for the tilt, which need not be exact
CUTOFF: Final = 6  # Newton steps for the last term, each an upper bound
BLOCK: Final = 1 << 16  # widths that are summed together and fit in a cache
# log(sinh z/z) in powers of z², (−1)^(l + 1) ζ(2l)/(l π^2l): for |z| < 1 the next term is below 1e-14
CUMULANTS: Final = tuple(
    float(torch.special.zeta(torch.tensor(2.0 * power, dtype=torch.float64), 1))
    * (-1) ** (power + 1)
    / (power * math.pi ** (2 * power))
    for power in range(1, 13)
)


def log_convolution(widths: Tensor, endless: Tensor, longest: float = math.inf) -> tuple[Tensor, Tensor]:
    """Return the log of the convolution at 1 and its number of terms, both [point].

    The series is not summed if it has more than ``longest`` terms.

    Args:
        widths: half-widths [n, point], > 0.
        endless: number of intervals [0, ∞) of height 1 [point].
    """
    size, plans = max(1, BLOCK // len(widths)), []
    for some, ends in zip(widths.split(size, -1), endless.split(size), strict=True):
        tilt = _saddle(some, ends)
        variances = _moments(some, tilt)[1]
        sigma = (variances.sum(0) + ends / tilt.square()).sqrt()
        period, last = _period(some, ends, tilt, sigma), _cutoff(variances, ends, tilt, sigma)
        plans.append((tilt, 2 * math.pi / period, (last * period / (2 * math.pi)).ceil()))
    tilt, step, terms = (torch.cat(values) for values in zip(*plans, strict=True))  # θ, the step in t; [point] each
    result = torch.full_like(tilt, torch.nan)
    # sorted, so that a block's points have similar numbers of terms
    order = terms.argsort()[: int((terms <= longest).sum())]
    for at in order.split(size) if len(order) else ():
        result[at] = _summed(widths[:, at], endless[at], tilt[at], step[at], int(terms[at[-1]]))
    return result, terms


def _moments(widths: Tensor, tilt: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance of the truncated exponentials [n, point]; absolute errors of 1e-16/θ and 1e-16/θ²."""
    whole = 2 * widths
    rest = whole / torch.expm1(whole * tilt)
    inverse = 1 / tilt
    return inverse - rest, (inverse.square() - rest * (rest + whole)).clamp_min(0)


def _saddle(widths: Tensor, endless: Tensor) -> Tensor:
    """Return the θ [point] at which the sum has mean 1, by Newton's method for 1/mean within a bracket.

    1/mean is almost linear in θ.
    """
    low, high = endless.clamp_min(SMALLEST_TILT), endless + len(widths)
    tilt = (low * high).sqrt()
    for _ in range(NEWTON):
        means, variances = _moments(widths, tilt)
        mean, variance = means.sum(0) + endless / tilt, variances.sum(0) + endless / tilt.square()
        low, high = torch.where(mean > 1, tilt, low), torch.where(mean > 1, high, tilt)
        new = tilt + mean * (mean - 1) / variance
        tilt = torch.where((new > 0.99 * low) & (new < 1.01 * high), new, (low * high).sqrt())
    return tilt


def _log_mass(widths: Tensor, tilt: Tensor) -> Tensor:
    """Return log Π (1 − exp(−2wθ))/(2wθ) [point], for θ of any sign."""
    exponents = -2 * widths * tilt
    return (torch.expm1(exponents) / exponents).log().sum(0)


def _period(widths: Tensor, endless: Tensor, tilt: Tensor, sigma: Tensor) -> Tensor:
    """Return P [point] such that the mass a period away from 1, on either side, is negligible."""
    at_tilt = _log_mass(widths, tilt)

    def chernoff(rate: Tensor) -> Tensor:
        """Return the distance from 1, to the right for a positive rate, where Chernoff's bound is exp(−LOG_ERROR)."""
        growth = _log_mass(widths, tilt - rate) - at_tilt - rate
        growth = torch.where(endless > 0, growth - endless * torch.log1p(-rate / tilt), growth)
        return sigma + (LOG_ERROR + growth) / rate.abs()

    normal = math.sqrt(2 * LOG_ERROR) / sigma
    ends = torch.where(endless > 0, torch.inf, 2 * widths.sum(0) - 1)
    right = torch.minimum(chernoff(0.6 * tilt), chernoff(0.85 * tilt)).nan_to_num(torch.inf)
    right = torch.minimum(right, torch.minimum(ends, chernoff(normal).nan_to_num(torch.inf)))
    return torch.maximum(right, chernoff(-normal).nan_to_num(torch.inf).clamp_max(1))


def _cutoff(variances: Tensor, endless: Tensor, tilt: Tensor, sigma: Tensor) -> Tensor:
    """Return t [point] beyond which the terms' bound has an integral ≤ exp(−LOG_ERROR)/σ; ∞ if not found.

    The log of the bound times tσ is concave in log t, so that after the first step Newton's iterates are above the
    zero.
    """
    t = 8 / sigma
    for step in range(CUTOFF + 1):
        relative = variances * t.square()
        ratio = (t / tilt).square()
        excess = LOG_ERROR + (t * sigma).log() - (torch.log1p(relative).sum(0) + endless * torch.log1p(ratio)) / 2
        if step < CUTOFF:
            power = (relative / (1 + relative)).sum(0) + endless * ratio / (1 + ratio)
            t = t * (excess / (power - 1).clamp_min(0.5)).clamp_max(50).exp()
    return torch.where(excess <= 1e-3, t, torch.inf)


def _summed(widths: Tensor, endless: Tensor, tilt: Tensor, step: Tensor, terms: int) -> Tensor:
    """Return the log of the convolution at 1 [point] for half-widths [n, point] in descending order."""
    t = torch.arange(1, terms + 1, device=step.device)[:, None] * step  # [term, point]
    largest = torch.hypot(tilt, t[-1])
    several = int(((widths * largest).amax(1) >= 1).sum())
    angles = t - several * torch.atan2(t, tilt)
    common = _log_narrow(widths[several:], tilt, t, largest) + 1j * angles - endless * torch.log1p(1j * t / tilt)
    common = common.exp()
    total = 0.5 + (common.real.sum(0) if several == 0 else _sum_of_products(widths[:several], tilt, step, t, common))
    return (total * step / math.pi).log() + _log_mass(widths, tilt) - endless * tilt.log() + tilt


def _sum_of_products(widths: Tensor, tilt: Tensor, step: Tensor, t: Tensor, common: Tensor) -> Tensor:
    """Return Re Σ_t common Π_i [θ + Q_i sin(w_it)(sin(w_it) + i cos(w_it))]/|θ + it| [point].

    Sines and cosines are computed by rotation.
    """
    weights = 2 * tilt / torch.expm1(2 * widths * tilt)
    turn_cos, turn_sin = (widths * step).cos(), (widths * step).sin()
    cos, sin, total = turn_cos, turn_sin, torch.zeros_like(tilt)
    inverses, reals, imaginaries = 1 / torch.hypot(tilt, t), common.real.contiguous(), common.imag.contiguous()
    for inverse, a, b in zip(inverses, reals, imaginaries, strict=True):
        scaled = (weights * sin).mul_(inverse)
        real, imaginary = _product(torch.addcmul(tilt * inverse, scaled, sin), scaled.mul_(cos))
        total = total + (real * a - imaginary * b)
        cos, sin = (cos * turn_cos).addcmul_(sin, turn_sin, value=-1), (sin * turn_cos).addcmul_(cos, turn_sin)
    return total


def _log_narrow(widths: Tensor, tilt: Tensor, t: Tensor, largest: Tensor) -> Tensor:
    """Return log Π E exp(−itV_i) over widths with w|θ + it| < 1 [term, point], |θ + it| ≤ ``largest``."""
    square = (widths * largest).square()
    power, sums = square, []
    for cumulant in CUMULANTS:
        sums.append(cumulant * power.sum(0))
        power = power * square
    start, z = (tilt / largest).square(), (torch.complex(tilt.expand_as(t), t) / largest).square()
    at_t, at_start = torch.zeros_like(z), torch.zeros_like(tilt)
    for c in reversed(sums):
        at_t, at_start = (at_t + c) * z, (at_start + c) * start
    return at_t - at_start - 1j * t * widths.sum(0)


def _product(real: Tensor, imaginary: Tensor) -> tuple[Tensor, Tensor]:
    """Return the product of complex numbers over the first dimension."""
    while len(real) > 1:
        half = len(real) // 2
        a, b, c, d = real[:half], imaginary[:half], real[half : 2 * half], imaginary[half : 2 * half]
        odd = real[2 * half :], imaginary[2 * half :]
        real, imaginary = (a * c).addcmul_(b, d, value=-1), (a * d).addcmul_(b, c)
        if len(odd[0]):
            first = real[:1] * odd[0] - imaginary[:1] * odd[1], real[:1] * odd[1] + imaginary[:1] * odd[0]
            real[:1], imaginary[:1] = first
    return real[0], imaginary[0]
