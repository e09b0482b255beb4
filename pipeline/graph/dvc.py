"""DVC's part: its record of what was made, kept by its own commands, and mended where a kill has cut it.

``make repro`` runs stages itself and then says so to DVC (``dvc commit``): of the stages whose result is up to date,
those that ``dvc.lock`` does not have so. A plain ``dvc repro`` runs ``python -m stages.<kind> KEY`` and records by
itself. Nothing of DVC is imported here or replaced.
"""

import contextlib
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Self

import yaml

from bdl_pipe.files import write_bytes

from ..core import places
from . import code
from .plan import Plan, Stage

TESTED: Final = (3, 67)  # of DVC; with another one the same commands are used, and a failure of theirs is no failure
LOCK: Final = Path("dvc.lock")
_COPY: Final = places.STATE / "dvc.lock"
_BROKEN: Final = places.STATE / "dvc.lock.broken"
_RECORDED: Final = places.STATE / "sources.recorded"
_RWLOCK: Final = Path(".dvc/tmp/rwlock")
_SOURCES: Final = "sources"
_PASSIVE: Final = ("-v", "--verbose", "-q", "--quiet")  # options of dvc repro that leave what it runs alone


@dataclass(frozen=True)
class Invocation:
    """The ``dvc repro`` that this process runs under.

    Attributes:
        pid, created: its process.
        targets: what it was asked for; empty: the whole graph; null: more than targets, which only DVC can tell.
        forced: it runs what is up to date, too.
    """

    pid: int
    created: float
    targets: tuple[str, ...] | None
    forced: bool

    @classmethod
    def above(cls) -> Self | None:
        """The nearest one above this process; None where there is none."""
        import psutil

        for process in psutil.Process().parents():
            with contextlib.suppress(psutil.Error):
                words = process.cmdline()
                if any(Path(word).name == "dvc" for word in words[:3]) and "repro" in words:
                    return cls._of(process.pid, process.create_time(), words[words.index("repro") + 1 :])
        return None

    @classmethod
    def _of(cls, pid: int, created: float, words: list[str]) -> Self:
        given = [word for word in words if word not in _PASSIVE]
        plain = not any(word.startswith("-") for word in given)
        forced = "--force" in words or any(w.startswith("-") and not w.startswith("--") and "f" in w for w in words)
        return cls(pid, created, tuple(given) if plain else None, forced)


def installed() -> bool:
    """Whether DVC is here; a line on stderr where it is another one than was tested."""
    try:
        version = metadata.version("dvc")
    except metadata.PackageNotFoundError:
        return False
    if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) > TESTED:
        newest = ".".join(map(str, TESTED))
        print(f"warning: dvc {version} is newer than the tested {newest}; `dvc repro` works by itself", file=sys.stderr)
    return True


def mend() -> None:
    """Put ``dvc.lock`` back where it cannot be read, from the copy of the last one that could; say so.

    What is made since then lies in its place and is recorded again by :func:`record`.
    """
    if _RWLOCK.is_file() and not _is_json(_RWLOCK):
        _RWLOCK.unlink()  # DVC's own list of who reads and writes what, cut by a kill: nobody is there any more
    if not LOCK.is_file() or _read(LOCK) is not None:
        return
    places.STATE.mkdir(exist_ok=True)
    os.replace(LOCK, _BROKEN)
    kept = _read(_COPY) is not None
    if kept:
        write_bytes(LOCK, _COPY.read_bytes())
    how = "its last whole copy is back" if kept else "it is written anew"
    print(f"dvc.lock was cut in the middle (now {_BROKEN}): {how}, and what is made is recorded again", file=sys.stderr)


def record(plan: Plan, fresh: Iterable[str]) -> str | None:
    """Let DVC record those of the stages ``fresh``, all up to date, that it does not know; what went wrong, if it did.

    ``dvc.lock`` is written by DVC, and a copy of it is kept once it is whole.
    """
    lock = _read(LOCK) or {}
    fresh = list(fresh)
    names = [name for name in fresh if not _knows(lock.get(name), plan[name])]
    code = _code()
    if not _knows_sources(lock.get(_SOURCES)) or not _RECORDED.is_file() or _RECORDED.read_text() != code:
        names.append(_SOURCES)
    if not names:
        return None
    problem = _commit(_grouped(names, fresh, plan))
    if problem is not None and LOCK.is_file():  # it may parse and yet lack the end of an spec
        os.replace(LOCK, _BROKEN)
        problem = _commit(_grouped([*fresh, _SOURCES], fresh, plan))
    if problem is None:
        places.STATE.mkdir(exist_ok=True)
        write_bytes(_COPY, LOCK.read_bytes())
        write_bytes(_RECORDED, code.encode())
    return problem


def _grouped(names: Sequence[str], fresh: Sequence[str], plan: Plan) -> list[str]:
    """``names``, with a stage kind in place of its stages where all of the kind are up to date.

    DVC reads the whole graph once for each name that it is given: 110 s for 83 of them, 13 s for their kinds.
    """
    kinds = {plan[name].kind for name in names if name in plan}
    whole = {kind for kind in kinds if {n for n, stage in plan.items() if stage.kind == kind} <= set(fresh)}
    return [*sorted(whole), *(name for name in names if name not in plan or plan[name].kind not in whole)]


def _commit(names: Sequence[str]) -> str | None:
    command = [sys.executable, "-m", "dvc", "--wait-for-lock", "commit", "--force", *names]
    environment = {**os.environ, "DVC_NO_ANALYTICS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    return f"dvc commit: {' '.join(done.stderr.split()) or f'exit code {done.returncode}'}"


def _knows(spec: Mapping[str, Any] | None, stage: Stage) -> bool:
    """Whether an spec of the lock is of this result: the file of what it was made from is the same, and so is what
    DVC compares, the names of what the stage reads and the numbers."""
    if spec is None:
        return False
    identity = places.identity(stage.kind, stage.key)
    outs = {out["path"]: out.get("md5") for out in spec.get("outs", ())}
    deps = {dep["path"] for dep in spec.get("deps", ())}
    numbers = {key: value for section in spec.get("params", {}).values() for key, value in section.items()}
    return (
        outs.get(str(identity)) == _md5(identity)
        and deps == {str(path) for path in stage.reads}
        and numbers == {**stage.params, **stage.digests}
    )


def _knows_sources(spec: Mapping[str, Any] | None) -> bool:
    if spec is None:
        return False
    return any(out.get("md5") == _md5(places.sources()) for out in spec.get("outs", ()))


def _code() -> str:
    """A hash of all that the stage ``sources`` reads of our code."""
    whole = hashlib.sha256()
    for path in [*sorted(code.files()), *sorted(Path("plugins").rglob("*.py"))]:
        whole.update(str(path).encode() + path.read_bytes())
    return whole.hexdigest()


def _read(path: Path) -> dict[str, Any] | None:
    """The stages of a lock file; None where it is not whole."""
    try:
        lock = yaml.load(path.read_text(), _Loader)
        return dict(lock["stages"]) if lock else {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError, KeyError, TypeError, ValueError):
        return None


def _md5(path: Path) -> str | None:
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest() if path.is_file() else None


def _is_json(path: Path) -> bool:
    try:
        json.loads(path.read_text() or "{}")
    except ValueError:
        return False
    return True


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """libyaml's, where there is one: ten times as fast as the one in Python. 1e-3 is a number, as DVC writes it."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$"), list("-+0123456789.")
)
