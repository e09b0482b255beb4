"""Efficient Bayesian deep learning methods: the mathematics, independent of the pipeline that runs it.

:mod:`bdl_pipe.public` lists the exported names. Each is imported on first use.
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
