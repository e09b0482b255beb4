"""torch's settings of the user's code, which no fit and no prediction may take over."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final, final

import torch

_SETTINGS: Final = threading.Lock()
# the number of blocks of own_settings, and the settings around them: default type, threads, precision of products
_inside, _outside = 0, (torch.float32, 1, "highest")


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
                if number != _outside[1]:
                    _set_for_new_threads(_outside[1])


def _precision() -> str:
    """Return the precision of products of float32; empty if it was set for single backends, and is left as it is."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return ""


def _set_for_new_threads(number: int) -> None:
    """Set the number of torch's threads with which new threads begin, and keep this thread's number."""
    setting = threading.Thread(target=torch.set_num_threads, args=(number,))
    setting.start()
    setting.join()
