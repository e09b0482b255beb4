"""The method ``map_blr``: a network trained to its MAP, then Bayesian linear regression on its fixed features.

Snoek et al. 2015, "Scalable Bayesian Optimization Using Deep Neural Networks", as the baseline ``MAP`` of Harrison,
Willes & Snoek 2023 (table 2). The network has a linear head and one noise variance, learned as a point estimate; weight
decay is its prior. The head is then discarded. The prior and noise variance of the new layer maximise the evidence of
the training rows, where Snoek et al. sample them; the layer's posterior is exact. The features were
fitted to the same rows, so that this noise may be too small: with ``training.noise: validation`` the layer's
noise is at least the variance of the network's residuals on validation rows (ours).

With a noise of each input (ours) the network's noise is σ² exp(φᵀg), φ its features and a one. The layer keeps g: its
rows are scaled (``linear_regression.scaled``), and its prior and σ² maximise the evidence of the scaled rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, final

from torch import Tensor

from .. import networks
from ..artifacts import State
from ..config import LATER
from ..data.fitdata import FitData
from ..data.size import Section, Size
from ..errors import require
from ..linear_regression import LinearPosterior, best_variances, posterior, scaled, with_bias
from ..method import Default, Inputs, Method, StageSpec
from ..networks import MlpConfig
from ..predictive import Gaussian, Predictive
from ..progress import Report
from ..seeds import Seed
from ..training.learner import ROW_WEIGHTS, TrainingConfig, Weights
from ..training.likelihood import NoiseOf, OutputLikelihood, least_head, least_noise, with_line_of_noise
from .exact_layer import AFFORDABLE, ExactLayerLearner, features, fit_exact_layers, noise_head


@dataclass(frozen=True)
class MapBlrConfig:
    """The section ``methods.map_blr`` of params.yaml.

    Attributes:
        network: the architecture.
        training: the settings of training; weight decay does not apply to the noise. Early stopping uses the network's
            own score.
        noise_variance: the network's initial σ², in the units of the transformed targets.
        noise: ``one`` variance, or one for ``each input``, linear in the features on the log scale.
    """

    network: MlpConfig
    training: TrainingConfig
    noise_variance: float
    noise: NoiseOf = field(default="one", metadata=LATER)

    def __post_init__(self) -> None:
        require(self.noise_variance > 0, "noise_variance", "must be > 0", self.noise_variance)


@final
class PointNetwork(ExactLayerLearner):
    """A network with means as outputs, and one noise variance or one for each input."""

    def __init__(self, config: MapBlrConfig, data: FitData, rng: Seed) -> None:
        super().__init__()
        self.network = networks.build(config.network, data.input_shape, data.outputs, rng=rng)
        self.likelihood = OutputLikelihood("regression", config.noise_variance)
        self._held_out = config.training.noise == "validation" and config.training.early_stopping is not None
        self.noise_head = noise_head(config.noise, config.network)

    def forward(self, inputs: Tensor, targets: Tensor, num_train: int, noise: dict[str, Tensor]) -> Tensor:
        each = self.predict(inputs, rng=Seed(0)).log_prob(targets)
        return -(noise[ROW_WEIGHTS] * each if ROW_WEIGHTS in noise else each).mean()

    def predict(self, inputs: Tensor, *, rng: Seed) -> Predictive:
        if self.noise_head is None:
            return self.likelihood(self.network(inputs)[None])
        phi = self.network.trunk(inputs)
        outputs = self.network.head(phi)[None]
        variance = (self.likelihood.log_variance + with_bias(phi) @ self.noise_head).exp()
        return Gaussian(outputs, variance.expand_as(outputs))

    def undecayed(self) -> set[str]:
        return {"likelihood.log_variance"}

    def estimated(
        self, predicted: Sequence[tuple[Predictive, Tensor]], weights: Tensor | None = None
    ) -> tuple[float, dict[str, Tensor]]:
        """Return the score, minimised over the noise variance, and the log noise variance at the minimum.

        A noise of each input has the line of :func:`~bdl_pipe.training.likelihood.least_head_nll`.
        """
        if self.noise_head is not None:
            return least_head(predicted, None, weights)
        log_variance = self.likelihood.log_variance.detach()
        score, log_factor = least_noise(predicted, log_variance.exp(), weights)
        return score, {"likelihood.log_variance": log_variance + log_factor}

    def with_estimated(self, weights: Mapping[str, Tensor], estimates: Mapping[str, Tensor]) -> Weights:
        return with_line_of_noise(weights, estimates, "likelihood.log_variance", "noise_head")

    def exact_layer(self, data: FitData) -> tuple[LinearPosterior, float]:
        """Return the layer with the prior and noise variance that maximise the evidence.

        If the network's noise was estimated on validation rows, the layer's noise is at least this noise.
        """
        inputs, targets = data.tensors("train", data.device)
        phi = features(self.network.trunk, inputs)
        weights = data.weights("train", data.device)
        phi, y = scaled(phi, targets.double(), self.log_noise(phi), weights)
        prior, noise = best_variances(phi, y, None if weights is None else float(weights.sum()))
        if self._held_out and len((data.search or data).validation) > 0:
            noise = max(noise, float(self.likelihood.log_variance.exp()))
        return posterior(phi, y, prior, noise), prior


def fit(
    data: Sequence[FitData], inputs: Sequence[Inputs], config: MapBlrConfig, *, rngs: Sequence[Seed], report: Report
) -> list[State]:
    """Fit a posterior to each of ``data``; ``inputs`` are not used."""
    return fit_exact_layers("map_blr", PointNetwork, config, config.training, data, rngs=rngs, report=report)


_FEATURE_DECAY: Final = 5.0  # large, because features and exact layer are fitted to the same few rows


def default(size: Size) -> Section:
    """Return hyperparameters with a large weight decay of the features if there are few rows."""
    training = size.training(decay=_FEATURE_DECAY if size.small else None)
    return {"network": size.network, "training": training, **size.noise_of}


MAP_BLR = Method(
    name="map_blr",
    bayesian=True,
    config=MapBlrConfig,
    tasks=("regression",),
    online=("regression",),
    stages={"student": StageSpec(fit_many=fit)},
    search={
        "training.optimiser.lr": (1e-3, 1e-1, "log"),
        "training.optimiser.weight_decay": (1e-4, 1.0, "log"),
    },
    settings={"noise_variance": 0.1},
    program=True,
    weighs_rows=True,
    default=Default(1.0, override=default, suits=lambda size: size.train * (size.hidden[-1] + 1) <= AFFORDABLE),
)
