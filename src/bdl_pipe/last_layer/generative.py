"""The generative variational Bayesian last layer (G-VBLL): a Gaussian for each class's features.

Model (eq. 4–5): ρ ~ Dir(α), class mean φ̄[k] ~ N(0, sI), label y ~ Cat(ρ), features φ | y ~ N(φ̄[y], Σ). Posterior:
Dir(α_T) exactly, from the class counts, and q(φ̄) = Π_k N(μ[k], S[k]). With C[k] = Σ + S[k] everything below needs only
log p(φ, k) = log p(k) + log N(φ | μ[k], C[k]): training needs no samples (theorem 3), the predictive is Bayes' rule
(eq. 8–9) and the features have a density (eq. 74), which is the method's own OOD score.

Source: Harrison, Willes & Snoek 2023, "Variational Bayesian Last Layers", sections 2.3 and 3.3, appendices B.4 and C. Σ
and S[k] are diagonal, as in the paper. Deviations:

- The KL and log p(Σ) include their constants, so that the KL is 0 at the prior and never negative.
- The prior of a diagonal Σ is a product of inverse gammas (appendix C.1), which is eq. 65 with N = 1
  for each dimension: IG(ν/2, M/2). For the weight of eq. 65 with N = h, pass ν + h − 1 for ν.
- Eq. 55 has log E[ρ_y] instead of the ELBO's E[log ρ_y], which is smaller: theorem 3 bounds the
  likelihood given ρ = E[ρ], not its expectation over ρ. We follow the paper; ρ has no gradient.

The densities of G-VBLL-MAP are fitted to fixed features after training, for OOD scores (appendix C.7). For each class,
with T_y rows,

    μ[y] = (Σ_0⁻¹ + T_yΣ⁻¹)⁻¹ Σ⁻¹ Σ_t φ_t             Σ_0 = sI, μ_0 = 0            (eq. 75)
    Σ[y] = (M + Σ_t (φ_t − φ̂)²) / (T_y + ν + N + 1)   φ̂ the empirical mean         (eq. 77)

Eq. 75 (and 76) is printed without its inverse, which is restored here. Σ[y] is diagonal, so each of its dimensions has
its own inverse gamma, eq. 65 with N = 1: eq. 77 is the mode of IG((T_y + ν)/2, (M + scatter)/2). As in the paper, S is
omitted, and a class without rows has its priors' modes: mean 0 and Σ = M/(ν + 2).
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..errors import require
from ..networks.last_layer import (
    LOG_2PI,
    Buffers,
    ClassShares,
    class_moments,
    class_numbers,
    labels_as_index,
    log_densities,
    log_shares,
    prior_density,
)
from ..predictive import Categorical
from ..seeds import Seed
from .layer import Count, check_features, check_rows, mean_of

_DRAWS: Final = 50  # draws of the class means at a time


@final
class Refit(Buffers):
    """The class densities N(φ | mean[k], diag variance[k]), for OOD scores and not for labels.

    The paper finds that labels predicted with them are far too confident. For scores:
    ``Categorical(layer.predict(φ).draw_log_probs, {"refit_density": refit.log_density(φ)})``.
    """

    mean: Float[Tensor, "class feature"]
    variance: Float[Tensor, "class feature"]
    class_log_probs: Float[Tensor, " class"]
    feature_prior_variance: Float[Tensor, " feature"]

    def log_density(self, features: Float[Tensor, "batch feature"]) -> Float[Tensor, " batch"]:
        """Return :meth:`Generative.log_density` under the refitted densities and the layer's feature prior."""
        check_features(features, self.mean.shape[-1])
        joint = self.class_log_probs + log_densities(features, self.mean, self.variance)
        return torch.logsumexp(joint, dim=-1) - prior_density(features, self.feature_prior_variance)


class Generative(nn.Module):
    """A posterior over the class means of features, with a shared diagonal noise covariance.

    Parameters: ``mean`` μ [class, feature]; ``log_std`` m with S[k] = diag exp(2m[k]) [class, feature];
    ``log_root_precision``, log of the diagonal of L where Σ⁻¹ = LLᵀ [feature] (eq. 78). Buffer:
    ``concentration`` α_T [class].
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        class_counts: Tensor | Sequence[float],
        dirichlet: float = 1.0,
        prior_variance: float = 1.0,
        wishart_dof: float = 1.0,
        wishart_scale: float = 1.0,
        rng: Seed = Seed(0),
    ) -> None:
        """Initialise Σ at I, and means and deviations at √(s/h), so that logits and trace are O(1) at any width h.

        Args:
            class_counts: the number of training rows of each class, [class].
            dirichlet: α_0, the same for every class, > 0.
            prior_variance: s of the class means' prior N(0, sI), > 0.
            wishart_dof: ν > 0 of Σ's prior, an inverse gamma IG(ν/2, M/2) for each dimension.
            wishart_scale: M > 0 of Σ's prior.
            rng: the seed address of the initial means.

        Raises:
            ConfigError: a number is out of range, or ``class_counts`` does not have a count >= 0 for each class.
        """
        super().__init__()
        counts = torch.as_tensor(class_counts, dtype=torch.get_default_dtype()).detach().clone()
        sizes = {"in_features": in_features, "num_classes": num_classes}
        scales = {"dirichlet": dirichlet, "prior_variance": prior_variance}
        scales |= {"wishart_dof": wishart_dof, "wishart_scale": wishart_scale}
        for name, value in (sizes | scales).items():
            require(0 < value < math.inf, name, "must be > 0 and finite", value)
        fits = counts.shape == (num_classes,)
        require(fits, "class_counts", f"must have one entry for each of {num_classes} classes", list(counts.shape))
        valid = bool((torch.isfinite(counts) & (counts >= 0)).all())
        require(valid, "class_counts", "must be >= 0 and finite", counts.tolist())
        self.in_features, self.num_classes, self.prior_variance = in_features, num_classes, prior_variance
        self.wishart_dof, self.wishart_scale = wishart_dof, wishart_scale
        self.concentration: Tensor
        self.register_buffer("concentration", dirichlet + counts)
        spread = math.sqrt(prior_variance / in_features)
        draw = torch.randn(num_classes, in_features, generator=rng.fold("generative", "mean").generator())
        self.mean = nn.Parameter(spread * draw)
        self.log_std = nn.Parameter(torch.full_like(draw, math.log(spread)))
        self.log_root_precision = nn.Parameter(torch.zeros(in_features))

    @property
    def noise_variance(self) -> Float[Tensor, " feature"]:
        """Return the diagonal of Σ."""
        return torch.exp(-2 * self.log_root_precision)

    @property
    def class_log_probs(self) -> Float[Tensor, " class"]:
        """Return log p(k) = log α_T[k] − log Σ_j α_T[j] (eq. 7)."""
        return self.concentration.log() - self.concentration.sum().log()

    @property
    def feature_prior_variance(self) -> Float[Tensor, " feature"]:
        """Return the diagonal of sI + Σ: before any data, φ ~ N(0, sI + Σ) for every class."""
        return self.prior_variance + self.noise_variance

    def forward(self, features: Float[Tensor, "batch feature"], class_shares: ClassShares | None = None) -> Tensor:
        """Return log p(φ, k) = log p(k) + log N(φ | μ[k], Σ + S[k]), the logits of eq. 8 [batch, class].

        :meth:`predict` has the argument and the errors.
        """
        check_features(features, self.in_features)
        prior = self.class_log_probs if class_shares is None else log_shares(class_shares, self.class_log_probs)
        return prior + self._log_densities(features)

    def _log_densities(self, features: Tensor) -> Float[Tensor, "batch class"]:
        return log_densities(features, self.mean, self.noise_variance + torch.exp(2 * self.log_std))

    def _fit(self, offset: Float[Tensor, "batch feature"]) -> tuple[Float[Tensor, " batch"], Float[Tensor, " class"]]:
        """Return (φ − μ)ᵀΣ⁻¹(φ − μ), without a matrix product because of autocast and TF32, and tr(Σ⁻¹S[k])."""
        precision = torch.exp(2 * self.log_root_precision)  # Σ⁻¹ [feature]
        return (offset.square() * precision).sum(-1), (torch.exp(2 * self.log_std) * precision).sum(-1)

    def bound(
        self, features: Float[Tensor, "batch feature"], labels: Tensor, weights: Float[Tensor, " batch"] | None = None
    ) -> Float[Tensor, ""]:
        """Return the mean over the batch of theorem 3's data term, in nats (eq. 14, 52), weighted by :func:`mean_of`.

        log N(φ | μ[y], Σ) − ½ tr(Σ⁻¹S[y]) + log α_T[y] − LSE_k(log N(φ | μ[k], Σ + S[k]) + log α_T[k]); log Σ_j α_T[j]
        occurs in both of the last terms and cancels.

        Raises:
            DataError: the features have no row or are not ``in_features`` wide, or a label is not a whole number or not
                in 0 … num_classes − 1 (on a CPU; an accelerator fails asynchronously with its own index error).
        """
        check_rows(features)
        labels = class_numbers(labels, len(features))
        evidence = torch.logsumexp(self(features), dim=-1)  # [batch]
        with labels_as_index(labels, self.num_classes):
            chosen = self.mean.index_select(0, labels)  # not mean[labels], which would accept −1 as the last class
        squared, trace = self._fit(features - chosen)
        log_det = -2 * self.log_root_precision.sum() + self.in_features * LOG_2PI
        prior = (self.class_log_probs - 0.5 * trace).index_select(0, labels)
        return mean_of(prior - 0.5 * (squared + log_det) - evidence, weights)

    def kl(self) -> Float[Tensor, ""]:
        """Return Σ_k KL[N(μ[k], S[k]) ‖ N(0, sI)] in nats, including constants: 0 at the prior, never negative."""
        log_ratio = 2 * self.log_std - math.log(self.prior_variance)  # log S/s
        shape = torch.expm1(log_ratio) - log_ratio  # S/s − 1 − log S/s, without cancellation near S = s
        return 0.5 * (shape + self.mean.square() / self.prior_variance).sum()

    def noise_log_prior(self) -> Float[Tensor, ""]:
        """Return log p(Σ) = Σ_h log IG(Σ_h | ν/2, M/2), eq. 65 with N = 1, including constants."""
        shape, rate = self.wishart_dof / 2, self.wishart_scale / 2
        constant = self.in_features * (shape * math.log(rate) - math.lgamma(shape))
        log_precision = 2 * self.log_root_precision
        return constant + ((shape + 1) * log_precision - rate * log_precision.exp()).sum()

    def loss(
        self,
        features: Float[Tensor, "batch feature"],
        labels: Tensor,
        *,
        num_train: Count,
        weights: Float[Tensor, " batch"] | None = None,
    ) -> Float[Tensor, ""]:
        """Return −(bound + (log p(Σ) − KL)/num_train), in nats per row (eq. 61); the caller adds the trunk's prior.

        The arguments are as in :meth:`.layer.LastLayer.loss`.

        Raises:
            ConfigError: num_train is not > 0.
            DataError: see :meth:`bound`.
        """
        require(isinstance(num_train, Tensor) or num_train > 0, "num_train", "must be > 0", num_train)
        return (self.kl() - self.noise_log_prior()) / num_train - self.bound(features, labels, weights)

    def predict(
        self, features: Float[Tensor, "batch feature"], *, rng: Seed = Seed(0), class_shares: ClassShares | None = None
    ) -> Categorical:
        """Return p(y | φ) by Bayes' rule (eq. 8–9), one draw, with :meth:`log_density`; ``rng`` is not used.

        Args:
            class_shares: p(k) where the predictions are used, [class], if it differs from the training rows' (appendix
                C.6). None: the Dirichlet posterior's mean. The density of the features has the same p(k).

        Raises:
            DataError: the features are not ``in_features`` wide, or the shares are not one number >= 0 for each class
                with the sum 1.
        """
        joint = self(features, class_shares)
        density = torch.logsumexp(joint, dim=-1) - self._prior_density(features)
        return Categorical(torch.log_softmax(joint, dim=-1)[None], {"feature_density": density})

    def drawn_log_probs(
        self, features: Float[Tensor, "group row feature"], draws: int, rng: Seed
    ) -> Float[Tensor, "draw group row class"]:
        """Return log p(y | φ, φ̄) under draws of the class means φ̄ ~ q, which all inputs share, in float64.

        All classes share Σ, so that given the means a label's log-odds are linear in φ: log p(k) + φᵀΣ⁻¹φ̄[k] − ½
        φ̄[k]ᵀΣ⁻¹φ̄[k]. The average over draws is E_q[p(y | φ, φ̄)]. In contrast, :meth:`predict` computes E_q[p(y, φ |
        φ̄)] / E_q[p(φ | φ̄)], where the input itself is evidence about the class means. Only the average over draws is
        consistent: adding an input to a group changes no other input's marginal.
        """
        generator, mean, flat = rng.generator(), self.mean.double(), features.flatten(0, 1).double()
        log_probs = []
        for start in range(0, draws, _DRAWS):
            count = min(_DRAWS, draws - start)
            drawn = mean + self._drawn_offset(torch.randn(count, *mean.shape, generator=generator).to(mean))
            weight, squared = self._precise(drawn)
            constant = self.class_log_probs - 0.5 * squared  # [draw, class]
            linear = weight.flatten(0, 1) @ flat.T  # all draws in one product
            log_probs.append(torch.log_softmax(linear.unflatten(0, (count, -1)) + constant[..., None], 1).mT)
        return torch.cat(log_probs).unflatten(1, features.shape[:2])

    def _precise(self, means: Float[Tensor, "draw class feature"]) -> tuple[Tensor, Float[Tensor, "draw class"]]:
        """Return Σ⁻¹φ̄ and φ̄ᵀΣ⁻¹φ̄, in float64."""
        precision = torch.exp(2 * self.log_root_precision.double())
        return means * precision, (means.square() * precision).sum(-1)

    def _drawn_offset(self, normal: Float[Tensor, "draw class feature"]) -> Tensor:
        """Return φ̄ − μ of standard normal numbers, in float64."""
        return self.log_std.double().exp() * normal

    def log_density(self, features: Float[Tensor, "batch feature"]) -> Float[Tensor, " batch"]:
        """Return log Σ_k p(k) N(φ | μ[k], Σ + S[k]) (eq. 74) − log N(φ | 0, sI + Σ) in nats, high for familiar φ.

        The second term is the density of features before any data, so that features that are rare under every class
        do not count (appendix C.7, after Ren et al. 2021, who fit a Gaussian as the background). The paper does not
        print its feature prior; its model implies this prior.
        """
        return torch.logsumexp(self(features), dim=-1) - self._prior_density(features)

    def _prior_density(self, features: Tensor) -> Float[Tensor, " batch"]:
        return prior_density(features, self.feature_prior_variance)

    def _checked(self, batches: Iterable[tuple[Tensor, ...]]) -> Iterator[tuple[Tensor, ...]]:
        for batch in batches:
            check_features(batch[0], self.in_features)
            yield batch

    def _class_means(self, count: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance [class, feature] of the class means' exact posterior given Σ (appendix C.6).

        The rows of class y are N(φ̄[y], Σ) and φ̄[y] ~ N(0, sI), so φ̄[y] | Φ ~ N(μ[y], (I/s + T_yΣ⁻¹)⁻¹) with μ[y]
        from eq. 75.
        """
        weight = self.prior_variance * count[:, None]
        total = self.noise_variance + weight  # fractions expanded by sΣ
        return weight / total * mean, self.prior_variance * self.noise_variance / total

    @torch.no_grad()
    def condition(self, batches: Iterable[tuple[Tensor, ...]]) -> None:
        """Replace q(φ̄) by the exact posterior of the class means at this layer's Σ (appendix C.6), from one pass.

        The exact posterior is diagonal, like q. The classes' Dirichlet posterior is already exact. See
        :meth:`refit_noise` for the arguments and errors.
        """
        noise = self.noise_variance
        count, mean, _ = class_moments(self._checked(batches), self.num_classes, noise)
        mean, variance = self._class_means(count, mean)
        self.mean.copy_(mean.to(noise))
        self._set_spread(variance)

    @torch.no_grad()
    def learnt(self, features: Float[Tensor, "row feature"], labels: Tensor, keep: float) -> dict[str, Tensor]:
        """Return the tensors ``layer.…`` of the class means and counts given further rows, at this layer's Σ.

        A class mean's precision grows by 1/Σ with each row of its class; ``keep`` is the factor of all earlier weights
        after each row, of any class.
        """
        check_features(features, self.in_features)
        phi, noise = features.double(), self.noise_variance.double()
        weights = keep ** torch.arange(len(phi) - 1, -1, -1, dtype=torch.float64, device=phi.device)
        with labels_as_index(labels, self.num_classes):
            of_class = torch.eye(self.num_classes, dtype=torch.float64, device=phi.device)[labels] * weights[:, None]
        earlier = keep ** len(phi)
        before = earlier * torch.exp(-2 * self.log_std.double())
        precision = before + of_class.sum(0)[:, None] / noise
        mean = (before * self.mean.double() + of_class.mT @ phi / noise) / precision
        counts = earlier * self.concentration.double() + of_class.sum(0)
        learnt = {"mean": mean, "log_std": -0.5 * precision.log(), "concentration": counts}
        return {f"layer.{name}": value.to(self.mean.dtype) for name, value in learnt.items()}

    def _set_spread(self, variance: Tensor) -> None:
        """Set S to the covariances of :meth:`_class_means`."""
        self.log_std.copy_(0.5 * variance.to(self.log_std).log())

    @torch.no_grad()
    def refit_noise(self, batches: Iterable[tuple[Tensor, ...]]) -> Refit:
        """Fit the densities of G-VBLL-MAP (appendix C.7), with a noise variance for each class, in one pass.

        The layer is not changed.

        Args:
            batches: (features [batch, feature], labels [batch]) of the training rows, from the fixed trunk; a third
                tensor has the weights of the rows.

        Raises:
            DataError: there are no rows, labels are out of range, or features are not finite or not ``in_features``
                wide.
        """
        noise = self.noise_variance
        count, mean, scatter = class_moments(self._checked(batches), self.num_classes, noise)
        variance = (self.wishart_scale + scatter) / (count[:, None] + self.wishart_dof + 2)  # eq. 77
        return Refit(
            mean=self._class_means(count, mean)[0].to(noise),
            variance=variance.to(noise),
            class_log_probs=self.class_log_probs,
            feature_prior_variance=self.feature_prior_variance,
        )
