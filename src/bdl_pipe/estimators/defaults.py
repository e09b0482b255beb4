"""The hyperparameters of every method where nothing overrides them: ``defaults.json`` beside this module.

A clone's ``params.yaml`` is the user's to change; these are the values that the project has there, which an
installation has without it. tests/estimators/test_defaults.py holds the two equal. JSON is read at once; YAML is not.
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
    found: Mapping[str, Any] = json.loads(FILE.read_text())
    return found


def section(method: str) -> Section:
    """Return ``methods.<method>``; empty for a method of a plugin, whose config and ``Default`` have its own values."""
    return dict(_read()["methods"].get(method) or {})


def evaluate() -> EvaluateConfig:
    """Return the section ``evaluate``."""
    return read(EvaluateConfig, _read()["evaluate"], "evaluate")
