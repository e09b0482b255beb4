"""The posterior of a coreset: a trunk trained on it, and the closed-form posterior of the head.

Lee et al. 2025, algorithm 2: a new network, T' Adam steps on S with the Gaussian likelihood, then eq. 21 once; a
prediction is one forward pass (eq. 25, 31). The state has m, the Cholesky factor of A (n̂×n̂) and Φ, never V (h×h); if
n̂ > h, it has m and the factor of A (h×h).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self, final

import torch
from torch import Tensor

from ... import networks
from ...artifacts import State
from ...config import read, to_mapping
from ...data.augment import AugmentConfig
from ...data.fitdata import FitData
from ...data.size import Section, Size
from ...errors import require, require_positive
from ...joint_predictive import GaussianFunctions
from ...method import Inputs
from ...networks.base import Replicas
from ...networks.last_layer import LastLayer, linear
from ...predictive import Categorical, Predictive
from ...progress import Report
from ...seeds import Seed
from ...training.loop import OptimiserConfig, run_steps
from ..shared.descent import NOISY, Search
from ..shared.init import Coreset
from ..shared.trunk import TrunkObjective, features
from . import closed_form
from .closed_form import HeadPosterior


@dataclass(frozen=True)
class HeadConfig:
    """The settings of the closed-form head and its features, which the methods that fit it share.

    Attributes:
        rho: ρ, the precision of the prior of the head's weights.
        gamma: γ, the *precision* of the coreset's Gaussian likelihood.
        feature_scale: the factor of φ.
    """

    rho: float
    gamma: float
    feature_scale: float

    def __post_init__(self) -> None:
        require_positive(self, "rho", "gamma", "feature_scale")

    def solve(self, network: networks.Network, images: Tensor, labels: Tensor) -> closed_form.HeadPosterior:
        """Solve for the posterior of the head on this network's features, with β_S = n̂."""
        phi = features(network, images, self.feature_scale)
        return closed_form.solve(phi, labels, self.rho, self.gamma)


_CHUNK = 250  # inputs per forward pass; their activations fit in the processor's cache


@dataclass(frozen=True)
class StudentConfig:
    """The settings of the trunk's training on the coreset.

    Attributes:
        steps: T', the number of Adam steps; with 0 the trunk stays random.
        lr: Adam's constant learning rate.
        augmentation: the augmentation of the coreset at each step; the closed form uses the coreset without
            augmentation.
    """

    steps: int
    lr: float
    augmentation: AugmentConfig

    def __post_init__(self) -> None:
        require(self.steps >= 0, "steps", "must be >= 0", self.steps)
        require(self.lr > 0, "lr", "must be > 0", self.lr)


@dataclass(frozen=True)
class Spec:
    """The description of the trunk and the head's tensors.

    Attributes:
        network, input_shape: the trunk's architecture and the shape of its inputs.
        feature_scale, rho, ratio: see ``HeadConfig`` and ``HeadPosterior``.
    """

    network: networks.NetworkConfig
    input_shape: tuple[int, ...]
    feature_scale: float
    rho: float
    ratio: float


class CoresetPosterior(ABC):
    """A posterior of one trunk φ and q(W), which predicts in closed form.

    Attributes:
        key: the posterior's key in ``registry.POSTERIORS``.
        spec_type: the class of ``spec``.
    """

    key: ClassVar[str]
    spec_type: ClassVar[type[Spec]] = Spec

    def __init__(self, spec: Spec, trunk: dict[str, Tensor], head: HeadPosterior) -> None:
        """Create the posterior; ``trunk`` is the ``state_dict`` of the network without a head."""
        self.spec, self.head = spec, head
        network = networks.build(spec.network, spec.input_shape, 0, rng=Seed(0)).to(head.mean.device).eval()
        network.load_state_dict(trunk)
        self._networks = Replicas(network)

    @torch.no_grad()
    def features(self, inputs: Tensor) -> Tensor:
        """Compute φ(x) [b, h] of transformed inputs."""
        with self._networks.one() as network:
            return torch.cat([self._phi(network, part) for part in inputs.split(_CHUNK)])

    def _phi(self, network: networks.Network, inputs: Tensor) -> Tensor:
        return features(network, inputs, self.spec.feature_scale)

    @abstractmethod
    def predict(self, inputs: Tensor, *, rng: Seed = Seed(0)) -> Predictive:
        """Return the predictive of transformed inputs; ``rng`` is not used."""

    @torch.no_grad()
    def functions(self, inputs: Tensor, *, rng: Seed = Seed(0)) -> GaussianFunctions:
        """Return the Gaussian over logits, or means of targets, at the rows of each group [group, row, ...].

        ``rng`` is not used.
        """
        return self.head.functions(self.features(inputs.flatten(0, 1)).unflatten(0, inputs.shape[:2]))

    def state(self) -> State:
        head = {k: getattr(self.head, k) for k in ("features", "mean", "factor")}
        tensors = self._networks.module.state_dict() | {f"head.{k}": v for k, v in head.items() if v is not None}
        plain = {k: v.detach().contiguous().clone() for k, v in tensors.items()}
        return State(plain, {"posterior": self.key, "spec": to_mapping(self.spec)})

    @classmethod
    def from_state(cls, state: State, device: torch.device | str = "cpu") -> Self:
        spec = read(cls.spec_type, state.config["spec"], "spec")
        tensors = {k: v.to(device, copy=True) for k, v in state.tensors.items()}
        trunk, head = ({k: v for k, v in tensors.items() if k.startswith(part)} for part in ("trunk.", "head."))
        q = HeadPosterior(head.get("head.features"), head["head.mean"], head["head.factor"], spec.rho, spec.ratio)
        return cls(spec, trunk, q)


@final
class VbpcPosterior(CoresetPosterior):
    """The posterior of a coreset of classes."""

    key = "vbpc"

    @torch.no_grad()
    def predict(self, inputs: Tensor, *, rng: Seed = Seed(0)) -> Categorical:
        """Return class probabilities of transformed inputs; ``rng`` is not used."""
        return self.head.predict(self.features(inputs))

    @torch.no_grad()
    def last_layer(self, inputs: Tensor, *, rng: Seed = Seed(0)) -> LastLayer:
        """Return the layer of q(W)'s mean at transformed inputs; ``rng`` is not used."""
        return linear(self.features(inputs), self.head.mean.T)


PRECISIONS: Final[Search] = {"rho": (0.1, 1000.0, "log"), "gamma": (1.0, 10000.0, "log")}
STUDENT_LR: Final[Search] = {"student.lr": (1e-5, 1e-2, "log")}
SETTINGS: Final[Section] = {
    "rho": 10.0,
    "gamma": 100.0,
    "feature_scale": 1.0,
    "student": {"steps": 50, "lr": 3e-4, "augmentation": NOISY},
}


def default(size: Size) -> Section:
    """Return the hyperparameters, with at most ten images per class and the wide network that the closed form needs."""
    return {"ipc": min(10, max(1, size.fewest // 3)), "network": {**size.convnet(8, 32), "pool": "average"}}


def fit_student(data: FitData, inputs: Inputs, config: Any, *, rng: Seed, report: Report) -> State:
    """Train a new network on the coreset in ``inputs`` (on ``data.device``), and solve for its head.

    The fit uses only the data's shape and device. A fit resumed from ``report.load()`` has the same bits.

    Args:
        config: a :class:`HeadConfig` with ``network`` and ``student``.
    """
    (stored,) = inputs["coreset"]
    coreset = Coreset.for_fit(stored, data)
    network = train_network(data, coreset, config, rng=rng, report=report)
    with torch.no_grad():
        q = config.solve(network, coreset.images, coreset.labels)
    spec = Spec(config.network, data.input_shape, config.feature_scale, float(q.rho), float(q.ratio))
    return VbpcPosterior(spec, trunk_of(network), q).state()


def train_network(data: FitData, coreset: Coreset, config: Any, *, rng: Seed, report: Report) -> networks.Network:
    """Train a new network on the coreset.

    Args:
        config: a config with ``network`` and ``student``.

    Raises:
        Diverged: the loss or a weight became NaN or infinite.
    """
    outputs, student = coreset.labels.shape[1], config.student
    network = networks.build(config.network, data.input_shape, outputs, rng=rng.fold("network")).to(data.device)
    task = TrunkObjective(network, coreset, student.augmentation, rng)
    run_steps(task, OptimiserConfig("adam", student.lr), student.steps, report)
    return network


def trunk_of(network: networks.Network) -> dict[str, Tensor]:
    """Return the ``state_dict`` of a network without its head."""
    return {k: v for k, v in network.state_dict().items() if k.startswith("trunk.")}
