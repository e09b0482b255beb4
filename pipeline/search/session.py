"""One search as a process works on it: its folder, its lock, its tracked run, and how it is stopped and resumed.

The folder holds the record of the search (what it is a search of, whether it is finished) and Ray Tune's trials. It is
``.state/<verb>/<name>`` in the project, or ``<verb>/<name>`` in BDL_SEARCHES. One process at a time works on a search:
it holds a lock on a file in ``.state``. The lock ends with its process.
"""

import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

from filelock import FileLock, Timeout
from pyarrow import fs

from bdl_pipe.errors import UserError

from .. import tracking
from ..core import places, provenance, storage
from ..core.model import Params
from ..core.settings import Settings
from ..plan.code import shipped
from ..work import cluster
from .branch import Branch, data_hash, load_data, make_upstream

PARENT: Final = "BDL_PARENT_RUN"  # the tracked run of the search, for the callback that Tune makes again on resume
RECORD: Final = "search.json"


@dataclass(frozen=True)
class Folder:
    """A folder that holds a search: an absolute path, or an address such as ``s3://bucket/path``."""

    address: str

    def read(self) -> dict[str, Any]:
        """Read the record; {} if there is none."""
        files, path = fs.FileSystem.from_uri(self.address)
        try:
            with files.open_input_stream(f"{path}/{RECORD}") as stream:
                record: dict[str, Any] = json.loads(stream.read())
        except FileNotFoundError:
            return {}
        return record

    def write(self, **record: Any) -> None:
        """Write the record, whole or not at all."""
        files, path = fs.FileSystem.from_uri(self.address)
        files.create_dir(path, recursive=True)
        with files.open_output_stream(f"{path}/{RECORD}.tmp") as stream:
            stream.write(json.dumps(record).encode())
        files.move(f"{path}/{RECORD}.tmp", f"{path}/{RECORD}")

    def clear(self) -> None:
        """Remove everything in the folder."""
        files, path = fs.FileSystem.from_uri(self.address)
        files.delete_dir_contents(path, missing_dir_ok=True)

    def finish(self) -> None:
        """Mark the search as finished."""
        self.write(**{**self.read(), "finished": True})

    def is_unfinished(self) -> bool:
        """Return whether a search was begun here and has not been finished."""
        record = self.read()
        return bool(record) and not record.get("finished")


def folder_of(verb: str, name: str, settings: Settings) -> Folder:
    """Return the folder of a search; storage that cannot be written is refused.

    Raises:
        UserError: BDL_SEARCHES cannot be written.
    """
    if settings.searches:
        storage.require("BDL_SEARCHES", settings.searches)
    return Folder(f"{settings.searches or places.STATE.absolute()}/{verb}/{name}")


@contextmanager
def opened(
    name: str, branch: Branch, facts: Sequence[Any], params: Params, settings: Settings, resume: bool
) -> Iterator[tuple[Folder, dict[str, Any]]]:
    """Hold a search within the block: its lock, Ray, its tracked run. Yield its folder, and what all trials share.

    The caller marks the search as finished (:meth:`Folder.finish`).

    Args:
        facts: what scores depend on besides the branch and the data; only the same search is resumed.
        resume: continue an unfinished search; otherwise begin a new one.

    Raises:
        UserError: another process holds the search; ``resume`` and the folder do not agree; Ray cannot be used.
        KeyboardInterrupt: the user stopped the search, by Ctrl-C or SIGTERM.
    """
    verb = branch.chain.verb
    if settings.jobs:
        rule = f"must be host:port for {verb}; send the whole command: python -m pipeline job -- python -m pipeline"
        raise UserError(f"RAY_ADDRESS={settings.jobs}: {rule} {verb} …")
    folder = folder_of(verb, name, settings)
    with _locked(places.STATE / verb / f"{name}.lock", folder):
        data = load_data(branch, params, settings)
        identity = provenance.digest([*branch.facts(), *facts, data_hash(branch)])
        parent = begin(folder, identity, resume).get("parent")
        with (
            cluster.connected(settings, ships=shipped()),
            _stoppable(),
            _tracked(f"{verb} {name}", branch.tags(), parent) as run_id,
        ):
            require_shared(settings)
            folder.write(identity=identity, parent=run_id)
            try:
                upstream = make_upstream(branch, data, params, settings)
                yield folder, {"chain": branch.chain, "data": data, "upstream": upstream}
            except KeyboardInterrupt:
                print(f"{verb}: stopped; continue with --resume (trials in {folder.address})", file=sys.stderr)
                raise


def begin(folder: Folder, identity: str, resume: bool) -> dict[str, Any]:
    """Empty the folder for a new search and return {}, or return the record of the search that is resumed.

    Raises:
        UserError: the folder holds an unfinished search and ``resume`` is false, or it holds none of this identity.
    """
    if not resume:
        if folder.is_unfinished():
            raise UserError(f"{folder.address}: holds an unfinished search; continue with --resume, or remove it")
        folder.clear()
        return {}
    record = folder.read()
    if not folder.is_unfinished():
        raise UserError(f"{folder.address}: holds no unfinished search; leave out --resume")
    if record["identity"] != identity:
        changed = "params, data, grid, code, --samples or --scheduler differ from those of the stopped search"
        raise UserError(f"{folder.address}: {changed}; change them back, or remove the folder and start again")
    return record


def require_shared(settings: Settings) -> None:
    """Refuse a cluster of several machines without storage that all of them reach: trials store checkpoints there.

    Raises:
        UserError: naming the setting.
    """
    import ray

    machines = {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
    if settings.address and not settings.searches and len(machines) > 1:
        need = "a folder or s3://bucket/path that all of them reach"
        raise UserError(f"BDL_SEARCHES: must be {need}, since RAY_ADDRESS has {len(machines)} machines; it is not set")


@contextmanager
def _locked(lock: Path, folder: Folder) -> Iterator[None]:
    lock.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(lock, timeout=0):
            yield
    except Timeout:
        rule = "one process at a time may run a search; wait for it, or stop it"
        raise UserError(f"{folder.address}: another process holds {lock}: {rule}") from None


@contextmanager
def _stoppable() -> Iterator[None]:
    """Let SIGTERM stop a search as Ctrl-C does. The handlers that Ray and Ray Tune replace are put back at the end."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Call the handler of SIGINT: Tune's ends the trials. Without one, because SIGINT is ignored, interrupt here."""
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler):
        raise KeyboardInterrupt
    handler(signal.SIGINT, frame)


@contextmanager
def _tracked(name: str, tags: Mapping[str, Any], resumed: str | None) -> Iterator[str | None]:
    """Open the search's own MLflow run, the same run after a resume, and yield its id; None without tracking."""
    run_id, status = tracking.start_parent(name, tags, resumed), "FAILED"
    if run_id is not None:
        os.environ[PARENT] = run_id
    try:
        yield run_id
        status = "FINISHED"
    except KeyboardInterrupt:
        status = "KILLED"
        raise
    finally:
        os.environ.pop(PARENT, None)
        tracking.end_parent(run_id, status)
