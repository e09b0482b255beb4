"""The methods ``vbll`` (regression), ``d_vbll``, ``g_vbll`` (classes), and ``…_bnn`` with variational features.

A fit starts from random weights, or, where its row's input is a trajectory, from that network's last
snapshot: the trunk as it is and, for weights of Gaussian posterior, the head as their mean.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from ..artifacts import State
from ..config import to_mapping
from ..data.fitdata import FitData
from ..method import Inputs, Method, StageSpec, Task
from ..networks import NetworkConfig
from ..networks.variational import MeanField
from ..progress import Report
from ..seeds import Seed
from ..training.learner import FitResult, TrainingConfig, posterior_state
from ..training.warm_start import Weights, fit_from
from .generative import Generative
from .learner import FeaturesConfig, GaussianLayer, GenerativeLayer, LastLayerLearner, LastLayerPosterior, LastLayerSpec

_ROWS = 1000  # training rows in one pass of a refit


@dataclass(frozen=True)
class VbllConfig:
    """``methods.vbll`` and ``methods.d_vbll``.

    Attributes:
        network: its trunk is used.
        training: how trunk and layer are trained.
        layer: the last layer.
    """

    network: NetworkConfig
    training: TrainingConfig
    layer: GaussianLayer


@dataclass(frozen=True)
class GenerativeConfig:
    """``methods.g_vbll``, as :class:`VbllConfig`."""

    network: NetworkConfig
    training: TrainingConfig
    layer: GenerativeLayer


@dataclass(frozen=True)
class VbllBnnConfig:
    """``methods.vbll_bnn`` and ``methods.d_vbll_bnn``: also how the features vary."""

    network: NetworkConfig
    training: TrainingConfig
    layer: GaussianLayer
    features: FeaturesConfig


@dataclass(frozen=True)
class GenerativeBnnConfig:
    """``methods.g_vbll_bnn``."""

    network: NetworkConfig
    training: TrainingConfig
    layer: GenerativeLayer
    features: FeaturesConfig


Config = VbllConfig | GenerativeConfig | VbllBnnConfig | GenerativeBnnConfig


def fit(
    data: Sequence[FitData], inputs: Sequence[Inputs], config: Config, *, rngs: Sequence[Seed], report: Report
) -> list[State]:
    """A last-layer model of each of ``data``.

    Raises:
        ConfigError: the trajectory is of another network, or ``training.early_stopping`` is set with it.
        Diverged: a loss became NaN or infinite.
    """
    features = config.features if isinstance(config, (VbllBnnConfig, GenerativeBnnConfig)) else None
    first = data[0]
    spec = LastLayerSpec(config.network, first.input_shape, first.outputs, first.task, config.layer, features)
    build = partial(_build, spec)
    fitted = fit_from(build, data, inputs, config.network, config.training, rngs=rngs, report=report)
    return [_finish(spec, *each) for each in zip(data, fitted, rngs, strict=True)]


def _build(spec: LastLayerSpec, start: Weights | None, data: FitData, rng: Seed) -> LastLayerLearner:
    learner = spec.build(rng, _counts(data))
    if start is not None:
        _start(learner, start)
    return learner


def _counts(data: FitData) -> Tensor | None:
    if data.task != "classification":
        return None
    labels = torch.as_tensor(data.train.targets)
    return torch.bincount(labels, minlength=data.outputs).to(torch.float32)


@torch.no_grad()
def _start(learner: LastLayerLearner, start: Weights) -> None:
    """Put the trunk, and the head where the layer has a mean of that shape, into ``learner``."""
    trunk = learner.trunk.module if isinstance(learner.trunk, MeanField) else learner.trunk
    trunk.load_state_dict({k: v for k, v in start.items() if k.startswith("trunk.")})
    if learner.linear is not None:
        nn.init.eye_(learner.linear.module.get_parameter("weight"))  # the features that the head is for
    if not isinstance(learner.layer, Generative):
        learner.layer.mean.copy_(start["head.weight"])


def _finish(spec: LastLayerSpec, data: FitData, made: FitResult, rng: Seed) -> State:
    state = posterior_state(LastLayerPosterior.key, made, {"spec": to_mapping(spec)})
    if not spec.refits:
        return state
    learner = spec.build(Seed(0)).to(data.device).eval()
    learner.load_state_dict(made.state)
    assert isinstance(learner.layer, Generative)
    refit = learner.layer.refit_noise(_training_features(learner, data, rng.fold("refit"))).cpu()
    return State({**state.tensors, **{f"refit.{k}": v for k, v in refit.state_dict().items()}}, state.config)


@torch.no_grad()
def _training_features(learner: LastLayerLearner, data: FitData, rng: Seed) -> Iterator[tuple[Tensor, Tensor]]:
    """φ of the training rows and their labels; of variational features, at one draw a batch."""
    inputs, labels = data.tensors("train", data.device)
    for batch, (x, y) in enumerate(zip(inputs.split(_ROWS), labels.split(_ROWS), strict=True)):
        yield learner.features(x, batch, rng), y


def _method(name: str, config: type, tasks: tuple[Task, ...]) -> Method:
    stage = StageSpec(fit_many=fit, needs={"trajectory": "one_to_one"}, input_optional=True, data_parallel=True)
    search = {
        "training.optimiser.lr": (1e-4, 3e-2, "log"),
        "layer.prior_variance": (1e-2, 1e2, "log"),
        "layer.wishart_scale": (1e-3, 1e1, "log"),
    }
    return Method(name=name, config=config, tasks=tasks, stages={"student": stage}, search=search)  # type: ignore[arg-type]


VBLL = _method("vbll", VbllConfig, ("regression",))
VBLL_BNN = _method("vbll_bnn", VbllBnnConfig, ("regression",))
D_VBLL = _method("d_vbll", VbllConfig, ("classification",))
D_VBLL_BNN = _method("d_vbll_bnn", VbllBnnConfig, ("classification",))
G_VBLL = _method("g_vbll", GenerativeConfig, ("classification",))
G_VBLL_BNN = _method("g_vbll_bnn", GenerativeBnnConfig, ("classification",))
