"""One-row updates of a Gaussian over a linear layer's weights, on fixed features.

    y = wᵀφ + ε,  ε ~ N(0, σ²),  w ~ N(m, A⁻¹):   A ← A + φφᵀ/σ²,   Am ← Am + φy/σ²

The update is exact (:class:`~bdl_pipe.linear_regression.RecursiveLayer`). For a variational last layer it is the
recursive update of Brunzema et al. 2024, "Bayesian optimization via continual variational last layer training", section
3.2: q(w) is the prior for the rows after the fit. Features and σ² come from the last fit.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from bdl_pipe.baselines.exact_layer import LinearFunctionsPosterior
from bdl_pipe.joint_predictive import GaussianFunctions
from bdl_pipe.last_layer.methods import LastLayerPosterior
from bdl_pipe.last_layer.regression import Regression, recursive_layer
from bdl_pipe.linear_regression import RecursiveLayer
from bdl_pipe.posterior import Posterior, grad_of_inputs
from bdl_pipe.seeds import Seed


@dataclass
class RecursivePosterior:
    """A fitted posterior of one target that updates its last layer row by row.

    Attributes:
        features: transformed inputs [row, ...] -> φ [row, h].
        layer: the Gaussian over the last layer's weights.
        log_noise: φ [row, h] -> g [row, 1] of a noise of each input, σ² e^g, or None with one noise.
    """

    features: Callable[[Tensor], Tensor]
    layer: RecursiveLayer
    log_noise: Callable[[Tensor], Tensor | None]

    @grad_of_inputs
    def functions(self, inputs: Float[Tensor, "group row ..."], *, rng: Seed) -> GaussianFunctions:
        """Return the Gaussian over functions at the rows of each group; ``rng`` is not used."""
        phi, log_noise = self._rows(inputs.flatten(0, 1))
        shape, layer = inputs.shape[:2], self.layer.posterior()
        return layer.functions(phi.unflatten(0, shape), None if log_noise is None else log_noise.unflatten(0, shape))

    @torch.no_grad()
    def drawn(self, rng: Seed) -> Callable[[Tensor], Tensor]:
        """Draw weights, and return their function: transformed inputs [row, ...] -> values [row], in float64."""
        layer = self.layer.posterior()
        normal = torch.randn(len(layer.mean), 1, dtype=torch.float64, generator=rng.generator())
        weights = layer.mean + torch.linalg.solve_triangular(layer.factor.mT, normal, upper=True)
        return lambda inputs: (self.features(inputs).double() @ weights)[:, 0]

    @torch.no_grad()
    def learn(self, inputs: Float[Tensor, "row ..."], targets: Float[Tensor, "row 1"]) -> None:
        """Condition the posterior on rows."""
        phi, log_noise = self._rows(inputs)
        self.layer.learn(phi, targets, log_noise)

    def _rows(self, inputs: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return φ and g in float64."""
        phi = self.features(inputs)
        log_noise = self.log_noise(phi)
        return phi.double(), None if log_noise is None else log_noise.double()


@torch.no_grad()
def recursive(posterior: Posterior) -> RecursivePosterior | None:
    """Return the posterior of one target with one-row updates, or None if its class does not support them.

    The methods ``linear``, ``map_blr``, ``gbll`` and ``ldgbll`` support them, and so does ``vbll`` with point features
    and either layer.
    """
    if isinstance(posterior, LinearFunctionsPosterior):
        factor, noise = posterior.layer.factor.double(), posterior.layer.noise_variance.double()
        precision, mean = factor @ factor.mT, posterior.layer.mean.double()[:, 0]
        exact = RecursiveLayer(precision, precision @ mean, noise)
        return RecursivePosterior(posterior.features, exact, posterior.log_noise)
    if not isinstance(posterior, LastLayerPosterior):
        return None
    learner = posterior.learner
    if not isinstance(learner.layer, Regression) or learner.spec.features is not None:
        return None
    return RecursivePosterior(learner.trunk, recursive_layer(learner.layer, learner.exact), learner.log_noise_of)
