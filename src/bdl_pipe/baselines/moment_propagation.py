"""Moments of a network with independent Gaussian weights, and the update of these weights by one row at a time.

Hernández-Lobato & Adams 2015, "Probabilistic Backpropagation for Scalable Learning of Bayesian Neural Networks": the
forward pass, and the update of one row. A layer of k inputs and a bias computes

    a = W z / √(k + 1),    z = (inputs, 1),    W_ij ~ N(m_ij, v_ij) independently,

so that E a = m E z/√(k + 1) and Var a = (v (E z)² + v Var z + m² Var z)/(k + 1), if the entries of z are independent.
Each a is then taken for Gaussian, and a rectified Gaussian has moments in closed form. The outputs' moments μ, s give
the normaliser of a row y under the noise N(0, 1/γ), γ ~ Gamma(α, β), for each output

    log Z(α, β) = log N(y | μ, s + β/(α − 1)),

which replaces a Student distribution by the Gaussian of its variance. The tilted distribution's moments are

    m' = m + v g,    v' = v − v² (g² − 2 h),    g = ∂ log Z/∂m,  h = ∂ log Z/∂v    (Minka 2001, chapter 3),

and γ becomes the gamma distribution with the tilted mean and variance of γ (:func:`matched`). All sums of log Z over
outputs and members are exact derivatives, since an output's noise and a member's weights are in one term each.

:func:`functions` is ours: it propagates the covariance of each unit between several rows, too, so that the posterior is
a Gaussian over functions, with the marginals above.

Tensors have a first dimension of members: networks of one architecture that are fitted to rows of their own.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

_LOG_SQRT_2PI: Final = 0.5 * math.log(2 * math.pi)
_TERMS: Final = 4  # terms of the covariance of rectified Gaussians that are exact
_LEAST: Final = 1e-100  # the least variance of a weight; a smaller one counts as negative


@dataclass(frozen=True)
class Beliefs:
    """Independent Gaussians over all weights and gamma distributions over the precisions of the noise, in float64.

    Attributes:
        means, variances: m and v of each layer, [member, output, input + 1]; the last column is the bias.
        shape, rate: α and β of the noise precision of each output, [member, output].
    """

    means: Sequence[Tensor]
    variances: Sequence[Tensor]
    shape: Float[Tensor, "member output"]
    rate: Float[Tensor, "member output"]

    @property
    def noise_variance(self) -> Float[Tensor, "member output"]:
        """Return E[1/γ] = β/(α − 1)."""
        return self.rate / (self.shape - 1)

    def outputs(self, inputs: Float[Tensor, "member row d"]) -> tuple[Tensor, Tensor]:
        """Return mean and variance of the network's outputs, without noise, [member, row, output]."""
        return outputs(self.means, self.variances, inputs)

    def given(self, inputs: Float[Tensor, "member d"], targets: Float[Tensor, "member output"]) -> "Updated":
        """Return the beliefs after one row of each member.

        A weight keeps its mean and variance if its new variance is not positive or not finite, and a noise precision
        keeps its distribution unless the new one has a mean of 1/γ.
        """
        leaves = [tensor.detach().requires_grad_() for tensor in (*self.means, *self.variances)]
        count, more = len(self.means), torch.arange(3, device=targets.device)[:, None, None]
        with torch.enable_grad():
            mean, variance = outputs(leaves[:count], leaves[count:], inputs[:, None])
            log_z = log_normaliser(targets, mean[:, 0], variance[:, 0], self.shape + more, self.rate)
            slopes = torch.autograd.grad(log_z[0].sum(), leaves)
        means, variances, rejected = [], [], 0
        with torch.no_grad():
            for m, v, g, h in zip(self.means, self.variances, slopes[:count], slopes[count:], strict=True):
                new_mean, new_variance = m + v * g, v - v * v * (g * g - 2 * h)
                valid = (new_variance > _LEAST) & (new_variance + new_mean.abs() < math.inf)  # False for NaN, too
                means.append(torch.where(valid, new_mean, m))
                variances.append(torch.where(valid, new_variance, v))
                rejected += valid.numel() - int(valid.sum())
            shape, rate = matched(log_z, self.shape, self.rate)
            valid = (shape > 1) & (rate > 0) & (shape + rate < math.inf)
            shape, rate = torch.where(valid, shape, self.shape), torch.where(valid, rate, self.rate)
        return Updated(Beliefs(means, variances, shape, rate), log_z[0].detach().sum(-1), rejected)


@dataclass(frozen=True)
class Updated:
    """The beliefs after a row, its log Z [member] by the beliefs before it, and the number of rejected weights."""

    beliefs: Beliefs
    log_z: Float[Tensor, " member"]
    rejected: int


def outputs(means: Sequence[Tensor], variances: Sequence[Tensor], inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the moments of the outputs, see :meth:`Beliefs.outputs`."""
    mean, variance = inputs, torch.zeros_like(inputs)
    for layer, (m, v) in enumerate(zip(means, variances, strict=True)):
        if layer:
            mean, variance = rectified(mean, variance)
        mean, variance = linear(m, v, mean, variance)
    return mean, variance


def linear(m: Tensor, v: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Return the moments of a linear layer's outputs, from the moments [member, row, input] of its inputs."""
    mean, variance = F.pad(mean, (0, 1), value=1.0), F.pad(variance, (0, 1))
    inputs = mean.shape[-1]
    spread = (mean.square() + variance) @ v.mT + variance @ m.square().mT
    return mean @ m.mT / math.sqrt(inputs), spread / inputs


def rectified(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance of max(0, a), a ~ N(mean, variance).

    With r = mean/sd, u = mean + sd·φ(r)/Φ(r) is the mean of a, given that it is positive: the mean is Φ(r) u. The ratio
    φ/Φ is computed from log Φ, which keeps it finite where Φ(r) is 0 in floating point.
    """
    sd = variance.sqrt()
    r = mean / sd
    log_below = torch.special.log_ndtr(r)
    ratio = (-0.5 * r.square() - _LOG_SQRT_2PI - log_below).exp()
    positive, above = log_below.exp(), mean + sd * ratio
    first = positive * above
    return first, first * above * torch.special.ndtr(-r) + positive * variance * (1 - ratio * (ratio + r))


def functions(means: Sequence[Tensor], variances: Sequence[Tensor], inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean [group, row, output] and the covariance [group, output, row, row] of one member's outputs.

    Args:
        means, variances: of each layer, [output, input + 1].
        inputs: the rows of each group, [group, row, d].
    """
    mean, covariance = inputs, inputs.new_zeros(*inputs.mT.shape, inputs.shape[1])
    for layer, (m, v) in enumerate(zip(means, variances, strict=True)):
        if layer:
            mean, covariance = rectified_rows(mean, covariance)
        mean, covariance = F.pad(mean, (0, 1), value=1.0), F.pad(covariance, (0, 0, 0, 0, 0, 1))
        second = covariance + mean.mT[..., :, None] * mean.mT[..., None, :]
        both = torch.einsum("ok,gkrs->gors", v, second) + torch.einsum("ok,gkrs->gors", m.square(), covariance)
        mean, covariance = mean @ m.mT / math.sqrt(mean.shape[-1]), both / mean.shape[-1]
    return mean, covariance


def rectified_rows(mean: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Return the moments of max(0, a) at the rows of each group, from those of the Gaussian a of each unit.

    With a = s (t + r), the covariance of two rows of correlation ρ is Σ_n c_n c'_n ρⁿ/n!, c₁ = s Φ(r) and c_n = s φ(r)
    He_{n−2}(−r) for n > 1 (Hermite's expansion). The first four terms are exact. The rest has the right sum at ρ = 1
    and is taken for a multiple of ρ⁵, so that variances are exact and a covariance matrix stays one.

    Args:
        mean: [group, row, unit].
        covariance: [group, unit, row, row].
    """
    variance = covariance.diagonal(dim1=-2, dim2=-1)  # [group, unit, row]
    sd = variance.sqrt()
    r = mean.mT / sd
    first, exact = rectified(mean.mT, variance)
    density = (-0.5 * r.square() - _LOG_SQRT_2PI).exp()
    terms = [sd * torch.special.ndtr(r)]
    terms += [sd * density * torch.special.hermite_polynomial_he(-r, n) for n in range(_TERMS - 1)]
    terms = [term / math.sqrt(math.factorial(n)) for n, term in enumerate(terms, 1)]
    terms.append((exact - sum(term.square() for term in terms)).clamp_min(0).sqrt())
    correlation = (covariance / (sd[..., :, None] * sd[..., None, :])).clamp(-1, 1)
    each = (term[..., :, None] * term[..., None, :] * correlation**n for n, term in enumerate(terms, 1))
    return first.mT, torch.stack(list(each)).sum(0)


def log_normaliser(targets: Tensor, mean: Tensor, variance: Tensor, shape: Tensor, rate: Tensor) -> Tensor:
    """Return log N(y | mean, variance + rate/(shape − 1)), elementwise."""
    total = variance + rate / (shape - 1)
    return -0.5 * (total.log() + (targets - mean).square() / total) - _LOG_SQRT_2PI


def matched(log_z: Float[Tensor, "3 ..."], shape: Tensor, rate: Tensor) -> tuple[Tensor, Tensor]:
    """Return shape and rate of the gamma distribution with the moments of a tilted gamma distribution.

    ``log_z`` has log Z_k, k = 0, 1, 2, of the normaliser with the shape α + k; Z = Z₀. Then E γ = Z₁α/(Zβ) and E γ² =
    Z₂α(α + 1)/(Zβ²), so that

        α' = (Z Z₂/Z₁² (α + 1)/α − 1)⁻¹,    β' = (Z₂/Z₁ (α + 1)/β − Z₁/Z α/β)⁻¹.
    """
    first, second = (log_z[1] - log_z[0]).exp(), (log_z[2] - log_z[1]).exp()  # Z₁/Z and Z₂/Z₁
    new_shape = 1 / (second / first * (shape + 1) / shape - 1)
    new_rate = 1 / (second * (shape + 1) / rate - first * shape / rate)
    return new_shape, new_rate
