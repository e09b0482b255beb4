"""The kinds of faults, and the user's cure for each."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import psutil

from benchmarks import namespaces
from benchmarks.faults.scene import Scene, bare

STORE_BYTES: Final = 80 * 2**20  # about the smallest that Ray allows
DISK_MEGABYTES: Final = 300
HOG: Final = """
import sys, time
import numpy, ray
ray.init(sys.argv[1], log_to_driver=False, logging_level="ERROR")
held = [ray.get(ray.put(numpy.zeros(2**19, numpy.uint8))) for _ in range(int(sys.argv[2]) // 2**19 + 1)]
held += [ray.get(ray.put(numpy.zeros(2**13, numpy.uint8))) for _ in range(200)]  # the gaps, too
print("full", flush=True)
time.sleep(3600)
"""

Act = Callable[[Scene], None]


def nothing(scene: Scene) -> None:
    """Do nothing."""


@dataclass(frozen=True)
class Fault:
    """A fault that is caused while a command runs.

    Attributes:
        name: the name for ``--only``.
        what: a few words that describe the fault.
        act: causes the fault, after the first checkpoint or, with ``at_start``, before the command.
        fails: the command is expected to fail, and is then run again.
        says: words that the terminal must show by the end of the first command.
        cure: a user's repair before the command is run again.
        cured: the repair in words; empty if there is none.
        head: options with which the cluster's head is started.
        disk, spill: the project, or the head's files, are on their own small disk.
    """

    name: str
    what: str
    act: Act
    fails: bool = False
    says: str = ""
    cure: Act = nothing
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
    """End the head except the raylet to which the command is connected, as if the command ran on another node."""
    scene.cluster.kill_gcs()


def restart(scene: Scene) -> None:
    """Start the cluster again; the next command has its address."""
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
    """Start another program on the cluster that holds more objects than fit in the head's store."""
    with (scene.folder.parent / "hog.log").open("w+") as log:
        command = [sys.executable, "-c", HOG, scene.cluster.address, str(STORE_BYTES)]
        hog = subprocess.Popen(command, cwd="/", env=bare(), stdout=log, stderr=log, text=True)
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
    """Fill the disk of the head's files."""
    assert scene.temporary is not None
    namespaces.fill(scene.temporary)


def spare_head(scene: Scene) -> None:
    """Make space on the disk of the head's files."""
    assert scene.temporary is not None
    (scene.temporary / "ballast").unlink()


def fill_disk(scene: Scene) -> None:
    """Fill the project's disk."""
    namespaces.fill(scene.folder)


def spare_disk(scene: Scene) -> None:
    """Make space on the project's disk."""
    (scene.folder / "ballast").unlink()


def slow_worker(scene: Scene) -> None:
    """Limit the second node's tasks to a tenth of the time."""
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
    """Run the same command in a second terminal."""
    scene.start()


_GONE: Final = "start it again, and the same command continues from the last checkpoints"
STORE: Final = (f"--object-store-memory={STORE_BYTES}",)
FAULTS: Final = (
    Fault("store", "another program fills the object store", fill_store, at_start=True, head=STORE),
    Fault(
        "store-and-disk",
        "another program fills the object store, and the disk that it spills to is full",
        fill_store_and_disk,
        True,
        "Ray's object store is full, and so is the disk that it spills to",
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
        "could not be sent our code",
        spare_head,
        "space is made on that disk",
        at_start=True,
        spill=True,
    ),
    Fault("worker", "SIGKILL of a worker at its task", kill_worker),
    Fault("raylet", "SIGKILL of the second node's raylet", kill_raylet),
    Fault("node", "the second node is gone, with its objects", kill_node),
    Fault("head", "the head is gone", kill_head, True, _GONE, restart, "the cluster is started again"),
    Fault(
        "gcs",
        "the head is gone, but for the node that the command was given on",
        kill_gcs,
        True,
        _GONE,
        restart,
        "the cluster is started again",
    ),
    Fault("driver", "SIGKILL of the command", kill_driver, True),
    Fault("partition-30", "no packet passes between the nodes for 30 s", partition(30)),
    Fault("partition-300", "no packet passes between the nodes for 300 s", partition(300)),
    Fault(
        "disk",
        "the project's disk is full",
        fill_disk,
        True,
        "the disk is full",
        spare_disk,
        "space is made",
        disk=True,
    ),
    Fault("straggler", "the second node's worker runs a tenth of the time", slow_worker),
    Fault("two-drivers", "the same command in a second terminal", another_driver),
)
