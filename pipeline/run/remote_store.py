"""A DVC remote as a store of results: what is pushed, in which order, and what is verified of what is fetched.

Whoever may write to a remote may forge what it holds, hashes and all: nothing of it decides where a file is put, or
which object is read, before it has been looked at. Transfers are DVC's: its file systems, its object store.
"""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bdl_pipe.artifacts import swap
from bdl_pipe.errors import UserError, brief
from bdl_pipe.files import write_bytes

from ..core import places
from ..plan import fresh
from ..plan.plan import Stage

INDEX: Final = "bdl-pipe"  # longer than the two characters of DVC's own folders, whose files its gc may remove
_SCHEMA: Final = 1
_HASH: Final = "md5"  # of DVC's objects
_FOLDER: Final = ".dir"  # ends the name of an object that lists a folder's files


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

    def is_pushed(self, stage: Stage) -> bool:
        """Say whether the remote is known to have the result that is in place."""
        try:
            return places.pushed(stage.kind, stage.key).read_text() == _sign(stage, self)
        except OSError:
            return False

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
        """Write, read and remove a small object, and list others.

        Raises:
            Exception: whatever the client of the store raises.
        """
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
        try:
            files = {parts: found.value for parts, _, found in Tree.from_list(json.loads(text))}
            whole = all(isinstance(name, str) and _is_oid(name) for name in files.values())
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            whole = False
        if not whole:
            raise Damaged(f"{what} has no list of files (object {oid})", path)
        if any(part in ("", ".", "..") or os.sep in part or "\0" in part for parts in files for part in parts):
            raise Damaged(f"{what} names a file outside of it", path)
        if any(parts[:end] in files for parts in files for end in range(len(parts))):
            raise Damaged(f"{what} has a file that is a folder, too", path)
        return files

    def _address(self, stage: Stage, made_from: Mapping[str, Any]) -> str:
        facts = [stage.name, [str(path) for path in stage.makes], made_from]
        name = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
        return self.fs.join(self.root, INDEX, f"{name}.json")

    def _write(self, path: str, text: bytes) -> None:
        """Write an object in one step."""
        places.STATE.mkdir(exist_ok=True)
        local = places.STATE / f".entry.{os.getpid()}.tmp"
        try:
            local.write_bytes(text)
            self.fs.makedirs(self.fs.parent(path))
            self.fs.put_file(str(local.absolute()), path)
        finally:
            local.unlink(missing_ok=True)


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
