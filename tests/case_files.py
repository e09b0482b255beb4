"""Cases of tests in YAML files beside them: ``test_catalog.py`` reads ``catalog.yaml``, a list of cases a test."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # all workers read all files


def loaded(path: Path) -> Any:
    """Read a YAML file of tests."""
    return yaml.load(path.read_text(encoding="utf-8"), _LOADER)


def sections_of(file: str) -> dict[str, Any]:
    """Return the sections of the YAML file of a test."""
    path = Path(file)
    sections: dict[str, Any] = loaded(path.with_name(path.stem.removeprefix("test_") + ".yaml"))
    return sections


def cases_of(file: str) -> Callable[[str, str], pytest.MarkDecorator]:
    """Return ``cases(section, names)``, which parametrizes a test over the cases of a section of its file's YAML file.

    A case has a value for each of ``names``, and may have an identifier before them.
    """
    sections = sections_of(file)

    def cases(section: str, names: str) -> pytest.MarkDecorator:
        count = len(names.split())
        ids = [str(case[0]) if len(case) > count else None for case in sections[section]]
        values = [case[-count:] if count > 1 else case[-1] for case in sections[section]]
        return pytest.mark.parametrize(names.split(), values if count > 1 else [[v] for v in values], ids=ids)

    return cases


def call(functions: Mapping[str, Any], cell: str | list[Any], *first: Any) -> Any:
    """Call the function of a test's file that a cell names: ``fog``, or ``[fog, 3]`` with an argument.

    ``first`` are arguments that a file cannot hold, such as a folder; they go before those of the cell.
    """
    name, *arguments = [cell] if isinstance(cell, str) else cell
    return functions[name](*first, *arguments)


def tupled(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a frozen config: its lists become tuples."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
