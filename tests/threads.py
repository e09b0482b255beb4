"""Calls from several threads that change places every 10 µs, for tests that compare them with calls alone."""

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def at_once(call: Callable[[T], R], asked: Sequence[T], threads: int = 8) -> list[R]:
    """Return ``call``'s answer to each of ``asked``, given by several threads at once."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(call, asked))
    finally:
        sys.setswitchinterval(interval)
