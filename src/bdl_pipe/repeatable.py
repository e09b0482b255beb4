"""The same bits from the same fit, on a GPU as on a CPU."""

import os

import torch


def repeat_bits(device: torch.device | str) -> None:
    """Let torch use nothing in this process that gives other bits each time on ``device``; on a CPU it never does.

    A GPU otherwise sums gradients of convolutions and of indices in the order in which its threads end. torch warns of
    an operation that has no other form. Convolutions are of float32 in full, not of TF32's ten bits, which torch takes
    by itself; who wants speed asks for ``bfloat16``. cuBLAS reads its variable when it is first used.
    """
    if torch.device(device).type != "cuda":
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # noqa: B010 - its stubs lack it
    torch.backends.cudnn.allow_tf32 = False
