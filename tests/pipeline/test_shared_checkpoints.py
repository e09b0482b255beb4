"""Checkpoints in shared storage: workers write them, and another machine continues from them; S3 is moto's server."""

import os
import pickle
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bdl_pipe.errors import UserError
from pipeline.core.settings import Settings
from pipeline.work import choose, preflight
from pipeline.work.executor import Executor, Task
from pipeline.work.store import Store
from tests import buckets
from tests.buckets import SECRET
from tests.pipeline import fake_work
from tests.pipeline.fake_work import run


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """A bucket that this process, and the workers that it starts, can reach."""
    with buckets.served("checkpoints") as (environment, _), pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        yield "s3://checkpoints/ours"


def machine(folder: Path) -> Store:
    """The store of one stage in a project in ``folder``."""
    store = Store(folder / "teacher" / f"key-{folder.parent.name}", "identity")
    store.open()
    return store


@pytest.mark.ray
def test_another_machine_continues_from_a_shared_folder(ray_head: str, tmp_path: Path) -> None:
    (tmp_path / "network").mkdir()
    continues(lambda settings: choose(settings, lambda: ray_head), str(tmp_path / "network"), tmp_path)


@pytest.mark.soak
def test_another_machine_continues_from_a_bucket(s3: str, tmp_path: Path) -> None:
    """The embedded Ray gets the bucket's keys from the environment."""
    continues(choose, s3, tmp_path)


def continues(start: Callable[[Settings], Executor], address: str, tmp_path: Path) -> None:
    """The first command fails at step 50 of 100; the second has 200 steps, and loses a worker after 100."""
    executor = start(Settings(executor="ray", checkpoint_seconds=0.0, checkpoints=address))
    stages = [machine(tmp_path / name) for name in ("one", "two")]
    task, fuse = Task("a", 100, ("stop",)), str(tmp_path / "fuse")
    try:
        with pytest.raises(UserError, match="stopped"):
            run(executor, fake_work.steps, task, shared={"stop": True}, store=stages[0])
        assert not list((tmp_path / "one").rglob("*.part"))
        assert stages[1].sharing(address).load("a")
        shutil.rmtree(tmp_path / "one")
        longer = Task("a", 200, ("fuse",))
        (done,) = run(executor, fake_work.steps, longer, shared={"fuse": fuse}, store=stages[1])
    finally:
        executor.close()
    assert done.result.tensors["sum"] == 20_100
    assert done.result.config["began_at"] == 101
    assert Path(fuse).exists(), "no worker died"
    assert stages[1].sharing(address).load("a") is None, "a finished task's checkpoint is left"
    assert stages[1].finished("a")


@pytest.mark.soak
def test_a_bucket_keeps_checkpoints_and_a_missing_bucket_is_named(s3: str, tmp_path: Path) -> None:
    preflight(Settings(checkpoints=s3))
    store = machine(tmp_path / "one").sharing(s3)
    store.save("a", b"1")
    assert pickle.loads(pickle.dumps(store)).load("a") == b"1" and SECRET.encode() not in pickle.dumps(store)
    at = re.escape(os.environ["AWS_ENDPOINT_URL"])
    missing = rf"^BDL_CHECKPOINTS=s3://none/x: cannot be written \(at {at}\): there is no such bucket"
    with pytest.raises(UserError, match=missing) as raised:
        preflight(Settings(checkpoints="s3://none/x"))
    assert SECRET not in str(raised.value)


@pytest.mark.soak
@pytest.mark.parametrize("text", ["endpoint_url = {}", "services = ours\n[services ours]\ns3 =\n  endpoint_url = {}"])
def test_the_endpoint_of_a_profile_is_used(s3: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import s3fs

    (tmp_path / "config").write_text("[profile ours]\n" + text.format(os.environ["AWS_ENDPOINT_URL"]))
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "ours")
    s3fs.S3FileSystem.clear_instance_cache()  # so that it connects again, with the present environment
    preflight(Settings(checkpoints=s3))
    store = machine(tmp_path / "one").sharing(s3)
    store.save("a", b"1")
    assert store.load("a") == b"1"
