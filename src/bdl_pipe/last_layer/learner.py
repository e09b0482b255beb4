"""A trunk with a variational last layer: its training loss and its predictive.

Point features: the loss is −[bound(φ(x), y) + (log p(Σ) − KL_layer)/T]; the trunk's prior is weight decay (eq. 61).
Variational features (appendix C.2): the trunk's weights θ ~ q are drawn once a step, the last layer is marginalised in
closed form, and KL(q(θ) ‖ p(θ))/T is added (eq. 64). The prediction averages the layer's predictive over draws of θ
after the softmax (eq. 71). Alternatively, as in the paper's image models (G.3), the trunk is a point estimate, and a
Gaussian linear layer of the same width follows it: all draws share the trunk's output.

Regression with a noise of each input (ours): ε ~ N(0, Σ e^g(x)), where g is a linear function of the features. With s =
e^(−g/2) the model is ys = W(φs) + ε', ε' ~ N(0, Σ), so that the layer has the features φs and the targets ys, and the
loss has d·g/2 more for each row of d targets. The prediction is divided by s.

Source: Harrison, Willes and Snoek 2023, "Variational Bayesian Last Layers", appendix C.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from .. import networks
from ..errors import UserError, require
from ..joint_predictive import GaussianFunctions, Joint, JointCategorical
from ..linear_regression import scaled
from ..networks import NetworkConfig
from ..networks.base import lecun_normal, skip_init
from ..networks.last_layer import ClassShares
from ..networks.variational import MeanField
from ..predictive import Categorical, Gaussian, Predictive
from ..seeds import Seed
from ..training.learner import ROW_WEIGHTS, TOTAL_WEIGHT, WeightedLearner, Weights
from ..training.likelihood import least_head, least_noise
from .average import averaged
from .blocks import BlockGenerative
from .discriminative import Discriminative
from .full import FullDiscriminative
from .generative import Generative, Refit
from .layer import mean_of
from .regression import ConjugateRegression, NoiseMatrix, Regression
from .settings import FeaturesConfig, GaussianLayer, GenerativeLayer
from .student import StudentRegression

Layer = Regression | StudentRegression | Discriminative | FullDiscriminative | Generative


@dataclass(frozen=True)
class LastLayerSpec:
    """The description from which a last-layer model is built.

    Attributes:
        outputs: the number of classes or target columns.
        task: classification or regression.
        features: the settings of variational features. None: point features.
    """

    network: NetworkConfig
    input_shape: tuple[int, ...]
    outputs: int
    task: Literal["classification", "regression"]
    layer: GaussianLayer | GenerativeLayer
    features: FeaturesConfig | None

    def __post_init__(self) -> None:
        one = self.task == "regression" or not self.noise_of_each_input
        require(one, "layer.noise", "must be one: classes have no noise of targets", "each input")
        point = self.task == "regression" or not (isinstance(self.layer, GaussianLayer) and self.layer.conjugate)
        require(point, "layer.noise_posterior", "must be point: classes have no noise of targets", "conjugate")
        if self.task == "regression" and isinstance(self.layer, GaussianLayer):
            exact = "must be jensen: the bound of regression is the expectation itself"
            require(self.layer.bound == "jensen", "layer.bound", exact, self.layer.bound)

    @property
    def noise_of_each_input(self) -> bool:
        """Return whether each input has its own noise."""
        return isinstance(self.layer, GaussianLayer) and self.layer.noise == "each input"

    @property
    def bias(self) -> bool:
        """Return whether the last feature is 1, so that its weights are a bias."""
        return isinstance(self.layer, GaussianLayer) and self.layer.bias

    @property
    def refits(self) -> bool:
        """Return whether densities are fitted after training."""
        return isinstance(self.layer, GenerativeLayer) and self.layer.refit

    def build(self, rng: Seed, class_counts: Tensor | None = None, rows: float = 0) -> "LastLayerLearner":
        """Return a newly initialised model; a generative layer needs ``class_counts`` [class].

        Args:
            rows: the number of training rows, or the sum of their weights, which a layer with a posterior over its
                noise needs.
        """
        trunk = networks.build(self.network, self.input_shape, 0, rng=rng.fold("trunk"))
        counts = torch.zeros(self.outputs) if class_counts is None else class_counts
        c, size, seed = self.layer, (trunk.width + self.bias, self.outputs), rng.fold("layer")
        options: dict[str, Any] = {"prior_variance": c.prior_variance, "wishart_dof": c.wishart_dof}
        options |= {"wishart_scale": c.wishart_scale, "rng": seed}
        layer: Layer
        if isinstance(c, GenerativeLayer):
            require(self.task == "classification", "layer.name", "must be gaussian for regression", c.name)
            options |= {"class_counts": counts, "dirichlet": c.dirichlet}
            layer = Generative(*size, **options) if c.block == 1 else BlockGenerative(*size, block=c.block, **options)
            return LastLayerLearner(self, trunk, layer, rng)
        options |= {"covariance": c.covariance, "rank": c.rank}
        if c.conjugate:
            layer = StudentRegression(*size, num_train=rows, kl_weight=c.kl_weight, **options)
        elif self.task == "regression":
            layer = Regression(*size, **options)
        elif c.covariance == "full":
            layer = FullDiscriminative(*size, draws=c.draws, **options)
        else:
            layer = Discriminative(*size, predictive=c.predictive, draws=c.draws, bound=c.bound, **options)
        return LastLayerLearner(self, trunk, layer, rng)


@final
class LastLayerLearner(WeightedLearner):
    """A network ``layer(trunk(x))`` or ``layer(linear(trunk(x)))``; either the trunk or ``linear`` may be Gaussian.

    Attributes:
        refit: additional feature densities of predictions; None during training.
        exact: the exact posterior of regression, which predicts instead of the layer; None during training.
        log_noise: g of a noise of each input; None with one noise.
    """

    def __init__(self, spec: LastLayerSpec, trunk: networks.Network, layer: Layer, rng: Seed) -> None:
        super().__init__()
        self.spec, self.layer = spec, layer
        self.refit: Refit | None = None
        self.exact: ConjugateRegression | None = None
        self.trunk: nn.Module = trunk
        self.linear: MeanField | None = None
        features = spec.features
        if features is not None and features.prior_variance is None:
            self.trunk = MeanField(trunk, features.initial_sd)
        elif features is not None and features.prior_variance is not None:
            between = lecun_normal(skip_init(nn.Linear, trunk.width, trunk.width), rng.fold("linear").generator())
            scale = features.prior_variance * math.sqrt(trunk.width)  # MeanField divides it by √fan-in
            self.linear = MeanField(between, features.initial_sd, scale)
        self.log_noise: nn.Linear | None = None
        if spec.noise_of_each_input:
            self.log_noise = skip_init(nn.Linear, layer.in_features, 1)
            nn.init.zeros_(self.log_noise.weight)
            nn.init.zeros_(self.log_noise.bias)

    @property
    def _random(self) -> MeanField | None:
        return self.trunk if isinstance(self.trunk, MeanField) else self.linear

    def forward(self, inputs: Tensor, targets: Tensor, num_train: int, noise: dict[str, Tensor]) -> Tensor:
        features, weights = self._features(inputs, noise), noise.get(ROW_WEIGHTS)
        total = num_train if weights is None else noise[TOTAL_WEIGHT]
        g = self.log_noise_of(features)
        loss = self.layer.loss(*scaled(features, targets, g), num_train=total, weights=weights)
        if g is not None:
            loss = loss + targets.shape[1] / 2 * mean_of(g[:, 0], weights)
        if self.spec.layer.kl_weight != 1:
            loss = loss + (self.spec.layer.kl_weight - 1) * self.layer.kl() / total
        if self.spec.features is not None and self._random is not None:
            loss = loss + self.spec.features.kl_weight * self._random.kl() / total
        return loss

    def noise(self, steps: int, batch: int, generator: torch.Generator) -> dict[str, Tensor]:
        return {} if self._random is None else self._random.draw(steps, generator)

    def undecayed(self) -> set[str]:
        """Return the names of all parameters except a point trunk's.

        Weight decay is the prior of a point trunk; other parameters have their own priors.
        """
        spared = "" if isinstance(self.trunk, MeanField) else ("layer.", "linear.")
        return {name for name, _ in self.named_parameters() if name.startswith(spared)}

    def predict(self, inputs: Tensor, *, rng: Seed, class_shares: ClassShares | None = None) -> Predictive:
        """Predict, with other class shares than the training rows' if :meth:`Generative.predict` is to have them.

        Raises:
            UserError: the layer is not generative and there are ``class_shares``.
        """
        if class_shares is not None and not isinstance(self.layer, Generative):
            raise UserError("class_shares are for a generative last layer: other layers have no class prior")
        return self._average(inputs, self._draws, rng, class_shares)

    @property
    def _draws(self) -> int:
        return self.spec.features.draws if self.spec.features else 1

    def functions(self, inputs: Float[Tensor, "group row ..."], *, rng: Seed) -> GaussianFunctions:
        """Return the Gaussian over functions at the rows of each group: a mixture over draws of the features.

        Raises:
            UserError: the layer is generative, so its functions are not Gaussian.
        """
        layer = self.layer if self.exact is None else self.exact
        if isinstance(layer, Generative):
            raise UserError("the functions of a generative last layer are not Gaussian: use joint()")
        parts = []
        for features in self._drawn_features(inputs.flatten(0, 1), self._draws, rng):
            part = layer.functions(features.unflatten(0, inputs.shape[:2]))
            g = self.log_noise_of(features)
            if g is not None:
                part = replace(part, noise=part.noise[:, None, None] * g.exp().unflatten(0, inputs.shape[:2]))
            parts.append(part)
        return GaussianFunctions.mixed(parts)

    def joint(self, inputs: Float[Tensor, "group row ..."], *, places: Tensor | None, draws: int, rng: Seed) -> Joint:
        """Return the joint of each group; a layer without Gaussian functions draws what all inputs of a group share."""
        layer = self.layer
        if not isinstance(layer, Generative | FullDiscriminative):
            return self.functions(inputs, rng=rng).joint(places, draws=draws, rng=rng)
        parts, each = [], -(-draws // self._draws)
        for number, features in enumerate(self._drawn_features(inputs.flatten(0, 1), self._draws, rng)):
            grouped = features.unflatten(0, inputs.shape[:2])
            if isinstance(layer, Generative):
                parts.append(layer.drawn_log_probs(grouped, each, rng.fold("class means", number)))
            else:
                parts.append(layer.drawn_log_probs(grouped, each, rng.fold("functions", number), places))
        drawn = JointCategorical(torch.cat(parts))
        return drawn.at(places) if isinstance(layer, Generative) else drawn

    def validate(self, inputs: Tensor, *, rng: Seed) -> Predictive:
        return self._average(inputs, self.spec.features.validation_draws if self.spec.features else 1, rng)

    def estimated(
        self, predicted: Sequence[tuple[Predictive, Tensor]], weights: Tensor | None = None
    ) -> tuple[float, dict[str, Tensor]]:
        """Return the score and, for regression with point features, the noise scaled by the factor that minimises it.

        The covariance of the training residuals is too small if the trunk overfits. A noise of each input has the line
        of :func:`~bdl_pipe.training.likelihood.least_head_nll`, of the predicted variance.
        """
        if not isinstance(self.layer, NoiseMatrix) or self._random is not None:
            return super().estimated(predicted, weights)
        if self.log_noise is not None:
            return least_head(predicted, None, weights)
        if isinstance(self.layer, StudentRegression):
            score, log_factor = self.layer.least_scale(predicted, weights)
        else:
            score, log_factor = least_noise(predicted, self.layer.noise_covariance.diagonal(), weights)
        return score, {f"layer.{name}": tensor for name, tensor in self.layer.scaled_noise(log_factor).items()}

    def with_estimated(self, weights: Mapping[str, Tensor], estimates: Mapping[str, Tensor]) -> Weights:
        """Replace the noise; of a line (shift, slope) of log-variances, g gets the slope and Σ the rest.

        log Σ_ii + g becomes shift + slope·(log Σ_ii + g), for several outputs on average over i.
        """
        if "slope" not in estimates:
            return {**weights, **estimates}
        self.load_state_dict(dict(weights))
        assert isinstance(self.layer, Regression)
        slope, level = float(estimates["slope"]), float(self.layer.noise_covariance.detach().diagonal().log().mean())
        noise = self.layer.scaled_noise(float(estimates["shift"]) + (slope - 1) * level)
        changed = {name: slope * weights[name] for name in ("log_noise.weight", "log_noise.bias")}
        return {**weights, **{f"layer.{name}": tensor for name, tensor in noise.items()}, **changed}

    def features(self, inputs: Tensor, draw: int, rng: Seed) -> Tensor:
        """Return φ(x) [batch, width] for one draw of the trunk; point features do not depend on the draw."""
        return self._features(inputs, self.draw(rng.fold("trunk", draw), inputs.device))

    def row(self, inputs: Tensor, targets: Tensor, draw: int, rng: Seed) -> tuple[Tensor, Tensor]:
        """Return the features and targets that the layer has for training rows: φ and y, or φs and ys."""
        features = self.features(inputs, draw, rng)
        return scaled(features, targets, self.log_noise_of(features))

    def log_noise_of(self, features: Tensor) -> Tensor | None:
        """Return g of each row [batch, 1]; None with one noise."""
        return None if self.log_noise is None else self.log_noise(features)

    def _features(self, inputs: Tensor, noise: dict[str, Tensor], shared: Tensor | None = None) -> Tensor:
        """Return φ(x) [batch, width] of a draw; ``shared`` is the output of a point trunk, if computed before."""
        if isinstance(self.trunk, MeanField):
            features: Tensor = self.trunk(inputs, noise)
        else:
            features = self.trunk(inputs) if shared is None else shared
            features = features if self.linear is None else self.linear(features, noise)
        return F.pad(features, (0, 1), value=1.0) if self.spec.bias else features

    def _drawn_features(self, inputs: Tensor, draws: int, rng: Seed) -> Iterator[Tensor]:
        """Yield φ(x) [batch, width] of each draw; a point trunk is computed once."""
        shared = None if isinstance(self.trunk, MeanField) else self.trunk(inputs)
        for draw in range(draws):
            yield self._features(inputs, self.draw(rng.fold("trunk", draw), inputs.device), shared)

    def _average(self, inputs: Tensor, draws: int, rng: Seed, class_shares: ClassShares | None = None) -> Predictive:
        parts, layer = list[Any](), self.layer if self.exact is None else self.exact
        for draw, features in enumerate(self._drawn_features(inputs, draws, rng)):
            g = self.log_noise_of(features)
            s = None if g is None else (-g / 2).exp()
            of_layer = rng.fold("layer", draw)
            if isinstance(layer, Generative):
                part: Predictive = layer.predict(features, rng=of_layer, class_shares=class_shares)
            else:
                part = layer.predict(features if s is None else features * s, rng=of_layer)
            if s is not None and isinstance(part, Gaussian):
                part = Gaussian(part.draw_mean / s, part.draw_variance / s.square())
            if self.refit is not None and isinstance(part, Categorical):
                scores = {**part.scores, "refit_density": self.refit.log_density(features)}
                part = Categorical(part.draw_log_probs, scores)
            parts.append(part)
        return averaged(parts)
