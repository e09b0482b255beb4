"""The distribution function of a mixture over samples of sums of uniforms, as one Fourier series.

Each sample is X = c + Σ_i h_iU_i + T (:mod:`.many_uniforms`) or, with a given share, a Gaussian with the same moments.
Over a window [a, a + P] that contains the mixture, with φ its characteristic function and t_k = 2πk/P,

    F(x) = (x − a)/P + (2/P) Σ_{k≥1} Re[φ(t_k) (exp(−it_k a) − exp(−it_k x))/(it_k)].

φ is computed once; then a value of F costs one sum over the series' terms, for any number of samples and weights.
Quantiles and the CRPS need dozens of values for each mixture. Absolute errors are of the order of 1e-10, whereas
:mod:`.many_uniforms` bounds relative errors. Two bounds:

    window       a uniform is strictly sub-Gaussian: Pr(|X − c| ≥ z) ≤ 2 exp(−z²/2v), v the variance of X
    truncation   |φ| ≤ Π_i (1 + h_i²t²/3)^(−1/2) over all uniforms, and the Gaussian's, as log(1 + x) ≤ x
"""

import math
from dataclasses import dataclass
from typing import Final, final

import torch
from jaxtyping import Complex, Float
from torch import Tensor

LOG_ERROR: Final = 24.0  # −log of the share outside of the window, and of the first omitted term
LONGEST: Final = 4096  # the most terms
BLOCK: Final = 1 << 20  # factors of characteristic functions that are computed together


@final
@dataclass(frozen=True)
class Series:
    """The distribution function of each mixture, which is 0 to the left of its window and 1 to the right.

    Attributes:
        first, period: the window's left end and length.
        terms: 2φ(t_k) exp(−it_k a)/(it_k P), k = 1, 2, ….
    """

    first: Float[Tensor, "batch output"]
    period: Float[Tensor, "batch output"]
    terms: Complex[Tensor, "term batch output"]

    @classmethod
    def of(
        cls,
        centre: Float[Tensor, "draw batch output"],
        half_widths: Float[Tensor, "draw batch output d"],
        radius: Float[Tensor, "draw batch output"],
        tail: float,
    ) -> "Series | None":
        """Make the series of equally weighted samples with the Gaussian's share ``tail``, or None if it is too long."""
        triangle = (radius / 2)[..., None].expand(*radius.shape, 2)
        widths = torch.cat([half_widths, triangle], -1)
        variance = widths.square().sum(-1) / 3
        reach = (2 * variance * (LOG_ERROR + math.log(2))).sqrt()
        first, last = (centre - reach).amin(0), (centre + reach).amax(0)
        period = last - first
        count = math.ceil(float((_cutoff(widths).amax(0) * period).max()) / (2 * math.pi))
        if count > LONGEST:
            return None
        offset, terms = centre - first, []
        for k in torch.arange(1, count + 1, device=centre.device).split(max(1, BLOCK // max(1, widths.numel()))):
            t = 2 * math.pi * k[:, None, None].double() / period  # [term, batch, output]
            each = t[:, None]  # broadcasts over draws
            modulus = (1 - tail) * torch.sinc(each[..., None] * widths / math.pi).prod(-1)
            if tail > 0:
                modulus = modulus + tail * (-variance * each.square() / 2).exp()
            phase = each * offset
            mixed = torch.complex((modulus * phase.cos()).mean(1), (modulus * phase.sin()).mean(1))
            terms.append(mixed / (1j * t) * (2 / period))
        return cls(first, period, torch.cat(terms))

    def cdf(self, values: Float[Tensor, "batch output"]) -> Float[Tensor, "batch output"]:
        """Return F, with an absolute error of the order of 1e-10."""
        share = ((values.double() - self.first) / self.period).clamp(0, 1)
        k = torch.arange(1, len(self.terms) + 1, device=share.device, dtype=torch.float64)[:, None, None]
        angle = 2 * math.pi * k * share
        # Re[z (1 − exp(−ia))], without cancellation
        half = 2 * (angle / 2).sin()
        moved = half * (self.terms.real * (angle / 2).sin() - self.terms.imag * (angle / 2).cos())
        return (share + moved.sum(0)).clamp(0, 1)


def _cutoff(widths: Tensor) -> Tensor:
    """Return t [...] beyond which the bound of |φ| is below exp(−LOG_ERROR), by bisection of its logarithm."""
    squares = widths.square() / 3
    # at the upper end the widest's factor alone is small enough
    widest = widths.amax(-1)
    low = -widest.log()
    high = low + LOG_ERROR + math.log(math.sqrt(3)) + 1
    for _ in range(20):
        middle = (low + high) / 2
        large = 0.5 * torch.log1p(squares * (2 * middle).exp()[..., None]).sum(-1) < LOG_ERROR
        low, high = torch.where(large, middle, low), torch.where(large, high, middle)
    return high.exp()
