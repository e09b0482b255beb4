"""The variational Bayesian last layer for discriminative classification.

Model y ~ softmax(Wφ + ε), ε ~ N(0, diag σ²), q(W) = Π_k N(w̄_k, S_k). A row's bound is

    w̄_yᵀφ − log Σ_k exp(w̄_kᵀφ + ½(φᵀS_kφ + σ_k²))                                 (eq. 13, 44)

Source: Harrison, Willes and Snoek 2023, "Variational Bayesian Last Layers", theorem 2. The prior of σ² is a product of
inverse gammas, each given by eq. 65 with N = 1 (appendix C.1). Deviations: none in the model. The published ``vbll``
0.4.9 multiplies the prior's variance by 2/in_features, omits the KL's constant −h/2 per class, uses N = classes in eq.
65 for every diagonal entry (equal to ours at ν + classes − 1), stores log σ (ours: −log σ) and, for low rank, log σ² of
S (ours: half of it).
"""

from typing import Final, Unpack, final, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import require
from ..joint_predictive import GaussianFunctions
from ..predictive import Categorical
from ..seeds import Seed
from .covariance import Form
from .densities import class_numbers, labels_as_index
from .fused import Weights, diagonal_loss
from .layer import LastLayer, Options, full_precision
from .softmax import CLOSED, Rule, sampled


@final
class Discriminative(LastLayer):
    """A last layer for ``num_classes`` classes; see :class:`LastLayer` for the other arguments.

    Args:
        predictive: how E[softmax] is approximated: "mean_field" (as cheap as one softmax), "laplace_bridge",
            "quadrature" (accurate, 4,096 exponentials per logit) or "sampled".
        draws: the number of logits that "sampled" draws for each row.

    Raises:
        ConfigError: an argument is out of range.
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        predictive: str = "mean_field",
        draws: int = 20,
        **options: Unpack[Options],
    ) -> None:
        require(num_classes > 1, "num_classes", "must be > 1", num_classes)
        require(predictive in get_args(Rule), "predictive", f"must be one of {', '.join(get_args(Rule))}", predictive)
        require(draws > 0, "draws", "must be > 0", draws)
        super().__init__(in_features, num_classes, matrices=num_classes, noise_size=1, **options)
        self.predictive: Final = predictive
        self.draws: Final = draws

    @property
    def noise_variance(self) -> Float[Tensor, " class"]:
        """Return σ_k²."""
        return (-2 * self.noise_log_root).exp()

    def _noise_trace(self) -> Float[Tensor, ""]:
        return (2 * self.noise_log_root).exp().sum()

    def _moments(self, features: Tensor, form: Form) -> tuple[Tensor, Tensor]:
        """Return w̄_kᵀφ and φᵀS_kφ + σ_k², [batch, class] each."""
        return features @ self.mean.mT, form.quadratic(features) + self.noise_variance

    def _mean_bound(self, features: Tensor, targets: Tensor, form: Form) -> Tensor:
        labels = class_numbers(targets, len(features))
        mean, variance = self._moments(features, form)
        with labels_as_index(labels, len(self.mean)):
            chosen = mean.gather(-1, labels[:, None])[:, 0]
        return (chosen - torch.logsumexp(mean + 0.5 * variance, -1)).mean()

    def _loss(self, features: Tensor, targets: Tensor, num_train: int, kl_weight: float) -> Tensor:
        if self.covariance.kind != "diagonal":
            return super()._loss(features, targets, num_train, kl_weight)
        weights = Weights(self.prior_variance, self.wishart_dof, self.wishart_scale, num_train, kl_weight)
        labels = class_numbers(targets, len(features))
        with labels_as_index(labels, len(self.mean)):
            return diagonal_loss(features, self.mean, self.covariance.log_scale, self.noise_log_root, labels, weights)

    def logit_moments(
        self, features: Float[Tensor, "batch h"]
    ) -> tuple[Float[Tensor, "batch class"], Float[Tensor, "batch class"]]:
        """Return the mean and variance of each class's logit, including noise; logits of classes are independent."""
        with full_precision(features):
            return self._moments(self._cast(features), self.covariance())

    def functions(self, features: Float[Tensor, "group row h"]) -> GaussianFunctions:
        """Return the Gaussian over the logits Wφ at the rows of each group; each observation's noise ε has σ_k²."""
        return self._functions(features, self.noise_variance, classes=True)

    def predict(self, features: Float[Tensor, "batch h"], *, rng: Seed = Seed(0)) -> Categorical:
        """Return E[softmax(Wφ + ε)] by the configured rule; only "sampled" uses ``rng`` and keeps draws."""
        mean, variance = self.logit_moments(features)
        if self.predictive == "sampled":
            return Categorical(sampled(mean, variance, self.draws, rng))
        return Categorical(CLOSED[self.predictive](mean, variance))
