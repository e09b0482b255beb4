"""Where a run comes from: commit, device, hashes of what it was made from, and which invocation it is part of."""

import hashlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

OWNER: Final = "BDL_OWNER"  # the process of the dvc repro that stages are run for


def tags(deps: Sequence[str]) -> dict[str, str]:
    """Collect the tags of any run here: git commit, device, and ``sha256.<path>`` for each of ``deps``."""
    return {
        "git_commit": commit(),
        "mlflow.source.git.commit": commit().removesuffix("-dirty"),
        "mlflow.source.name": Path(sys.argv[0]).name or "python",
        "device": os.environ.get("BDL_DEVICE", "cpu"),
        **{f"sha256.{path}": digest for path, digest in hashes(deps).items()},
    }


@cache
def commit() -> str:
    """Return the checked-out commit, ``-dirty`` if tracked files differ from it; ``unknown`` without git.

    What a run itself writes, ``dvc.lock``, ``report/`` and ``results/``, does not make it dirty.
    """
    try:
        changed = _git(
            "status", "--porcelain", "--untracked-files=no", "--", ".", ":!dvc.lock", ":!report", ":!results"
        )
        return _git("rev-parse", "HEAD") + ("-dirty" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], capture_output=True, text=True, check=True, timeout=20).stdout.strip()


def hashes(deps: Sequence[str]) -> dict[str, str]:
    """Hash artifacts by their manifests, which hold the hash of every file in them, and files: path → SHA-256."""
    digests = {path: _sha256(Path(path)) for path in deps}
    return {path: digest for path, digest in digests.items() if digest}


def digest(numbers: Any) -> str:
    """Hash what params files hold, or anything else that JSON can, to a short text."""
    return hashlib.sha256(json.dumps(numbers, sort_keys=True).encode()).hexdigest()[:16]


def invocation() -> tuple[str, str]:
    """Name what the stages of one invocation share, as (name, process): a ``dvc`` above us, or this process."""
    import psutil

    owner = os.environ.get(OWNER)  # of a host's forks, which are not below it
    if owner:
        return "dvc repro", process(int(owner))
    for ancestor in psutil.Process().parents():
        try:
            words = ancestor.cmdline()
        except psutil.Error:
            continue
        if any(Path(word).name == "dvc" for word in words[:3]):
            return "dvc repro", process(ancestor.pid)
    return " ".join(["run", *sys.argv[1:4]]), process(os.getpid())


def process(pid: int) -> str:
    """Name this process by ``host/pid/start time``: pids are used again, these are not."""
    import psutil

    return f"{socket.gethostname()}/{pid}/{psutil.Process(pid).create_time():.2f}"


def is_dead(name: str) -> bool:
    """Say whether ``name`` (see :func:`process`) was a process of this machine that is gone."""
    import psutil

    host, _, rest = name.partition("/")
    pid, _, _ = rest.partition("/")
    if host != socket.gethostname() or not pid.isdigit():
        return False
    try:
        return process(int(pid)) != name
    except psutil.NoSuchProcess:
        return True


def _sha256(path: Path) -> str | None:
    path = path / "manifest.json" if path.is_dir() else path
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
