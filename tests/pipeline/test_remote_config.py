"""What a DVC remote must be to hold results, before anybody is asked anything; and what is taken from it."""

import contextlib
import hashlib
import json
import socket
import threading
from pathlib import Path

import pytest

from bdl_pipe.errors import UserError
from pipeline.core import places
from pipeline.plan.plan import Stage
from pipeline.run import remote, remote_store


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
        (
            "store",
            f"['remote \"base\"']\n    url = s3://bucket\n{KEY}['remote \"store\"']\n    url = remote://base/path\n",
            "holds the secret_access_key of the remote base; dvc remote modify --unset base",
        ),
        ("store", STORE + "    sse_customer_key = aSecretOfATest\n", "holds the sse_customer_key of the remote store"),
        ("store", "['remote \"store\"']\n    url = http://aSecretOfATest@host/x\n", "holds a user in the url of store"),
        ("store", "['remote \"store\"']\n    url = remote://store/x\n", "DVC cannot use the remote"),
        ("store", STORE + "    version_aware = true\n", "cannot hold results; add another one"),
        ("store", "['remote \"store\"']\n    ur", "DVC cannot use the remote"),
        ("store", STORE + "    secret_access_key aSecretOfATest\n", "DVC cannot use .* config cannot be read, line 3"),
        ("store", STORE + "    endpointurl = http://me:aSecretOfATest@host\n", "its endpointurl must hold no user"),
        ("store", "['remote \"store\"']\n    url = oss://bucket/x\n", "it needs a package; pip install dvc-oss"),
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


def test_the_name_of_a_user_of_ssh_is_no_credential() -> None:
    remote._refuse_tracked("store", {"url": "ssh://me@host:22/x", "ask_password": "true", "keyfile": "/home/me/key"})


def test_keys_in_the_file_that_git_does_not_track_are_taken_and_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = f"['remote \"store\"']\n    access_key_id = aKeyOfATest\n{KEY}"
    configure(tmp_path, f"[core]\n    remote = store\n{STORE}", keys)
    monkeypatch.chdir(tmp_path)
    store = remote.connect("on")
    assert (store.name, store.url, store.secrets) == ("store", "s3://bucket/path", ("aKeyOfATest", "aSecretOfATest"))


STAGE = Stage("student", "a", frozenset(), (), (Path("work/student/a"), Path("work/student/a.run.json")), {"x": 1}, {})
MADE_FROM = {"params": {"x": 1}, "sources": {}, "inputs": {}}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> remote_store.Remote:
    """A folder as a remote that has the result of a stage, and a machine that has nothing."""
    from pipeline.plan import fresh

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
    assert found.is_pushed(STAGE)
    Path("work").rename("before")
    return found


def entry(store: remote_store.Remote) -> Path:
    (found,) = Path(store.root, remote_store.INDEX).glob("*.json")
    return found


def files(folder: str) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in Path(folder).rglob("*") if p.is_file()}


def test_what_is_fetched_is_what_was_pushed_and_nothing_else_is_found(store: remote_store.Remote) -> None:
    assert not store.fetch(STAGE, {**MADE_FROM, "params": {"x": 2}}) and files("work") == {}
    assert store.fetch(STAGE, MADE_FROM) and files("work") == files("before")


def test_what_does_not_verify_is_refused_and_nothing_is_put_in_place(store: remote_store.Remote) -> None:
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
        with pytest.raises(remote_store.Damaged, match=rule):
            store.fetch(STAGE, MADE_FROM)
        assert files("work") == {}
        path.write_bytes(whole[path])
    assert store.fetch(STAGE, MADE_FROM)


def test_a_folder_that_names_files_outside_of_it_is_refused(store: remote_store.Remote) -> None:
    """Whoever writes to a remote may forge what it holds, hashes and all."""
    forged = json.dumps([{"md5": hashlib.md5(b"x").hexdigest(), "relpath": "../../../forged"}]).encode()
    name = hashlib.md5(forged).hexdigest() + ".dir"
    for oid, text in ((hashlib.md5(b"x").hexdigest(), b"x"), (name, forged)):
        place = Path(store.odb.oid_to_path(oid))
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(text)
    read = json.loads(entry(store).read_text())
    entry(store).write_text(json.dumps(read | {"outs": read["outs"] | {"work/student/a": name}}))
    with pytest.raises(remote_store.Damaged, match="names a file outside of it"):
        store.fetch(STAGE, MADE_FROM)
    assert not Path("forged").exists() and files("work") == {}


@pytest.mark.parametrize(
    ("listed", "rule"),
    [
        ({"a": 1}, "has no list of files"),
        ([{"md5": "0" * 32}], "has no list of files"),
        (["a"], "has no list of files"),
        ([{"relpath": "a"}], "has no list of files"),
        ([{"md5": "/../../../beside", "relpath": "a"}], "has no list of files"),
        ([{"md5": "0" * 32, "relpath": "a\0"}], "names a file outside of it"),
        ([{"md5": "0" * 32, "relpath": "a"}, {"md5": "0" * 32, "relpath": "a/b"}], "has a file that is a folder, too"),
    ],
)
def test_a_list_that_is_none_is_refused_before_anything_is_read(
    store: remote_store.Remote, listed: object, rule: str
) -> None:
    """Whatever a forger hashes; the entry's next reader finds none, and the one who makes the result writes anew."""
    text = json.dumps(listed)
    name = hashlib.md5(text.encode()).hexdigest() + ".dir"
    place = Path(store.odb.oid_to_path(name))
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    read = json.loads(entry(store).read_text())
    entry(store).write_text(json.dumps(read | {"outs": read["outs"] | {"work/student/a": name}}))
    with pytest.raises(remote_store.Damaged, match=rule) as raised:
        store.fetch(STAGE, MADE_FROM)
    assert raised.value.paths == (str(place),) and files("work") == {}


def test_a_store_that_says_nothing_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """s3fs alone asks five times, around the attempts of botocore, each a minute."""
    asked: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as silent:
        threading.Thread(target=lambda: _accept(silent, asked), daemon=True).start()
        endpoint = f"    endpointurl = http://127.0.0.1:{silent.getsockname()[1]}\n    read_timeout = 1\n"
        configure(tmp_path, STORE, f"['remote \"store\"']\n    access_key_id = aKey\n{KEY}{endpoint}")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
        with pytest.raises(Exception, match="Read timeout"):
            remote.connect("store").fetch(STAGE, MADE_FROM)
        assert len(asked) == 1
        silent.shutdown(socket.SHUT_RDWR)
    configure(tmp_path, STORE)
    assert remote.connect("store").fs.fs.config_kwargs["read_timeout"] == 20


def _accept(server: socket.socket, asked: list[socket.socket]) -> None:
    with contextlib.suppress(OSError):
        while True:
            asked.append(server.accept()[0])


def test_a_store_that_is_back_at_the_end_is_pushed_to(
    store: remote_store.Remote, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Though a stage has found it away a moment ago."""
    from pipeline.plan import fresh
    from pipeline.run import runner as run

    Path("before").rename("work")
    places.pushed("student", "a").unlink()
    entry(store).unlink()
    monkeypatch.setattr(fresh, "reason", lambda stage: None)
    monkeypatch.setattr(remote_store.Remote, "push", _fail)
    remote.push("store", STAGE)
    monkeypatch.undo()
    monkeypatch.chdir(Path(store.root).parent)
    monkeypatch.setattr(fresh, "reason", lambda stage: None)
    assert "student@a is not pushed: BDL_REMOTE=store: OSError: lost" in capsys.readouterr().err
    run.push_rest({STAGE.name: STAGE}, "store")
    assert store.is_pushed(STAGE) and entry(store).is_file() and capsys.readouterr().err == ""


def _fail(*arguments: object) -> None:
    raise OSError("lost")


def test_nothing_half_pushed_is_found(store: remote_store.Remote) -> None:
    assert store.fetch(STAGE, MADE_FROM)
    entry(store).unlink()
    Path("work/student/a.run.json").unlink()
    with pytest.raises(FileNotFoundError):
        store.push(STAGE)
    assert not store.fetch(STAGE, MADE_FROM)
