"""The section ``evaluate`` of params.yaml."""

from dataclasses import dataclass, field

from ..config import LATER
from ..errors import require


@dataclass(frozen=True)
class EvaluateConfig:
    """The section ``evaluate`` of params.yaml.

    Attributes:
        calibration_bins: equal-width bins of the expected calibration error.
        batch: most inputs in one forward pass.
        joint_pairs: random pairs of test rows for the joint likelihood; 0: none.
        joint_groups: groups of test rows for the joint likelihood of several rows, each around one of the first of
            those pairs; 0: none. A posterior that holds functions is scored on these pairs alone.
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
