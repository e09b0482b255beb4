"""Seeds as addresses: every random number comes from (root seed, address), never from global state.

``Seed(0).fold("student", "vbpc", 3)`` names one stream; ``.fold("step", t)`` names its t-th child.
A run that resumes at step t draws the same numbers as an uninterrupted run, and no generator state
is stored. The folding is SHA-256 over an unambiguous text form of the address.

Two blocks guard torch's global state, which belongs to the user's code: :func:`global_generator` its generators, and
:func:`own_settings` its settings.
"""

import hashlib
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final, final

import numpy as np
import torch

_GLOBAL: Final = threading.RLock()
_BITS: Final = 63  # torch.Generator.manual_seed takes a signed 64-bit integer
_SETTINGS: Final = threading.Lock()
# the number of blocks of own_settings, and the settings around them: default type, threads, precision of products
_inside, _outside = 0, (torch.float32, 1, "highest")


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


@final
class _Mine(threading.local):
    """The number of blocks of own_settings around this thread."""

    blocks = 0


_mine: Final = _Mine()


@contextmanager
def own_settings(threads: int | None = None) -> Iterator[None]:
    """Run the block with torch's usual settings, whatever the user's code has set, and restore them at its end.

    The settings are autocast, inference mode, gradients, the default device, the number of threads, the default type
    and the precision of products of float32. The last two belong to the whole process: if several threads are in such a
    block, the one that leaves last restores them. Each thread has its own number of torch's threads, and a new thread
    begins with the number that any thread has set last.

    Args:
        threads: torch's number of threads inside the block. None keeps the present number.
    """
    global _inside, _outside
    with _SETTINGS:
        number = torch.get_num_threads()
        if _inside == 0:
            _outside = torch.get_default_dtype(), number, _precision()
            if _outside[2]:
                torch.set_float32_matmul_precision("highest")
        elif _mine.blocks == 0 and number == threads:  # a new thread, which began with the number of another's block
            number = _outside[1]
        _inside += 1
        _mine.blocks += 1
        torch.set_default_dtype(torch.float32)
        if threads is not None:
            torch.set_num_threads(threads)
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    try:
        with ExitStack() as stack:
            for device in devices:
                stack.enter_context(torch.autocast(device, enabled=False))
            if torch.get_default_device().type != "cpu":  # a context of a device slows every call of torch
                stack.enter_context(torch.device("cpu"))
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.enable_grad())
            yield
    finally:
        with _SETTINGS:
            _inside -= 1
            _mine.blocks -= 1
            torch.set_num_threads(number)
            if _inside == 0:
                torch.set_default_dtype(_outside[0])
                if _outside[2]:
                    torch.set_float32_matmul_precision(_outside[2])
                if number != _outside[1]:  # a new thread begins with the number that another one has set last
                    other = threading.Thread(target=torch.set_num_threads, args=(_outside[1],))
                    other.start()
                    other.join()


def _precision() -> str:
    """Return the precision of products of float32; empty if it was set for single backends, and is left as it is."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return ""
