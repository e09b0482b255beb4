"""The parts that both Gaussian-process methods share and that do not need gpytorch."""

from types import ModuleType
from typing import Final

from ..errors import UserError

AFFORDABLE: Final = 3_000  # the most training rows for which the exact process is affordable


def processes() -> ModuleType:
    """Import the module with gpytorch's processes, so that the methods are listed even if gpytorch is not installed.

    Raises:
        UserError: gpytorch is not installed.
    """
    try:
        from . import gaussian_processes
    except ImportError as error:
        ways = "pip install 'bdl-pipe[gp]'"
        raise UserError(f"Gaussian processes need the package gpytorch ({error}): {ways}") from None
    return gaussian_processes
