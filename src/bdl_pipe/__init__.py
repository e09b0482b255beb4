"""Efficient Bayesian deep learning methods: the mathematics, with no knowledge of who runs it.

What it exports is listed in :mod:`bdl_pipe.public`; a name is imported when it is asked for.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .public import *  # noqa: F403


def __getattr__(name: str) -> Any:
    from .public import get

    return get(name)


def __dir__() -> list[str]:
    from .public import PLACES

    return sorted({*globals(), *PLACES, "__all__", "__version__"})
