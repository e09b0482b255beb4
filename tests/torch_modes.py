"""A setting of torch that a user's code may have made."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def float64_as_the_default() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)
