"""DVC's part: its record of what was made, kept by its own commands, and mended where a kill has cut it.

``make repro`` runs stages itself and then says so to DVC (``dvc commit``): of the stages whose result is up to date,
those that ``dvc.lock`` does not have so. A plain ``dvc repro`` runs ``python -m stages.<kind> KEY`` and records by
itself. Nothing of DVC is imported here, and nothing replaced.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import yaml

from bdl_pipe.files import write_bytes

from ..core import places
from ..plan import code
from ..plan.plan import Plan, Stage

TESTED: Final = (3, 67)  # of DVC; with another one the same commands are used, and a failure of theirs is no failure
LOCK: Final = Path("dvc.lock")
_COPY: Final = places.STATE / "dvc.lock"
_BROKEN: Final = places.STATE / "dvc.lock.broken"
_RECORDED: Final = places.STATE / "sources.recorded"
_RWLOCK: Final = Path(".dvc/tmp/rwlock")
_SOURCES: Final = "sources"
_GRAPH: Final = Path("dvc.yaml")
_TARGET_COST: Final = 20  # stages that DVC records in the time that one target more takes it


def installed() -> bool:
    """Say whether DVC is here. A line on stderr warns of a version that is newer than the tested one."""
    try:
        version = metadata.version("dvc")
    except metadata.PackageNotFoundError:
        return False
    if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) > TESTED:
        newest = ".".join(map(str, TESTED))
        print(f"warning: dvc {version} is newer than the tested {newest}; `dvc repro` works by itself", file=sys.stderr)
    return True


def mend() -> None:
    """Put ``dvc.lock`` back from its last readable copy, where it cannot be read, and say so.

    What is made since then lies in its place and is recorded again by :func:`record`.
    """
    _forget_the_dead()
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
    """Let DVC record those of the stages ``fresh``, all up to date, that it does not know.

    What went wrong is returned; None if nothing did.

    ``dvc.lock`` is written by DVC, and a copy of it is kept once it is whole.
    """
    lock, here = _read(LOCK) or {}, _read(_COPY) or {}
    fresh = list(fresh)
    # what git has brought is no sign that DVC's cache has the files, be they the same
    names = [name for name in fresh if lock.get(name) != here.get(name) or not _knows(lock.get(name), plan[name])]
    code = _code()
    if not _knows_sources(lock.get(_SOURCES)) or not _RECORDED.is_file() or _RECORDED.read_text() != code:
        names.append(_SOURCES)
    if not names:
        return None
    problem = _commit(names, fresh, plan)
    if problem is not None and LOCK.is_file():  # it may parse and yet lack the end of an entry
        os.replace(LOCK, _BROKEN)
        problem = _commit([*fresh, _SOURCES], fresh, plan)
    if problem is None:
        places.STATE.mkdir(exist_ok=True)
        write_bytes(_COPY, LOCK.read_bytes())
        write_bytes(_RECORDED, code.encode())
    return problem


def _targets(names: Collection[str], fresh: Collection[str], plan: Plan) -> list[str]:
    """Choose what to name to DVC so that it soon records ``names``: stages, whole kinds that are fresh, or the file.

    DVC reads its graph and writes its record anew for each target: 110 s for 83 stages, 20 s for their kinds, 10 s for
    the file.
    """
    targets, cost = [name for name in names if name not in plan], 0
    for kind in sorted({plan[name].kind for name in names if name in plan}):
        of_kind = [name for name, stage in plan.items() if stage.kind == kind]
        wanted = [name for name in of_kind if name in names]
        singly, together = (_TARGET_COST + 1) * len(wanted), _TARGET_COST + len(of_kind)
        whole = together < singly and set(of_kind) <= set(fresh)
        targets += [kind] if whole else wanted
        cost += together if whole else singly
    if _TARGET_COST + len(plan) < cost and plan.keys() <= set(fresh) and _only_ours():
        return [str(_GRAPH)]
    return targets


def _only_ours() -> bool:
    """Say whether DVC's graph has only stages of our kinds. Whether others are up to date is not known here."""
    try:
        return set(yaml.load(_GRAPH.read_text(), _Loader)["stages"]) <= {_SOURCES, *code.BODIES}
    except (OSError, UnicodeDecodeError, yaml.YAMLError, KeyError, TypeError):
        return False


def _commit(names: Sequence[str], fresh: Collection[str], plan: Plan) -> str | None:
    """Record ``names`` at once or, where DVC is another than that was written for, by its command."""
    if _run(["-m", "pipeline.run.dvc_commit"], " ".join(names)) is None:
        return None
    return _run(["-m", "dvc", "--wait-for-lock", "commit", "--force", *_targets(names, fresh, plan)])


def _run(command: Sequence[str], words: str = "") -> str | None:
    environment = {**os.environ, "DVC_NO_ANALYTICS": "1"}
    done = subprocess.run(
        [sys.executable, *command], env=environment, input=words, capture_output=True, text=True, check=False
    )
    if done.returncode == 0:
        return None
    return f"dvc commit: {' '.join(done.stderr.split()) or f'exit code {done.returncode}'}"


def _knows(entry: Mapping[str, Any] | None, stage: Stage) -> bool:
    """Say whether an entry of the lock is of this result.

    It is, if the file of what the result was made from is the same, and so is what DVC compares: the names of what the
    stage reads, the numbers, and a whole hash of all that it makes, which the last entry of a cut file may lack.
    """
    if entry is None:
        return False
    identity = places.identity(stage.kind, stage.key)
    outs = {out["path"]: out.get("md5") for out in entry.get("outs", ())}
    deps = {Path(dep["path"]): dep for dep in entry.get("deps", ())}
    numbers = {key: value for section in entry.get("params", {}).values() for key, value in section.items()}
    return (
        outs.get(str(identity)) == _md5(identity)
        and all(_is_whole(outs.get(str(path)), path) for path in stage.makes)
        and all(path in deps or any(parent in deps for parent in path.parents) for path in stage.reads)
        and all(path in stage.reads or _holds(path, dep, stage.reads) for path, dep in deps.items())
        and numbers == {**stage.params, **stage.digests}
    )


def _is_whole(hashed: Any, path: Path) -> bool:
    return re.fullmatch(r"[0-9a-f]{32}\.dir" if path.is_dir() else r"[0-9a-f]{32}", str(hashed)) is not None


def _holds(folder: Path, dep: Mapping[str, Any], reads: Collection[Path]) -> bool:
    """Say whether a folder that DVC watches has artifacts of ``reads``, with as many files and bytes as recorded."""
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    inside = any(folder in path.parents for path in reads)
    return inside and (len(sizes), sum(sizes)) == (dep.get("nfiles"), dep.get("size"))


def _knows_sources(entry: Mapping[str, Any] | None) -> bool:
    if entry is None:
        return False
    return any(out.get("md5") == _md5(places.sources()) for out in entry.get("outs", ()))


def _code() -> str:
    """Hash all of our code that the stage ``sources`` reads."""
    whole = hashlib.sha256()
    for path in [*sorted(code.files()), *sorted(Path("plugins").rglob("*.py"))]:
        whole.update(str(path).encode() + path.read_bytes())
    return whole.hexdigest()


def _read(path: Path) -> dict[str, Any] | None:
    """Read the stages of a lock file; None where it is not whole."""
    try:
        lock = yaml.load(path.read_text(), _Loader)
        return dict(lock["stages"]) if lock else {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError, KeyError, TypeError, ValueError):
        return None


def _md5(path: Path) -> str | None:
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest() if path.is_file() else None


def _forget_the_dead() -> None:
    """Take those who were killed out of DVC's own list of who reads and writes what, and the list where it is cut.

    DVC looks whether there is a process of that number. In another container, or after a restart, there mostly is one:
    it cannot have written the list where it began after that was written.
    """
    try:
        written, listed = _RWLOCK.stat().st_mtime, json.loads(_RWLOCK.read_text() or "{}")
    except FileNotFoundError:
        return
    except ValueError:
        _RWLOCK.unlink()
        return
    readers = {
        path: [who for who in whose if _may_live(who, written)] for path, whose in listed.get("read", {}).items()
    }
    writers = {path: who for path, who in listed.get("write", {}).items() if _may_live(who, written)}
    lasting = {"read": {path: whose for path, whose in readers.items() if whose}, "write": writers}
    if lasting != {"read": {}, "write": {}, **listed}:
        write_bytes(_RWLOCK, json.dumps(lasting).encode())


def _may_live(who: Mapping[str, Any], written: float) -> bool:
    import psutil

    try:
        return bool(psutil.Process(who["pid"]).create_time() <= written)
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The loader of libyaml, where there is one: ten times as fast as the one in Python.

    It reads 1e-3 as a number, as DVC writes it.
    """


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$"), list("-+0123456789.")
)
