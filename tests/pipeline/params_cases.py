"""Params of tests, which params_cases.yaml has by name, and the mistakes in them of refused.yaml."""

import copy
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from bdl_pipe.config import merge
from bdl_pipe.errors import UserError
from tests.case_files import loaded
from tests.cases import CONFIGS
from tests.preparing import SECTION

HERE: Final = Path(__file__).parent
REFUSED: Final[Mapping[str, list[Any]]] = loaded(HERE / "refused.yaml")


def written(name: str) -> dict[str, Any]:
    """Return a copy of the part of this name, as params_cases.yaml has it."""
    return dict(loaded(HERE / "params_cases.yaml")[name])


def params(name: str, **sections: Any) -> dict[str, Any]:
    """Return a copy of the params of this name, with other keys of some sections."""
    raw = written(name)
    while base := raw.pop("base", None):
        raw = merge(written(base), raw)
    raw = merge(written("base"), raw)
    raw["datasets"] = {key: SECTION | section for key, section in raw["datasets"].items()}
    methods = raw.get("methods", {}).items()
    raw["methods"] = {key: CONFIGS[key, section] if isinstance(section, str) else section for key, section in methods}
    return dict(json.loads(json.dumps(merge(raw, sections))))  # YAML's aliases become copies


def changed(raw: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy with the value at each ``a.b.c`` replaced, or removed where it is ``...``."""
    raw = copy.deepcopy(dict(raw))
    for place, value in changes.items():
        *above, last = place.split(".")
        section = raw
        for key in above:
            section = section[key]
        section[last] = value
        if value in (..., "..."):
            del section[last]
    return raw


def refusal(work: Callable[[], object], error: type[Exception] = UserError) -> str:
    """Return the one line with which the work is refused."""
    with pytest.raises(error) as caught:
        work()
    assert "\n" not in str(caught.value)
    return str(caught.value)
