"""Inputs that exceed the memory a fit should take: which parts are read, by which process, and what is sent."""

import json
import os
import pickle
import subprocess
import sys
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
import torch

from bdl_pipe import artifacts
from bdl_pipe.artifacts import State
from bdl_pipe.errors import ArtifactError
from bdl_pipe.files import FileBytes
from pipeline.core import places
from pipeline.core.settings import Settings
from pipeline.work import choose
from pipeline.work.cluster import through_hub
from pipeline.work.executor import Executor, Task
from pipeline.work.hub import HubFile
from tests.pipeline import fake_work, walk
from tests.pipeline.fake_work import REGISTRY
from tests.pipeline.params_cases import changed, params

ROOT = Path(__file__).parents[2]
EXPERTS, SNAPSHOTS, WEIGHTS = 8, 50, 160_000  # 256 MB together, 32 MB for each expert
WORKERS = ("teacher/b-walk", "student/b-last")
DRIVER = """
import json, resource
from pipeline.core.load import load
from pipeline.core.settings import Settings
from pipeline.plan.plan import one
from pipeline.stages import fit
from pipeline.work import choose
from tests.pipeline.fake_work import REGISTRY

settings = Settings(executor="ray", tracking=False)
loaded, executor = load(registry=REGISTRY), choose(settings)

def peak(kind, key):
    fit.run(one(kind, key, loaded), loaded, executor, settings)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

print(json.dumps([peak("teacher", "b-walk"), peak("student", "b-last")]))  # the first one has imported all
executor.close()
"""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with boston prepared and eight experts, of which a run reads only the last snapshots."""
    folder = tmp_path_factory.mktemp("lazy")
    row = {"dataset": "boston", "method": "walk", "seeds": 1, "input": "prepare/boston"}
    raw = params("good", methods={"walk": {"steps": 2}, "last": {}}, teachers={"b-walk": row})
    changes = {"datasets.boston.splits": 1, "trajectories.b-walk.seeds": EXPERTS}
    changes["runs"] = {"b-last": row | {"method": "last", "setting": "s", "input": "trajectory/b-walk"}}
    walk.prepared(folder, changed(raw, changes), registry=REGISTRY)
    with chdir(folder):
        trajectory = places.artifact("trajectory", "b-walk")
        with artifacts.publish(trajectory, "trajectory", about={"seeds": EXPERTS}) as place:
            for member in range(EXPERTS):
                weights = torch.full((SNAPSHOTS, WEIGHTS), float(member))
                artifacts.write_state(place / f"0-{member}", State({"w": weights}))
    return folder


@pytest.mark.slow
@pytest.mark.ray
def test_a_fit_takes_memory_only_for_the_parts_that_it_reads(prepared: Path) -> None:
    """The last snapshots of eight experts are 5 MB of 256 MB; the driver and a worker may each take up to 64 MB."""
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    options: dict[str, Any] = {"cwd": prepared, "env": env | {"BDL_TRACKING": "off"}, "check": True, "text": True}
    done = subprocess.run([sys.executable, "-c", DRIVER], capture_output=True, **options)
    before, after = json.loads(done.stdout.splitlines()[-1])
    limit = EXPERTS * SNAPSHOTS * WEIGHTS * 4 // 4
    assert (after - before) * 1024 < limit
    state = artifacts.load(prepared / "work/student/b-last", "student").state("0-0")
    assert state.tensors["ends"].tolist() == list(range(EXPERTS))
    peaks = [json.loads((prepared / f"work/{row}.run.json").read_text())["peak_bytes"]["0-0"] for row in WORKERS]
    assert peaks[1] - peaks[0] < limit


@pytest.mark.ray
def test_a_worker_without_the_file_reads_it_through_the_driver(ray_head: str, tmp_path: Path) -> None:
    artifacts.write_state(tmp_path / "0-0", State({"w": torch.arange(6.0).reshape(3, 2)}))
    (tmp_path / "notes").write_bytes(b"abcdef")
    executor: Executor = choose(Settings(executor="ray"), lambda: ray_head)

    def relative(path: Path) -> FileBytes:
        file = FileBytes.of(path)
        return FileBytes(Path(os.path.relpath(path)), file.size, file.inode, file.changed)

    stored = artifacts.StoredTensors(relative(tmp_path / "0-0.safetensors"), "0-0")
    shared = {"state": State(stored), "files": {"notes": relative(tmp_path / "notes")}}
    away = tmp_path / "away" / "a" / "b"
    away.mkdir(parents=True)
    try:
        tasks = [Task(place, place, tuple(shared)) for place in (str(Path.cwd()), str(away))]
        done = fake_work.run(executor, fake_work.ends, *tasks, shared=shared)
        assert [d.result for d in done] == [(True, 9.0, b"bcd"), (False, 9.0, b"bcd")]
        (tmp_path / "notes").write_bytes(b"others")
        os.utime(tmp_path / "notes", ns=(1, 1))
        with pytest.raises(ArtifactError, match="has been replaced since it was opened"):
            fake_work.run(executor, fake_work.ends, tasks[1], shared=shared)
    finally:
        executor.close()


def test_only_files_are_replaced_by_files_of_the_hub(tmp_path: Path) -> None:
    (tmp_path / "notes").write_bytes(b"abc")
    file, plain = FileBytes.of(tmp_path / "notes"), State({"w": torch.zeros(2)})
    received = through_hub({"a": {"b": file}, "c": plain, "d": 3}, "hub")
    assert received == {"a": {"b": HubFile(file, "hub")}, "c": plain, "d": 3} and received["c"] is plain
    assert received["a"]["b"].size == 3 and received["a"]["b"].read(0, 3) == b"abc"  # the file is on this machine
    assert through_hub(received, "other") == received
    assert pickle.loads(pickle.dumps(file)) == file
