"""Where a result comes from: the commit, and the process that made it."""

import hashlib
import json
import os
import socket
import subprocess
from functools import cache
from typing import Any


@cache
def commit() -> str:
    """Return the checked-out commit, ``-dirty`` if tracked files differ from it; ``unknown`` without git.

    The files that a run writes itself (``dvc.lock``, ``report/`` and ``results/``) do not make it dirty. Nor does
    ``params.yaml``, which ``apply`` changes: each artifact has the config that made it, and each page its digest.
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


def digest(facts: Any) -> str:
    """Hash anything that JSON can hold, such as the content of a params file, to a short text."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def process(pid: int | None = None) -> str:
    """Name a process, by default this one, ``host/pid/start time``: the system uses a pid several times."""
    import psutil

    found = psutil.Process(pid or os.getpid())
    return f"{socket.gethostname()}/{found.pid}/{found.create_time():.2f}"


def is_dead(name: str) -> bool:
    """Say whether ``name`` (see :func:`process`) was a process of this machine that has ended."""
    import psutil

    host, _, rest = name.partition("/")
    pid, _, _ = rest.partition("/")
    if host != socket.gethostname() or not pid.isdigit():
        return False
    try:
        return process(int(pid)) != name
    except psutil.NoSuchProcess:
        return True


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], capture_output=True, text=True, check=True, timeout=20).stdout.strip()
