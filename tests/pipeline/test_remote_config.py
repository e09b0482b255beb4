"""What a DVC remote must be to hold results, before anybody is asked anything; and what is taken from it."""

import json
from pathlib import Path

import pytest

from bdl_pipe.errors import UserError
from pipeline.core import places
from pipeline.graph import remote
from pipeline.graph.plan import Stage


def configure(folder: Path, tracked: str, local: str = "") -> None:
    for part in (".git", ".dvc"):
        (folder / part).mkdir(exist_ok=True)
    (folder / ".dvc/config").write_text(tracked)
    (folder / ".dvc/config.local").write_text(local)


STORE = "['remote \"store\"']\n    url = s3://bucket/path\n"
KEY = "    secret_access_key = aSecretOfATest\n"


@pytest.mark.parametrize(
    ("setting", "tracked", "rule"),
    [
        ("on", STORE, "DVC has no default remote .known: store.; dvc remote add -d store s3://bucket/path"),
        ("other", STORE, "DVC has no remote other .known: store."),
        ("store", "", "DVC has no remote store .known: none."),
        ("store", STORE + KEY, "holds the secret_access_key of the remote store; dvc remote modify --unset store"),
        (
            "store",
            "['remote \"store\"']\n    url = ssh://me:aSecretOfATest@host/x\n",
            "holds a user in the url of store",
        ),
        ("store", STORE + "    version_aware = true\n", "cannot hold results; add another one"),
        ("store", "['remote \"store\"']\n    ur", "DVC cannot use the remote"),
    ],
)
def test_a_remote_that_is_misconfigured_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str, tracked: str, rule: str
) -> None:
    configure(tmp_path, tracked)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=rule) as raised:
        remote.connect(setting)
    assert "aSecretOfATest" not in str(raised.value)


def test_keys_in_the_file_that_git_does_not_track_are_taken_and_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(tmp_path, f"[core]\n    remote = store\n{STORE}", f"['remote \"store\"']\n{KEY}")
    monkeypatch.chdir(tmp_path)
    store = remote.connect("on")
    assert (store.name, store.url, store.secrets) == ("store", "s3://bucket/path", ("aSecretOfATest",))


STAGE = Stage("student", "a", frozenset(), (), (Path("work/student/a"), Path("work/student/a.run.json")), {"x": 1}, {})
MADE_FROM = {"params": {"x": 1}, "sources": {}, "inputs": {}}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> remote.Remote:
    """A folder as a remote that has the result of a stage, and a machine that has nothing."""
    from pipeline.graph import fresh

    configure(tmp_path, f"['remote \"store\"']\n    url = {tmp_path}/store\n")
    monkeypatch.chdir(tmp_path)
    folder = Path("work/student/a")
    (folder / "deep").mkdir(parents=True)
    (folder / "manifest.json").write_text('{"files": {}}')
    (folder / "deep/weights").write_bytes(b"0123456789")
    Path("work/student/a.run.json").write_text("{}")
    fresh.record(STAGE, MADE_FROM)
    found = remote.connect("store")
    found.push(STAGE)
    assert remote.is_pushed(STAGE, found)
    Path("work").rename("before")
    return found


def entry(store: remote.Remote) -> Path:
    (found,) = Path(store.root, remote.INDEX).glob("*.json")
    return found


def files(folder: str) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in Path(folder).rglob("*") if p.is_file()}


def test_what_is_fetched_is_what_was_pushed_and_nothing_else_is_found(store: remote.Remote) -> None:
    assert not store.fetch(STAGE, {**MADE_FROM, "params": {"x": 2}}) and files("work") == {}
    assert store.fetch(STAGE, MADE_FROM) and files("work") == files("before")


def test_what_does_not_verify_is_refused_and_nothing_is_put_in_place(store: remote.Remote) -> None:
    """A file, a list of files or an entry that is altered, missing, of another stage, or points out of its folder."""
    whole = {path: path.read_bytes() for path in Path(store.root).rglob("*") if path.is_file()}
    for path in whole:
        path.chmod(0o644)
    outs = json.loads(entry(store).read_text())["outs"]
    weights = next(path for path, text in whole.items() if text == b"0123456789")
    listing = Path(store.odb.oid_to_path(outs["work/student/a"]))
    other = outs | {"work/student/a.run.json": outs[str(places.identity("student", "a"))]}
    for path, text, rule in (
        (weights, b"0123456780", "work/student/a of student@a is damaged"),
        (weights, None, "work/student/a of student@a lacks a part"),
        (listing, b"[]", "work/student/a of student@a is damaged"),
        (listing, None, "work/student/a of student@a lacks a part"),
        (entry(store), b"{}", "the entry .* is damaged"),
        (entry(store), json.dumps({"schema": 1, "outs": {"../x": "0" * 32}}).encode(), "the entry .* is damaged"),
        (entry(store), json.dumps({"schema": 1, "outs": other}).encode(), "the result of student@a is of something"),
    ):
        path.write_bytes(text) if text is not None else path.unlink()
        with pytest.raises(remote.Damaged, match=rule):
            store.fetch(STAGE, MADE_FROM)
        assert files("work") == {}
        path.write_bytes(whole[path])
    assert store.fetch(STAGE, MADE_FROM)


def test_a_folder_that_names_files_outside_of_it_is_refused(store: remote.Remote) -> None:
    """Whoever writes to a remote may forge what it holds, hashes and all."""
    import hashlib

    forged = json.dumps([{"md5": hashlib.md5(b"x").hexdigest(), "relpath": "../../../forged"}]).encode()
    name = hashlib.md5(forged).hexdigest() + ".dir"
    for oid, text in ((hashlib.md5(b"x").hexdigest(), b"x"), (name, forged)):
        place = Path(store.odb.oid_to_path(oid))
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(text)
    read = json.loads(entry(store).read_text())
    entry(store).write_text(json.dumps(read | {"outs": read["outs"] | {"work/student/a": name}}))
    with pytest.raises(remote.Damaged, match="names a file outside of it"):
        store.fetch(STAGE, MADE_FROM)
    assert not Path("forged").exists() and files("work") == {}


def test_nothing_half_pushed_is_found(store: remote.Remote) -> None:
    assert store.fetch(STAGE, MADE_FROM)
    entry(store).unlink()
    Path("work/student/a.run.json").unlink()
    with pytest.raises(FileNotFoundError):
        store.push(STAGE)
    assert not store.fetch(STAGE, MADE_FROM)
