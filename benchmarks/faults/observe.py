"""Cause a fault, and record its effects."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from benchmarks import namespaces
from benchmarks.faults.kinds import DISK_MEGABYTES, Fault, nothing
from benchmarks.faults.scene import Scene

LIMIT_SECONDS: Final = 900.0  # a command that takes longer hangs


@dataclass(frozen=True)
class Observed:
    """The outcome of a fault.

    Attributes:
        codes: the commands' exit codes, in their order.
        told: seconds from the fault to the end of the disturbed command.
        seconds: the seconds of all commands together.
        lines: the printed lines of each command.
        same: the artifacts equal the undisturbed run's.
        left: the number of the commands' processes that outlived them.
        load: the machine's load over the last minute, at the end.
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
        """Return whether exit codes, output, artifacts and processes are as expected."""
        wanted = bool(self.codes[0]) == self.fault.fails and self.codes[-1] == 0
        silent = not any("Traceback" in line for lines in self.lines for line in lines)
        told = any(self.fault.says in line for line in self.lines[0])
        return wanted and self.same and not self.left and silent and told


def observe(fault: Fault, project: Path, expected: dict[str, bytes]) -> Observed:
    """Run the command in a copy of ``project`` on a fresh cluster, and cause the fault."""
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
    """Read all artifacts, without the records of seconds, dates and inputs."""
    work = folder / "work"
    paths = [path for kind in ("trajectory", "student") for path in (work / kind).rglob("*") if path.is_file()]
    kept = [path for path in paths if not path.name.endswith((".run.json", "identity.json"))]
    return {str(path.relative_to(work)): path.read_bytes() for path in kept}


def undisturbed(project: Path) -> tuple[float, dict[str, bytes]]:
    """Run the command on such a cluster, and return its seconds and its artifacts."""
    with scene_of(Fault("none", "nothing", nothing), project) as scene:
        began = time.monotonic()
        process = scene.start()
        _wait(process)
        if process.returncode:
            raise SystemExit("the undisturbed run failed:\n" + "\n".join(scene.said(0)))
        return time.monotonic() - began, artifacts(scene.folder)


def _wait(process: "subprocess.Popen[str]") -> None:
    try:
        process.wait(LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        namespaces.stop(process)


def _settle(folder: Path, seconds: float = 30.0) -> int:
    """Wait for the processes that work in ``folder`` to end, and count the remaining ones."""
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
