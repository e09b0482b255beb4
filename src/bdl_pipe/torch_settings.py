"""torch's settings of the user's code, which no fit and no prediction may take over."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

import torch

_SETTINGS: Final = threading.Lock()
_inside, _outside = 0, (torch.float32, 1)  # the number of blocks of own_settings, and the settings around them


@contextmanager
def own_settings(threads: int | None = None) -> Iterator[None]:
    """Run the block with torch's usual settings, whatever the user's code has set, and restore them at its end.

    The settings are autocast, inference mode, gradients, the number of threads and the default type. The default type
    belongs to the whole process: if several threads are in such a block, the one that leaves last restores it.

    Args:
        threads: torch's number of threads inside the block. None keeps the present number.
    """
    global _inside, _outside
    with _SETTINGS:
        if _inside == 0:
            _outside = torch.get_default_dtype(), torch.get_num_threads()
        _inside += 1
        torch.set_default_dtype(torch.float32)
        if threads is not None:
            torch.set_num_threads(threads)
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    try:
        with ExitStack() as stack:
            for device in devices:
                stack.enter_context(torch.autocast(device, enabled=False))
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.enable_grad())
            yield
    finally:
        with _SETTINGS:
            _inside -= 1
            torch.set_num_threads(_outside[1])  # OpenMP keeps the number for each thread
            if _inside == 0:
                torch.set_default_dtype(_outside[0])
