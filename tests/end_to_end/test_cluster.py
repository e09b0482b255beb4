"""A cluster whose nodes were started anywhere: none has the project, and one, on a network of its own, is lost.

The head is started from another folder, where our packages cannot be imported. The second node is alone with its
processes: behind a network interface of its own, with the project's folder, its sources and the head's temporary
files out of sight. It is killed while it works, joins anew for the next command, and is killed again.
"""

import csv
import os
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

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800), pytest.mark.xdist_group("cluster")]  # which they share
DATASET: Final = {
    "normalise": "train",
    "whiten": False,
    "validation": 0.2,
    "fit_rows": "train_and_validation",
    "ood": [],
    "corrupted_images": 0,
    "corruptions": "made",
}
SGD: Final = {
    "network": {"name": "mlp", "hidden": [32]},
    "snapshots": 1,
    "batch": 32,
    "optimiser": {"name": "adamw", "lr": 3.0e-3, "weight_decay": 1.0e-4},
}


def params(dataset: str, splits: int, members: int, epochs: int) -> str:
    """One trajectory of several tasks, and a run that is made from it."""
    row = {"dataset": dataset, "seeds": members}
    raw = {
        "seed": 0,
        "datasets": {dataset: {**DATASET, "source": {"name": dataset}, "splits": splits}},
        "methods": {"sgd": {**SGD, "epochs": epochs}, "deterministic": {}},
        "trajectories": {f"{dataset}-sgd": {**row, "method": "sgd", "input": f"prepare/{dataset}"}},
        "teachers": {},
        "coresets": {},
        "runs": {
            f"{dataset}-deterministic": {
                **row,
                "method": "deterministic",
                "setting": "tiny",
                "input": f"trajectory/{dataset}-sgd",
            }
        },
        "evaluate": {"calibration_bins": 15, "batch": 1000, "joint_pairs": 0},
        "report": {"figures_dpi": 110},
    }
    return yaml.safe_dump(raw, sort_keys=False)


STUDY: Final = {
    "method": "sgd",
    "dataset": "digits",
    "overlay": {},
    "grid": {"optimiser.lr": [3.0e-3, 1.0e-2]},
    "seeds": 1,
    "metrics": ["nll"],
    "figure": [{"x": "optimiser.lr"}],
}
VERBS: Final[dict[str, tuple[str, ...]]] = {
    "repro": ("repro", "-j", "2", "student"),
    "paper": ("paper", "ciber:table1", "--dataset", "Boston", "--method", "deterministic"),
    "tune": ("tune", "sgd", "--dataset", "digits", "--samples", "2"),
    "study": ("study", "params/study/tiny-rates.yaml"),
}
ALONE: Final = VERBS | {
    "repro": ("repro", "student"),
    "paper": (*VERBS["paper"], "--executor", "inline"),
}


def project_in(folder: Path) -> Project:
    """Images, prepared, for repro, tune and study; a table, whose members are made in two tasks, for paper."""
    project = make(folder, params("digits", 1, 2, 30))
    for path, text in (
        ("params/paper/ciber-table1.yaml", params("boston", 2, 6, 60)),
        ("params/study/tiny-rates.yaml", yaml.safe_dump(STUDY)),
    ):
        (folder / path).parent.mkdir(parents=True)
        (folder / path).write_text(text)
    project.env |= {"BDL_EXECUTOR": "ray", "BDL_CHECKPOINT_SECONDS": "0"}
    project.pipeline("run", "prepare", "digits", "--executor", "inline")  # for tune; the others bring their data
    return project


def copied(project: Project, folder: Path) -> Project:
    shutil.copytree(project.folder, folder, symlinks=True)
    copy = Project(folder)
    copy.env |= {name: project.env[name] for name in ("BDL_EXECUTOR", "BDL_CHECKPOINT_SECONDS")}
    return copy


def results(verb: str, folder: Path) -> Any:
    """What ``verb`` made, without what differs between equal runs: seconds, commits, dates."""
    if verb in ("repro", "paper"):
        root = folder / "work" if verb == "repro" else folder / "work/paper/ciber-table1"
        paths = [p for kind in ("trajectory", "student") for p in (root / kind).rglob("*") if p.is_file()]
        made = {str(p.relative_to(root)): p.read_bytes() for p in paths if p.suffixes[-2:] != [".run", ".json"]}
        made = {name: blob for name, blob in made.items() if not name.endswith("identity.json")}
        assert any(name.endswith(".safetensors") for name in made), sorted(made)
        return made
    if verb == "tune":
        (overlay,) = (folder / "params/tuned").iterdir()
        (nll,) = (line.split(";")[0] for line in overlay.read_text().splitlines() if "validation nll" in line)
        return yaml.safe_load(overlay.read_text()), nll
    with (folder / "results/tiny/rates.csv").open() as file:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]


def begun(folder: Path) -> int:
    """How many tasks and trials have a checkpoint."""
    found = [Path(at, name) for at, _, files in os.walk(folder / ".state") for name in files]
    tasks = sum(path.suffix in (".part", ".done") for path in found)
    return tasks + sum(path.parts[-2:] == ("checkpoint_000000", "state") for path in found)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """What the others are copies of."""
    return project_in(tmp_path_factory.mktemp("prepared") / "tiny")


@pytest.fixture(scope="module")
def alone(prepared: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """For what one machine makes: stages in the command's own process, trials on a Ray inside it."""
    return copied(prepared, tmp_path_factory.mktemp("alone") / "tiny")


@pytest.fixture(scope="module")
def there(prepared: Project, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Project, Cluster]]:
    """A project, and a cluster whose nodes do not have it."""
    if not namespaces.available():
        pytest.skip("needs root, ip, and a kernel that allows network, mount and process namespaces")
    project = copied(prepared, tmp_path_factory.mktemp("there") / "tiny")
    with ExitStack() as stack:
        yield project, Cluster(stack, project.folder.parent, [project.folder], health=namespaces.QUICK_HEALTH)


@pytest.mark.parametrize("verb", VERBS)
def test_a_cluster_that_loses_a_node_ends_with_the_bits_of_one_machine(
    verb: str, there: tuple[Project, Cluster], alone: Project
) -> None:
    project, cluster = there
    cluster.join()
    process = project.start(sys.executable, "-m", "pipeline", *VERBS[verb], env={"RAY_ADDRESS": cluster.address})
    checkpoints = 0 if verb == "tune" else 2  # of two tasks; trials of a method that cannot be peeked at have none
    while not cluster.works() or begun(project.folder) < checkpoints:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    cluster.kill()
    out, error = process.communicate(timeout=600)
    assert process.returncode == 0, f"{out}\n{error}"
    alone.pipeline(*ALONE[verb], env={"BDL_EXECUTOR": "inline"})
    assert results(verb, project.folder) == results(verb, alone.folder)


def test_a_node_that_falls_silent_is_given_up(
    prepared: Project, there: tuple[Project, Cluster], alone: Project, tmp_path: Path
) -> None:
    """Nothing says that it is gone: its packets are lost, as a machine's that is switched off. They stay lost."""
    cluster, project = there[1], copied(prepared, tmp_path / "tiny")
    cluster.join()
    address = {"RAY_ADDRESS": cluster.address, "BDL_CHECKPOINT_SECONDS": "0.2"}
    process = project.start(sys.executable, "-m", "pipeline", *VERBS["repro"], env=address)
    while not cluster.works() or begun(project.folder) < 2:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    cluster.cut()
    try:
        out, error = process.communicate(timeout=120)
    finally:
        cluster.mend()
        cluster.kill()
    assert process.returncode == 0, f"{out}\n{error}"
    alone.pipeline(*ALONE["repro"], env={"BDL_EXECUTOR": "inline"})
    assert results("repro", project.folder) == results("repro", alone.folder)


def test_the_head_is_lost_and_two_commands_go_on_at_once(
    prepared: Project, there: tuple[Project, Cluster], alone: Project, tmp_path: Path
) -> None:
    """The loss is one line; given in two terminals, the same command goes on from the checkpoints, in one of them."""
    cluster, project = there[1], copied(prepared, tmp_path / "tiny")
    address = {"RAY_ADDRESS": cluster.address, "BDL_CHECKPOINT_SECONDS": "0.2"}
    cluster.join()
    process = project.start(sys.executable, "-m", "pipeline", *VERBS["repro"], env=address)
    while not cluster.works() or begun(project.folder) < 2:
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    cluster.kill_head()
    out, error = process.communicate(timeout=120)
    gone = f"trajectory digits-sgd: the Ray cluster at {cluster.address} has gone (Connection refused): start it again"
    assert process.returncode == 1 and gone in error and "Traceback" not in out + error, f"{out}\n{error}"
    cluster.kill()
    cluster.start_head()
    cluster.join()
    both = [project.start(sys.executable, "-m", "pipeline", *VERBS["repro"], env=address) for _ in range(2)]
    said = [process.communicate(timeout=300) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert sum("waiting for process" in out for out, _ in said) == 1, said
    alone.pipeline(*ALONE["repro"], env={"BDL_EXECUTOR": "inline"})
    assert results("repro", project.folder) == results("repro", alone.folder)
