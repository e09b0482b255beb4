"""Cases of tests in YAML files beside them: ``test_catalog.py`` reads ``catalog.yaml``, a list of cases a test."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml


def sections_of(file: str) -> dict[str, Any]:
    """Return the sections of the YAML file of a test."""
    path = Path(file)
    name = path.stem.removeprefix("test_") + ".yaml"
    sections: dict[str, Any] = yaml.safe_load(path.with_name(name).read_text(encoding="utf-8"))
    return sections


def cases_of(file: str) -> Callable[[str, str], pytest.MarkDecorator]:
    """Return ``cases(section, names)``, which parametrizes a test over the cases of a section of its file's YAML file.

    A case has a value for each of ``names``, and may have an identifier before them. The tests evaluate values that are
    expressions of Python.
    """
    sections = sections_of(file)

    def cases(section: str, names: str) -> pytest.MarkDecorator:
        count = len(names.split())
        ids = [str(case[0]) if len(case) > count else None for case in sections[section]]
        values = [case[-count:] if count > 1 else case[-1] for case in sections[section]]
        return pytest.mark.parametrize(names.split(), values if count > 1 else [[v] for v in values], ids=ids)

    return cases
