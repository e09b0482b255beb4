"""The method ``vbpc``: a distilled coreset, and students of the closed form on it (Lee et al. 2025)."""

from dataclasses import dataclass
from functools import partial

from ... import networks
from ...artifacts import State
from ...config import to_mapping
from ...data.fitdata import FitData
from ...errors import require
from ...method import Inputs, Method, StageSpec
from ...progress import Report
from ...seeds import Seed
from ..shared.init import Coreset, balanced
from ..shared.pool_descent import DistilConfig, distil, from_checkpoint
from .distil import Distillation
from .head import HeadConfig
from .posterior import StudentConfig, fit_student


@dataclass(frozen=True)
class VbpcConfig:
    """The section ``methods.vbpc`` of params.yaml.

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
        """Return the settings of the closed-form head."""
        return HeadConfig(self.rho, self.gamma, self.feature_scale)


def distil_coreset(data: FitData, inputs: Inputs, config: VbpcConfig, *, rng: Seed, report: Report) -> State:
    """Distil a coreset: ``images``, ``labels``, ``classes`` and the un-transformed ``raw``."""
    start = balanced(data, config.ipc, config.coreset.label_scale, rng=rng.fold("start"))
    task = Distillation(
        data, start, config.network, config.head, config.beta_dataset, config.coreset, rng=rng.fold("distil")
    )
    images, labels = distil(task, config.coreset, report)
    coreset = Coreset(images, labels, start.classes)
    return coreset.state(data, {"coreset": "vbpc", "ipc": config.ipc, "config": to_mapping(config)})


VBPC = Method(
    name="vbpc",
    config=VbpcConfig,
    tasks=("classification",),
    stages={
        "coreset": StageSpec(distil_coreset, from_checkpoint=partial(from_checkpoint, "vbpc")),
        "student": StageSpec(fit_student, needs={"coreset": "cyclic"}),
    },
    search={
        "rho": (0.1, 1000.0, "log"),
        "gamma": (1.0, 10000.0, "log"),
        "coreset.lr": (1e-3, 1e-1, "log"),
        "coreset.label_lr": (1e-3, 1.0, "log"),
        "student.lr": (1e-5, 1e-2, "log"),
    },
)
