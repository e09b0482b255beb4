"""The method ``coreset_vi``: VBPC's closed-form posterior on any coreset (Lee et al. 2025, algorithm 2 and table 2)."""

from dataclasses import dataclass

from ... import networks
from ...method import Method, StageSpec
from ..vbpc.head import HeadConfig
from ..vbpc.posterior import StudentConfig, fit_student


@dataclass(frozen=True)
class ClosedFormConfig:
    """``methods.coreset_vi``.

    Attributes:
        network: the architecture of the trunk.
        rho, gamma, feature_scale: see ``HeadConfig``.
        student: how the trunk is trained.
    """

    network: networks.NetworkConfig
    rho: float
    gamma: float
    feature_scale: float
    student: StudentConfig

    def __post_init__(self) -> None:
        _ = self.head

    @property
    def head(self) -> HeadConfig:
        return HeadConfig(self.rho, self.gamma, self.feature_scale)


CORESET_VI = Method(
    name="coreset_vi",
    config=ClosedFormConfig,
    tasks=("classification",),
    stages={"student": StageSpec(fit_student, needs={"coreset": "cyclic"})},
    search={"rho": (0.1, 1000.0, "log"), "gamma": (1.0, 10000.0, "log"), "student.lr": (1e-5, 1e-2, "log")},
)
