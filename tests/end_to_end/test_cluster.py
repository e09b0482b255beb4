"""A cluster whose nodes were started anywhere: none has the project, and one, on a network of its own, is lost.

The head is started from another folder, where our packages cannot be imported. The second node is alone with its
processes: behind a network interface of its own, with the project's folder, its sources and the head's temporary
files out of sight. It is killed while it works, joins anew for the next command, and is killed again.
"""

import csv
import os
import shutil
import site
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

import psutil
import pytest
import yaml

from tests.end_to_end.conftest import Project, make

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800), pytest.mark.xdist_group("cluster")]  # which they share
BIN: Final = Path(sys.executable).parent
HEALTH: Final = {  # a lost node is noticed in seconds
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_failure_threshold": "4",
}
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
    return sum(name.endswith((".part", ".done")) for _, _, files in os.walk(folder / ".state") for name in files)


class Cluster:
    """A head on this machine, whose address is ``address``, and a node that joins it and is killed."""

    def __init__(self, stack: ExitStack, project: Path) -> None:
        self._stack, self._name, self._logs = stack, f"bdl{os.getpid()}", project.parent
        temporary = tempfile.mkdtemp(prefix="bdl-")  # a short path, for sockets
        stack.callback(shutil.rmtree, temporary, ignore_errors=True)
        sources = _sources()
        self._hidden = [*sources, str(project), temporary, "/dev/shm"]
        self._ours, self._its = self._network()
        with socket.socket() as free:
            free.bind((self._ours, 0))
            port = free.getsockname()[1]
        self.address = f"{self._ours}:{port}"
        head = (
            "--head",
            f"--port={port}",
            f"--temp-dir={temporary}",
            "--include-dashboard=false",
        )
        self._start("head", ["unshare", "--mount"], sources, f"--node-ip-address={self._ours}", *head)

    def join(self) -> None:
        """Start the second node."""
        alone = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        options = f"--address={self.address}", f"--node-ip-address={self._its}"
        self._node = self._start("node", ["ip", "netns", "exec", self._name, *alone], self._hidden, *options)

    def works(self) -> bool:
        """Whether the second node is at a task or a trial."""
        return self._runs("ray::_remote") or self._runs("ray::ImplicitFunc")

    def kill(self) -> None:
        """The second node has no time to say goodbye."""
        self._node.kill()
        self._node.wait()

    def _runs(self, title: str) -> bool:
        for process in psutil.Process(self._node.pid).children(recursive=True):
            with suppress(psutil.Error, IndexError):
                if process.cmdline()[0].startswith(title):
                    return True
        return False

    def _network(self) -> tuple[str, str]:
        """The addresses of a cable's ends: ours, and that in the second node's namespace."""
        name, number = self._name, os.getpid() % 16384 * 4
        ours, its = (f"198.18.{number // 256}.{number % 256 + end}" for end in (1, 2))
        _ip(f"netns add {name}")
        self._stack.callback(_ip, f"netns delete {name}")  # and the cable
        _ip(f"link add {name}a type veth peer name {name}b netns {name}")
        for command in (f"addr add {ours}/30 dev {name}a", f"link set {name}a up"):
            _ip(command)
        for command in (f"addr add {its}/30 dev {name}b", f"link set {name}b up", "link set lo up"):
            _ip(f"-n {name} {command}")
        return ours, its

    def _start(self, name: str, namespaces: list[str], hidden: list[str], *options: str) -> "subprocess.Popen[bytes]":
        """A node of one core in ``namespaces``, where ``hidden`` is empty and our packages are not found."""
        lines = [f"mount -t tmpfs none {path}" for path in hidden]
        lines += [f"{sys.executable} -c 'import {name}' 2>&- && exit 3" for name in ("bdl_pipe", "pipeline", "stages")]
        lines += [f'exec {BIN}/ray start --num-cpus=1 --block --disable-usage-stats "$@"']
        log = self._logs / f"{name}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [*namespaces, "sh", "-c", "\n".join(lines), "sh", *options],
                cwd="/",
                env={"PATH": f"{BIN}:{os.environ['PATH']}", "HOME": str(self._logs), "OMP_NUM_THREADS": "1", **HEALTH},
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._stack.callback(_stop, process)
        end = time.monotonic() + 90
        while "Ray runtime started" not in log.read_text():
            assert process.poll() is None and time.monotonic() < end, f"{name} did not start: {log.read_text()}"
            time.sleep(0.1)
        return process


def _sources() -> list[str]:
    """Folders from which an editable installation imports."""
    files = [path for place in site.getsitepackages() for path in Path(place).glob("*.pth")]
    return [
        line for path in files for line in path.read_text().splitlines() if line.startswith("/") and Path(line).is_dir()
    ]


def _ip(arguments: str) -> None:
    subprocess.run(["ip", *arguments.split()], check=True, capture_output=True)


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """It, and all that it started."""
    if process.poll() is None:
        for each in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
            with suppress(psutil.Error):
                each.kill()
        process.wait()


def _namespaces() -> bool:
    """Whether the kernel lets us have them."""
    test = "mount -t tmpfs none /mnt && ip link add bdl-test type veth peer name bdl-test-b"
    tools = all(shutil.which(tool) for tool in ("ip", "unshare"))
    command = ["unshare", "--mount", "--net", "--pid", "--fork", "sh", "-c", test]
    return os.geteuid() == 0 and tools and subprocess.run(command, capture_output=True).returncode == 0


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
    if not _namespaces():
        pytest.skip("needs root, ip, and a kernel that allows network, mount and process namespaces")
    project = copied(prepared, tmp_path_factory.mktemp("there") / "tiny")
    with ExitStack() as stack:
        yield project, Cluster(stack, project.folder)


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
