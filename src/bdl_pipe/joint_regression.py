"""The joint of regression from the draws of any predictive, and in the targets' own units."""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from .joint_predictive import Joint
from .predictive import Predictive


@final
class JointContinuous(Joint):
    """The joint of regression, from the draws of a predictive of any form. Given a draw, inputs are independent.

    Args:
        predictive: the predictive of the rows of all groups, one group after the other.
        target_shape: [group, row, output].
        draws: the number of the predictive's draws.
    """

    def __init__(self, predictive: Predictive, target_shape: tuple[int, ...], draws: int) -> None:
        self.predictive, self.target_shape, self.draws = predictive, target_shape, draws
        self.is_product = draws == 1

    def _row_terms(self, targets: Float[Tensor, "group row output"]) -> Float[Tensor, "draw group row"]:
        terms = self.predictive.draw_log_prob(targets.flatten(0, 1).to(self.predictive.mean))
        return terms.double().unflatten(1, self.target_shape[:2])


@final
class JointInOwnUnits(Joint):
    """The joint of regression in the targets' own units, given the joint ``base`` of the transformed targets.

    With z = (y − shift)/scale, p(y) = p(z)/Π scale; with z = (log y − shift)/scale, p(y) = p(z)/Π y scale.
    """

    def __init__(self, base: Joint, shift: Tensor, scale: Tensor, log: bool) -> None:
        self.base, self.shift, self.scale, self.log = base, shift.double(), scale.double(), log
        self.draws, self.is_product, self.target_shape = base.draws, base.is_product, base.target_shape

    def _row_terms(self, targets: Float[Tensor, "group row output"]) -> Float[Tensor, "draw group row"]:
        transformed, log_volume = self._transformed(targets)
        return self.base._row_terms(transformed) - log_volume

    def _chain_terms(self, targets: Float[Tensor, "group row output"]) -> Float[Tensor, "draw group row"]:
        transformed, log_volume = self._transformed(targets)
        return self.base._chain_terms(transformed) - log_volume.cumsum(-1)

    def _transformed(self, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return z, and log |dy/dz| of each row.

        The log volume is infinite if a target has no logarithm, so that the target's density is 0.
        """
        values, scale = targets.double(), self.scale.to(targets.device)
        log_volume = scale.log().sum().expand(values.shape[:2])
        if self.log:
            possible = values > 0
            logs = torch.where(possible, values, 1.0).log()
            log_volume = log_volume + torch.where(possible, logs, torch.inf).sum(-1)
            values = logs
        return (values - self.shift.to(values)) / scale, log_volume
