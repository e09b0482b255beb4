"""Curves of one fit's stored predictions, as tables for figures: risk against coverage, and the histogram of F(y)."""

from typing import Final

import numpy as np
import pyarrow as pa

from .pit import pit_histogram
from .selective import risk_coverage
from .stored import Stored, StoredValues

_COVERAGES: Final = np.arange(1, 101) / 100
_BINS: Final = 10


def tables(fit: Stored) -> dict[str, pa.Table]:
    """Return the curves of a fit by name.

    ``risk``: the risk at each coverage of 1 %, 2 % … 100 %. ``pit``, where F(y) of one output is stored: counts of F(y)
    in ten bins of equal width.
    """
    curve = risk_coverage(fit.losses, fit.uncertainty)
    found = {"risk": pa.table({"coverage": _COVERAGES, "risk": [curve.risk_at(float(at)) for at in _COVERAGES]})}
    if isinstance(fit, StoredValues) and fit.pit is not None:
        count = pit_histogram(fit.pit, _BINS).count
        found["pit"] = pa.table({"bin": np.arange(_BINS), "count": count})
    return found
