"""Store predictions by draw, so that a metric of single draws needs no new prediction.

For each fit with several draws, 500 test rows, drawn once for all runs on a data set, and at most 32 draws, evenly
spaced, are stored: for classes the log-probabilities in float16 (a relative error below 5e-4), for regression the log
densities of the targets in float32, before recalibration.
"""

from typing import Final, final

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from ..predictive import Categorical, Predictive
from ..seeds import Seed

MOST_ROWS: Final = 500
MOST_DRAWS: Final = 32


@final
class DrawnRows:
    """The stored rows of a test set, gathered over batches.

    Args:
        count: test rows.
    """

    def __init__(self, count: int) -> None:
        rows = Seed(0).fold("rows of draws").numpy().permutation(count)[:MOST_ROWS]
        self._is_kept = np.zeros(count, dtype=bool)
        self._is_kept[rows] = True
        self._parts: dict[str, list[np.ndarray]] = {}

    def add(self, rows: slice, predictive: Predictive, targets: Tensor) -> None:
        """Add the kept rows of a batch, in original units; a predictive of one draw has none."""
        of_targets = predictive.draw_log_prob(targets)
        if len(of_targets) == 1:
            return
        at = np.flatnonzero(self._is_kept[rows])
        draws = torch.linspace(0, len(of_targets) - 1, min(len(of_targets), MOST_DRAWS)).round().long()
        if isinstance(predictive, Categorical):
            name, values, kind = "log_probs", predictive.draw_log_probs, "float16"
        else:
            name, values, kind = "log_density", of_targets, "float32"
        stored = values[draws.to(values.device)][:, torch.from_numpy(at).to(values.device)].transpose(0, 1).flatten(1)
        with np.errstate(over="ignore"):  # the logarithm of a probability below e^-65504 is stored as −∞
            self._parts.setdefault(name, []).append(stored.cpu().numpy().astype(kind))
        self._parts.setdefault("row", []).append((rows.start + at).astype(np.int32))

    def table(self) -> pa.Table | None:
        """Return the columns row, and log_probs [draw · class] or log_density [draw]; None for a single draw."""
        whole = {name: np.concatenate(parts) for name, parts in self._parts.items()}
        if not whole:
            return None
        row = pa.array(whole.pop("row"))
        lists = {name: _lists(values) for name, values in whole.items()}
        return pa.table({"row": row, **lists})


def _lists(values: np.ndarray) -> pa.Array:
    """Return a list for each row; another fit of the run may have another number of draws."""
    return pa.ListArray.from_arrays(pa.array(np.arange(len(values) + 1) * values.shape[1], pa.int32()), values.ravel())
