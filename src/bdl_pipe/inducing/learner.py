"""A network with random weights as a learner, with minus the evidence lower bound per row as the loss.

    −(1/B) Σ_{i ∈ batch} log p(y_i | f(x_i; W)) + κ_t KL/N,   W ~ q drawn once a step for the whole batch
                                                              (FFG-W: by default outputs are drawn, see below),

N is the number of training rows. κ_t rises from 0 over the first epochs (Ritter et al. 2021, appendix J.2) to κ, which
is 1 for the bound. FFG-W may draw a layer's outputs instead of its weights, in training and in prediction
(``training_draws``, ``prediction_draws``). Ritter et al. draw weights in both in the text, and outputs in both in their
published code; our default draws outputs in training and weights in prediction. For linear layers both have the same
law at each row, and drawn outputs have gradients of smaller variance. For convolutions the laws differ: independent
noise at each place averages out over places, so that training with drawn outputs has less noise than drawn weights. NLL
on validation rows, training/prediction by weights (w) or outputs (o), w/w, w/o, o/w, o/o: boston's perceptron, five
splits, two seeds, in standard units of the target, .502, .508, .483, .490; a ConvNet of width 8 with instance norm,
4,000 rows of Fashion-MNIST, deviations near .05, one seed, .550, .568, .494, .503. In a network without norm that ends
with a mean over places, o/w can be worse than o/o.

Regression: N(y | f(x; W), σ²) with one σ², learned as a point estimate or fixed, in the units of the transformed
targets.
"""

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal, final

import torch
from torch import Tensor

from .. import distributed
from ..config import LATER
from ..errors import require
from ..networks import NetworkConfig
from ..seeds import Seed
from ..training.learner import NoisyLearner, TrainingConfig, Weights
from ..training.likelihood import MixtureLearner, NoiseOf, with_likelihood
from ..training.posterior import LearnerSpec
from .config import MIXTURES, PRUNED, WeightConfig
from .convert import bayesianize
from .draws import outputs
from .network import is_local
from .posteriors import Noise
from .pruning import kept_counts, prune, shrink

Drawn = Literal["weights", "outputs"]
_AT_ONCE: Final = 1 << 22  # the most random numbers that are drawn together in training
_KL: Final = "kl_weight"


@dataclass(frozen=True)
class AnnealingConfig:
    """The schedule of the KL's weight in training.

    The weight is 0 up to epoch ``start`` and rises linearly to its full value at epoch ``end``.
    """

    start: float
    end: float

    def __post_init__(self) -> None:
        require(self.start >= 0, "start", "must be >= 0", self.start)
        require(self.end >= self.start, "end", f"must be >= start ({self.start})", self.end)


@dataclass(frozen=True)
class RandomConfig:
    """The sections of params.yaml of all methods of inducing weights and of weights, named as ``weights.kind``.

    Attributes:
        network: the architecture.
        training: the settings of training; weight decay applies only to point estimates, such as normalisation's
            weights.
        weights: the distribution of every layer's weights.
        draws: the number of networks in a prediction.
        validation_draws: the number of networks in a validation score.
        kl_weight: κ, the weight of the KL; 1 gives the bound.
        annealing: the schedule of κ. With null, κ is constant.
        layers: a mapping from patterns of layer names (the first match counts) to fields that replace fields of
            ``weights``. A pattern with null makes its layers' weights point estimates: ``{"trunk.*": null}`` makes only
            the last layer random.
        shared: the rows and columns of inducing weights that all layers share (appendix H). With null, each layer has
            its own.
        function_space: whether R(λ) of a layer with more inputs than rows is multiplied by N/d_in (appendix G). A
            convolution has a row for each place of each image, which equation 43 omits (dense algebra: the rank of its
            patches).
        noise_variance: the initial σ² of regression.
        noise: ``one`` variance σ² of regression, or one for ``each input``, which the network has as an output.
        learn_noise: whether the noise is learned; must be true if each input has its own.
        prune: the share of Z's entries (_u) or of the weights (_w) to remove from a fitted posterior with the same
            settings (``input: student/<run>``); the fit then trains it further. With null, the fit starts without a
            posterior.
        training_draws: whether ``ffg_w``, ``matrix_normal_w`` and ``k_tied_w`` layers draw ``weights`` or ``outputs``
            in training.
        prediction_draws: whether these layers draw ``weights`` or ``outputs`` in prediction. Drawn outputs do not
            define networks, so rows have no joint distribution.
    """

    network: NetworkConfig
    training: TrainingConfig
    weights: WeightConfig
    draws: int
    validation_draws: int
    kl_weight: float = 1.0
    annealing: AnnealingConfig | None = None
    layers: dict[str, dict[str, Any] | None] = field(default_factory=dict)
    shared: tuple[int, int] | None = None
    function_space: bool = False
    noise_variance: float = 1.0
    learn_noise: bool = True
    prune: float | None = None
    training_draws: Drawn = field(default="outputs", metadata=LATER)
    prediction_draws: Drawn = field(default="weights", metadata=LATER)
    noise: NoiseOf = field(default="one", metadata=LATER)

    def __post_init__(self) -> None:
        require(self.prune is None or 0 < self.prune < 1, "prune", "must be > 0 and < 1, or null", self.prune)
        prunable = self.prune is None or self.weights.kind in PRUNED
        what = "a full covariance over weights" if self.weights.kind == "fcg_w" else self.weights.kind
        require(prunable, "prune", f"must be null: {what} is not pruned", self.prune)
        require(self.kl_weight >= 0, "kl_weight", "must be >= 0", self.kl_weight)
        free = self.noise == "one" or self.learn_noise
        require(free, "learn_noise", "must be true if the noise is of each input", self.learn_noise)
        require(self.noise_variance > 0, "noise_variance", "must be > 0", self.noise_variance)
        require(self.shared is None or min(self.shared) > 0, "shared", "must be > 0 or null", self.shared)
        for name in ("draws", "validation_draws"):
            value = getattr(self, name)
            require(value > 0, name, "must be > 0", value)
            if self.weights.kind in MIXTURES:
                rule = f"must be a multiple of weights.members ({self.weights.members})"
                require(value % self.weights.members == 0, name, rule, value)

    def kinds(self) -> dict[str, dict[str, Any] | None]:
        """Return the argument ``kind`` of :func:`~.convert.bayesianize`: fields by pattern of layer names."""
        every, layers = asdict(self.weights), self.layers.items()
        return {name: None if changes is None else every | changes for name, changes in layers} | {"*": every}


def require_same_shape(config: RandomConfig, other: RandomConfig) -> None:
    """Raise ConfigError unless ``config`` has the network and weights of the pruned posterior's config ``other``."""
    for name in ("network", "weights", "layers", "shared"):
        mine, its = getattr(config, name), getattr(other, name)
        require(mine == its, name, f"must equal the pruned posterior's ({its})", mine)


@dataclass(frozen=True)
class RandomSpec(LearnerSpec[RandomConfig]):
    """The description of a learner, from which it is built.

    Attributes:
        kept: the number of kept entries of each pruned matrix.
    """

    config: RandomConfig
    kept: dict[str, int] | None = None


@final
class RandomWeights(MixtureLearner, NoisyLearner):
    """A converted network and its likelihood.

    Attributes:
        net: the network, :class:`~.network.Bayesian`.
        likelihood: the likelihood of its outputs.
    """

    def __init__(self, spec: RandomSpec, rng: Seed, start: Weights | None = None) -> None:
        """Build the network from new weights, or from ``start``; kinds of U use only its point estimates."""
        super().__init__()
        self.spec, config = spec, spec.config
        network, likelihood = with_likelihood(spec, rng.fold("network"), start)
        self.net = bayesianize(network, config.kinds(), shared=config.shared, rng=rng.fold("weights"))
        if spec.kept is not None:
            shrink(self.net, spec.kept)
        self._positions = self.net.positions(torch.zeros(1, *spec.input_shape)) if config.function_space else None
        self.likelihood = likelihood
        self.likelihood.requires_grad_(config.learn_noise)

    @classmethod
    def pruned(cls, fitted: "RandomWeights", config: RandomConfig) -> "RandomWeights":
        """Return a copy of a fitted learner without the share ``config.prune`` of its entries.

        Raises:
            ConfigError: ``config`` has another network or other weights.
            UserError: the learner is already pruned.
        """
        assert config.prune is not None
        require_same_shape(config, fitted.spec.config)
        net = prune(fitted.net, config.prune)
        learner = cls(replace(fitted.spec, config=config, kept=kept_counts(net)), Seed(0))
        learner.net.load_state_dict(net.state_dict())
        learner.likelihood.load_state_dict(fitted.likelihood.state_dict())
        return learner

    def forward(self, inputs: Tensor, targets: Tensor, num_train: int, noise: Noise) -> Tensor:
        weight_noise = {name: values for name, values in noise.items() if name != _KL}
        fit = self.log_likelihood(self.net(inputs, weight_noise), targets)
        rows = num_train if self.spec.config.function_space else None
        divergence = self.net.kl(rows, self._positions)
        return -fit + noise[_KL] * divergence / num_train

    def noise(self, steps: int, batch: int, generator: torch.Generator) -> Noise:
        return self.net.draw(steps, generator, self._local(batch))

    def noise_steps(self, batch: int) -> int | None:
        return max(1, _AT_ONCE // max(1, self.net.noise_size(self._local(batch))))

    def scheduled(self, epochs: Tensor) -> dict[str, Tensor]:
        """Return the weight κ_t of each step."""
        config, annealing = self.spec.config, self.spec.config.annealing
        if annealing is None:
            return {_KL: torch.full_like(epochs, config.kl_weight)}
        if annealing.start == annealing.end:
            return {_KL: config.kl_weight * (epochs >= annealing.start).to(epochs)}
        share = (epochs - annealing.start) / (annealing.end - annealing.start)
        return {_KL: config.kl_weight * share.clamp(0, 1)}

    def share(self, noise: Noise) -> Noise:
        """Return this rank's noise: all noise of weights, and the noise of outputs for the rank's own rows."""
        return {k: distributed.shard(v) if is_local(k) else v for k, v in noise.items()}

    def undecayed(self) -> set[str]:
        """Return the names of the noise parameter and of all parameters with a prior in the loss."""
        random = {name for name, _ in self.named_parameters() if name.startswith(("net.layers.", "net.shared."))}
        return random | super().undecayed()

    def _local(self, rows: int) -> Tensor | None:
        """Return a batch for which outputs are drawn in training; None if weights are drawn."""
        if self.spec.config.training_draws == "weights":
            return None
        return torch.zeros(rows, *self.spec.input_shape, device=self.net.device, dtype=self.net.dtype)

    def drawn_outputs(self, inputs: Tensor, draws: int, rng: Seed) -> Tensor:
        together = 1 if inputs.ndim == 4 else draws  # convolutions of many draws are slower together
        local = self.spec.config.prediction_draws == "outputs"
        return outputs(self.net, inputs, draws, rng, together=together, local=local)
