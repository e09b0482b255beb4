"""Artifacts: round trips, and refusals that name the file."""

import errno
import json
import os
import pickle
from pathlib import Path

import pytest
import safetensors.torch
import torch

from bdl_pipe import artifacts
from bdl_pipe.artifacts import State, load, publish, read_state, write_state
from bdl_pipe.errors import ArtifactError, UserError
from bdl_pipe.files import FileBytes
from bdl_pipe.training.snapshots import snapshot

STATE = State(
    {
        "a": torch.arange(6.0).reshape(2, 3),
        "half": torch.ones(2, dtype=torch.float16),
        "count": torch.tensor(3),
        "turned": torch.arange(6).reshape(2, 3).T,
        "none": torch.zeros(0, 4),
    },
    {"lr": 0.1, "nested": {"list": [1, "é"]}},
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A published artifact of two states and a text."""
    with publish(tmp_path / "made", "coreset", about={"seed": 0}) as place:
        write_state(place / "0-0", STATE)
        write_state(place / "0-1", STATE)
        (place / "notes.json").write_text("[1]")
    return tmp_path / "made"


def assert_same(a: State, b: State) -> None:
    assert a.config == b.config
    assert a.tensors.keys() == b.tensors.keys()
    for key, value in a.tensors.items():
        assert torch.equal(value, b.tensors[key])
        assert value.dtype == b.tensors[key].dtype


def files(path: Path) -> set[str]:
    return {str(p.relative_to(path)) for p in path.rglob("*")}


def test_a_state_reads_back_from_its_files_and_from_bytes_and_its_name_may_have_dots(tmp_path: Path) -> None:
    write_state(tmp_path / "x", STATE)
    assert_same(read_state(tmp_path / "x"), STATE)
    assert_same(artifacts.from_bytes(artifacts.to_bytes(STATE)), STATE)
    assert files(tmp_path) == {"x.json", "x.safetensors"}
    # the format's own library reads the file, too
    assert torch.equal(safetensors.torch.load_file(tmp_path / "x.safetensors")["turned"], STATE.tensors["turned"])
    for name in ("run.v1", "run.v2"):
        write_state(tmp_path / name, State(STATE.tensors, {"name": name}))
    assert read_state(tmp_path / "run.v1").config == {"name": "run.v1"}


def test_an_artifact_reads_back_and_equal_contents_give_equal_bytes(folder: Path, tmp_path: Path) -> None:
    artifact = load(folder, "coreset")
    assert artifact.names() == ["0-0", "0-1"]
    assert artifact.json("notes.json") == [1]
    assert artifact.manifest["about"] == {"seed": 0}
    assert artifact.manifest["files"]["0-0.safetensors"]["tensors"]["a"] == ["F32", 2, 3]
    assert_same(artifact.state("0-1"), STATE)
    with publish(tmp_path / "again", "coreset", about={"seed": 0}) as place:  # in another order
        (place / "notes.json").write_text("[1]")
        write_state(place / "0-1", STATE)
        write_state(place / "0-0", STATE)
    for name in files(folder):
        assert (folder / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def refused(folder: Path, kind: str = "coreset") -> str:
    with pytest.raises(ArtifactError) as caught:
        load(folder, kind)
    return str(caught.value)


def test_an_artifact_that_is_absent_of_another_kind_altered_truncated_or_incomplete_is_refused(folder: Path) -> None:
    nothing, manifest, file = folder.parent / "no", folder / "manifest.json", folder / "0-1.safetensors"
    assert refused(nothing) == f"{nothing}: there is no coreset artifact here (no manifest.json)"
    assert refused(folder, "teacher") == f"{manifest}: must be a teacher artifact, got 'coreset'"
    whole, blob = manifest.read_text(), file.read_bytes()
    manifest.write_text(whole.replace('"coreset"', '"module"'))
    cure = "load it with bdl_pipe.ModulePosterior.load(path, model)"
    assert refused(folder, "student") == f"{manifest}: must be a student artifact, got 'module'; {cure}"
    manifest.write_text(json.dumps(json.loads(whole) | {"schema": 99}))
    assert refused(folder) == f"{manifest}: schema version must be 2, got 99; make it again"
    manifest.write_text(whole)
    file.write_bytes(blob[:-1] + bytes([blob[-1] ^ 1]))
    assert refused(folder) == f"{file}: is altered: its SHA-256 differs from manifest.json"
    load(folder, "coreset", verify=False)  # the size is unchanged: only the hash shows the alteration
    os.truncate(file, len(blob) - 5)
    assert refused(folder) == f"{file}: is truncated or altered: {len(blob) - 5} bytes, not {len(blob)}"
    file.unlink()
    assert refused(folder) == f"{file}: is missing"


def test_a_damaged_manifest_is_refused(folder: Path) -> None:
    manifest = folder / "manifest.json"
    whole = json.loads(manifest.read_text())
    for facts in (None, 3, [], {}, {"bytes": 3}, {"sha256": "0"}):
        manifest.write_text(json.dumps(whole | {"files": whole["files"] | {"0-1.safetensors": facts}}))
        assert refused(folder) == f"{manifest}: is damaged: it has no facts of 0-1.safetensors"
    for blob in (b"", b'{"schema": 1', b"\xff\xfe", b"[1]", b'{"schema": 1, "kind": "coreset"}'):
        manifest.write_bytes(blob)
        assert refused(folder).startswith(f"{manifest}: ")
    manifest.unlink()
    manifest.mkdir()
    assert refused(folder).startswith(f"{manifest}: is truncated or not JSON (")


def test_a_state_with_a_damaged_or_missing_file_is_refused(tmp_path: Path) -> None:
    for name, blob in (("x.safetensors", b"123"), ("x.json", b"{"), ("x.json", b"\xff")):
        write_state(tmp_path / "x", STATE)
        (tmp_path / name).write_bytes(blob)
        with pytest.raises(ArtifactError, match=r"x.safetensors: is truncated or not a safetensors"):
            read_state(tmp_path / "x")
        write_state(tmp_path / "x", STATE)
        (tmp_path / name).unlink()
        with pytest.raises(ArtifactError, match=rf"{name}: is missing"):
            read_state(tmp_path / "x")


def test_every_truncation_of_a_blob_is_refused() -> None:
    blob = artifacts.to_bytes(STATE)
    for size in range(len(blob)):
        with pytest.raises(ArtifactError, match=r"^here: is truncated or not a checkpoint"):
            artifacts.from_bytes(blob[:size], "here")


def full_disk(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Fail every flush as on a full disk, after the first ``after`` flushes."""
    count = iter(range(1_000))

    def fsync(descriptor: int) -> None:
        if next(count) >= after:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fsync)


@pytest.mark.parametrize("after", range(5))  # four files and the manifest
def test_a_full_disk_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    full_disk(monkeypatch, after)
    with pytest.raises(UserError, match="the disk is full; nothing was written"):  # noqa: SIM117
        with publish(tmp_path / "made", "coreset") as place:
            write_state(place / "0-0", STATE)
            write_state(place / "0-1", STATE)
    assert files(tmp_path) == set()


def test_other_disk_errors_pass_unchanged_and_without_a_cause(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError) as writing:
        artifacts.write_bytes(tmp_path / "folder", b"x")
    with pytest.raises(OSError, match="Input/output error") as publishing, publish(tmp_path / "there", "coreset"):
        raise OSError(errno.EIO, "Input/output error")
    for raised in (writing, publishing):
        assert raised.value.__cause__ is None


def test_a_full_disk_keeps_the_old_file_and_the_old_artifact(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifacts.write_bytes(tmp_path / "x", b"old")
    before = {name: (tmp_path / name).read_bytes() for name in files(tmp_path) if (tmp_path / name).is_file()}
    there = files(tmp_path)
    full_disk(monkeypatch, 0)
    with pytest.raises(UserError, match=r"x: the disk is full; nothing was written$"):
        artifacts.write_bytes(tmp_path / "x", b"new")
    full_disk(monkeypatch, 1)
    with pytest.raises(UserError, match="the disk is full"), publish(folder, "coreset") as place:
        write_state(place / "0-0", STATE)
    assert files(tmp_path) == there and {name: (tmp_path / name).read_bytes() for name in before} == before


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_a_failed_publication_leaves_no_file_and_keeps_the_old_artifact(
    folder: Path, tmp_path: Path, error: type[BaseException]
) -> None:
    before = files(tmp_path)
    for place in (folder, tmp_path / "new"):
        with pytest.raises(error), publish(place, "coreset") as unfinished:
            write_state(unfinished / "0-0", State())
            raise error
    assert files(tmp_path) == before
    assert_same(load(folder, "coreset").state("0-0"), STATE)


def test_publishing_again_replaces_the_whole_artifact(folder: Path) -> None:
    with publish(folder, "coreset") as place:
        write_state(place / "only", STATE)
    assert files(folder) == {"only.json", "only.safetensors", "manifest.json"}
    assert files(folder.parent) == {"made"} | {f"made/{f}" for f in files(folder)}


def test_a_failed_rename_keeps_the_old_artifact(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.replace

    def replace(source: Path, target: Path) -> None:
        if Path(target) == folder and ".old." not in Path(source).name:
            raise OSError(errno.EIO, "Input/output error")
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(OSError, match="Input/output"), publish(folder, "coreset") as place:
        write_state(place / "0-0", State())
    assert_same(load(folder, "coreset").state("0-0"), STATE)


class Counted:
    """A file whose bytes are counted as they are read."""

    def __init__(self, path: Path) -> None:
        self._file = FileBytes.of(path)
        self.size, self.count = self._file.size, 0

    def read(self, start: int, count: int) -> bytes:
        self.count += count
        return self._file.read(start, count)


def test_an_opened_state_equals_the_written_state(folder: Path) -> None:
    opened = load(folder, "coreset").open("0-1")
    assert_same(opened, STATE)
    assert_same(pickle.loads(pickle.dumps(opened)), STATE)
    write_state(folder.parent / "again", opened)
    again, first = (place.with_suffix(".safetensors") for place in (folder.parent / "again", folder / "0-0"))
    assert again.read_bytes() == first.read_bytes()
    for name in ("a", "none", "turned", "half"):
        for start, stop in ((0, 1), (1, None), (-1, None), (None, None), (None, -1), (2, 1), (5, 9)):
            expected = STATE.tensors[name][start:stop]
            rows = artifacts.rows(opened.tensors, name, start, stop)
            assert torch.equal(rows, expected) and rows.dtype == expected.dtype
            assert torch.equal(artifacts.rows(STATE.tensors, name, start, stop), expected)


def test_an_opened_state_reads_only_the_requested_bytes(tmp_path: Path) -> None:
    """One of 100 snapshots of 1,000 weights is read in 4,000 bytes; the moments of the iterates are never read."""
    first = {"iterates.mean.b": torch.zeros(())}  # the tests' type checker reads the first tensor of a mapping
    tensors = first | {"w": torch.arange(100_000.0).reshape(100, 1000), "iterates.mean.w": torch.zeros(100_000)}
    write_state(tmp_path / "x", State(tensors))
    source = Counted(tmp_path / "x.safetensors")
    stored = artifacts.StoredTensors(source, "x")
    header = source.count
    assert header < 400 and list(stored) == sorted(tensors) and len(stored) == 3 and source.count == header
    assert torch.equal(snapshot(State(stored), -1)["w"], tensors["w"][-1])  # reads none of the moments
    assert torch.equal(artifacts.under("w", stored)[""], tensors["w"])
    read = source.count - header
    source.count = 0
    assert torch.equal(stored.rows("w", 41, 42)[0], tensors["w"][41])
    assert source.count == 4000 and 0 <= read - 4000 - 400_000 < 100
    with publish(tmp_path / "made", "trajectory") as place:
        write_state(place / "0-0", State(tensors))
    opened = load(tmp_path / "made", "trajectory").open("0-0")
    assert len(pickle.dumps(opened)) < 1000, "a pickle holds no values"


def test_reading_a_state_that_was_replaced_after_opening_is_refused(folder: Path) -> None:
    """Replaced in place or by a new file; a new file of equal bytes, which DVC makes when it records, is still read."""
    file = folder / "0-0.safetensors"
    opened, blob = load(folder, "coreset").open("0-0"), file.read_bytes()
    for new in (False, True):
        for content in (blob[:-1] + bytes([blob[-1] ^ 1]), blob):
            if new:
                file.unlink()
            file.write_bytes(content)
            if new and content == blob:
                assert torch.equal(opened.tensors["a"], STATE.tensors["a"])
            elif content != blob:
                with pytest.raises(ArtifactError, match=r"^.*0-0\.safetensors: has been replaced since it was opened"):
                    _ = opened.tensors["a"]
    opened = load(folder, "coreset").open("0-0")
    file.unlink()
    with pytest.raises(ArtifactError, match=r"^.*0-0\.safetensors: cannot be read"):
        _ = opened.tensors["a"]


def test_a_truncated_damaged_or_incomplete_state_is_not_opened(folder: Path) -> None:
    artifact, file = load(folder, "coreset"), folder / "0-0.safetensors"
    whole = file.read_bytes()
    for blob in [*(whole[:size] for size in range(len(whole))), b"\xff" * 80]:
        file.write_bytes(blob)
        with pytest.raises(ArtifactError, match=r"^.*0-0\.safetensors: is truncated"):
            artifact.open("0-0")
    for name, text in (("0-1.json", "{"), ("0-1.safetensors", None), ("0-1.json", None)):
        (folder / name).write_text(text) if text else (folder / name).unlink()
        with pytest.raises(ArtifactError, match=rf"^.*{name}: is "):
            artifact.open("0-1")
        write_state(folder / "0-1", STATE)
