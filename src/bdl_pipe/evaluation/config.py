"""The section ``evaluate`` of params.yaml."""

from dataclasses import dataclass

from ..errors import require


@dataclass(frozen=True)
class EvaluateConfig:
    """The section ``evaluate`` of params.yaml.

    Attributes:
        calibration_bins: equal-width bins of the expected calibration error.
        batch: most inputs in one forward pass.
        joint_pairs: pairs of test rows for the joint likelihood; 0: none.
    """

    calibration_bins: int
    batch: int
    joint_pairs: int

    def __post_init__(self) -> None:
        require(self.calibration_bins > 0, "calibration_bins", "must be > 0", self.calibration_bins)
        require(self.batch > 0, "batch", "must be > 0", self.batch)
        require(self.joint_pairs >= 0, "joint_pairs", "must be >= 0", self.joint_pairs)
