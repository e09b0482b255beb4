"""Seeds as addresses: every random number comes from (root seed, address), never from global state.

``Seed(0).fold("student", "vbpc", 3)`` names one stream; ``.fold("step", t)`` names its t-th child.
A run that resumes at step t draws the same numbers as an uninterrupted run, and no generator state
is stored. The folding is SHA-256 over an unambiguous text form of the address.
"""

import hashlib
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

_GLOBAL: Final = threading.RLock()
_BITS: Final = 63  # torch.Generator.manual_seed takes a signed 64-bit integer


@dataclass(frozen=True)
class Seed:
    """A root seed and an address below it."""

    root: int
    address: tuple[str | int, ...] = ()

    def fold(self, *parts: str | int) -> "Seed":
        """Return the seed at a further address; ("a", 1) and ("a1",) are different addresses."""
        return Seed(self.root, self.address + parts)

    def integer(self) -> int:
        """Return a 63-bit integer that depends on the root and the whole address."""
        text = json.dumps([self.root, *self.address])
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> (64 - _BITS)

    def generator(self, device: torch.device | str = "cpu") -> torch.Generator:
        """Make a fresh torch generator on ``device``, always in the same state for the same address."""
        return torch.Generator(device=device).manual_seed(self.integer())

    def numpy(self) -> np.random.Generator:
        """Make a fresh numpy generator."""
        return np.random.default_rng(self.integer())


@contextmanager
def global_generator(seed: int, devices: Sequence[torch.device | int] = ()) -> Iterator[None]:
    """Seed torch's global generators inside the block, for code that draws from them; restore their states after it.

    One thread at a time is inside a block.

    Args:
        devices: the GPUs whose generators are restored, too.
    """
    with _GLOBAL, torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        yield
