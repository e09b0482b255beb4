"""The closed form of Variational Bayesian Pseudo-Coresets: the Gaussian posterior of a linear head.

Coreset S = (x̂, Ŷ), Φ = φ(x̂), prior W ~ N(0, ρ⁻¹I), likelihood N(ŷ | Wᵀφ, γ⁻¹I), tempered by β_S.
With a = γ/(ρβ_S) and A = I + aΦΦᵀ the optimum of eq. 15 is, for each class, N(m, V) with

    m = aΦᵀA⁻¹Ŷ          V = ρ⁻¹(I − aΦᵀA⁻¹Φ)                                       (eq. 21)

and everything below needs only one Cholesky factor of A (eq. 28–31). If the coreset has more rows than features, A = I
+ aΦᵀΦ is factored instead; only this case needs a matrix of features × features.

Source: Lee et al. 2025, "Variational Bayesian Pseudo-Coreset", section 3 and appendix A. γ is a *precision* everywhere
(in contrast to a sentence below eq. 14). Deviations: the KL includes its constants, so that it is 0 at Φ = 0 and never
negative; only the diagonal of eq. 31 is computed.

The paper's outer loss is not its bound. The bound (eq. 16, 23) has E_q[log softmax(z)], while eq. 25 approximates, and
eq. 27 sums, log E_q[softmax(z)], the log of the predictive, which is never smaller. :func:`dataset_loss` computes
either.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from ...errors import Diverged, require
from ...joint_predictive import GaussianFunctions
from ...predictive import Categorical, mean_field
from ...seeds import Seed

Positive = float | Float[Tensor, ""]


@dataclass(frozen=True)
class HeadPosterior:
    """The posterior q(W) = Π_j N(w_j | m_j, V), made by :func:`solve`.

    It is differentiable in features and labels, and in ρ and γ if they are tensors.

    Attributes:
        features: Φ [n, h] if n <= h (dual); None if n > h (primal), where the factor suffices.
        mean: m [h, k].
        factor: the lower Cholesky factor of A: [n, n] (dual) or [h, h] (primal).
        rho: the precision of the prior.
        ratio: a = γ/(ρβ_S).
    """

    features: Float[Tensor, "n h"] | None
    mean: Float[Tensor, "h k"]
    factor: Float[Tensor, "m m"]
    rho: Positive
    ratio: Positive

    def kl(self) -> Float[Tensor, ""]:
        """Compute KL[q ‖ p] in nats, including constants (eq. 28–30).

        With V's log-determinant and trace written out, −kh log ρ and −kh cancel exactly:
        ½(k log det A − k tr(A⁻¹(A − I)) + ρ‖m‖²).
        """
        classes = self.mean.shape[1]
        log_det = 2 * self.factor.diagonal().log().sum()
        identity = torch.eye(len(self.factor), dtype=self.factor.dtype, device=self.factor.device)
        inverse_root = torch.linalg.solve_triangular(self.factor, identity, upper=False)  # L⁻¹
        shrink = len(self.factor) - inverse_root.square().sum()  # tr(A⁻¹(A − I)) = size − tr A⁻¹
        return 0.5 * (classes * (log_det - shrink) + self.rho * self.mean.square().sum())

    def logit_moments(self, test_features: Float[Tensor, "b h"]) -> tuple[Float[Tensor, "b k"], Float[Tensor, " b"]]:
        """Compute the mean φᵀm of each class's logit and their common variance φᵀVφ (diagonal of eq. 31).

        Dual: ρ⁻¹(‖φ‖² − a‖L⁻¹Φφ‖²), a difference that rounding can make negative; it is clamped at 0. Primal
        (``features`` is None): ρ⁻¹‖L⁻¹φ‖², a sum of squares.
        """
        mean = test_features @ self.mean
        if self.features is None:
            whitened = torch.linalg.solve_triangular(self.factor, test_features.T, upper=False)
            return mean, whitened.square().sum(0) / self.rho
        whitened = torch.linalg.solve_triangular(self.factor, self.features @ test_features.T, upper=False)  # L⁻¹Φφ
        return mean, (test_features.square().sum(1) - self.ratio * whitened.square().sum(0)).clamp_min(0) / self.rho

    def functions(self, test_features: Float[Tensor, "group row h"]) -> GaussianFunctions:
        """Return the Gaussian over the logits φᵀw_j at the rows of each group, which share w_j (eq. 31), in float64.

        The factor of A is recomputed in float64: φᵀVφ′ = ρ⁻¹(φᵀφ′ − aφᵀΦᵀA⁻¹Φφ′) cancels in directions that the coreset
        determines, and in float32 the result need not be a covariance matrix.
        """
        phi = test_features.double()
        if self.features is None:
            white = _whitened(self.factor.double(), phi)
            covariance = white @ white.mT
        else:
            coreset = self.features.double()
            identity = torch.eye(len(coreset), dtype=coreset.dtype, device=coreset.device)
            white = _whitened(torch.linalg.cholesky(identity + self.ratio * coreset @ coreset.T), phi @ coreset.T)
            covariance = phi @ phi.mT - self.ratio * white @ white.mT
        mean = phi @ self.mean.double()
        noise = mean.new_zeros(1, mean.shape[-1])
        return GaussianFunctions(mean[None], (covariance / self.rho)[None, :, None], noise, classes=True)

    def covariance(self, most_bytes: int = 2**30) -> Float[Tensor, "h h"]:
        """Compute V = ρ⁻¹(I + aΦᵀΦ)⁻¹, which predictions do not need.

        Raises:
            ConfigError: V would have more than ``most_bytes`` bytes.
        """
        width = len(self.mean)
        size, rule = width**2 * self.mean.element_size(), f"must have at most {most_bytes / 2**20:,.0f} MiB"
        require(size <= most_bytes, "covariance", rule, f"{width} x {width} numbers of {size / 2**20:,.0f} MiB")
        identity = torch.eye(width, dtype=self.mean.dtype, device=self.mean.device)
        if self.features is None:
            return torch.cholesky_inverse(self.factor) / self.rho
        whitened = torch.linalg.solve_triangular(self.factor, self.features, upper=False)  # L⁻¹Φ [n, h]
        return (identity - self.ratio * whitened.T @ whitened) / self.rho

    def draws(self, count: int, rng: Seed) -> Float[Tensor, "draw h k"]:
        """Draw weights of the head from N(m, V), without computing V.

        Dual: a draw w₀ of the prior becomes a draw of the posterior by Matheron's rule, w = w₀ − aΦᵀA⁻¹(Φw₀ + e/√(aρ)),
        e ~ N(0, I). Primal: w = ρ^(−½) L⁻ᵀz.
        """
        (width, classes), generator = self.mean.shape, rng.generator()

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=self.mean.dtype).to(self.mean.device)

        z = normal(count, width, classes) / self.rho**0.5
        if self.features is None:
            return self.mean + torch.linalg.solve_triangular(self.factor.T, z, upper=True)
        noise = normal(count, len(self.features), classes) / (self.ratio * self.rho) ** 0.5
        return (
            self.mean + z - self.ratio * self.features.T @ torch.cholesky_solve(self.features @ z + noise, self.factor)
        )

    def predict(self, test_features: Float[Tensor, "b h"]) -> Categorical:
        """Return softmax(mean / √(1 + π/8 · variance)) (eq. 25), as a predictive of one draw."""
        return Categorical(class_log_probs(*self.logit_moments(test_features))[None])


def _whitened(factor: Float[Tensor, "m m"], vectors: Float[Tensor, "group row m"]) -> Float[Tensor, "group row m"]:
    return torch.linalg.solve_triangular(factor, vectors.flatten(0, 1).T, upper=False).T.unflatten(0, vectors.shape[:2])


def solve(
    features: Float[Tensor, "n h"],
    labels: Float[Tensor, "n k"],
    rho: Positive = 1.0,
    gamma: Positive = 100.0,
    beta: float | None = None,
) -> HeadPosterior:
    """Solve for the posterior of the head given a coreset (eq. 21).

    Args:
        features: Φ, the trunk's features of the coreset.
        labels: Ŷ, real-valued targets with a column for each class.
        rho: the precision of the prior, > 0.
        gamma: the *precision* of the coreset's Gaussian likelihood, > 0.
        beta: β_S, the temper of the coreset's KL. None gives the paper's choice, n.

    No jitter is added: A = I + aΦΦᵀ has no eigenvalue below 1, so its Cholesky factor exists for any rank of Φ, in
    float32 if a‖Φ‖² is below 1e7.

    Raises:
        ConfigError: rho, gamma or beta is not > 0.
        Diverged: the features are not finite or exceed this range.
    """
    temper = float(len(features)) if beta is None else beta
    for name, value in (("rho", rho), ("gamma", gamma), ("beta", temper)):
        require(bool(value > 0), name, "must be > 0", value)
    n, h = features.shape
    ratio = gamma / (rho * temper)
    gram = features @ features.T if n <= h else features.T @ features
    identity = torch.eye(min(n, h), dtype=gram.dtype, device=gram.device)
    factor = _factor(identity + ratio * gram, ratio)
    if n <= h:  # m = aΦᵀA⁻¹Ŷ
        mean = ratio * features.T @ torch.cholesky_solve(labels, factor)
    else:  # push-through identity: Φᵀ(I + aΦΦᵀ)⁻¹ = (I + aΦᵀΦ)⁻¹Φᵀ
        mean = ratio * torch.cholesky_solve(features.T @ labels, factor)
    return HeadPosterior(features if n <= h else None, mean, factor, rho, ratio)


def _factor(matrix: Float[Tensor, "m m"], ratio: Positive) -> Float[Tensor, "m m"]:
    """Return the lower Cholesky factor; if it does not exist, raise Diverged on a CPU and return NaN on other devices.

    A check would have to wait for the device; the training loop detects NaN in the loss.
    """
    factor, failed = torch.linalg.cholesky_ex(matrix)
    if matrix.device.type != "cpu":
        return torch.where(failed > 0, torch.nan, factor)
    if failed == 0 and bool(factor.diagonal().isfinite().all()):
        return factor
    if not bool(matrix.isfinite().all()):
        raise Diverged("the coreset's features became NaN or too large: lower the learning rate")
    largest, a = float(matrix.detach().diagonal().max()), float(ratio)
    raise Diverged(
        f"I + aΦΦᵀ has entries up to {largest:.3g} at a = gamma/(rho n) = {a:.3g}, too large for a factor in "
        f"{matrix.dtype}: raise rho, or lower gamma or feature_scale"
    )


def class_log_probs(mean: Float[Tensor, "b k"], logit_variance: Float[Tensor, " b"]) -> Float[Tensor, "b k"]:
    """Compute the log softmax of the mean-field approximation of E[softmax] (eq. 25; Lu et al. 2020)."""
    return mean_field(mean, logit_variance[:, None])


def expected_log_probs(
    mean: Float[Tensor, "b k"], logit_variance: Float[Tensor, " b"], noise: Float[Tensor, "draw b k"]
) -> Float[Tensor, "b k"]:
    """Estimate E[log softmax(z)], z_k ~ N(mean, variance): the likelihood's part of the bound (eq. 16, 23).

    The estimate is the mean over each standard normal ``noise`` and its negative, which is unbiased; only the
    log-sum-exp is random.
    """
    spread = logit_variance.sqrt()[:, None] * noise
    normalisers = torch.stack([torch.logsumexp(mean + side * spread, -1) for side in (1, -1)])  # [2, draw, b]
    return mean - normalisers.mean((0, 1))[:, None]


def dataset_loss(
    q: HeadPosterior,
    batch_features: Float[Tensor, "b h"],
    batch_labels: Int[Tensor, " b"] | Float[Tensor, "b k"],
    num_train: int = 60_000,
    beta_dataset: float = 1e-8,
    noise: Float[Tensor, "draw b k"] | None = None,
    weights: Float[Tensor, " b"] | None = None,
) -> Float[Tensor, ""]:
    """Compute the outer loss −(n/|B|) Σ_B ℓ(y, x) + β_D KL[q ‖ p], in nats.

    Args:
        batch_features: the features of training rows, without a graph.
        batch_labels: class numbers, or one-hot rows.
        num_train: n, the number of training rows.
        noise: with None, ℓ is the log of the predictive by eq. 25, as in the paper's eq. 27. With standard normal
            numbers, ℓ is E[log softmax] by :func:`expected_log_probs`, and at β_D = 1 the loss is minus the bound.
        weights: the weights of the batch's rows, with class numbers as labels. With None, each weight is 1/|B|.
    """
    mean, logit_variance = q.logit_moments(batch_features)
    if noise is None:
        log_probs = class_log_probs(mean, logit_variance)
    else:
        log_probs = expected_log_probs(mean, logit_variance, noise)
    if weights is not None:
        fit = weights.to(log_probs) @ F.nll_loss(log_probs, batch_labels.long(), reduction="none")
    elif batch_labels.ndim == 1:
        fit = F.nll_loss(log_probs, batch_labels.long())
    else:
        fit = -(batch_labels * log_probs).sum() / len(log_probs)
    return num_train * fit + beta_dataset * q.kl()
