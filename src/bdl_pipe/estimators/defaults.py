"""The default hyperparameters of every method, without overrides: ``defaults.json`` beside this module.

They are the values of the project's own ``params.yaml``, for installations without that file or with a changed one.
tests/estimators/test_defaults.py checks that the two agree. JSON is fast to read; YAML is slow.
"""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from ..config import read
from ..data.size import Section
from ..evaluation import EvaluateConfig

FILE: Final = Path(__file__).with_name("defaults.json")


@cache
def _read() -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def section(method: str) -> Section:
    """Return ``methods.<method>``; it is empty for a plugin's method: its config and ``Default`` have the values."""
    return dict(_read()["methods"].get(method) or {})


def evaluate() -> EvaluateConfig:
    """Return the section ``evaluate``."""
    return read(EvaluateConfig, _read()["evaluate"], "evaluate")
