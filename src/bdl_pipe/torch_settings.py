"""torch's settings of the user's code, which no fit and no prediction may take over."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final, final

import torch

_SETTINGS: Final = threading.Lock()
_inside, _outside = 0, (torch.float32, 1)  # the number of blocks of own_settings, and the settings around them


@final
class _Mine(threading.local):
    """The number of blocks of own_settings around this thread."""

    blocks = 0


_mine: Final = _Mine()


@contextmanager
def own_settings(threads: int | None = None) -> Iterator[None]:
    """Run the block with torch's usual settings, whatever the user's code has set, and restore them at its end.

    The settings are autocast, inference mode, gradients, the number of threads and the default type. The default type
    belongs to the whole process: if several threads are in such a block, the one that leaves last restores it. Each
    thread has its own number of torch's threads, and a new thread begins with the number that any thread has set last.

    Args:
        threads: torch's number of threads inside the block. None keeps the present number.
    """
    global _inside, _outside
    with _SETTINGS:
        number = torch.get_num_threads()
        if _inside == 0:
            _outside = torch.get_default_dtype(), number
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
                if number != _outside[1]:
                    _set_for_new_threads(_outside[1])


def _set_for_new_threads(number: int) -> None:
    """Set the number of torch's threads with which new threads begin, and keep this thread's number."""
    setting = threading.Thread(target=torch.set_num_threads, args=(number,))
    setting.start()
    setting.join()
