"""The posterior of a coreset of a regression: VBPC's trunk and head with a Gaussian likelihood, which is exact.

Given the trunk, q(W) is the posterior of Bayesian linear regression on the coreset's rows (eq. 21 of Lee et al. 2025),
and the predictive of a target is N(φᵀm, φᵀVφ + σ²) without an approximation. Deviations: φ has a last feature that is
one in every row, so that the head has a bias; ρ, γ and σ² come with the coreset, which was distilled with them; the
head is float64, because A is ill-conditioned if the rows stand for many training rows.
"""

from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor

from ... import networks
from ...artifacts import State
from ...data.fitdata import FitData
from ...errors import require
from ...joint_predictive import GaussianFunctions
from ...linear_regression import with_bias
from ...method import Inputs
from ...predictive import Gaussian
from ...progress import Report
from ...seeds import Seed
from ..shared.init import Coreset
from ..shared.trunk import features
from . import closed_form
from .posterior import CoresetPosterior, Spec, train_network, trunk_of

SCALES: Final = "log_scales"  # the tensor of a coreset's state


class Scales(NamedTuple):
    """The precisions and the noise of the closed form, each [].

    Attributes:
        rho: ρ, the precision of the prior of the head's weights.
        gamma: γ, the precision of the coreset's likelihood; a row counts with γ/β_S, β_S = n̂.
        noise_variance: σ² of the data's likelihood, in units of the transformed targets.
    """

    rho: Tensor
    gamma: Tensor
    noise_variance: Tensor

    @classmethod
    def of(cls, log_scales: Float[Tensor, "3"]) -> "Scales":
        """Return the scales, in float64."""
        return cls(*log_scales.double().exp())


def phi(network: networks.Network, inputs: Tensor) -> Float[Tensor, "b h1"]:
    """Compute the trunk's features and a one, in float64."""
    return with_bias(features(network, inputs, 1.0).double())


def solve(network: networks.Network, inputs: Tensor, labels: Tensor, scales: Scales) -> closed_form.HeadPosterior:
    """Solve for the posterior of the head on this network's features, with β_S = n̂."""
    return closed_form.solve(phi(network, inputs), labels.double(), scales.rho, scales.gamma)


@dataclass(frozen=True)
class RegressionSpec(Spec):
    """The description of the trunk, the head's tensors and the noise.

    Attributes:
        noise_variance: σ².
    """

    noise_variance: float


@final
class VbpcRegressionPosterior(CoresetPosterior):
    """The posterior of a coreset of a regression."""

    key = "vbpc_regression"
    spec_type = RegressionSpec
    spec: RegressionSpec

    @torch.no_grad()
    def predict(self, inputs: Tensor, *, rng: Seed = Seed(0)) -> Gaussian:
        """Return N(φᵀm, φᵀVφ + σ²) of transformed inputs, in float32; ``rng`` is not used."""
        mean, variance = self.head.logit_moments(self.features(inputs))
        total = (variance + self.spec.noise_variance)[:, None].expand_as(mean)
        return Gaussian(mean[None].float(), total[None].float())

    def functions(self, inputs: Tensor, *, rng: Seed = Seed(0)) -> GaussianFunctions:
        """Return the Gaussian over means of targets at the rows of each group, with σ²; ``rng`` is not used."""
        latent = super().functions(inputs)
        noise = torch.full_like(latent.noise, self.spec.noise_variance)
        return replace(latent, noise=noise, classes=False)

    def _phi(self, network: networks.Network, inputs: Tensor) -> Tensor:
        return phi(network, inputs)


def fit_student(data: FitData, inputs: Inputs, config: Any, *, rng: Seed, report: Report) -> State:
    """Train a new network on the coreset in ``inputs`` (on ``data.device``), and solve for its head.

    The fit uses only the data's shape and device. A fit resumed from ``report.load()`` has the same bits.

    Args:
        config: a config with ``network`` and ``student``.

    Raises:
        ConfigError: :meth:`Coreset.for_fit` fails, or the coreset has no scales.
    """
    (stored,) = inputs["coreset"]
    require(SCALES in stored.tensors, "input", f"must be of a coreset of a regression, with {SCALES}")
    coreset, scales = Coreset.for_fit(stored, data), Scales.of(stored.tensors[SCALES].to(data.device))
    network = train_network(data, coreset, config, rng=rng, report=report)
    with torch.no_grad():
        q = solve(network, coreset.images, coreset.labels, scales)
    numbers = float(q.rho), float(q.ratio), float(scales.noise_variance)
    spec = RegressionSpec(config.network, data.input_shape, 1.0, *numbers)
    return VbpcRegressionPosterior(spec, trunk_of(network), q).state()
