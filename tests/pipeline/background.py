"""Commands that start with SIGINT ignored, as a shell without job control starts ``command &``."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

_ROOT: Final = Path(__file__).parents[2]
PATHS: Final = os.pathsep.join(map(str, (Path(__file__).parent, _ROOT, _ROOT / "src")))  # of our code and these tests


def start(words: Sequence[str], folder: Path, env: Mapping[str, str] | None = None, **more: Any) -> Any:
    """Start the command in the folder; its environment is this process's, or ``env``, with our code."""
    environment = {**(os.environ if env is None else env), "PYTHONPATH": PATHS}
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | more
    ignore = signal.SIGINT, signal.SIG_IGN
    return subprocess.Popen(words, cwd=folder, env=environment, preexec_fn=lambda: signal.signal(*ignore), **options)
