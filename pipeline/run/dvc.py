"""Record results, push them to a remote and restore them from there, by DVC's public commands.

``python -m pipeline repro`` runs the stages and then records them with ``dvc commit``. A plain ``dvc repro`` runs
``python -m stages KIND KEY`` and records each stage. DVC is not imported.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import yaml

from bdl_pipe.errors import UserError
from bdl_pipe.files import write_bytes

from ..core import places
from ..plan.code import BODIES
from ..plan.plan import Plan
from . import ONLY_TAKE

LOCK: Final = Path("dvc.lock")
_GRAPH: Final = Path("dvc.yaml")
_RECORDED: Final = places.STATE / "recorded.json"  # hashes by stage and file when this clone last recorded
_BROKEN: Final = places.STATE / "dvc.lock.broken"
_SOURCES: Final = "sources"
_SOURCES_DEPS: Final = (*places.PACKAGES, "data", "plugins", "params.yaml")
_FEW: Final = 8  # the most targets to name, since DVC reads its graph again for each


def record(stages: Plan, fresh: Collection[str], *, with_sources: bool = True) -> str | None:
    """Record the stages of ``fresh`` that this clone has not recorded yet, and return an error message or None.

    A ``dvc.lock`` that has changed since this clone wrote it, for example one truncated by a kill, is written again.

    Args:
        fresh: the names of all stages whose results are up to date.
        with_sources: whether the stage ``sources`` is up to date, too.
    """
    if find_spec("dvc") is None:
        return None
    recorded, lock, graph = places.kept(_RECORDED), _md5(LOCK), _md5(_GRAPH)
    changed = recorded.get(str(LOCK)) != lock  # written since, by DVC or git, or truncated by a kill
    if changed or recorded.get(str(_GRAPH)) != graph:
        recorded = {}
    now = {name: _md5(places.identity(stages[name].kind, stages[name].key)) for name in fresh}
    if with_sources:
        now[_SOURCES] = sources_hash()
    names = [name for name in now if recorded.get(name) != now[name]]
    if not names:
        return None
    command = ("commit", "--force", *_targets(names, fresh, stages))
    problem = _dvc(*command)
    if problem is not None and changed and lock is not None:  # DVC refuses all commands if the file is truncated
        places.STATE.mkdir(exist_ok=True)
        os.replace(LOCK, _BROKEN)
        print(f"DVC cannot read {LOCK} (moved to {_BROKEN}): writing it again from the results here", file=sys.stderr)
        problem = _dvc(*command)
    if problem is None:
        places.STATE.mkdir(exist_ok=True)
        recorded |= {**now, str(LOCK): _md5(LOCK), str(_GRAPH): graph}
        write_bytes(_RECORDED, json.dumps(recorded, indent=1, sort_keys=True).encode())
    return problem


def take() -> None:
    """Restore from DVC's remote the results that another machine made from the same parameters, code and data.

    DVC looks up each stage in its run cache. Stages that it would have to run exit immediately, see :data:`ONLY_TAKE`.
    """
    print("looking for results in the DVC remote", flush=True)
    _dvc("repro", "--pull", "--keep-going", environment={ONLY_TAKE: "1"})


def push() -> str | None:
    """Push everything recorded to DVC's default remote, and return an error message or None."""
    return _dvc("push", "--run-cache")


def require_remote() -> None:
    """Write a small file to DVC's default remote.

    Raises:
        UserError: there is no default remote, or it cannot be written.
    """
    name = _run("remote", "default").stdout.strip() if find_spec("dvc") else ""
    if not name or " " in name:  # DVC prints a sentence if there is none
        raise UserError("BDL_REMOTE=on: DVC has no default remote; set one with dvc remote default NAME")
    with (
        tempfile.TemporaryDirectory() as folder
    ):  # in another project with the same configuration, so that this one does not change
        (Path(folder) / ".dvc").mkdir()
        for config in Path(".dvc").glob("config*"):
            shutil.copy(config, Path(folder) / ".dvc")
        (Path(folder) / "probe").write_text("bdl-pipe", encoding="utf-8")
        _dvc("config", "--local", "core.no_scm", "true", folder=folder)
        problem = _dvc("add", "--to-remote", "probe", folder=folder)
    if problem is not None:
        raise UserError(f"BDL_REMOTE=on: the DVC remote {name} cannot be written: {problem}")


def _targets(names: Sequence[str], fresh: Collection[str], stages: Plan) -> list[str]:
    """Return the targets for DVC: stages, kinds whose stages are all up to date, or its whole file.

    DVC takes two seconds for each target, and twenty for the whole file.
    """
    if len(names) <= _FEW:
        return list(names)
    if _SOURCES in names and stages.keys() <= set(fresh) and _only_ours():
        return [str(_GRAPH)]
    whole = {stage.kind for stage in stages.values()} - {stages[n].kind for n in stages.keys() - set(fresh)}
    return sorted({stages[n].kind if n in stages and stages[n].kind in whole else n for n in names})


def _only_ours() -> bool:
    """Return True if DVC's graph has no stages that the user has added."""
    try:
        return set(yaml.safe_load(_GRAPH.read_text(encoding="utf-8"))["stages"]) <= {_SOURCES, *BODIES}
    except (OSError, yaml.YAMLError, KeyError, TypeError):  # DVC reports the error
        return False


def sources_hash() -> str:
    """Hash the names, sizes and times of the files that DVC's stage ``sources`` reads."""
    reached = (p for top in map(Path, _SOURCES_DEPS) for p in (top, *top.rglob("*")))
    files = sorted(path for path in reached if path.is_file() and path.suffix != ".pyc")
    facts = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _md5(path: Path) -> str | None:
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest() if path.is_file() else None


def _dvc(*words: str, folder: str = ".", environment: Mapping[str, str] | None = None) -> str | None:
    """Run a command of DVC, and return its error in one line, or None if it succeeded."""
    done = _run(*words, folder=folder, environment=environment)
    if done.returncode == 0:
        return None
    lines = [line.removeprefix("ERROR: ") for line in done.stderr.splitlines() if line.startswith("ERROR: ")]
    return f"dvc {words[0]}: {lines[0] if lines else f'exit code {done.returncode}'}"


def _run(
    *words: str, folder: str = ".", environment: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "dvc", "--wait-for-lock", *words]
    variables = {**os.environ, "DVC_NO_ANALYTICS": "1", **(environment or {})}
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)
