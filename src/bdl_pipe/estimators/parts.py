"""Fit all rows, and calibrate intervals and sets on left-out rows, or by further fits that leave out parts."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from .. import recalibration
from ..data.config import DatasetConfig
from ..data.examples import Examples
from ..data.prepare import fit_data
from ..data.raw import FEWEST_ROWS, Raw
from ..errors import require
from ..seeds import Seed
from . import fitting
from .fitted import Fitted, Part
from .plan import DATASET, Run

PARTS: Final = 5  # the folds of cross-conformal


def fit_parts(
    raw: Raw,
    dataset: DatasetConfig,
    runs: Sequence[Run],
    seed: int,
    *,
    cross: bool,
    grouped_by: int | None = None,
    device: str,
    made: dict[int, fitting.Made] | None = None,
) -> tuple[list[Part], float]:
    """Fit the rows of ``raw``; return the parts, with the part of all rows first, and the seconds of the fits.

    Args:
        seed: the root seed.
        cross: whether further fits, each without a part of the rows, calibrate the result (:mod:`bdl_pipe.conformal`).
        grouped_by: the column whose values are calibrated apart, see :func:`bdl_pipe.recalibration.fit`.
        made: split -> runs that were already fitted on these rows and are not fitted again.

    Raises:
        ConfigError: there are too few rows for ``cross``.
        DataError: there are too few rows for the calibration of ``dataset``, or a target is constant.
        Diverged: a fit diverged even at its smallest rates.
    """
    made = {} if made is None else made
    rule = f"must be split or None with fewer than {PARTS * FEWEST_ROWS} rows"
    require(not cross or len(raw.train) >= PARTS * FEWEST_ROWS, "conformal", rule, "cross")
    address = Seed(seed).fold("prepare", DATASET)

    def fit(rows: Raw, split: int, held: Examples | None) -> tuple[Part, float]:
        data, apart = fit_data(rows, dataset, rng=address, split=split)
        state, seconds = fitting.fit(runs, data.on(device), seed, split, made.setdefault(split, {}))
        part, calibration = Part(split, state, data.transform.state()), apart if held is None else held
        if calibration is not None:
            part = _recalibrated(part, calibration, grouped_by, runs[-1].key, seed, device)
        return part, seconds

    found = [fit(raw, 0, None)]
    for split, held in enumerate(drawn(len(raw.train), address.fold("conformal")) if cross else (), 1):
        rest = np.setdiff1d(np.arange(len(raw.train)), held)
        found.append(fit(replace(raw, train=_take(raw.train, rest)), split, _take(raw.train, held)))
    return [part for part, _ in found], sum(seconds for _, seconds in found)


def drawn(rows: int, rng: Seed, count: int = PARTS) -> list[np.ndarray]:
    """Draw the sorted row numbers of each part; the parts' sizes differ by at most one."""
    return [np.sort(part) for part in np.array_split(rng.numpy().permutation(rows), count)]


def _recalibrated(part: Part, rows: Examples, grouped_by: int | None, run: str, seed: int, device: str) -> Part:
    alone = Fitted([part], {"seed": seed, "run": run}, {"classes": ()}, device)
    learnt = recalibration.fit(alone.batches(rows.inputs), rows, alone.predictor().transform, grouped_by)
    return replace(part, recalibration=learnt.state())


def _take(rows: Examples, index: np.ndarray) -> Examples:
    return Examples(rows.inputs[index], rows.targets[index])
