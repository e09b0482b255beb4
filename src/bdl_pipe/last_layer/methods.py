"""The methods ``vbll`` (regression), ``d_vbll``, ``g_vbll`` (classes), and ``…_bnn`` with variational features.

A fit starts from random weights or, if the run's input is a trajectory, from the trajectory's last snapshot: it loads
the trunk and, if the layer's weights have a Gaussian posterior, the head as their mean.

Training and the validation score of early stopping use the variational posterior. With ``layer.posterior: exact`` the
exact posterior, given the trained trunk and Σ, replaces it after training (appendix C.6).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..data.fitdata import FitData
from ..data.size import Section, Size
from ..joint_predictive import GaussianFunctions, Joint
from ..method import Default, FromModel, Method, ModelFit, Task
from ..networks import NetworkConfig
from ..networks.last_layer import LastLayer, linear
from ..networks.variational import MeanField
from ..seeds import Seed
from ..training.learner import FitResult, TrainingConfig
from ..training.posterior import LearnerPosterior
from ..training.warm_start import Weights
from .config import FeaturesConfig, GaussianLayer, GenerativeLayer, require_variational
from .conjugate import ConjugateRegression, condition
from .generative import Generative
from .learner import LastLayerLearner, LastLayerSpec
from .refit import Refit
from .regression import Regression

_ROWS = 1000  # training rows in one forward pass of a refit


@dataclass(frozen=True)
class VbllConfig:
    """The section ``methods.vbll`` of params.yaml.

    Attributes:
        network: the network; the layer replaces its head.
        training: the settings of the fit of trunk and layer.
        layer: the last layer.
    """

    network: NetworkConfig
    training: TrainingConfig
    layer: GaussianLayer


@dataclass(frozen=True)
class GenerativeConfig:
    """The section ``methods.g_vbll``; see :class:`VbllConfig`."""

    network: NetworkConfig
    training: TrainingConfig
    layer: GenerativeLayer


@dataclass(frozen=True)
class VbllBnnConfig:
    """The sections ``methods.vbll_bnn`` and ``methods.d_vbll_bnn``, with the settings of variational features."""

    network: NetworkConfig
    training: TrainingConfig
    layer: GaussianLayer
    features: FeaturesConfig

    def __post_init__(self) -> None:
        require_variational("layer.posterior", self.layer, "for variational features, which are not fixed")


@dataclass(frozen=True)
class GenerativeBnnConfig:
    """The section ``methods.g_vbll_bnn`` of params.yaml."""

    network: NetworkConfig
    training: TrainingConfig
    layer: GenerativeLayer
    features: FeaturesConfig

    def __post_init__(self) -> None:
        require_variational("layer.posterior", self.layer, "for variational features, which are not fixed")


@dataclass(frozen=True)
class DiscriminativeConfig(VbllConfig):
    """The section ``methods.d_vbll`` of params.yaml."""

    def __post_init__(self) -> None:
        require_variational("layer.posterior", self.layer, "for a discriminative layer, which is not conjugate")


Config = VbllConfig | GenerativeConfig | VbllBnnConfig | GenerativeBnnConfig


@final
class LastLayerPosterior(LearnerPosterior[LastLayerLearner]):
    """A fitted trunk and last layer; a generative layer may have refitted densities.

    In a prediction ``rng`` draws the trunks and, if the layer's rule is "sampled", the logits.
    """

    key, spec_class = "last_layer", LastLayerSpec

    @torch.no_grad()
    def last_layer(self, inputs: Tensor, *, rng: Seed) -> LastLayer:
        """Return the features' mean over draws, and logits except for a layer of class densities, which has none."""
        with self.lent() as learner:
            draws = learner.spec.features.draws if learner.spec.features else 1
            features = torch.stack([learner.features(inputs, draw, rng) for draw in range(draws)]).mean(0)
            if learner.spec.layer.name != "gaussian":
                return LastLayer(features)
            layer = linear(features, learner.layer.mean)
            return layer if draws == 1 else LastLayer(features, layer.logits, layer.origin)

    @torch.no_grad()
    def functions(self, inputs: Float[Tensor, "group row ..."], *, rng: Seed) -> GaussianFunctions:
        """Return :meth:`LastLayerLearner.functions` of transformed inputs."""
        with self.lent() as learner:
            return learner.functions(inputs, rng=rng)

    @torch.no_grad()
    def joint(self, inputs: Float[Tensor, "group row ..."], *, places: Tensor | None, draws: int, rng: Seed) -> Joint:
        """Return :meth:`LastLayerLearner.joint` of transformed inputs."""
        with self.lent() as learner:
            return learner.joint(inputs, places=places, draws=draws, rng=rng)

    @classmethod
    def spec(cls, config: Config, data: FitData) -> LastLayerSpec:
        features = config.features if isinstance(config, (VbllBnnConfig, GenerativeBnnConfig)) else None
        return LastLayerSpec(config.network, data.input_shape, data.outputs, data.task, config.layer, features)

    @classmethod
    def build(cls, spec: LastLayerSpec, data: FitData, rng: Seed, start: Weights | None) -> LastLayerLearner:
        learner = spec.build(rng, _counts(data))
        if start is not None:
            _start(learner, start)
        return learner

    @classmethod
    def skeleton(cls, spec: LastLayerSpec) -> LastLayerLearner:
        learner = spec.build(Seed(0))
        if spec.refits:
            learner.refit = Refit.skeleton(spec.outputs, learner.layer.in_features)
        if spec.layer.posterior == "exact" and isinstance(learner.layer, Regression):
            learner.exact = ConjugateRegression.skeleton(spec.outputs, learner.layer.in_features)
        return learner

    @staticmethod
    def finish(spec: LastLayerSpec, fitted: FitResult, data: FitData, rng: Seed) -> dict[str, Tensor]:
        """Compute the exact posterior and refit a generative layer's densities if the config sets them."""
        state, exact = dict(fitted.state), spec.layer.posterior == "exact"
        if not (exact or spec.refits):
            return state
        learner = spec.build(Seed(0)).to(data.device).eval()
        learner.load_state_dict(state)
        layer = learner.layer
        if exact and isinstance(layer, Regression):
            state |= _named("exact.", condition(layer, _training_features(learner, data, rng.fold("exact"))))
        if exact and isinstance(layer, Generative):
            layer.condition(_training_features(learner, data, rng.fold("exact")))
            state |= _named("layer.", layer)
        if spec.refits:
            assert isinstance(layer, Generative)
            state |= _named("refit.", layer.refit_noise(_training_features(learner, data, rng.fold("refit"))))
        return state


def _named(prefix: str, module: nn.Module) -> dict[str, Tensor]:
    return {prefix + name: tensor.cpu() for name, tensor in module.state_dict().items()}


def _counts(data: FitData) -> Tensor | None:
    if data.task != "classification":
        return None
    counts = np.bincount(data.train.targets, minlength=data.outputs)
    return torch.from_numpy(counts).to(torch.float32)


@torch.no_grad()
def _start(learner: LastLayerLearner, start: Weights) -> None:
    """Load the trunk into ``learner`` and, if its layer has Gaussian weights, the head as their mean."""
    trunk = learner.trunk.module if isinstance(learner.trunk, MeanField) else learner.trunk
    trunk.load_state_dict({k: v for k, v in start.items() if k.startswith("trunk.")})
    if learner.linear is not None:
        nn.init.eye_(learner.linear.module.get_parameter("weight"))  # the identity: the head was trained on the trunk
    if not isinstance(learner.layer, Generative):
        learner.layer.mean.copy_(start["head.weight"])


@torch.no_grad()
def _training_features(learner: LastLayerLearner, data: FitData, rng: Seed) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield :meth:`LastLayerLearner.row` of the training rows; variational features have one draw for each batch."""
    for batch, (x, y) in enumerate(data.rows("train", data.device).batches(_ROWS)):
        yield learner.row(x, y, batch, rng)


def _regression(size: Size) -> Section:
    return {**_default(size), "layer": {"wishart_scale": 1.0, **size.noise_of}}


def _default(size: Size) -> Section:
    return {"network": size.network, "training": size.training()}


_LAYER: Final = {"prior_variance": 1.0, "wishart_dof": 1.0, "wishart_scale": 1.0, "kl_weight": 1.0}


def _from_model(layer: Section, fit: ModelFit) -> Section:
    return {"network": fit.network, "training": fit.training(1e-3), "layer": layer}


def _method(name: str, config: type, tasks: tuple[Task, ...], default: Default | None = None, **layer: Any) -> Method:
    search = {
        "training.optimiser.lr": (1e-4, 3e-2, "log"),
        "layer.prior_variance": (1e-2, 1e2, "log"),
        "layer.wishart_scale": (1e-3, 1e1, "log"),
    }
    stages = {"student": LastLayerPosterior.stage()}
    return Method(
        name=name,
        bayesian=True,
        config=config,
        tasks=tasks,
        stages=stages,  # type: ignore[arg-type]
        search=search,  # type: ignore[arg-type]
        settings={"layer": {**_LAYER, **layer}} if default else {},
        program=default is not None,
        default=default,
        from_model=FromModel(partial(_from_model, {**layer, **_LAYER})) if default else None,
    )


_DENSE: Final = {"covariance": "dense", "rank": None, "wishart_scale": 20.0}
VBLL = _method("vbll", VbllConfig, ("regression",), Default(1.6, override=_regression), **_DENSE)
VBLL_BNN = _method("vbll_bnn", VbllBnnConfig, ("regression",))
_DIAGONAL: Final = {"covariance": "diagonal", "rank": None, "predictive": "quadrature"}
D_VBLL = _method("d_vbll", DiscriminativeConfig, ("classification",), Default(1.6, override=_default), **_DIAGONAL)
D_VBLL_BNN = _method("d_vbll_bnn", VbllBnnConfig, ("classification",))
_DENSITIES: Final = {"dirichlet": 1.0, "wishart_dof": 128.0, "refit": True}
G_VBLL = _method("g_vbll", GenerativeConfig, ("classification",), Default(2.0, override=_default), **_DENSITIES)
G_VBLL_BNN = _method("g_vbll_bnn", GenerativeBnnConfig, ("classification",))
