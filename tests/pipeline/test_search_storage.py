"""Where trials are kept: a driver's folder that all nodes reach, and storage that machines share."""

import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import boto3
import pytest
import tune_cases
import yaml
from moto.server import ThreadedMotoServer
from pyarrow import fs as arrow

import bdl_pipe.registry
from bdl_pipe.errors import ConfigError, UserError
from pipeline.core.settings import Settings
from pipeline.search import ray_tune, storage, tune
from pipeline.work import cluster

HERE = Path(__file__).parent
SECRET = "pSecretOfATest/wJalrXUtnFEMI"
KEYS = {"AWS_ACCESS_KEY_ID": "AKIAOFATESTMACHINE99", "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_DEFAULT_REGION": "us-east-1"}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for each request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


def machine(folder: Path, monkeypatch: pytest.MonkeyPatch, **shift: str) -> Path:
    """A project of the known methods, prepared."""
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(bdl_pipe.registry, "METHODS", tune_cases.REGISTRY)
    tune_cases.project(folder, **shift)
    return folder


@pytest.mark.slow
def test_nodes_reach_the_drivers_folder_and_nothing_beside_it(tmp_path: Path) -> None:
    """From a task of another process, by the calls that Ray Tune makes."""
    import ray

    (tmp_path / "beside").write_text("b")
    root = tmp_path / "search"

    @ray.remote
    def work(place: storage.Place) -> list[str]:
        files = place.files
        assert files is not None
        files.create_dir(f"{place.path}/a/b", recursive=True)
        with files.open_output_stream(f"{place.path}/a/b/one") as stream:
            stream.write(b"1" * 3)
            stream.write(b"2")
        files.create_dir(f"{place.path}/c")
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder)
            (source / "back").mkdir()
            (source / "two").write_bytes(os.urandom(10**6))
            arrow.copy_files(str(source / "two"), f"{place.path}/c/two", destination_filesystem=files)
            arrow.copy_files(f"{place.path}/c", str(source / "back"), source_filesystem=files)
            assert (source / "back/two").read_bytes() == (source / "two").read_bytes()
        found = files.get_file_info(arrow.FileSelector(place.path, recursive=True))
        files.delete_dir(f"{place.path}/c")
        assert files.get_file_info(f"{place.path}/c").type == arrow.FileType.NotFound
        assert files.get_file_info(f"{place.path}/a").type == arrow.FileType.Directory
        for path in (f"{place.path}/../beside", str(Path(place.path).parent / "beside")):
            with pytest.raises(FileNotFoundError):  # since nobody says what is there
                files.open_input_stream(path)
            with pytest.raises(PermissionError, match="only below"):
                files.open_output_stream(path).close()
        return sorted(each.path.removeprefix(f"{place.path}/") for each in found)

    with cluster.connected(Settings()), storage.of_driver(root) as place:
        assert ray.get(work.remote(place)) == ["a", "a/b", "a/b/one", "c", "c/two"]
        assert place.read("none.json") is None
        place.write("facts.json", {"a": 1})
        assert place.read("facts.json") == {"a": 1}
        with storage.of_driver(tmp_path / "another") as another:
            assert another.read("facts.json") is None
    with cluster.connected(Settings()), storage.of_driver(root):  # after a kill trials of a search keep the old place
        assert place.read("facts.json") == {"a": 1}
    assert (root / "a/b/one").read_bytes() == b"1112"
    assert (tmp_path / "beside").read_text() == "b"


@pytest.mark.slow
def test_another_machine_goes_on_with_a_population(
    tmp_path: Path, endpoint: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """The first is interrupted in the middle of the population; the second has nothing of it but the bucket."""
    log = tmp_path / "starts.txt"
    first, second = (machine(tmp_path / name, monkeypatch, log=str(log)) for name in ("first", "second"))
    client = boto3.client(
        "s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b"
    )
    client.create_bucket(Bucket="searches")
    code = (
        "import sys, argparse, tune_cases, bdl_pipe.registry;"
        "bdl_pipe.registry.METHODS = tune_cases.REGISTRY; from pipeline.search import tune;"
        "tune.main(argparse.Namespace(method='shift', dataset='toy', samples=4, resume=sys.argv[1]=='r',"
        " apply=False, scheduler='pbt'))"
    )

    begun_here: list[subprocess.Popen[str]] = []
    request.addfinalizer(lambda: [each.kill() for each in begun_here])  # a search that hangs takes a core

    def start(folder: Path, mode: str) -> "subprocess.Popen[str]":
        root = HERE.parents[1]
        env = {
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": ":".join(map(str, (HERE, root, root / "src"))),
            "HOME": str(folder),
            "OMP_NUM_THREADS": "1",
            "BDL_SEARCHES": "s3://searches/ours",
            "AWS_ENDPOINT_URL": endpoint,
            **KEYS,
        }
        command, pipe = [sys.executable, "-c", code, mode], subprocess.PIPE
        begun_here.append(subprocess.Popen(command, cwd=folder, env=env, stdout=pipe, stderr=pipe, text=True))
        return begun_here[-1]

    def begun() -> list[tuple[float, int]]:
        lines = log.read_text().splitlines() if log.exists() else []
        return [(float(shift), int(start)) for shift, start, _ in map(str.split, lines)]

    stopped, until = start(first, "n"), time.monotonic() + 400
    while len(begun()) < 6 and time.monotonic() < until:
        time.sleep(0.1)
    stopped.send_signal(signal.SIGINT)
    assert "stopped; go on with --resume" in stopped.communicate(timeout=200)[1]
    before = begun()
    assert len([start for _, start in before if start == 0]) == 4  # the whole population has begun
    assert "holds an unfinished search; go on with --resume" in start(second, "n").communicate(timeout=200)[1]
    done = start(second, "r")
    said, problems = done.communicate(timeout=500)
    assert done.returncode == 0, problems[-3000:]
    after = begun()[len(before) :]
    assert [start for _, start in after].count(0) == 2  # the finals; all others go on from checkpoints in the bucket
    assert {shift for shift, start in after if start} - {shift for shift, start in before if start == 0}  # were changed
    text = (second / "params/tuned/shift-toy.yaml").read_text()
    assert "a population of 4, whose numbers changed on the way, reached" in text and "present numbers:" in text
    winner = yaml.safe_load(text)["runs"]["toy-shift"]["override"]["inner"]["shift"]
    assert winner in {shift for shift, start in after if start == 0}
    assert said.count(" of 4: nll") >= 3 and said.count(" of 2: nll") == 2
    kept = client.list_objects_v2(Bucket="searches")["Contents"]
    texts = [client.get_object(Bucket="searches", Key=each["Key"])["Body"].read() for each in kept]
    assert texts and not any(SECRET.encode() in text for text in texts)


def test_storage_that_cannot_be_used_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for value, rule in (
        ("searches", "must be s3://bucket/path, or a folder from / on that is there, got 'searches'"),
        (str(tmp_path / "none"), "or a folder from / on that is there"),
        ("s3://user:pass@bucket/x", "must hold no credential"),
        ("gs://bucket/x", "must be s3://bucket/path"),
    ):
        with pytest.raises(ConfigError, match=rule) as caught:
            Settings.read({"BDL_SEARCHES": value})
        assert "pass" not in str(caught.value)
    assert Settings.read({"BDL_SEARCHES": f"{tmp_path}/"}).searches == str(tmp_path)
    for name, value in {**KEYS, "AWS_ENDPOINT_URL": "http://127.0.0.1:9"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=r"BDL_SEARCHES=s3://searches/x: nobody answers there; .*, or unset") as said:
        storage.shared(Settings(searches="s3://searches/x"), "a", "b")
    assert SECRET not in str(said.value) and "\n" not in str(said.value)


def test_what_a_population_cannot_be_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pipeline.core.load import load

    machine(tmp_path / "toy", monkeypatch)
    with pytest.raises(UserError, match=r"--samples: must be >= 4, .*, got 3"):
        tune.plan(load(), "shift", "toy", 3, None, Settings(), ray_tune.PBT)
    whole = tune_cases.StageSpec(tune_cases.shift, needs={"teacher": "all"})
    without = replace(tune_cases.SHIFT, stages={"student": whole})
    monkeypatch.setitem(tune_cases.REGISTRY, "shift", without)
    with pytest.raises(UserError, match="cannot be judged before its end"):
        tune.plan(load(), "shift", "toy", 4, None, Settings(), ray_tune.PBT)
