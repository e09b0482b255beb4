"""Calls from several threads that change places every 10 µs, for tests that compare them with calls alone."""

import pickle
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

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


def assert_same_wherever(model: T, ask: Callable[[T, Any], Sequence[Any]], rows: Any, times: int = 2) -> None:
    """Check that eight threads and a copy by pickle get the values that ``ask`` returns for parts of rows alone."""
    parts = [rows[start : start + 3] for start in range(4)]
    alone, copied = [ask(model, part) for part in parts], pickle.loads(pickle.dumps(model))
    answers = [*at_once(lambda part: ask(model, part), parts * times), *(ask(copied, part) for part in parts[:1])]
    for number, answer in enumerate(answers):
        for value, expected in zip(answer, alone[number % 4], strict=True):
            np.testing.assert_array_equal(value, expected, err_msg=f"answer {number}")
