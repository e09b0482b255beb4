"""The coreset methods as the registry sees them: VBPC, and random selection beside it.

Both are evaluated alike: fresh trunks trained on the coreset, then the closed-form head. They
differ in the coreset alone.
"""

from dataclasses import dataclass

from .. import networks
from ..artifacts import State
from ..config import to_mapping
from ..data.fitdata import FitData
from ..errors import require
from ..method import Inputs, Method, Room
from ..progress import Report
from ..seeds import Seed
from . import posterior
from .distil import DistilConfig, distil, stored
from .posterior import StudentConfig
from .select import Coreset, balanced
from .trunk import HeadConfig


@dataclass(frozen=True)
class VbpcConfig:
    """``methods.vbpc``.

    Attributes:
        ipc: coreset rows per class.
        network: the architecture of the pool's and the student's networks.
        rho, gamma, feature_scale: see ``HeadConfig``.
        beta_dataset: β_D, weight of the KL in the outer loss.
        coreset: how the coreset is distilled.
        student: how a trunk is trained on it.
    """

    ipc: int
    network: networks.NetworkConfig
    rho: float
    gamma: float
    feature_scale: float
    beta_dataset: float
    coreset: DistilConfig
    student: StudentConfig

    def __post_init__(self) -> None:
        require(self.ipc > 0, "ipc", "must be > 0", self.ipc)
        require(self.beta_dataset >= 0, "beta_dataset", "must be >= 0", self.beta_dataset)
        _ = self.head

    @property
    def head(self) -> HeadConfig:
        return HeadConfig(self.rho, self.gamma, self.feature_scale)


@dataclass(frozen=True)
class RandomCoresetConfig:
    """``methods.random_coreset``; the attributes are VBPC's.

    Attributes:
        label_scale: factor of the labels (onehot − 1/k)/√(k/10). VBPC learns its labels' scale, so a
            fair comparison chooses this one on validation rows (it moves the NLL, hardly the accuracy).
    """

    ipc: int
    network: networks.NetworkConfig
    rho: float
    gamma: float
    feature_scale: float
    label_scale: float
    student: StudentConfig

    def __post_init__(self) -> None:
        require(self.ipc > 0, "ipc", "must be > 0", self.ipc)
        require(self.label_scale > 0, "label_scale", "must be > 0", self.label_scale)
        _ = self.head

    @property
    def head(self) -> HeadConfig:
        return HeadConfig(self.rho, self.gamma, self.feature_scale)


def make_vbpc(data: FitData, inputs: Inputs, config: VbpcConfig, *, rng: Seed, report: Report) -> State:
    """A distilled coreset: ``images``, ``labels``, ``classes`` and the un-transformed ``raw``."""
    start = balanced(data, config.ipc, config.coreset.label_scale, rng=rng.fold("start"))
    made = distil(
        data,
        start,
        config.network,
        config.head,
        config.beta_dataset,
        config.coreset,
        rng=rng.fold("distil"),
        report=report,
    )
    return made.state(data, {"coreset": "vbpc", "ipc": config.ipc, "config": to_mapping(config)})


def peek_vbpc(checkpoint: State, data: FitData, inputs: Inputs, config: VbpcConfig, *, rng: Seed) -> State:
    """The coreset as it stands in a checkpoint of :func:`make_vbpc`, for a search that judges it half-way."""
    start = balanced(data, config.ipc, config.coreset.label_scale, rng=rng.fold("start"))
    images, labels = stored(checkpoint, config.coreset)
    return Coreset(images, labels, start.classes).state(data, {"coreset": "vbpc", "ipc": config.ipc})


def make_random(data: FitData, inputs: Inputs, config: RandomCoresetConfig, *, rng: Seed, report: Report) -> State:
    """A random class-balanced coreset, in the form of :func:`make_vbpc`."""
    made = balanced(data, config.ipc, config.label_scale, rng=rng.fold("start"))
    report(1, 1)
    return made.state(data, {"coreset": "random_coreset", "ipc": config.ipc, "config": to_mapping(config)})


def fit(data: FitData, inputs: Inputs, config: VbpcConfig | RandomCoresetConfig, *, rng: Seed, report: Report) -> State:
    """One fresh network on the one coreset in ``inputs``."""
    (stored,) = inputs["coreset"]
    coreset = Coreset.from_state(stored, data.device)
    fitted = posterior.fit(data, coreset, config.network, config.head, config.student, rng=rng, report=report)
    return fitted.state()


VBPC = Method(
    name="vbpc",
    config=VbpcConfig,
    tasks=("classification",),
    rooms={"coreset": Room(make_vbpc, peek=peek_vbpc), "student": Room(fit, needs={"coreset": "turn"})},
    search={
        "rho": (0.1, 1000.0, "log"),
        "gamma": (1.0, 10000.0, "log"),
        "coreset.rate": (1e-3, 1e-1, "log"),
        "coreset.label_rate": (1e-3, 1.0, "log"),
        "student.rate": (1e-5, 1e-2, "log"),
    },
)

RANDOM_CORESET = Method(
    name="random_coreset",
    config=RandomCoresetConfig,
    tasks=("classification",),
    rooms={"coreset": Room(make_random, light=True), "student": Room(fit, needs={"coreset": "turn"})},
    search={
        "rho": (0.1, 1000.0, "log"),
        "gamma": (1.0, 10000.0, "log"),
        "label_scale": (0.1, 100.0, "log"),
        "student.rate": (1e-5, 1e-2, "log"),
    },
)
