"""A store that machines share: each stage's result is pushed as it is made, and what another machine made is fetched.

``BDL_REMOTE`` names a DVC remote. DVC's own run cache does not know our stages, whose outputs persist; so beside the
objects, which are those of ``dvc push``, lies ``bdl-pipe/<address>.json``: the hashes of a result's files, at an
address that follows from all that the result is made from. It is written after the objects, so that nothing half
pushed is found. What is fetched is verified before it is put in place. Two machines that push the same result write
the same objects, each in one step.

Transfers are DVC's: its config, its file systems, its object store. Nothing that goes wrong here fails a stage.
"""

import contextlib
import hashlib
import json
import logging
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bdl_pipe.artifacts import swap
from bdl_pipe.errors import UserError, brief
from bdl_pipe.files import write_bytes

from ..core import object_store, places
from ..core.settings import Settings
from . import fresh
from .plan import Stage

INDEX: Final = "bdl-pipe"  # longer than the two characters of DVC's own folders, whose files its gc may remove
MODULES: Final = ("dvc.data_cloud", "dvc.fs", "dvc_data.hashfile.build", "s3fs")  # what a stage imports for it
_SCHEMA: Final = 1
_HASH: Final = "md5"  # of DVC's objects
_FOLDER: Final = ".dir"  # ends the name of an object that lists a folder's files
_CURE: Final = "unset BDL_REMOTE"
_AWAY: Final = places.STATE / "remote.away"
_AWAY_SECONDS: Final = 60.0  # for which nobody tries again a store that has failed
_CONFIG: Final = ".dvc/config"


class Damaged(Exception):
    """The error of an object of the store that is not what its name says, or is not there.

    Attributes:
        paths: of the objects that are to be removed from the store.
    """

    def __init__(self, message: str, *paths: str) -> None:
        super().__init__(message)
        self.paths = paths


@dataclass(frozen=True)
class Remote:
    """A DVC remote.

    Attributes:
        name: as in ``dvc remote list``.
        url: with no credential in it.
        fs: DVC's file system of it.
        odb: DVC's object store there, the one of ``dvc push``.
        root: its folder in ``fs``.
        secrets: the credentials of its configuration, which no message may hold.
        options: of its configuration, those among them.
    """

    name: str
    url: str
    fs: Any
    odb: Any
    root: str
    secrets: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def push(self, stage: Stage) -> None:
        """Push a result that is up to date: its files, then what lists them, then the entry by which it is found."""
        from dvc_data.hashfile.build import build
        from dvc_data.hashfile.tree import Tree
        from dvc_objects.fs.local import localfs

        identity = places.identity(stage.kind, stage.key)
        text = identity.read_bytes()
        made_from = {key: value for key, value in json.loads(text).items() if key != "made"}
        outs = {}
        for path in (*stage.makes, identity):
            staging, _, built = build(self.odb, str(path.absolute()), localfs, _HASH)
            files = [oid.value for _, _, oid in built] if isinstance(built, Tree) else []
            self._add(staging, files)
            self._add(staging, [built.oid])
            outs[str(path)] = built.oid
        if identity.read_bytes() != text:  # made again meanwhile, by a process that pushes it itself
            return
        entry = {"schema": _SCHEMA, "stage": stage.name, "outs": outs}
        self._write(self._address(stage, made_from), json.dumps(entry, sort_keys=True, indent=1).encode())
        _mark(stage, self)

    def fetch(self, stage: Stage, made_from: Mapping[str, Any]) -> bool:
        """Put a stage's result in place, if the store has it, and say whether it had.

        Raises:
            Damaged: it has one that is not whole; nothing is put in place then.
        """
        address = self._address(stage, made_from)
        try:
            entry = self.fs.cat_file(address)
        except FileNotFoundError:
            return False
        identity = places.identity(stage.kind, stage.key)
        wanted = {str(path): path for path in (*stage.makes, identity)}
        outs = _outs(entry, wanted, address)
        with _siblings(wanted.values()) as siblings:
            for name, path in wanted.items():
                self._get(outs[name], siblings[path], f"{path} of {stage.name}")
            if not fresh.fits(siblings[identity], made_from, {p: siblings[p] for p in stage.makes}):
                raise Damaged(f"the result of {stage.name} is of something else", address)
            for path in wanted.values():  # the identity is the last one
                _place(siblings[path], path)
        _mark(stage, self)
        return True

    def keep(self, digest: str, blob: bytes) -> str:
        """Put bytes there under their hash unless they are there, and return their path in the file system."""
        path = self.fs.join(self.root, INDEX, "values", digest)
        if not self.fs.exists(path):
            self._write(path, blob)
        return str(path)

    def way(self) -> dict[str, Any]:
        """Return fsspec's name of the file system, and its options without a credential."""
        known = {"endpoint_url": "endpointurl", "region_name": "region"}
        options = {theirs: self.options[ours] for theirs, ours in known.items() if self.options.get(ours)}
        return {"protocol": str(self.fs.protocol), "options": {"client_kwargs": options} if options else {}}

    def remove(self, paths: Sequence[str]) -> None:
        """Remove objects, so that whoever makes them again pushes them again; do nothing where that is not allowed."""
        for path in paths:
            with contextlib.suppress(Exception):
                self.fs.remove(path)

    def try_out(self) -> None:
        """Write, read and remove a small object, and list others; raise whatever that raises."""
        text = os.urandom(16).hex().encode()
        path = self.fs.join(self.root, INDEX, f"probe-{text.decode()}")
        self._write(path, text)
        same = self.fs.cat_file(path) == text
        self.fs.remove(path)
        list(self.odb.oids_exist([_md5(text).hexdigest(), _md5().hexdigest()]))
        if not same:
            raise UserError("what is written there is not what is read")

    def _add(self, staging: Any, oids: Sequence[str]) -> None:
        """Upload those of the objects that the store has not."""
        known = set(self.odb.oids_exist(oids)) if oids else set()
        new = [staging.get(oid) for oid in dict.fromkeys(oids) if oid not in known]
        if new:
            self.odb.add([obj.path for obj in new], new[0].fs, [obj.oid for obj in new], check_exists=False)

    def _get(self, oid: str, place: Path, what: str) -> None:
        """Download a file or a folder, and verify it."""
        from dvc_objects.fs.generic import transfer
        from dvc_objects.fs.local import localfs

        try:
            files = self._files(oid, what) if oid.endswith(_FOLDER) else {(): oid}
            places_of = [place.joinpath(*parts) for parts in files]
            for path in places_of:
                path.parent.mkdir(parents=True, exist_ok=True)
            remote = [self.odb.oid_to_path(name) for name in files.values()]
            transfer(self.fs, remote, localfs, [str(path.absolute()) for path in places_of])
        except FileNotFoundError:
            raise Damaged(f"{what} lacks a part") from None
        for path, name in zip(places_of, files.values(), strict=True):
            with open(path, "rb") as file:
                if hashlib.file_digest(file, _md5).hexdigest() != name:
                    raise Damaged(f"{what} is damaged (object {name})", self.odb.oid_to_path(name))

    def _files(self, oid: str, what: str) -> dict[tuple[str, ...], str]:
        """Read the object that lists a folder's files: the parts of a path in the folder -> object."""
        from dvc_data.hashfile.tree import Tree

        path = self.odb.oid_to_path(oid)
        text = self.fs.cat_file(path)
        if _md5(text).hexdigest() != oid.removesuffix(_FOLDER):
            raise Damaged(f"{what} is damaged (object {oid})", path)
        files = {parts: str(found.value) for parts, _, found in Tree.from_list(json.loads(text))}
        if any(part in ("", ".", "..") or os.sep in part for parts in files for part in parts):
            raise Damaged(f"{what} names a file outside of it", path)
        return files

    def _address(self, stage: Stage, made_from: Mapping[str, Any]) -> str:
        facts = [stage.name, [str(path) for path in stage.makes], made_from]
        name = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
        return self.fs.join(self.root, INDEX, f"{name}.json")

    def _write(self, path: str, text: bytes) -> None:
        """Write an object in one step."""
        places.STATE.mkdir(exist_ok=True)
        local = places.STATE / f".entry.{os.getpid()}.tmp"
        local.write_bytes(text)
        try:
            self.fs.makedirs(self.fs.parent(path))
            self.fs.put_file(str(local.absolute()), path)
        finally:
            local.unlink()


def connect(name: str) -> Remote:
    """Return the DVC remote ``name``; ``on`` is the default one. Nobody is asked anything yet.

    Raises:
        UserError: DVC is missing or has no such remote, its kind is not for this, or git tracks its credentials.
    """
    try:
        from dvc.config import Config
        from dvc.data_cloud import Remote as Cloud
        from dvc.fs import get_cloud_fs
    except ImportError:
        raise UserError("DVC is not installed; pip install dvc dvc-s3") from None
    for package in ("dvc", "dvc_data", "dvc_objects"):  # they log what we raise, with a traceback
        logging.getLogger(package).setLevel(logging.CRITICAL)
    for key, value in object_store.PATIENCE.items():
        os.environ.setdefault(key, value)
    try:
        config = Config.from_cwd()
        chosen = config["core"].get("remote", "") if name == "on" else name
        if chosen not in config["remote"]:
            known = ", ".join(config["remote"]) or "none"
            which = f"no remote {chosen}" if chosen else "no default remote"
            raise UserError(f"DVC has {which} (known: {known}); dvc remote add -d store s3://bucket/path")
        _refuse_tracked(chosen, config.load_one("repo").get("remote", {}).get(chosen, {}))
        cls, options, root = get_cloud_fs(config, name=chosen)
        if options.get("worktree") or options.get("version_aware"):
            raise UserError("a remote that is version_aware or a worktree cannot hold results; add another one")
        secrets = tuple(str(value) for key, value in options.items() if object_store.is_secret(key))
        cloud = Cloud(chosen, root, cls(**options), **options)
        url = object_store.hide(config["remote"][chosen]["url"], secrets)
        return Remote(chosen, url, cloud.fs, cloud.odb, root, secrets, options)
    except UserError:
        raise
    except Exception as error:  # whatever DVC and its plugins raise: a missing one, a broken file, an odd address
        raise UserError(f"DVC cannot use the remote ({object_store.reason(error)})") from None


def require(setting: str) -> None:
    """Refuse a remote that cannot be listed, written, read and cleaned, before any work starts.

    Raises:
        UserError: one line with the cure, within seconds.
    """
    if setting:
        _AWAY.unlink(missing_ok=True)
        object_store.probe("pipeline.graph.remote", f"BDL_REMOTE={setting}", _CURE)


def fetch(setting: str, stage: Stage, made_from: Mapping[str, Any]) -> bool:
    """Put a stage's result in place, if the remote has it whole, and say whether it had."""
    return bool(_attempt(setting, stage, "fetched", lambda remote: remote.fetch(stage, made_from)))


def push(setting: str, stage: Stage) -> None:
    """Push the result of a stage, which is up to date; if that fails, say so on one line."""
    _attempt(setting, stage, "pushed", lambda remote: remote.push(stage))


def is_pushed(stage: Stage, remote: Remote) -> bool:
    """Say whether the remote is known to have the result that is in place."""
    try:
        return places.pushed(stage.kind, stage.key).read_text() == _sign(stage, remote)
    except OSError:
        return False


def try_push(remote: Remote, stage: Stage) -> bool:
    """Push the result of a stage, which is up to date, and say whether it is there now."""
    if _is_away():
        return False
    try:
        remote.push(stage)
    except Exception:  # whatever the client of a store raises; the caller says what is left
        _AWAY.touch()
        return False
    return True


def main() -> int:
    """Try out the remote of the environment; print why it cannot be used."""
    try:
        remote = connect(Settings.read().remote)
        try:
            remote.try_out()
        except UserError:
            raise
        except Exception as error:  # whatever the client of a store raises
            raise UserError(f"{remote.url}: {object_store.reason(error, remote.secrets)}") from None
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _attempt(setting: str, stage: Stage, done: str, action: Callable[[Remote], bool | None]) -> bool | None:
    """Do ``action`` unless the remote is off or away; None where it fails, which is one line on stderr."""
    if not setting or _is_away():
        return None
    secrets: tuple[str, ...] = ()
    try:
        remote = connect(setting)
        secrets = remote.secrets
        try:
            return action(remote)
        except Damaged as error:
            remote.remove(error.paths)
            print(f"warning: {remote.name}: {error}; it is made here", file=sys.stderr, flush=True)
            return None
    except Exception as error:  # whatever the client of a store raises: the result matters more
        _AWAY.parent.mkdir(exist_ok=True)
        _AWAY.touch()
        why = str(error) if isinstance(error, UserError) else object_store.reason(error, secrets)
        line = f"warning: {stage.name} is not {done}: BDL_REMOTE={setting}: {why}"
        print(object_store.hide(line, secrets), file=sys.stderr, flush=True)
        return None


def _is_away() -> bool:
    """Say whether a process has just found that the remote fails."""
    try:
        return time.time() - _AWAY.stat().st_mtime < _AWAY_SECONDS
    except OSError:
        return False


def _refuse_tracked(name: str, options: Mapping[str, Any]) -> None:
    """Refuse credentials in the file of DVC's that git tracks."""
    found = [key for key, value in options.items() if object_store.is_secret(key) and not _is_switch(value)]
    if found:
        how = f"dvc remote modify --unset {name} {found[0]}, then dvc remote modify --local {name} {found[0]} …"
        raise UserError(f"{_CONFIG}, which git tracks, holds the {found[0]} of the remote {name}; {how}")
    if object_store.has_userinfo(str(options.get("url", ""))):
        how = f"dvc remote modify --local {name} user … and password …"
        raise UserError(f"{_CONFIG}, which git tracks, holds a user in the url of {name}; take it out, {how}")


def _is_switch(value: Any) -> bool:
    return str(value).lower() in ("true", "false")


def _outs(entry: bytes, wanted: Mapping[str, Path], address: str) -> Mapping[str, str]:
    """Read an entry: path -> object."""
    try:
        read = json.loads(entry)
        outs = {path: oid for path, oid in read["outs"].items() if isinstance(oid, str) and _is_oid(oid)}
        whole = read["schema"] == _SCHEMA and outs.keys() == wanted.keys()
    except (ValueError, KeyError, TypeError, AttributeError):
        whole = False
    if not whole:
        raise Damaged(f"the entry {brief(Path(address).name, 20)} is damaged", address)
    return outs


def _is_oid(text: str) -> bool:
    digits = text.removesuffix(_FOLDER)
    return len(digits) == 2 * _md5().digest_size and set(digits) <= set("0123456789abcdef")


def _md5(data: bytes = b"") -> Any:
    return hashlib.md5(data, usedforsecurity=False)


@contextlib.contextmanager
def _siblings(paths: Any) -> Iterator[dict[Path, Path]]:
    """Yield a temporary place beside each path; what is left there is removed at the end."""
    siblings = {path: path.with_name(f".{path.name}.{os.getpid()}.tmp") for path in paths}
    try:
        yield siblings
    finally:
        for sibling in siblings.values():
            shutil.rmtree(sibling, ignore_errors=True)
            with contextlib.suppress(OSError):
                sibling.unlink()


def _place(new: Path, place: Path) -> None:
    if new.is_dir():
        swap(new, place)
    else:
        os.replace(new, place)


def _mark(stage: Stage, remote: Remote) -> None:
    """Note that the remote has the result that is in place."""
    place = places.pushed(stage.kind, stage.key)
    place.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(place, _sign(stage, remote).encode())


def _sign(stage: Stage, remote: Remote) -> str:
    identity = places.identity(stage.kind, stage.key)
    return f"{remote.url} {hashlib.sha256(identity.read_bytes()).hexdigest()}"


if __name__ == "__main__":
    sys.exit(main())
