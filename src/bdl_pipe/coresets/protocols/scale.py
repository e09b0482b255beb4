"""The scale s of a protocol's logits, given or chosen on validation rows: one rule for every coreset and protocol.

A coreset's labels have a scale of their own: VBPC's is learned for its posterior, that of one-hot rows is 1, and a
chain sees classes alone. So at one s for all, the NLLs under a protocol compare scales first and images second; the
accuracy does not depend on s but for mixtures of several draws. ``logit_scale: validation`` takes the s of :data:`GRID`
of least NLL on the validation rows, once the protocol is fitted; an end of the grid may be taken. The state notes it.

A final fit has the validation rows in the data that its coreset was distilled from: s is one number, chosen after the
images, but its rows are then not unseen. Test rows are not part of a :class:`~bdl_pipe.data.fitdata.FitData`.
"""

from collections.abc import Callable
from typing import Final, Literal

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ...artifacts import State
from ...data.fitdata import FitData
from ...errors import require

LogitScale = float | Literal["validation"]
GRID: Final = tuple(2.0 ** (power / 4) for power in range(-24, 41))  # 1/64 ... 1024, a fifth apart


def check_scale(scale: LogitScale) -> None:
    """Raise ConfigError unless the scale is > 0, or the rule."""
    require(scale == "validation" or scale > 0, "logit_scale", "must be > 0 or validation", scale)


def resolved(
    scale: LogitScale, data: FitData, fitted: Callable[[Tensor], Callable[[float], Float[Tensor, "row class"]]]
) -> float:
    """Return the scale, chosen on validation rows where the rule says so.

    Args:
        data: its validation rows, or those of its ``search``, under its own transform.
        fitted: inputs [row, ...] -> s -> log-probabilities.

    Raises:
        ConfigError: there are no validation rows to choose on.
    """
    if scale != "validation":
        return scale
    rows = (data.search or data).validation
    require(len(rows) > 0, "logit_scale", "must be a number where there are no validation rows", scale)
    inputs = data.transform.inputs(rows.inputs, data.device)
    classes = data.transform.targets(rows.targets, data.device)
    at = fitted(inputs)
    losses = [float(F.nll_loss(at(value), classes)) for value in GRID]
    return GRID[losses.index(min(losses))]


def noted(state: State, scale: LogitScale, factor: float) -> State:
    """Return the state with a scale that was chosen as ``logit_scale`` of its config, and as it is if it was given."""
    return State(state.tensors, state.config | {"logit_scale": factor}) if scale == "validation" else state
