"""What a fault costs on a cluster: ``python -m benchmarks.cluster_faults --to results/cluster_faults.md``.

A cluster of two nodes, on networks of their own and without the project, fits a trajectory of two seeds, and a
posterior from it. When the first checkpoint is there, one thing goes wrong. For each fault the table has what the
terminal said, how long it took beside the undisturbed run, and whether the artifacts are that run's, bit for bit.
Where the command fails, the fault is mended (the head is started again, space is made), and the same command is given
again; nothing else is done. Linux, as root.
"""

import argparse
import datetime
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import psutil
import yaml

from benchmarks import namespaces

ROOT: Final = Path(__file__).resolve().parents[1]
COMMAND: Final = (sys.executable, "-m", "pipeline", "repro", "-j", "2", "student")
LIMIT_SECONDS: Final = 900.0  # a command that takes longer hangs
_LINES: Final = 8  # of a terminal
_HEADER: Final = """\
| fault | exit codes | fault to command's end | then | all seconds | undisturbed | bits | left | load | commit |
| --- | --- | ---: | --- | ---: | ---: | --- | ---: | ---: | --- |"""
STORE_BYTES: Final = 80 * 2**20  # about the smallest that Ray allows
DISK_MEGABYTES: Final = 300
PARAMS: Final[dict[str, Any]] = {
    "seed": 0,
    "datasets": {
        "digits": {
            "source": {"name": "digits"},
            "splits": 1,
            "normalise": "train",
            "whiten": False,
            "validation": 0.2,
            "fit_rows": "train_and_validation",
            "ood": [],
            "corrupted_images": 0,
            "corruptions": "made",
        }
    },
    "methods": {
        "sgd": {
            "network": {"name": "mlp", "hidden": [32]},
            "epochs": 120,
            "snapshots": 1,
            "batch": 32,
            "optimiser": {"name": "adamw", "lr": 3.0e-3, "weight_decay": 1.0e-4},
        },
        "deterministic": {},
    },
    "trajectories": {"digits-sgd": {"dataset": "digits", "method": "sgd", "seeds": 2, "input": "prepare/digits"}},
    "teachers": {},
    "coresets": {},
    "runs": {
        "digits-deterministic": {
            "dataset": "digits",
            "method": "deterministic",
            "setting": "tiny",
            "seeds": 2,
            "input": "trajectory/digits-sgd",
        }
    },
    "evaluate": {"calibration_bins": 15, "batch": 1000, "joint_pairs": 0},
    "report": {"figures_dpi": 110},
}
HOG: Final = """
import sys, time
import numpy, ray
ray.init(sys.argv[1], log_to_driver=False, logging_level="ERROR")
held = [ray.get(ray.put(numpy.zeros(2**19, numpy.uint8))) for _ in range(int(sys.argv[2]) // 2**19 + 1)]
held += [ray.get(ray.put(numpy.zeros(2**13, numpy.uint8))) for _ in range(200)]  # the gaps, too
print("full", flush=True)
time.sleep(3600)
"""


@dataclass
class Scene:
    """Where a fault happens: a project, its cluster, and the command that runs."""

    folder: Path
    cluster: namespaces.Cluster
    stack: ExitStack
    commands: "list[subprocess.Popen[str]]" = field(default_factory=list)
    temporary: Path | None = None

    def start(self) -> "subprocess.Popen[str]":
        """Give the command; what it prints goes to a file of its number."""
        with (self.folder.parent / f"command-{len(self.commands)}.log").open("w") as log:
            process = subprocess.Popen(
                COMMAND,
                cwd=self.folder,
                env=_environment(self.folder) | {"RAY_ADDRESS": self.cluster.address},
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        self.commands.append(process)
        self.stack.callback(namespaces.stop, process)
        return process

    def said(self, number: int) -> list[str]:
        """Return the lines that a command printed, without the folders of this machine."""
        text = (self.folder.parent / f"command-{number}.log").read_text(errors="replace")
        lines = text.replace(str(self.folder), "PROJECT").replace(self.cluster.address, "HEAD:PORT").splitlines()
        return [line.rstrip() for line in lines if line.strip()]


Act = Callable[[Scene], None]


def _nothing(scene: Scene) -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong.

    Attributes:
        name: for ``--only``.
        what: is done, in a few words.
        act: does it, once the first checkpoint is there, or before the command where ``at_start``.
        fails: the command is expected to fail, and to be given again.
        cure: what a user does before that.
        cured: the same in words; empty: nothing.
        head: the cluster is started with these options of the head.
        disk, spill: the project, or the head's files, are on a small disk of their own.
    """

    name: str
    what: str
    act: Act
    fails: bool = False
    cure: Act = _nothing
    cured: str = ""
    at_start: bool = False
    head: tuple[str, ...] = ()
    disk: bool = False
    spill: bool = False


def kill_worker(scene: Scene) -> None:
    """End one process at a task."""
    scene.cluster.workers()[0].kill()


def kill_raylet(scene: Scene) -> None:
    """End the second node's raylet alone."""
    scene.cluster.raylet().kill()


def kill_node(scene: Scene) -> None:
    """End the second node."""
    scene.cluster.kill()


def kill_head(scene: Scene) -> None:
    """End the head."""
    scene.cluster.kill_head()


def kill_gcs(scene: Scene) -> None:
    """End the head but for the raylet that the command speaks with: what a command on another node sees."""
    scene.cluster.kill_gcs()


def restart(scene: Scene) -> None:
    """Start the cluster again, at the same address."""
    scene.cluster.kill()
    scene.cluster.kill_head()
    scene.cluster.start_head()
    scene.cluster.join()


def kill_driver(scene: Scene) -> None:
    """End the command, and it alone."""
    scene.commands[0].kill()


def partition(seconds: float) -> Act:
    """Cut the second node off for some time."""

    def act(scene: Scene) -> None:
        scene.cluster.cut()
        timer = threading.Timer(seconds, scene.cluster.mend)
        timer.start()
        scene.stack.callback(timer.cancel)

    return act


def fill_store(scene: Scene) -> None:
    """Let another program on the cluster hold more objects than the head's store has room for."""
    with (scene.folder.parent / "hog.log").open("w+") as log:
        command = [sys.executable, "-c", HOG, scene.cluster.address, str(STORE_BYTES)]
        hog = subprocess.Popen(command, cwd="/", env=_bare(), stdout=log, stderr=log, text=True)
        scene.stack.callback(namespaces.stop, hog)
        while "full" not in (scene.folder.parent / "hog.log").read_text():
            assert hog.poll() is None, (scene.folder.parent / "hog.log").read_text()
            time.sleep(0.1)


def fill_store_and_disk(scene: Scene) -> None:
    """Fill the head's store, and then the disk that it spills to, of which Ray leaves a twentieth to others."""
    fill_store(scene)
    assert scene.temporary is not None
    namespaces.fill(scene.temporary, but=DISK_MEGABYTES * 2**20 // 25)


def fill_head(scene: Scene) -> None:
    """Leave no byte free on the disk of the head's files."""
    assert scene.temporary is not None
    namespaces.fill(scene.temporary)


def spare_head(scene: Scene) -> None:
    """Make space on the disk of the head's files."""
    assert scene.temporary is not None
    (scene.temporary / "ballast").unlink()


def fill_disk(scene: Scene) -> None:
    """Leave no byte free on the project's disk."""
    namespaces.fill(scene.folder)


def spare_disk(scene: Scene) -> None:
    """Make space on the project's disk."""
    (scene.folder / "ballast").unlink()


def slow_worker(scene: Scene) -> None:
    """Let the second node's tasks run for a tenth of the time only."""
    end = threading.Event()

    def often() -> None:
        while not end.is_set():
            for number, seconds in ((signal.SIGSTOP, 0.18), (signal.SIGCONT, 0.02)):
                for worker in scene.cluster.workers():
                    with suppress(psutil.Error):
                        worker.send_signal(number)
                end.wait(seconds)

    thread = threading.Thread(target=often, daemon=True)
    thread.start()
    scene.stack.callback(thread.join)
    scene.stack.callback(end.set)


def another_driver(scene: Scene) -> None:
    """Give the same command in a second terminal."""
    scene.start()


STORE: Final = (f"--object-store-memory={STORE_BYTES}",)
FAULTS: Final = (
    Fault("store", "another program fills the object store", fill_store, at_start=True, head=STORE),
    Fault(
        "store-and-disk",
        "another program fills the object store, and the disk that it spills to is full",
        fill_store_and_disk,
        True,
        spare_head,
        "space is made on that disk",
        at_start=True,
        head=STORE,
        spill=True,
    ),
    Fault(
        "head-disk",
        "the disk of the head's temporary files is full",
        fill_head,
        True,
        spare_head,
        "space is made on that disk",
        at_start=True,
        spill=True,
    ),
    Fault("worker", "SIGKILL of a worker at its task", kill_worker),
    Fault("raylet", "SIGKILL of the second node's raylet", kill_raylet),
    Fault("node", "the second node is gone, with its objects", kill_node),
    Fault("head", "the head is gone", kill_head, True, restart, "the cluster is started again at its address"),
    Fault(
        "gcs",
        "the head is gone, but for the node that the command was given on",
        kill_gcs,
        True,
        restart,
        "the cluster is started again at its address",
    ),
    Fault("driver", "SIGKILL of the command", kill_driver, True),
    Fault("partition-30", "no packet passes between the nodes for 30 s", partition(30)),
    Fault("partition-300", "no packet passes between the nodes for 300 s", partition(300)),
    Fault("disk", "the project's disk is full", fill_disk, True, spare_disk, "space is made", disk=True),
    Fault("straggler", "the second node's worker runs a tenth of the time", slow_worker),
    Fault("two-drivers", "the same command in a second terminal", another_driver),
)


@dataclass(frozen=True)
class Observed:
    """What came of a fault.

    Attributes:
        codes: of the commands, in their order.
        told: seconds from the fault to the end of the command that it happened to.
        seconds: of all commands.
        lines: of each command, all that it printed.
        same: the artifacts are those of the undisturbed run.
        left: processes of the commands that outlived them.
        load: of the machine, over the last minute, at the end.
    """

    fault: Fault
    codes: list[int]
    told: float
    seconds: float
    lines: list[list[str]]
    same: bool
    left: int
    load: float

    @property
    def well(self) -> bool:
        """Say whether all went as it should."""
        wanted = bool(self.codes[0]) == self.fault.fails and self.codes[-1] == 0
        silent = not any("Traceback" in line for lines in self.lines for line in lines)
        return wanted and self.same and not self.left and silent


def observe(fault: Fault, project: Path, expected: dict[str, bytes]) -> Observed:
    """Run the command in a copy of ``project`` on a fresh cluster, and let the fault happen to it."""
    with scene_of(fault, project) as scene:
        if fault.at_start:
            fault.act(scene)
        began = time.monotonic()
        process = scene.start()
        if not fault.at_start and not wait_until_at_work(scene, process):
            raise SystemExit(f"{fault.name}: the command ended before the fault:\n" + "\n".join(scene.said(0)))
        happened = time.monotonic()
        if not fault.at_start:
            fault.act(scene)
        _wait(process)
        told = time.monotonic() - happened
        spent = time.monotonic() - began
        for other in scene.commands[1:]:
            _wait(other)
        left = _settle(scene.folder)
        if process.returncode and fault.fails:
            fault.cure(scene)
            again = time.monotonic()
            _wait(scene.start())
            spent += time.monotonic() - again
            left += _settle(scene.folder)
        same = expected == artifacts(scene.folder)
        codes = [command.returncode for command in scene.commands]
        lines = [scene.said(number) for number in range(len(codes))]
    return Observed(fault, codes, told, spent, lines, same, left, os.getloadavg()[0])


@contextmanager
def scene_of(fault: Fault, project: Path) -> Iterator[Scene]:
    """Copy the project, on a small disk where the fault asks for it, and start its cluster."""
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bdl-f", ignore_cleanup_errors=True)))
        folder, temporary = place / "project", place / "ray" if fault.spill else None
        if fault.disk:
            namespaces.small_disk(stack, folder, DISK_MEGABYTES)
        if temporary is not None:
            namespaces.small_disk(stack, temporary, DISK_MEGABYTES)
        shutil.copytree(project, folder, symlinks=True, dirs_exist_ok=True)
        cluster = namespaces.Cluster(stack, place, [folder], {}, fault.head, temporary)
        cluster.join()
        yield Scene(folder, cluster, stack, temporary=temporary)


def wait_until_at_work(scene: Scene, process: "subprocess.Popen[str]") -> bool:
    """Wait until both tasks have a checkpoint and the second node is at one; false: the command ended before."""
    while process.poll() is None:
        kept = [name for _, _, files in os.walk(scene.folder / ".state") for name in files if name.endswith(".part")]
        if len(kept) > 1 and scene.cluster.works():
            return True
        time.sleep(0.05)
    return False


def artifacts(folder: Path) -> dict[str, bytes]:
    """Read all that was made, but for records of seconds, dates and what a result was made from."""
    work = folder / "work"
    paths = [path for kind in ("trajectory", "student") for path in (work / kind).rglob("*") if path.is_file()]
    kept = [path for path in paths if not path.name.endswith((".run.json", "identity.json"))]
    return {str(path.relative_to(work)): path.read_bytes() for path in kept}


def undisturbed(project: Path) -> tuple[float, dict[str, bytes]]:
    """Run the command on such a cluster, and return its seconds and its artifacts."""
    with scene_of(Fault("none", "nothing", _nothing), project) as scene:
        began = time.monotonic()
        process = scene.start()
        _wait(process)
        if process.returncode:
            raise SystemExit("the undisturbed run failed:\n" + "\n".join(scene.said(0)))
        return time.monotonic() - began, artifacts(scene.folder)


def prepared(folder: Path, epochs: int) -> Path:
    """Clone what is committed, with a small graph as its params.yaml and its data prepared."""
    subprocess.run(["git", "clone", "-q", "--depth=1", f"file://{ROOT}", str(folder)], check=True)
    (folder / "dvc.lock").unlink(missing_ok=True)
    raw = {**PARAMS, "methods": {**PARAMS["methods"], "sgd": {**PARAMS["methods"]["sgd"], "epochs": epochs}}}
    (folder / "params.yaml").write_text(yaml.safe_dump(raw, sort_keys=False))
    command = [sys.executable, "-m", "pipeline", "run", "prepare", "digits", "--executor", "inline"]
    subprocess.run(command, cwd=folder, env=_environment(folder), check=True, capture_output=True)
    return folder


def _environment(folder: Path) -> dict[str, str]:
    settings = {
        "PYTHONPATH": os.pathsep.join([str(folder / "src"), str(folder)]),
        "BDL_EXECUTOR": "ray",
        "BDL_TRACKING": "off",
        "BDL_CHECKPOINT_SECONDS": "1",
        "DVC_NO_ANALYTICS": "1",
        "OMP_NUM_THREADS": "1",
    }
    return _bare() | settings


def _bare() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("BDL_", "RAY_", "PYTHON"))}
    return kept | {"PATH": f"{namespaces.BIN}{os.pathsep}{kept['PATH']}", "RAY_USAGE_STATS_ENABLED": "0"}


def _wait(process: "subprocess.Popen[str]") -> None:
    try:
        process.wait(LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        namespaces.stop(process)


def _settle(folder: Path, seconds: float = 30.0) -> int:
    """Wait for the processes that work in ``folder`` to end, and count those that do not."""
    until = time.monotonic() + seconds
    while (left := _in(folder)) and time.monotonic() < until:
        time.sleep(0.2)
    for process in left:
        with suppress(psutil.Error):
            process.kill()
    return len(left)


def _in(folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.cwd() == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def page(earlier: str, project: Path, undisturbed: float, seen: list[Observed]) -> str:
    """Write what was seen of a clone as a page, with what an ``earlier`` page has of other faults.

    Args:
        undisturbed: seconds of the run that nothing happened to.
    """
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=project, capture_output=True, text=True, check=True)
    rows, parts = _earlier(earlier)
    for s in seen:
        codes, bits = " then ".join(map(str, s.codes)), "the same" if s.same else "**others**"
        cells = [s.fault.what, codes, f"{s.told:.0f} s", s.fault.cured or "nothing", f"{s.seconds:.0f} s"]
        cells += [f"{undisturbed:.0f} s", bits, str(s.left), f"{s.load:.0f}", commit.stdout[:8]]
        rows[s.fault.what] = f"| {' | '.join(cells)} |"
        parts[s.fault.what] = "\n".join(_block(lines[-_LINES:]) for lines in s.lines)
    order = [fault.what for fault in FAULTS if fault.what in rows]
    versions = ", ".join(f"{name} {version(name)}" for name in ("ray", "torch"))
    return f"""# Faults of a cluster

    python -m benchmarks.cluster_faults --to results/cluster_faults.md

Two nodes of one core each, in network, mount and process namespaces of one machine; the second has neither the
project nor its sources. `{" ".join(("python", *COMMAND[1:]))}` fits two seeds of a trajectory, one on each node, and a
posterior from them, with a checkpoint each second. The fault happens when both seeds have a checkpoint (those of the
object store and of the head's disk: before the command). Where the command fails, what stands under "then" is done, and
the same command is given again. Ray's health checks are as Ray has them. Bits: of all artifacts, beside those of an
undisturbed run. Load: of the machine, which others used, too; it stretches the seconds, those of the undisturbed run as
well.

{_HEADER}
{chr(10).join(rows[what] for what in order)}

{_processor()}, {os.cpu_count()} cores, {versions}, Python {platform.python_version()}, Linux
{platform.release().split("-")[0]}, {datetime.date.today().isoformat()}.

## The last lines of the terminal

{chr(10).join(f"### {what}{chr(10) * 2}{parts[what]}" for what in order)}"""


def _earlier(page: str) -> tuple[dict[str, str], dict[str, str]]:
    """Read the rows and the terminals of a page, by what was done."""
    rows = {line[2:].partition(" | ")[0]: line for line in page.splitlines() if line.startswith("| ")}
    parts = [part.partition("\n\n") for part in page.split("\n### ")[1:]]
    return rows, {what: text.rstrip("\n") + "\n" for what, _, text in parts}


def _block(lines: list[str]) -> str:
    return "```\n" + "\n".join(line[:200] for line in lines) + "\n```\n"


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def main() -> int:
    parser = argparse.ArgumentParser(description="Let one thing after the other go wrong on a cluster.")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=[fault.name for fault in FAULTS])
    parser.add_argument("--quick", action="store_true", help="leave out the partition of five minutes")
    parser.add_argument("--epochs", type=int, default=120, help="of the trajectory (120)")
    parser.add_argument("--to", type=Path, metavar="FILE.md", help="a page; what it has of other faults is kept")
    args = parser.parse_args()
    if not namespaces.available():
        raise SystemExit("this needs Linux, root, ip, unshare, and a kernel that allows namespaces")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # and leave nothing behind
    wanted = [f for f in FAULTS if (f.name in args.only if args.only else not (args.quick and f.name.endswith("-300")))]
    seen = []
    with tempfile.TemporaryDirectory(prefix="bdl-f") as place:
        project = prepared(Path(place) / "prepared", args.epochs)
        seconds, expected = undisturbed(project)
        print(f"undisturbed: {seconds:.0f} s, {len(expected)} files", flush=True)
        for fault in wanted:
            seen.append(observe(fault, project, expected))
            last = seen[-1]
            print(f"{fault.name}: {'as it should' if last.well else 'NOT AS IT SHOULD'}: codes {last.codes},", end=" ")
            print(f"{last.told:.0f} s to the end, {last.seconds:.0f} s in all, {last.left} processes left,", end=" ")
            print("the same bits" if last.same else "OTHER BITS", flush=True)
            for lines in last.lines:
                print("".join(f"    | {line}\n" for line in lines[-12:]), flush=True)
            if args.to:
                args.to.write_text(page(args.to.read_text() if args.to.exists() else "", project, seconds, seen))
    return 0 if all(s.well for s in seen) else 1


if __name__ == "__main__":
    sys.exit(main())
