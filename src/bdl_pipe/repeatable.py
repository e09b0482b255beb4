"""Settings that make a fit repeatable bit for bit, on a GPU as on a CPU."""

import os

import torch


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
