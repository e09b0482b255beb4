"""The work of a stage's process in the tests of the pool.

The process that stages are forked from imports this module alone, so that it starts in a tenth of a second.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

from bdl_pipe.errors import UserError
from pipeline.run.children import SAME


def work(name: str, folder: Path, act: str) -> int:
    """Write the name to ``order``, and then do what ``act`` says."""
    with open(folder / "order", "a") as file:
        file.write(f"{name}\n")
    print(f"{name} speaks")
    if act == "same":
        return SAME
    if act == "refuse":
        raise UserError("no such file")
    if act == "break":
        raise ValueError("a bug")
    if act.startswith("SIG"):
        os.kill(os.getpid(), signal.Signals[act])
    if act == "hang":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        (folder / f"{name}.pids").write_text(f"{os.getpid()} {child.pid}")
        while True:  # The process ends by a signal alone.
            signal.pause()
    return 0
