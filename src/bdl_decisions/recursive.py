"""One-row updates of a Gaussian over a linear layer's weights, on fixed features.

    y = wᵀφ + ε,  ε ~ N(0, σ²),  w ~ N(m, A⁻¹):   A ← A + φφᵀ/σ²,   Am ← Am + φy/σ²

The update is exact: after any rows, in any order, the Gaussian equals the posterior of Bayesian linear regression on
all these rows with the first Gaussian as its prior (Bishop 2006, eqs 3.50–3.51). For a variational last layer it is the
recursive update of Brunzema et al. 2024, "Bayesian optimization via continual variational last layer training", section
3.2: q(w) is the prior for the rows after the fit. Features and σ² come from the last fit.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from bdl_pipe.baselines import linear
from bdl_pipe.baselines.exact_layer import ExactLayerPosterior, features
from bdl_pipe.baselines.linear_model import LinearRegressionPosterior
from bdl_pipe.joint_predictive import GaussianFunctions
from bdl_pipe.last_layer.methods import LastLayerPosterior
from bdl_pipe.last_layer.regression import Regression
from bdl_pipe.posterior import Posterior
from bdl_pipe.seeds import Seed


@dataclass
class RecursiveLayer:
    """The Gaussian w ~ N(A⁻¹b, A⁻¹), with its noise variance; float64.

    Attributes:
        precision: A.
        shift: b = Am.
    """

    precision: Float[Tensor, "h h"]
    shift: Float[Tensor, " h"]
    noise_variance: Float[Tensor, ""]

    def learn(self, features: Float[Tensor, "row h"], targets: Float[Tensor, " row"]) -> None:
        """Condition the Gaussian on rows."""
        scaled = features.double().mT / self.noise_variance
        self.precision = self.precision + scaled @ features.double()
        self.shift = self.shift + scaled @ targets.double()

    def functions(self, features: Float[Tensor, "group row h"]) -> GaussianFunctions:
        """Return the Gaussian over wᵀφ at the rows of each group."""
        factor = torch.linalg.cholesky(self.precision)
        mean = torch.cholesky_solve(self.shift[:, None], factor)
        return linear.functions(linear.LinearPosterior(mean, factor, self.noise_variance), features.double())


@dataclass
class RecursivePosterior:
    """A fitted posterior of one target that updates its last layer row by row.

    Attributes:
        features: transformed inputs [row, ...] -> φ [row, h].
        layer: the Gaussian over the last layer's weights.
        log_noise: φ [row, h] -> g [row, 1] of a noise of each input, σ² e^g; None with one noise.
    """

    features: Callable[[Tensor], Tensor]
    layer: RecursiveLayer
    log_noise: Callable[[Tensor], Tensor] | None = None

    @torch.no_grad()
    def functions(self, inputs: Float[Tensor, "group row ..."], *, rng: Seed) -> GaussianFunctions:
        """Return the Gaussian over functions at the rows of each group; ``rng`` is not used."""
        phi, shape = self.features(inputs.flatten(0, 1)), inputs.shape[:2]
        found = self.layer.functions(phi.unflatten(0, shape))
        if self.log_noise is None:
            return found
        factor = self.log_noise(phi).double().exp().unflatten(0, shape)
        return replace(found, noise=found.noise[:, None, None] * factor)

    @torch.no_grad()
    def learn(self, inputs: Float[Tensor, "row ..."], targets: Float[Tensor, "row 1"]) -> None:
        """Condition the posterior on rows; y = wᵀφ + ε with the variance σ² e^g is ys = wᵀφs + ε', s = e^(−g/2)."""
        phi, targets = self.features(inputs), targets.double()
        if self.log_noise is not None:
            s = (-self.log_noise(phi).double() / 2).exp()
            phi, targets = phi * s, targets * s
        self.layer.learn(phi, targets[:, 0])


@torch.no_grad()
def recursive(posterior: Posterior) -> RecursivePosterior | None:
    """Return the posterior of one target with one-row updates, or None if its class does not support them.

    The methods ``linear``, ``map_blr``, ``gbll`` and ``ldgbll`` support them, and so does ``vbll`` with point features
    and either layer.
    """
    if isinstance(posterior, LinearRegressionPosterior | ExactLayerPosterior):
        factor, noise = posterior.tensors["factor"].double(), posterior.tensors["noise_variance"].double()
        precision, mean = factor @ factor.mT, posterior.tensors["mean"].double()[:, 0]
        if isinstance(posterior, LinearRegressionPosterior):
            return RecursivePosterior(_with_bias, RecursiveLayer(precision, precision @ mean, noise))
        trunk = posterior.trunk
        return RecursivePosterior(lambda x: features(trunk, x), RecursiveLayer(precision, precision @ mean, noise))
    if not isinstance(posterior, LastLayerPosterior):
        return None
    learner = posterior.learner
    if not isinstance(learner.layer, Regression) or learner.spec.features is not None:
        return None
    noise = learner.layer.noise_covariance.double()[0, 0]
    if learner.exact is not None:
        basis, variance = learner.exact.basis.double(), learner.exact.variance.double()[0]
        precision, mean = basis / variance @ basis.mT, learner.exact.mean.double()[0]
    else:
        precision = torch.linalg.inv(learner.layer.covariance().matrix()[0].double())
        mean = learner.layer.mean.double()[0]
    layer = RecursiveLayer((precision + precision.mT) / 2, precision @ mean, noise)
    return RecursivePosterior(learner.trunk, layer, learner.log_noise)


def _with_bias(inputs: Tensor) -> Tensor:
    return linear.with_bias(inputs.flatten(1).double())
