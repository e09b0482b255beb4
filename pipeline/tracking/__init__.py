"""Tracking: MLflow shows the records of stages. Only this package accesses MLflow's store.

Tracking does not affect results: an error of the store is one warning. MLflow is imported on first use.
"""

from .comparison import Compared, Comparison, Published, compare, link, view
from .registry import register
from .store import NEST, STAGES, parent, quieten, store_uri, tolerate
from .tracker import Tracker, opened

__all__ = [
    "NEST",
    "STAGES",
    "Compared",
    "Comparison",
    "Published",
    "Tracker",
    "compare",
    "link",
    "opened",
    "parent",
    "quieten",
    "register",
    "store_uri",
    "tolerate",
    "view",
]
