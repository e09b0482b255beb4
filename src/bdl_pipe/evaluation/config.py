"""The section ``evaluate`` of params.yaml."""

from dataclasses import dataclass, field
from typing import Final

from ..config import LATER
from ..errors import require


@dataclass(frozen=True)
class EvaluateConfig:
    """The section ``evaluate`` of params.yaml.

    Attributes:
        calibration_bins: the number of equal-width bins of the expected calibration error.
        batch: the largest number of inputs in one forward pass.
        joint_pairs: the number of random pairs of test rows for the joint likelihood; 0 for none.
        joint_groups: the number of groups of test rows for the joint likelihood of several rows; 0 for none. Group k
            lies around pair k of ``joint_pairs``. A posterior that holds functions is scored on these pairs only.
    """

    calibration_bins: int
    batch: int
    joint_pairs: int
    joint_groups: int = field(default=0, metadata=LATER)

    def __post_init__(self) -> None:
        require(self.calibration_bins > 0, "calibration_bins", "must be > 0", self.calibration_bins)
        require(self.batch > 0, "batch", "must be > 0", self.batch)
        require(self.joint_pairs >= 0, "joint_pairs", "must be >= 0", self.joint_pairs)
        rule = f"must be in [0, {self.joint_pairs}], at most joint_pairs"
        require(0 <= self.joint_groups <= self.joint_pairs, "joint_groups", rule, self.joint_groups)


USUAL: Final = EvaluateConfig(calibration_bins=15, batch=250, joint_pairs=10_000, joint_groups=250)  # as in params.yaml
