"""The method ``vbpc``: a distilled coreset, and students with the closed-form head (Lee et al. 2025)."""

from dataclasses import dataclass, field
from functools import partial

from ... import networks
from ...config import LATER
from ...data.fitdata import FitData
from ...data.size import Section, Size
from ...errors import require
from ...method import Default, Method, StageSpec, Upstream
from ...seeds import Seed
from ..shared.memory import Memory
from ..shared.pool_surrogate import DistilConfig, distil, from_checkpoint
from ..shared.stage import POOLED, coreset_stage
from . import posterior
from .distil import DatasetLoss, Outer
from .head import HeadConfig
from .posterior import StudentConfig, fit_student


@dataclass(frozen=True)
class VbpcConfig:
    """The section ``methods.vbpc`` of params.yaml.

    Attributes:
        ipc: the number of coreset rows per class.
        network: the architecture of the pool's and the student's networks.
        rho, gamma, feature_scale: see ``HeadConfig``.
        beta_dataset: β_D, the weight of the KL in the outer loss.
        coreset: the settings of the distillation.
        student: the settings of a trunk's training on the coreset.
        outer: the outer loss: minus the log of the ``predictive`` (the paper's), or minus the bound with the
            ``expected`` log-likelihood.
    """

    ipc: int
    network: networks.NetworkConfig
    rho: float
    gamma: float
    feature_scale: float
    beta_dataset: float
    coreset: DistilConfig
    student: StudentConfig
    outer: Outer = field(default="predictive", metadata=LATER)

    def __post_init__(self) -> None:
        require(self.ipc > 0, "ipc", "must be > 0", self.ipc)
        require(self.beta_dataset >= 0, "beta_dataset", "must be >= 0", self.beta_dataset)
        _ = self.head

    @property
    def head(self) -> HeadConfig:
        """Return the settings of the closed-form head."""
        return HeadConfig(self.rho, self.gamma, self.feature_scale)


def _surrogate(data: FitData, config: VbpcConfig, memory: Memory | None, rng: Seed) -> DatasetLoss:
    loss = partial(DatasetLoss, data, config.network, config.head, config.beta_dataset, config.coreset)
    return loss(outer=config.outer, memory=memory, rng=rng)


def default(size: Size) -> Section:
    """Return the hyperparameters, with the shallow and wide network that the closed form needs."""
    return {**posterior.default(size), "coreset": {"steps": size.steps(400), "batch": min(128, size.train)}}


VBPC = Method(
    name="vbpc",
    bayesian=True,
    config=VbpcConfig,
    tasks=("classification",),
    stages={
        "coreset": coreset_stage(partial(distil, _surrogate, "vbpc"), from_checkpoint=partial(from_checkpoint, "vbpc")),
        "student": StageSpec(fit_student, needs={"coreset": "cyclic"}),
    },
    search={
        "rho": (0.1, 1000.0, "log"),
        "gamma": (1.0, 10000.0, "log"),
        "coreset.lr": (1e-3, 1e-1, "log"),
        "coreset.label_lr": (1e-3, 1.0, "log"),
        "student.lr": (1e-5, 1e-2, "log"),
    },
    settings={
        **posterior.SETTINGS,
        "beta_dataset": 1e-8,
        "coreset": {"lr": 0.03, "label_lr": 0.3, **POOLED},
    },
    program=True,
    default=Default(4.0, "vbpc", default, suits=lambda size: size.image is not None),
    upstream={"vbpc": Upstream("coreset", 1, 4.0, default)},
)
