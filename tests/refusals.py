"""The error that a call raises, and the lists in refused/ of inputs with their errors."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from bdl_pipe.errors import UserError
from tests.case_files import loaded


def refusal(call: Callable[..., object], *arguments: Any, **named: Any) -> str:
    """Return the class and the message of the error for the user that a call raises, or ``accepted``."""
    try:
        call(*arguments, **named)
    except UserError as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"


def refused(name: str) -> Any:
    """Read a list of inputs, each with its error, or several lists by name."""
    return loaded(Path(__file__).parent / f"refused/{name}.yaml")
