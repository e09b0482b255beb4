"""Tracking: MLflow shows what the records of stages say. No other package of the pipeline talks to MLflow's store.

Nothing here changes a result: a store that fails costs one warning. MLflow is imported when it is first needed.
"""

from .comparison import Compared, Comparison, compare, link, view
from .store import NEST, STAGES, parent, quieten, store_uri, tolerate
from .tracker import Tracker, opened

__all__ = [
    "NEST",
    "STAGES",
    "Compared",
    "Comparison",
    "Tracker",
    "compare",
    "link",
    "opened",
    "parent",
    "quieten",
    "store_uri",
    "tolerate",
    "view",
]
