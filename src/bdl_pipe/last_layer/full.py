"""The discriminative last layer with a dense posterior over all of its weights, so that classes depend on each other.

Model as in :mod:`.discriminative`, with q(vec W) = N(vec W̄, S) for one S of all class·h weights. The logits of a row
are Gaussian with the dense covariance V(φ) = (I ⊗ φ)ᵀS(I ⊗ φ) + diag σ², and a row's bound is w̄_yᵀφ less the tilted
bound of their expected log-sum-exp (:func:`~bdl_pipe.last_layer.bounds.tilted_dense`).

Source: Harrison, Willes and Snoek 2023, "Variational Bayesian Last Layers", section 3.2, which has one S for each class
and says that "a similar training objective may be derived with a fully dense variational posterior". Deviation: their
bound by Jensen's inequality has only the variances of the logits. With it a dense S is never better than its blocks of
each class alone: the bound is the same, and the KL is not smaller, by Fischer's inequality for log det S. Dense
covariances are therefore for the tilted bound.
"""

from typing import Final, Unpack, final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ..errors import UserError, require
from ..joint_predictive import GaussianFunctions
from ..networks.covariance import Dense, Form
from ..networks.last_layer import class_numbers, labels_as_index
from ..predictive import Categorical
from ..seeds import Seed
from .bounds import tilted_dense
from .layer import LastLayer, Options, full_precision, mean_of

_MOST: Final = 2048  # weights; a factor of S has 4 million entries, and a row's V takes as many products


@final
class FullDiscriminative(LastLayer):
    """A last layer for ``num_classes`` classes with one covariance of all weights; see :class:`LastLayer`.

    Args:
        draws: the number of logits that a prediction draws for each row; there is no rule without draws.

    Raises:
        ConfigError: an argument is out of range, or there are more than 2,048 weights.
    """

    def __init__(self, in_features: int, num_classes: int, *, draws: int = 20, **options: Unpack[Options]) -> None:
        require(num_classes > 1, "num_classes", "must be > 1", num_classes)
        require(draws > 0, "draws", "must be > 0", draws)
        weights = in_features * num_classes
        rule = f"must be dense, diagonal or lowrank for more than {_MOST:,} weights, here {weights:,}"
        require(weights <= _MOST, "covariance", rule, "full")
        options = {**options, "covariance": "dense"}
        super().__init__(in_features, num_classes, matrices=1, noise_size=1, columns=weights, **options)
        self.draws: Final = draws

    @property
    def noise_variance(self) -> Float[Tensor, " class"]:
        """Return σ_k²."""
        return (-2 * self.noise_log_root).exp()

    def _covariance(self, features: Tensor, form: Form) -> Float[Tensor, "batch class class"]:
        """Return V(φ)."""
        assert isinstance(form, Dense)
        root = form.root()[0].unflatten(1, (len(self.mean), self.in_features))  # Pᵀ [weight, class, h]
        of_rows = torch.einsum("bh,mkh->bkm", features, root)
        return of_rows @ of_rows.mT + torch.diag_embed(self.noise_variance)

    def _mean_bound(self, features: Tensor, targets: Tensor, form: Form, weights: Tensor | None) -> Tensor:
        labels = class_numbers(targets, len(features))
        mean = features @ self.mean.mT
        with labels_as_index(labels, len(self.mean)):
            chosen = mean.gather(-1, labels[:, None])[:, 0]
        return mean_of(chosen - tilted_dense(mean, self._covariance(features, form)), weights)

    def logit_moments(
        self, features: Float[Tensor, "batch h"]
    ) -> tuple[Float[Tensor, "batch class"], Float[Tensor, "batch class class"]]:
        """Return the mean and the covariance of each row's logits, including noise."""
        with full_precision(features):
            features = self._cast(features)
            return features @ self.mean.mT, self._covariance(features, self.covariance())

    def predict(self, features: Float[Tensor, "batch h"], *, rng: Seed = Seed(0)) -> Categorical:
        """Return log softmax of drawn logits; rows share normal numbers, as in :func:`.discriminative.sampled`."""
        mean, covariance = self.logit_moments(features)
        normal = torch.randn(self.draws, 1, len(self.mean), generator=rng.generator(), dtype=mean.dtype).to(mean.device)
        logits = mean + (torch.linalg.cholesky(covariance) @ normal[..., None])[..., 0]
        return Categorical(F.log_softmax(logits, -1))

    def functions(self, features: Float[Tensor, "group row h"]) -> GaussianFunctions:
        """Refuse: the functions of a :class:`GaussianFunctions` are independent between classes.

        Raises:
            UserError: always.
        """
        raise UserError("the functions of a last layer with the covariance full depend on each other: use joint()")

    def drawn_log_probs(
        self, features: Float[Tensor, "group row h"], draws: int, rng: Seed, places: Tensor | None
    ) -> Float[Tensor, "draw group place class"]:
        """Return log p(y | φ, W) under draws of W, which all rows share; each observation has its own noise.

        Args:
            places: the observations of each group, as in :func:`~bdl_pipe.joint_predictive.at_places`.
        """
        form = self.covariance()
        assert isinstance(form, Dense)
        normal = torch.randn(draws, self.mean.numel(), generator=rng.fold("weights").generator()).to(self.mean)
        weights = self.mean + (normal @ form.root()[0]).unflatten(1, self.mean.shape)
        with full_precision(features):
            logits = torch.einsum("grh,dkh->dgrk", self._cast(features), weights)
        if places is not None:
            logits = torch.take_along_dim(logits, places[None, :, :, None], 2)
        noise = torch.randn(logits.shape, generator=rng.fold("noise").generator()).to(logits)
        return F.log_softmax(logits + self.noise_variance.sqrt() * noise, -1)
