"""Settings of a process that fits: freed memory is kept, and a GPU repeats its bits."""

import contextlib
import ctypes
import os
import sys
from typing import Final

import torch

_TRIM_THRESHOLD: Final = -1  # option numbers of mallopt, from malloc.h
_MMAP_THRESHOLD: Final = -3


def keep_freed_memory() -> None:
    """Make glibc reuse large blocks instead of returning them to the kernel: training steps fault fewer pages."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # the C library is not glibc
            for option in (_MMAP_THRESHOLD, _TRIM_THRESHOLD):
                ctypes.CDLL(None).mallopt(option, 2**30)


def repeat_bits(device: torch.device | str) -> None:
    """Set torch, in this process, to operations that give equal bits each time on ``device``; a CPU needs no setting.

    Otherwise a GPU sums gradients of convolutions and of indices in the order in which its threads end. torch warns of
    an operation without a deterministic form. Convolutions use full float32, not torch's default TF32, which has ten
    bits; for speed use ``bfloat16``. cuBLAS reads ``CUBLAS_WORKSPACE_CONFIG`` at its first use.
    """
    if torch.device(device).type != "cuda":
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # noqa: B010 - its stubs lack it
    torch.backends.cudnn.allow_tf32 = False
