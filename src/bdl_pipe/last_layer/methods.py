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
from ..config import read
from ..data.fitdata import FitData
from ..errors import require
from ..learner import LearnConfig, Learned
from ..learning import learn
from ..method import Inputs, Method, Room, Task, alone
from ..networks import NetworkConfig
from ..networks.variational import MeanField
from ..posterior import NetworkSpec
from ..progress import Report
from ..seeds import Seed
from .generative import Generative
from .learner import FeaturesConfig, GaussianLayer, GenerativeLayer, LastLayerLearner, LastLayerPosterior, LastLayerSpec

_ROWS = 1000  # training rows in one pass of a refit


@dataclass(frozen=True)
class VbllConfig:
    """``methods.vbll`` and ``methods.d_vbll``.

    Attributes:
        network: its trunk is used.
        learn: how trunk and layer are trained.
        layer: the last layer.
    """

    network: NetworkConfig
    learn: LearnConfig
    layer: GaussianLayer


@dataclass(frozen=True)
class GenerativeConfig:
    """``methods.g_vbll``, as :class:`VbllConfig`."""

    network: NetworkConfig
    learn: LearnConfig
    layer: GenerativeLayer


@dataclass(frozen=True)
class VbllBnnConfig:
    """``methods.vbll_bnn`` and ``methods.d_vbll_bnn``: also how the features vary."""

    network: NetworkConfig
    learn: LearnConfig
    layer: GaussianLayer
    features: FeaturesConfig


@dataclass(frozen=True)
class GenerativeBnnConfig:
    """``methods.g_vbll_bnn``."""

    network: NetworkConfig
    learn: LearnConfig
    layer: GenerativeLayer
    features: FeaturesConfig


Config = VbllConfig | GenerativeConfig | VbllBnnConfig | GenerativeBnnConfig


def fit(
    data: Sequence[FitData], inputs: Sequence[Inputs], config: Config, *, rngs: Sequence[Seed], report: Report
) -> list[State]:
    """A last-layer model of each of ``data``.

    Raises:
        ConfigError: the trajectory is of another network.
        FloatingPointError: a loss became NaN or infinite.
    """
    features = config.features if isinstance(config, (VbllBnnConfig, GenerativeBnnConfig)) else None
    first = data[0]
    spec = LastLayerSpec(config.network, first.input_shape, first.outputs, first.task, config.layer, features)
    for found in inputs:
        rule = "must be null where the fit starts from a trajectory, which has seen the validation rows"
        require(not found or config.learn.choose is None, "learn.choose", rule, config.learn.choose)
    builds = [partial(_build, spec, found) for found in inputs]
    fitted = learn(builds, data, config.learn, rngs=rngs, report=report)
    return [_finish(spec, rows, made) for rows, made in zip(data, fitted, strict=True)]


def _build(spec: LastLayerSpec, inputs: Inputs, data: FitData, rng: Seed) -> LastLayerLearner:
    learner = spec.build(rng, _counts(data))
    if inputs:
        _start(learner, inputs["trajectory"][0])
    return learner


def _counts(data: FitData) -> Tensor | None:
    if data.task != "classification":
        return None
    labels = torch.as_tensor(data.train.targets)
    return torch.bincount(labels, minlength=data.outputs).to(torch.float32)


@torch.no_grad()
def _start(learner: LastLayerLearner, trajectory: State) -> None:
    """Put the trajectory's last trunk, and its head where the layer has a mean of that shape, into ``learner``."""
    spec = read(NetworkSpec, trajectory.config["spec"], "spec")
    rule = "must be that of the trajectory that the row starts from"
    require(spec.network == learner.spec.network, "network", rule, learner.spec.network)
    last = {name: snapshots[-1] for name, snapshots in trajectory.tensors.items()}
    trunk = learner.trunk.module if isinstance(learner.trunk, MeanField) else learner.trunk
    trunk.load_state_dict({k: v for k, v in last.items() if k.startswith("trunk.")})
    if learner.linear is not None:
        assert isinstance(learner.linear.module, nn.Linear)
        nn.init.eye_(learner.linear.module.weight)  # the features that the head is for
    if not isinstance(learner.layer, Generative):
        learner.layer.mean.copy_(last["head.weight"][: len(learner.layer.mean)])  # of a Gaussian head, the means


def _finish(spec: LastLayerSpec, data: FitData, made: Learned) -> State:
    learner = spec.build(Seed(0)).to(data.device).eval()
    learner.load_state_dict(made.state)
    about = {"epochs": made.epochs, "loss": made.loss}
    if not (isinstance(spec.layer, GenerativeLayer) and spec.layer.refit):
        return LastLayerPosterior(learner, about).state()
    assert isinstance(learner.layer, Generative)
    return LastLayerPosterior(learner, about, learner.layer.refit_noise(_training_features(learner, data))).state()


@torch.no_grad()
def _training_features(learner: LastLayerLearner, data: FitData) -> Iterator[tuple[Tensor, Tensor]]:
    """φ of the training rows and their labels; of variational features, at one draw a batch."""
    inputs, labels = data.tensors("train", data.device)
    for batch, (x, y) in enumerate(zip(inputs.split(_ROWS), labels.split(_ROWS), strict=True)):
        yield learner.features(x, batch, Seed(0).fold("refit")), y


def _method(name: str, config: type, tasks: tuple[Task, ...]) -> Method:
    room = Room(alone(fit), needs=("trajectory",), takes="each", together=fit, optional=True, shares=True)
    search = {
        "learn.optimiser.rate": (1e-4, 3e-2, "log"),
        "layer.prior_variance": (1e-2, 1e2, "log"),
        "layer.wishart_scale": (1e-3, 1e1, "log"),
    }
    return Method(name=name, config=config, tasks=tasks, rooms={"student": room}, search=search)  # type: ignore[arg-type]


VBLL = _method("vbll", VbllConfig, ("regression",))
VBLL_BNN = _method("vbll_bnn", VbllBnnConfig, ("regression",))
D_VBLL = _method("d_vbll", VbllConfig, ("classification",))
D_VBLL_BNN = _method("d_vbll_bnn", VbllBnnConfig, ("classification",))
G_VBLL = _method("g_vbll", GenerativeConfig, ("classification",))
G_VBLL_BNN = _method("g_vbll_bnn", GenerativeBnnConfig, ("classification",))
