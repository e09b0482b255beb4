"""The scale s of a protocol's logits, given or chosen on validation rows, for every coreset and protocol.

Each coreset's labels have their own scale: VBPC's scale is learned for its posterior, one-hot rows have scale 1, and
chains use only the classes. With the same s for all coresets, NLLs under a protocol would therefore mainly compare
scales; the accuracy depends on s only for mixtures of several draws. After the protocol's fit, ``logit_scale:
validation`` chooses the s in :data:`GRID` with the least NLL on the validation rows, possibly an end of the grid. The
state's config records s.

In a final fit the coreset was distilled from data that include the validation rows: s is one number chosen after the
images, but on rows that are not held out. Test rows are not part of a :class:`~bdl_pipe.data.fitdata.FitData`.
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
GRID: Final = tuple(2.0 ** (power / 4) for power in range(-24, 41))  # 1/64 ... 1024, each 19 % above the one before


def check_scale(scale: LogitScale) -> None:
    """Raise ConfigError unless the scale is > 0 or ``validation``."""
    require(scale == "validation" or scale > 0, "logit_scale", "must be > 0 or validation", scale)


def resolved(
    scale: LogitScale, data: FitData, fitted: Callable[[Tensor], Callable[[float], Float[Tensor, "row class"]]]
) -> float:
    """Return the given scale, or choose it on validation rows.

    Args:
        data: provides its transform, and the validation rows: from ``data.search`` if set, otherwise its own.
        fitted: inputs [row, ...] -> function of s -> log-probabilities.

    Raises:
        ConfigError: there are no validation rows to choose on.
    """
    if scale != "validation":
        return scale
    rows = (data.search or data).validation
    require(len(rows) > 0, "logit_scale", "must be a number, because there are no validation rows", scale)
    inputs = data.transform.inputs(rows.inputs, data.device)
    classes = data.transform.targets(rows.targets, data.device)
    at = fitted(inputs)
    losses = [float(F.nll_loss(at(value), classes)) for value in GRID]
    return GRID[losses.index(min(losses))]


def noted(state: State, scale: LogitScale, factor: float) -> State:
    """Record a chosen scale as ``logit_scale`` in the state's config; a given scale leaves the state as it is."""
    return State(state.tensors, state.config | {"logit_scale": factor}) if scale == "validation" else state
