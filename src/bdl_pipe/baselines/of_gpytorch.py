"""What both methods of Gaussian processes share without gpytorch: the way to it, and where exactness ends."""

from types import ModuleType
from typing import Final

from ..errors import UserError

AFFORDABLE: Final = 3_000  # The exact process is affordable up to this many training rows.


def processes() -> ModuleType:
    """Import gpytorch's processes, here alone, so that the methods are known where gpytorch is not installed.

    Raises:
        UserError: gpytorch is not installed.
    """
    try:
        from . import gaussian_processes
    except ImportError as error:
        ways = "pip install 'bdl-pipe[gp]'"
        raise UserError(f"Gaussian processes need the package gpytorch ({error}): {ways}") from None
    return gaussian_processes
