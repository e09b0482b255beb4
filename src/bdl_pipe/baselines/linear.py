"""Exact Bayesian linear regression on features, and the losses that train features through it.

    Y = ΦW + ε,  w_k ~ N(0, sI),  ε ~ N(0, σ²I),  independent outputs k
    A = ΦᵀΦ/σ² + I/s,  W | Y ~ N(A⁻¹ΦᵀY/σ², A⁻¹)      (Bishop 2006, eqs 3.53–3.54)

s is ``prior_variance`` and σ² ``noise_variance``, in the units of the targets. The evidence of N(0, sΦΦᵀ + σ²I) needs
only the h×h factor of A (Woodbury; the determinant lemma) and is computed as a sum of squares, without an n×n matrix or
differences of large numbers. All functions are differentiable and take leading member dimensions, by broadcasting or
``torch.func.vmap``. A bias is a feature of ones: :func:`with_bias`.

``gbll_loss`` is minus the evidence per row. ``derivative_kl`` is for a zero-mean Gaussian prior on the function's
derivatives (Watson et al. 2021, "Latent Derivative Bayesian Last Layer Networks"): the Jacobian wᵀ∂φ/∂x is linear in w,
so it is Gaussian in closed form. It enters as a latent variable by its KL divergence from the prior, which favours
smooth *and* diverse features. Deviations: the KL is the sum over the derivatives' marginals (a lower bound of the joint
KL, finite even with fewer features than inputs), and ``gbll.Ldgbll`` averages it over rows and gives it a weight.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.func import jacfwd, vmap

from ..errors import Diverged, require
from ..joint_predictive import GaussianFunctions
from ..predictive import Gaussian

Variance = float | Float[Tensor, "..."]  # one for all members, or [member]


@dataclass(frozen=True)
class LinearPosterior:
    """The posterior W | Y = Π_k N(w_k | m_k, A⁻¹), made by :func:`posterior`.

    Attributes:
        mean: m.
        factor: lower Cholesky factor of the precision A.
        noise_variance: σ², for every output.
    """

    mean: Float[Tensor, "*member h o"]
    factor: Float[Tensor, "*member h h"]
    noise_variance: Float[Tensor, "*#member"]


def with_bias(features: Float[Tensor, "*rows h"]) -> Float[Tensor, "*rows h1"]:
    """Append a last feature that is one in every row.

    Its weight, the bias, has the same prior N(0, s) as the other weights and is integrated out with them. Centre the
    targets, so that the bias need not be large.
    """
    return F.pad(features, (0, 1), value=1.0)


def posterior(
    features: Float[Tensor, "*member n h"],
    targets: Float[Tensor, "*#member n o"],
    prior_variance: Variance,
    noise_variance: Variance,
) -> LinearPosterior:
    """Return the posterior of the weights.

    Raises:
        ConfigError: a variance that is a number is not > 0.
        Diverged: the features are not finite, or s‖Φ‖²/σ² is too large for the dtype.
    """
    prior, noise = (
        _as_broadcastable("prior_variance", prior_variance, features),
        _as_broadcastable("noise_variance", noise_variance, features),
    )
    identity = torch.eye(features.shape[-1], dtype=features.dtype, device=features.device)
    # the factor of I + (s/σ²)ΦᵀΦ, which has no eigenvalue below 1
    try:
        factor = torch.linalg.cholesky(identity + prior / noise * (features.mT @ features)) / prior.sqrt()
    except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
        raise Diverged("the features became NaN or too large: lower the learning rate") from error
    mean = torch.cholesky_solve(features.mT @ targets / noise, factor)  # [*member, h, o]
    return LinearPosterior(mean, factor, noise[..., 0, 0])


def log_marginal_likelihood(
    features: Float[Tensor, "*member n h"],
    targets: Float[Tensor, "*#member n o"],
    prior_variance: Variance,
    noise_variance: Variance,
) -> Float[Tensor, "*member"]:
    """Return Σ_k log N(y_k | 0, sΦΦᵀ + σ²I), in nats (Bishop 2006, eq. 3.86).

    It raises the errors of ``posterior``.
    """
    q = posterior(features, targets, prior_variance, noise_variance)
    prior, noise = (_as_broadcastable("variance", v, features)[..., 0, 0] for v in (prior_variance, noise_variance))
    (n, h), outputs = features.shape[-2:], targets.shape[-1]
    log_det = n * noise.log() + h * prior.log() + 2 * q.factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    misfit = (targets - features @ q.mean).square().sum((-2, -1)) / noise
    size = q.mean.square().sum((-2, -1)) / prior
    return -0.5 * (misfit + size + outputs * (log_det + n * math.log(2 * math.pi)))


def moments(
    q: LinearPosterior, features: Float[Tensor, "*#member b h"]
) -> tuple[Float[Tensor, "*member b o"], Float[Tensor, "*member b"]]:
    """Return the mean φᵀm of each output and their common variance φᵀA⁻¹φ, without the noise."""
    whitened = torch.linalg.solve_triangular(q.factor, features.mT, upper=False)  # L⁻¹φ [*member, h, b]
    return features @ q.mean, whitened.square().sum(-2)


def predict(q: LinearPosterior, features: Float[Tensor, "*#member b h"]) -> Gaussian:
    """Return p(y | x, Y) = N(φᵀm, φᵀA⁻¹φ + σ²); members, if any, are the draws of an equal mixture."""
    mean, variance = moments(q, features)
    total = (variance + q.noise_variance[..., None])[..., None].expand_as(mean)
    return Gaussian(mean.reshape(-1, *mean.shape[-2:]), total.reshape(-1, *mean.shape[-2:]))


def functions(q: LinearPosterior, features: Float[Tensor, "group row h"]) -> GaussianFunctions:
    """Return the Gaussian over φᵀw_k at the rows of each group, which share w_k."""
    whitened = torch.linalg.solve_triangular(q.factor, features.flatten(0, 1).mT, upper=False)  # L⁻¹φ
    grouped, mean = whitened.mT.unflatten(0, features.shape[:2]), features @ q.mean
    noise = q.noise_variance.expand(1, mean.shape[-1])
    return GaussianFunctions(mean[None], (grouped @ grouped.mT)[None, :, None], noise, classes=False)


def gbll_loss(
    features: Float[Tensor, "*member n h"],
    targets: Float[Tensor, "*#member n o"],
    prior_variance: Variance,
    noise_variance: Variance,
) -> Float[Tensor, "*member"]:
    """Return minus the exact evidence, in nats per row, which needs all rows at once."""
    return -log_marginal_likelihood(features, targets, prior_variance, noise_variance) / features.shape[-2]


@dataclass(frozen=True)
class JacobianMoments:
    """The Gaussian of the function's derivatives at each of a batch of inputs, made by :func:`jacobian_moments`.

    ∂(w_kᵀφ(x))/∂x ~ N(mean[..., k], root rootᵀ).

    Attributes:
        mean: the mean of each output's derivative by each input.
        root: a square root of the covariance over inputs, which all outputs share.
    """

    mean: Float[Tensor, "b d o"]
    root: Float[Tensor, "b d h"]

    @property
    def variance(self) -> Float[Tensor, "b d"]:
        """Return the marginal variance of each derivative."""
        return self.root.square().sum(-1)


def jacobian_moments(
    q: LinearPosterior, trunk: Callable[[Tensor], Tensor], inputs: Float[Tensor, "b d"]
) -> JacobianMoments:
    """Return the posterior of the function's derivatives, in forward mode, with one pass per input column.

    Args:
        trunk: φ, one row [d] -> the features [h] of ``q``, including the bias.
    """
    slopes = vmap(jacfwd(trunk), out_dims=1)(inputs)  # ∂φ/∂x [h, b, d]
    # one solve of b·d columns, since a batch of b solves would copy the factor b times
    root = torch.linalg.solve_triangular(q.factor, slopes.flatten(1), upper=False).reshape(slopes.shape)
    return JacobianMoments(torch.einsum("hbd,ho->bdo", slopes, q.mean), root.permute(1, 2, 0))


def derivative_kl(jacobian: JacobianMoments, derivative_variance: Variance) -> Float[Tensor, " b"]:
    """Return Σ_{d,k} KL[N(μ_dk, τ_d) ‖ N(0, v)] in nats at each input; v is ``derivative_variance``.

    It is infinite if no feature depends on an input column: such features are not diverse.
    """
    prior = _as_broadcastable("derivative_variance", derivative_variance, jacobian.mean)  # [1, 1]
    ratio = jacobian.variance[..., None] / prior  # [b, d, 1]
    return 0.5 * (ratio + jacobian.mean.square() / prior - 1 - ratio.log()).sum((-2, -1))


def _as_broadcastable(name: str, variance: float | Tensor, like: Tensor) -> Tensor:
    """Return a variance as [*member, 1, 1]."""
    if not isinstance(variance, Tensor):
        require(variance > 0, name, "must be > 0", variance)
    return torch.as_tensor(variance, dtype=like.dtype, device=like.device)[..., None, None]
