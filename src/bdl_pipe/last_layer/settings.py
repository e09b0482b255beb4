"""The settings of the last layers, as a params file has them."""

from dataclasses import dataclass, field
from typing import Literal

from ..config import LATER
from ..errors import require, require_positive
from ..networks.covariance import Kind
from ..training.likelihood import NoiseOf
from .bounds import Bound

Rule = Literal["sampled", "mean_field", "quadrature"]
PosteriorForm = Literal["variational", "exact"]
NoisePosterior = Literal["point", "conjugate"]


@dataclass(frozen=True)
class GaussianLayer:
    """The settings of a last layer with Gaussian weights, for regression or discriminative classification.

    Attributes:
        covariance: the form of S, the covariance of the weights' posterior: ``dense``, ``diagonal`` or ``lowrank`` for
            each class; or ``full`` (classification), dense over the weights of all classes, at most 2,048, with the
            bound ``tilted`` and the rule ``sampled``.
        rank: the rank of the low-rank part; only for ``lowrank``.
        prior_variance: s, the variance of the weights' prior N(0, sI).
        wishart_dof: ν of the noise covariance's inverse-Wishart prior.
        wishart_scale: m of the noise covariance's inverse-Wishart prior.
        kl_weight: the weight of the layer's KL; 1 gives the bound.
        predictive: how E[softmax] is approximated (classification).
        draws: the number of draws in a prediction by the rule "sampled".
        posterior: the posterior of the weights in predictions. With "exact" (regression only), the exact posterior
            given the features of all training rows replaces the variational posterior after training (appendix C.6).
        noise: of regression: ``one`` covariance Σ, or Σ e^g(x) for ``each input`` (ours); g is linear in the features.
        noise_posterior: of regression: a ``point`` estimate of Σ, or a ``conjugate`` posterior over Σ, with which the
            predictive is a Student t and the prior of the weights is N(0, sΣ); see :class:`StudentRegression`.
        bound: the upper bound of E log Σ exp of the logits in the loss (classification): ``jensen``, the paper's;
            ``tilted`` (Knowles and Minka 2011), never above it; or ``bouchard`` (2007).
        bias: whether the layer has a bias: one more feature, which is 1, whose weights have the prior of all others.
            The source has none.
    """

    covariance: Kind | Literal["full"]
    rank: int | None
    prior_variance: float
    wishart_dof: float
    wishart_scale: float
    kl_weight: float
    predictive: Rule = "mean_field"
    draws: int = 20
    posterior: PosteriorForm = "variational"
    name: Literal["gaussian"] = "gaussian"
    noise: NoiseOf = field(default="one", metadata=LATER)
    noise_posterior: NoisePosterior = field(default="point", metadata=LATER)
    bound: Bound = field(default="jensen", metadata=LATER)
    bias: bool = field(default=False, metadata=LATER)

    def __post_init__(self) -> None:
        require_positive(self, "prior_variance", "wishart_dof", "wishart_scale", "draws")
        if self.conjugate:
            require(self.kl_weight > 0, "kl_weight", "must be > 0 if noise_posterior is conjugate", self.kl_weight)
        require(self.kl_weight >= 0, "kl_weight", "must be >= 0", self.kl_weight)
        if self.covariance == "lowrank":
            require(self.rank is not None and self.rank > 0, "rank", "must be > 0 for lowrank", self.rank)
        else:
            require(self.rank is None, "rank", f"must be null for {self.covariance}", self.rank)
        if self.covariance == "full":
            require(self.bound == "tilted", "bound", "must be tilted for the covariance full", self.bound)
            sampled = "must be sampled for the covariance full"
            require(self.predictive == "sampled", "predictive", sampled, self.predictive)
        if self.conjugate:
            require(self.noise == "one", "noise", "must be one if noise_posterior is conjugate", self.noise)
            exact = self.posterior == "variational" or self.covariance == "dense"
            require(exact, "covariance", "must be dense for the exact posterior of a conjugate noise", self.covariance)

    @property
    def conjugate(self) -> bool:
        """Return whether the noise has a posterior."""
        return self.noise_posterior == "conjugate"


@dataclass(frozen=True)
class GenerativeLayer:
    """The settings of a last layer of class means; see :class:`Generative`.

    Attributes:
        dirichlet: α_0, the prior count of each class.
        prior_variance: s, the variance of the class means' prior N(0, sI).
        wishart_dof: ν of the prior IG(ν/2, M/2) of each feature's noise variance.
        wishart_scale: M of the prior IG(ν/2, M/2) of each feature's noise variance.
        kl_weight: the weight of the layer's KL; 1 gives the bound.
        refit: whether G-VBLL-MAP's densities are fitted to the training features after training, as a second OOD score.
        posterior: the posterior of the class means, in label probabilities and in the layer's own densities; see
            :class:`GaussianLayer`. The densities of ``refit`` do not depend on it: they always have the exact
            exact posterior's means, and a noise estimate for each class.
        block: b, the number of neighbouring features with a dense covariance in Σ and in the posterior; it divides the
            number of features. 1: diagonal covariances, the paper's. See :class:`BlockGenerative`.
    """

    dirichlet: float
    prior_variance: float
    wishart_dof: float
    wishart_scale: float
    kl_weight: float
    refit: bool
    posterior: PosteriorForm = "variational"
    name: Literal["generative"] = "generative"
    block: int = field(default=1, metadata=LATER)

    def __post_init__(self) -> None:
        require_positive(self, "prior_variance", "wishart_dof", "wishart_scale", "dirichlet", "block")
        proper = f"must be > block − 1 = {self.block - 1}"
        require(self.wishart_dof > self.block - 1, "wishart_dof", proper, self.wishart_dof)
        require(self.kl_weight >= 0, "kl_weight", "must be >= 0", self.kl_weight)


@dataclass(frozen=True)
class FeaturesConfig:
    """The settings of variational features.

    Attributes:
        initial_sd: the initial standard deviation of every Gaussian weight.
        kl_weight: the weight of the features' KL; 1 gives the bound.
        draws: the number of draws of the features in a prediction.
        validation_draws: the number of draws of the features in a validation score.
        stochastic: ``all``: every weight of the trunk is Gaussian with the prior N(0, 4/√fan-in); ``linear``: only the
            weights of a linear layer after the trunk are Gaussian.
        prior_variance: the prior variance of each weight and bias of this linear layer; only for ``linear``.
    """

    initial_sd: float
    kl_weight: float
    draws: int
    validation_draws: int
    stochastic: Literal["all", "linear"] = "all"
    prior_variance: float | None = None

    def __post_init__(self) -> None:
        linear = self.stochastic == "linear"
        rule = "must be > 0 if stochastic is linear, and null if it is all"
        good = self.prior_variance is not None and self.prior_variance > 0 if linear else self.prior_variance is None
        require(good, "prior_variance", rule, self.prior_variance)
        require_positive(self, "initial_sd", "draws", "validation_draws")
        require(self.kl_weight >= 0, "kl_weight", "must be >= 0", self.kl_weight)
