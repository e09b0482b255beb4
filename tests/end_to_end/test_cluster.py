"""A cluster whose nodes do not have the project; one node, on a network of its own, is lost.

The head is started from another folder, where our packages cannot be imported. The second node is alone with its
processes: behind a network interface of its own, with the project's folder, its sources and the head's temporary
files out of sight. Fits take five steps, with a checkpoint at each, and then wait for a file that a test writes once
its fault has happened.
"""

import csv
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from benchmarks import namespaces
from benchmarks.namespaces import Cluster
from tests.end_to_end.conftest import Project, make

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800), pytest.mark.xdist_group("cluster")]  # run in turn
FITS: Final = ("repro", "-j", "2", "trajectory@digits-waits")
SEARCHES: Final[dict[str, tuple[str, ...]]] = {
    "tune": ("tune", "sgd", "--dataset", "digits", "--samples", "2"),
    "study": ("study", "params/study/tiny-rates.yaml"),
}
STUDY: Final = """
{method: sgd, dataset: digits, overlay: {}, grid: {optimiser.lr: [3.0e-3, 1.0e-2]}, seeds: 1, metrics: [nll],
 figure: [{x: optimiser.lr}]}
"""
PLUGIN: Final = """
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from bdl_pipe import Method, StageSpec, State, register_method


@dataclass(frozen=True)
class WaitsConfig:
    steps: int
    gate: str


def fit(data, inputs, config, *, rng, report):
    last = report.load()
    x, start = (last.tensors["x"], last.config["step"]) if last else (torch.zeros(5), 0)
    for step in range(start, config.steps):
        x = x + torch.randn(5, generator=rng.fold("step", step).generator())
        report(step + 1, config.steps)
        if report.due():
            report.save(State({"x": x}, {"step": step + 1}))
        while step == 4 and not Path(config.gate).exists():
            time.sleep(0.05)
    return State({"x": x}, {})


register_method(Method("waits", WaitsConfig, ("classification",), {"trajectory": StageSpec(fit)}))
"""
PARAMS: Final = Path(__file__).with_name("cluster.yaml").read_text()


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that fits wait for, in a folder that all nodes see."""
    return tmp_path_factory.mktemp("gate") / "open"


@pytest.fixture(scope="module")
def prepared(gate: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with its data prepared, which the tests copy."""
    folder = tmp_path_factory.mktemp("prepared") / "tiny"
    project = make(folder, PARAMS.replace("GATE", str(gate)))
    (folder / "plugins/waits.py").write_text(PLUGIN)
    (folder / "params/study").mkdir(parents=True, exist_ok=True)
    (folder / "params/study/tiny-rates.yaml").write_text(STUDY)
    project.pipeline("repro", "prepare@digits", env={"BDL_EXECUTOR": "inline"})
    return project


def copied(project: Project, folder: Path) -> Project:
    shutil.copytree(project.folder, folder, symlinks=True)
    copy = Project(folder)
    copy.env |= {"BDL_EXECUTOR": "ray", "BDL_CHECKPOINT_SECONDS": "0"}
    return copy


@pytest.fixture(scope="module")
def alone(prepared: Project, gate: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The fits of one machine."""
    project = copied(prepared, tmp_path_factory.mktemp("alone") / "tiny")
    gate.touch()
    project.pipeline(*FITS, env={"BDL_EXECUTOR": "inline"})
    gate.unlink()
    return fits(project.folder)


@pytest.fixture
def project(prepared: Project, alone: Any, gate: Path, tmp_path: Path) -> Iterator[Project]:
    yield copied(prepared, tmp_path / "tiny")
    gate.unlink(missing_ok=True)


@pytest.fixture
def cluster(project: Project) -> Iterator[Cluster]:
    """A cluster of two nodes that do not have the project."""
    if not namespaces.available():
        pytest.skip("needs root, ip, and a kernel that allows network, mount and process namespaces")
    with ExitStack() as stack:
        cluster = Cluster(stack, project.folder.parent, [project.folder], health=namespaces.QUICK_HEALTH)
        cluster.join()
        yield cluster


def fits(folder: Path) -> dict[str, bytes]:
    """Read the fits that a command made, without records of seconds and dates."""
    paths = [path for path in (folder / "work/trajectory").rglob("*") if path.is_file()]
    others = ("identity.json", "digits-waits.run.json")
    contents = {path.name: path.read_bytes() for path in paths if path.name not in others}
    assert any(name.endswith(".safetensors") for name in contents), sorted(contents)
    return contents


def searched(verb: str, folder: Path) -> Any:
    """Read what a search made, without seconds."""
    if verb == "tune":
        (overlay,) = (folder / "params/tuned").iterdir()
        (nll,) = (line.split(";")[0] for line in overlay.read_text().splitlines() if "validation nll" in line)
        return yaml.safe_load(overlay.read_text()), nll
    with (folder / "results/tiny/rates.csv").open() as file:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]


def started(project: Project, cluster: Cluster) -> Any:
    """Start the fits, and return when each has kept its last checkpoint before the gate, on a node of its own."""
    words = (sys.executable, "-m", "pipeline", *FITS)
    process = project.start(*words, env={"RAY_ADDRESS": cluster.address})
    while not cluster.works() or waiting(project.folder) < 2:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    return process


def waiting(folder: Path) -> int:
    """Count the fits with a checkpoint of step 5."""
    return sum(rb"step\": 5" in path.read_bytes() for path in (folder / ".state").rglob("*.part"))


def ended(process: Any) -> None:
    out, error = process.communicate(timeout=600)
    assert process.returncode == 0, f"{out}\n{error}"


@pytest.mark.parametrize("silent", [False, True])
def test_a_lost_node_changes_no_bit(silent: bool, project: Project, cluster: Cluster, gate: Path, alone: Any) -> None:
    """Or a silent node is given up: its packets are lost for good, as if the machine were switched off."""
    process = started(project, cluster)
    (cluster.cut if silent else cluster.kill)()
    gate.touch()
    try:
        ended(process)
    finally:
        if silent:
            cluster.mend()
            cluster.kill()
    assert fits(project.folder) == alone


def test_the_error_names_a_lost_head_and_two_commands_continue_the_fits(
    project: Project, cluster: Cluster, gate: Path, alone: Any
) -> None:
    process = started(project, cluster)
    gone = f"the Ray cluster at {cluster.address} has gone (Connection refused): start it again, and the same command"
    cluster.kill_head()
    out, error = process.communicate(timeout=120)
    assert process.returncode == 1 and gone in out + error and "Traceback" not in out + error, f"{out}\n{error}"
    gate.touch()
    cluster.kill()
    cluster.start_head()
    cluster.join()
    words = (sys.executable, "-m", "pipeline", *FITS)
    for process in [project.start(*words, env={"RAY_ADDRESS": cluster.address}) for _ in range(2)]:
        ended(process)
    assert fits(project.folder) == alone


@pytest.mark.parametrize("verb", SEARCHES)
def test_a_search_on_a_cluster_has_the_result_of_one_machine(
    verb: str, project: Project, cluster: Cluster, prepared: Project, tmp_path: Path
) -> None:
    everywhere = {"BDL_SEARCHES": str(tmp_path / "searches")}  # a folder that all nodes see
    (tmp_path / "searches").mkdir()
    project.pipeline(*SEARCHES[verb], env={"RAY_ADDRESS": cluster.address, **everywhere})
    alone = copied(prepared, tmp_path / "alone")
    alone.pipeline(*SEARCHES[verb])
    assert searched(verb, project.folder) == searched(verb, alone.folder)
