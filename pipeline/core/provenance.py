"""The provenance of a result: the commit, and the process that made it."""

import hashlib
import json
import os
import socket
import subprocess
from functools import cache
from typing import Final

_SAME: Final = 10.0  # the largest difference of two start times of one process, in seconds


@cache
def commit() -> str:
    """Return the checked-out commit, ``-dirty`` if tracked files differ from it; ``unknown`` without git.

    Files that a run writes (``dvc.lock``, ``report/`` and ``results/``) do not count as changes. Neither does
    ``params.yaml``, which ``apply`` changes: each artifact has its config, and each page the digest of params.yaml.
    """
    try:
        changed = _git(
            "status",
            "--porcelain",
            "--untracked-files=no",
            "--",
            ".",
            ":!params.yaml",
            ":!dvc.lock",
            ":!report",
            ":!results",
        )
        return _git("rev-parse", "HEAD") + ("-dirty" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def digest(facts: object) -> str:
    """Hash JSON-able facts, such as the content of a params file, to a short text."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def process(pid: int | None = None) -> str:
    """Return a process's name ``host/pid/start time``, by default this process's; a pid alone may be reused."""
    import psutil

    running = psutil.Process(pid or os.getpid())
    return f"{socket.gethostname()}/{running.pid}/{running.create_time():.2f}"


def is_dead(name: str) -> bool:
    """Return whether ``name`` (see :func:`process`) is a process of this machine that has ended.

    A start time is reckoned from the time of the boot in whole seconds, which moves by one when the clock is adjusted.
    """
    import psutil

    host, pid, start = (*name.split("/"), "", "")[:3]
    if not start or host != socket.gethostname() or not pid.isdigit():
        return False
    try:
        return abs(psutil.Process(int(pid)).create_time() - float(start)) > _SAME
    except psutil.NoSuchProcess:
        return True


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], capture_output=True, text=True, check=True, timeout=20).stdout.strip()
