"""Artifacts: folders written beside their place and renamed into it, verified when read.

``publish`` yields a temporary sibling; at the end of the block every file in it is hashed into
``manifest.json`` and the folder takes its place in one rename. If the block fails, nothing is left.
``load`` checks kind, schema version, the list of files, sizes and SHA-256 before anything is used.
The manifest holds nothing that differs between two equal runs (no times, no commit): equal runs
give equal bytes, so a change that does not change a result leaves later stages up to date.
"""

import copy
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, final

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from .errors import ArtifactError, brief, short
from .files import FileBytes, Source, refuse_full_disk
from .files import sha256 as sha256  # the hash of its manifest identifies an artifact
from .files import write_bytes as write_bytes  # one of the ways to write a part of an artifact

SCHEMA: Final = 2
MANIFEST: Final = "manifest.json"
_LOADERS: Final = {"student": "bdl_pipe.load_predictor(path)", "module": "bdl_pipe.ModulePosterior.load(path, model)"}


@dataclass(frozen=True)
class State:
    """Named tensors and a JSON-able config. Posteriors, draws and checkpoints are stored as states."""

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)


@final
class StoredTensors(Mapping[str, Tensor]):
    """The tensors of a safetensors file. Each access reads the tensor from the file; none is cached.

    A pickled copy holds the file's header and its location, not the tensors.
    """

    def __init__(self, source: Source, origin: str) -> None:
        """Read the header.

        Args:
            origin: the file's name in errors.

        Raises:
            ArtifactError: the file is not a complete safetensors file.
        """
        try:
            length = int.from_bytes(source.read(0, 8), "little")
            header = json.loads(source.read(8, length))
            self._entries = {name: dict(entry) for name, entry in header.items() if name != "__metadata__"}
            ends = [entry["data_offsets"][1] for entry in self._entries.values()]
        except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
            raise ArtifactError(f"{origin}: is truncated or not a safetensors file ({error})") from None
        self._source, self._data = source, 8 + length
        if self._data + max(ends, default=0) != source.size:
            raise ArtifactError(f"{origin}: is truncated or altered: {source.size} bytes do not fit its header")

    def __getitem__(self, name: str) -> Tensor:
        entry = self._entries[name]
        return self._read(entry["dtype"], entry["shape"], *entry["data_offsets"])

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def rows(self, name: str, start: int | None, stop: int | None) -> Tensor:
        """Return ``self[name][start:stop]``; read only these bytes."""
        entry = self._entries[name]
        count, *shape = entry["shape"]
        first, last, _ = slice(start, stop).indices(count)
        last, (begin, end) = max(first, last), entry["data_offsets"]
        size = (end - begin) // max(count, 1)
        return self._read(entry["dtype"], [last - first, *shape], begin + first * size, begin + last * size)

    def through(self, way: Callable[[Source], Source]) -> "StoredTensors":
        """Return the same tensors, read from ``way(source)`` instead of their source."""
        tensors = copy.copy(self)
        tensors._source = way(self._source)
        return tensors

    def _read(self, dtype: str, shape: list[int], begin: int, end: int) -> Tensor:
        header = json.dumps({"": {"dtype": dtype, "shape": shape, "data_offsets": [0, end - begin]}}).encode()
        data = self._source.read(self._data + begin, end - begin)
        return safetensors.torch.load(len(header).to_bytes(8, "little") + header + data)[""]


def rows(tensors: Mapping[str, Tensor], name: str, start: int | None, stop: int | None) -> Tensor:
    """Return ``tensors[name][start:stop]``; read only these bytes if the tensor is stored."""
    return tensors.rows(name, start, stop) if isinstance(tensors, StoredTensors) else tensors[name][start:stop]


@dataclass(frozen=True)
class Artifact:
    """A verified folder and its manifest."""

    path: Path
    manifest: Mapping[str, Any]

    def names(self) -> list[str]:
        """List the names of the states inside, sorted."""
        return sorted(f.removesuffix(".safetensors") for f in self.manifest["files"] if f.endswith(".safetensors"))

    def state(self, name: str) -> State:
        """Read the state ``name``."""
        return read_state(self.path / name)

    def open(self, name: str) -> State:
        """Return a state that reads its tensors on access, in this or another process.

        Raises:
            ArtifactError: a file is missing or does not parse.
        """
        path = self.path / f"{name}.safetensors"
        source = FileBytes.of(path, self.manifest["files"].get(path.name, {}).get("sha256", ""))
        return State(StoredTensors(source, str(path)), _config(self.path / f"{name}.json"))

    def json(self, name: str) -> Any:
        """Read the JSON file ``name``."""
        return json.loads((self.path / name).read_text(encoding="utf-8"))


def write_state(stem: Path, state: State) -> None:
    """Write ``stem.safetensors`` and ``stem.json``, each by rename, the tensors last."""
    tensors = {k: v.detach().cpu().contiguous() for k, v in state.tensors.items()}
    write_bytes(stem.with_name(stem.name + ".json"), json.dumps(state.config, sort_keys=True, indent=1).encode())
    write_bytes(stem.with_name(stem.name + ".safetensors"), safetensors.torch.save(tensors))


def read_state(stem: Path) -> State:
    """Read what :func:`write_state` wrote; raise ArtifactError if a file is missing or does not parse."""
    tensors, config = stem.with_name(stem.name + ".safetensors"), stem.with_name(stem.name + ".json")
    try:
        return State(safetensors.torch.load_file(tensors), json.loads(config.read_text(encoding="utf-8")))
    except FileNotFoundError as error:
        raise ArtifactError(f"{error.filename or tensors}: is missing") from None
    except (safetensors.SafetensorError, ValueError, OSError) as error:
        raise ArtifactError(f"{tensors}: is truncated or not a safetensors + JSON pair ({brief(error)})") from None


def _config(path: Path) -> dict[str, Any]:
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return config
    except FileNotFoundError:
        raise ArtifactError(f"{path}: is missing") from None
    except (ValueError, OSError) as error:
        raise ArtifactError(f"{path}: is truncated or not JSON ({error})") from None


def to_bytes(state: State) -> bytes:
    """Write one safetensors blob with the config in its metadata, for checkpoints that travel."""
    tensors = {k: v.detach().cpu().contiguous() for k, v in state.tensors.items()}
    return safetensors.torch.save(tensors, metadata={"config": json.dumps(state.config, sort_keys=True)})


def from_bytes(blob: bytes, origin: str = "checkpoint") -> State:
    """Undo :func:`to_bytes`; raise ArtifactError, naming ``origin``, if the blob is truncated or not a checkpoint."""
    try:
        size = int.from_bytes(blob[:8], "little")
        config = json.loads(json.loads(blob[8 : 8 + size])["__metadata__"]["config"])
        return State(safetensors.torch.load(blob), config)
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise ArtifactError(f"{origin}: is truncated or not a checkpoint ({error})") from None


@contextmanager
def publish(path: Path, kind: str, *, about: Mapping[str, object] | None = None) -> Iterator[Path]:
    """Yield a temporary folder; on success it becomes ``path``, with its manifest.

    Args:
        path: the artifact's folder; an older artifact there is replaced.
        kind: the stage kind; :func:`load` checks it.
        about: params, seed and other JSON-able facts, equal in equal runs.
    """
    with replacing(path) as folder:
        yield folder
        files = dict[str, dict[str, object]]()
        for file in sorted(p for p in folder.rglob("*") if p.is_file()):
            facts: dict[str, object] = {"bytes": file.stat().st_size, "sha256": sha256(file)}
            files[str(file.relative_to(folder))] = facts
            if file.suffix == ".safetensors":
                with safetensors.safe_open(file, framework="pt") as stored:
                    slices = {key: stored.get_slice(key) for key in stored.keys()}  # noqa: SIM118 — not iterable
                    facts["tensors"] = {key: [s.get_dtype(), *s.get_shape()] for key, s in slices.items()}
        manifest = {"schema": SCHEMA, "kind": kind, "about": dict(about or {}), "files": files}
        write_bytes(folder / MANIFEST, json.dumps(manifest, sort_keys=True, indent=1).encode())


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary folder. On success it replaces ``path``; on failure ``path`` stays unchanged."""
    temporary, old = (path.with_name(f".{path.name}.{os.getpid()}.{end}") for end in ("tmp", "old.tmp"))
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        yield temporary
        shutil.rmtree(old, ignore_errors=True)
        if path.exists():
            os.replace(path, old)  # os.replace cannot overwrite a folder that is not empty
        try:
            os.replace(temporary, path)
        except OSError:
            if old.exists():
                os.replace(old, path)
            raise
        shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        refuse_full_disk(error, path)
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def load(path: Path, kind: str, *, verify: bool = True) -> Artifact:
    """Open the artifact at ``path``.

    Raises:
        ArtifactError: a file is missing, is of another kind or schema version, or its size or hash differs from the
            manifest. The message names the file.
    """
    place = path / MANIFEST
    try:
        manifest = json.loads(place.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ArtifactError(f"{path}: there is no {kind} artifact here (no {MANIFEST})") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ArtifactError(f"{place}: is truncated or not JSON ({brief(error)})") from None
    schema = manifest.get("schema") if isinstance(manifest, dict) else None
    if schema != SCHEMA:
        raise ArtifactError(f"{place}: schema version must be {SCHEMA}, got {short(schema)}; make it again")
    if manifest.get("kind") != kind:
        found = short(manifest.get("kind"))
        cure = "".join(f"; load it with {call}" for of, call in _LOADERS.items() if found == short(of))
        raise ArtifactError(f"{place}: must be a {kind} artifact, got {found}{cure}")
    if not isinstance(manifest.get("about"), dict):
        raise ArtifactError(f"{place}: is damaged: it has no section about")
    if not isinstance(manifest.get("files"), dict):
        raise ArtifactError(f"{place}: is damaged: it lists no files")
    for name, facts in manifest["files"].items():
        if not isinstance(facts, dict) or not {"bytes", "sha256"} <= facts.keys():
            raise ArtifactError(f"{place}: is damaged: it has no facts of {brief(name)}")
    for name, facts in manifest["files"].items():
        _check(path / name, facts, verify)
    return Artifact(path, manifest)


def _check(path: Path, facts: Mapping[str, Any], verify: bool) -> None:
    if not path.is_file():
        raise ArtifactError(f"{path}: is missing")
    if path.stat().st_size != facts["bytes"]:
        sizes = f"{path.stat().st_size} bytes, not {short(facts['bytes'])}"
        raise ArtifactError(f"{path}: is truncated or altered: {sizes}")
    if verify and sha256(path) != facts["sha256"]:
        raise ArtifactError(f"{path}: is altered: its SHA-256 differs from {MANIFEST}")


def stack(states: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Stack equal-shaped named tensors along a new first dimension."""
    return {name: torch.stack([s[name] for s in states]) for name in states[0]}


def unstack(tensors: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    """Undo :func:`stack`."""
    count = len(next(iter(tensors.values())))
    return [{name: t[i] for name, t in tensors.items()} for i in range(count)]


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Select the tensors whose names begin with ``prefix``, and remove the prefix."""
    return {k.removeprefix(prefix): tensors[k] for k in tensors if k.startswith(prefix)}


def pack(states: Sequence[State]) -> State:
    """Combine several states into one."""
    tensors = {f"{i}.{name}": t for i, state in enumerate(states) for name, t in state.tensors.items()}
    return State(tensors, {"packed": [state.config for state in states]})


def unpack(state: State) -> list[State]:
    """Undo :func:`pack`."""
    parts: list[dict[str, Tensor]] = [{} for _ in state.config["packed"]]
    for key, tensor in state.tensors.items():
        number, name = key.split(".", 1)
        parts[int(number)][name] = tensor
    return [State(tensors, config) for tensors, config in zip(parts, state.config["packed"], strict=True)]
