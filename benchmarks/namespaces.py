"""A Ray cluster of two nodes on one machine that share as little as two machines do: for Linux, as root.

The head is started from another folder, where our packages cannot be imported. The second node is isolated: it has its
own processes and its own network interface, and it cannot read the project's folder, its sources or the head's
temporary files.
"""

import itertools
import os
import shutil
import site
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

BIN: Final = Path(sys.executable).parent
QUICK_HEALTH: Final = {  # a lost node is noticed in seconds
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "4",
}
_ALONE: Final = ("--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
_START_SECONDS: Final = 90
_END_SECONDS: Final = 10.0
_TRIES: Final = 3
_IMPORTED: Final = 3  # exit code of a place where our packages can be imported
_NUMBERS: Final = itertools.count()
_NOBODY: Final = "02:00:00:00:00:01"  # an Ethernet address that no interface has
_TASKS: Final = ("ray::_remote", "ray::ImplicitFunc")  # titles of processes that run one of our tasks, or a trial


@dataclass(frozen=True)
class _Place:
    """Where a node runs.

    Attributes:
        enter: the prefix that runs a command in the node's namespaces.
        hidden: folders that are empty there.
    """

    address: str
    enter: list[str]
    hidden: list[str]


class Cluster:
    """A head on this machine, at ``address``, and a second node that can join it, be cut off, and be killed."""

    def __init__(
        self,
        stack: ExitStack,
        logs: Path,
        hidden: Sequence[Path] = (),
        health: Mapping[str, str] = QUICK_HEALTH,
        head: Sequence[str] = (),
        temporary: Path | None = None,
    ) -> None:
        """Start the head.

        Args:
            stack: ends all processes that the cluster starts.
            logs: the folder of the nodes' output.
            hidden: folders that the second node cannot read, besides our sources and the head's files.
            health: Ray's settings of the time after which a node that does not answer is lost; empty for Ray's own.
            head: further options of the head.
            temporary: the folder of the head's files, with a short path, for sockets; by default a new folder.
        """
        self._stack, self._logs, self._health = stack, logs, dict(health)
        self._number = next(_NUMBERS)  # the kernel removes a network some time after it is deleted
        self._name = f"bdl{os.getpid()}n{self._number}"
        if temporary is None:
            temporary = Path(tempfile.mkdtemp(prefix="bdl-"))
            stack.callback(shutil.rmtree, temporary, ignore_errors=True)
        self._ours, self._its = self._network()
        self._left: list[psutil.Process] = []  # processes of a head without its GCS
        stack.callback(self._end_left)
        sources = _sources()
        self._head_place = _Place(self._ours, ["unshare", "--mount"], sources)
        self._node_place = _Place(
            self._its,
            ["ip", "netns", "exec", self._name, "unshare", *_ALONE],
            [*sources, *map(str, hidden), str(temporary), "/dev/shm"],
        )
        self._head_options = [f"--temp-dir={temporary}", "--include-dashboard=false", *head]
        self.start_head()

    def start_head(self) -> None:
        """Start the head, or a new head after the last one ended."""
        self._head = self._start("head", self._head_place, self._head_words)

    def kill_head(self) -> None:
        """End the head with its raylet, its objects and its workers."""
        stop(self._head)
        self._end_left()

    def kill_gcs(self) -> None:
        """End the head's GCS, and leave its raylet, as if the raylet were on another machine."""
        self._left = psutil.Process(self._head.pid).children(recursive=True)
        (gcs,) = (process for process in self._left if process.name() == "gcs_server")
        self._head.kill()  # the head process would end the raylet, too
        self._head.wait()
        gcs.kill()

    def join(self) -> None:
        """Start the second node."""
        self._node = self._start("node", self._node_place, lambda: [f"--address={self.address}"])

    def kill(self) -> None:
        """Kill the second node."""
        stop(self._node)

    def works(self) -> bool:
        """Return whether the second node runs a task or a trial."""
        return bool(self.workers())

    def workers(self) -> list[psutil.Process]:
        """List the second node's processes that run a task or a trial."""
        return self._processes(_TASKS)

    def raylet(self) -> psutil.Process:
        """Return the second node's raylet."""
        (raylet,) = self._processes(("raylet",))
        return raylet

    def cut(self) -> None:
        """Drop all packets between the two nodes: each sends to an Ethernet address that no interface has."""
        _ip(f"neigh replace {self._its} lladdr {_NOBODY} dev {self._name}a nud permanent")
        _ip(f"-n {self._name} neigh replace {self._ours} lladdr {_NOBODY} dev {self._name}b nud permanent")

    def mend(self) -> None:
        """Deliver packets again."""
        _ip(f"neigh del {self._its} dev {self._name}a")
        _ip(f"-n {self._name} neigh del {self._ours} dev {self._name}b")

    def _end_left(self) -> None:
        for process in self._left:
            with suppress(psutil.Error):
                process.kill()

    def _processes(self, titles: tuple[str, ...]) -> list[psutil.Process]:
        """List the second node's processes with a title or a program's name that begins with one of ``titles``."""
        found = []
        with suppress(psutil.Error):
            for process in psutil.Process(self._node.pid).children(recursive=True):
                with suppress(psutil.Error, IndexError):
                    if process.cmdline()[0].rpartition("/")[2].startswith(titles):
                        found.append(process)
        return found

    def _network(self) -> tuple[str, str]:
        """Add a virtual cable, and return the addresses of its two ends: ours and the second node's."""
        name, number = self._name, (os.getpid() + self._number) % 16384 * 4
        ours, its = (f"198.18.{number // 256}.{number % 256 + end}" for end in (1, 2))
        _ip(f"netns add {name}")
        self._stack.callback(_ip, f"netns delete {name}")  # this deletes the cable, too
        _ip(f"link add {name}a type veth peer name {name}b netns {name}")
        for command in (f"addr add {ours}/30 dev {name}a", f"link set {name}a up"):
            _ip(command)
        for command in (f"addr add {its}/30 dev {name}b", f"link set {name}b up", "link set lo up"):
            _ip(f"-n {name} {command}")
        return ours, its

    def _head_words(self) -> list[str]:
        """Return the options of a head at a free port, since a killed head may still hold its port."""
        with socket.socket() as free:
            free.bind((self._ours, 0))
            self.address = f"{self._ours}:{free.getsockname()[1]}"
        return ["--head", f"--port={self.address.rpartition(':')[2]}", *self._head_options]

    def _start(self, name: str, place: _Place, options: Callable[[], list[str]]) -> "subprocess.Popen[bytes]":
        """Start a node of one core at a place without our packages; each try calls ``options`` again."""
        lines = [f"mount -t tmpfs none {path}" for path in place.hidden]
        lines += [
            f"{sys.executable} -c 'import {name}' 2>&- && exit {_IMPORTED}"
            for name in ("bdl_pipe", "pipeline", "stages")
        ]
        lines += [f'exec {BIN}/ray start --num-cpus=1 --block --disable-usage-stats "$@"']
        command = [*place.enter, "sh", "-c", "\n".join(lines), "sh", f"--node-ip-address={place.address}"]
        for _ in range(_TRIES - 1):  # another program may take the port, and a busy machine longer than Ray allows
            with suppress(TimeoutError):
                return self._started(name, [*command, *options()])
        return self._started(name, [*command, *options()])

    def _started(self, name: str, command: list[str]) -> "subprocess.Popen[bytes]":
        """Start a node by ``command``, and wait until it runs."""
        log = self._logs / f"{name}.log"
        kept = {"PATH": f"{BIN}:{os.environ['PATH']}", "HOME": str(self._logs), "OMP_NUM_THREADS": "1"}
        with log.open("wb") as file:
            process = subprocess.Popen(
                command, cwd="/", env=kept | self._health, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
            )
        self._stack.callback(stop, process)
        end = time.monotonic() + _START_SECONDS
        while "Ray runtime started" not in log.read_text():
            code = process.poll()
            assert code != _IMPORTED, f"{name} can import our packages"
            if code is not None or time.monotonic() > end or "timed out during startup" in log.read_text():
                stop(process)
                raise TimeoutError(f"{name} did not start: {log.read_text()}")
            time.sleep(0.1)
        return process


def available() -> bool:
    """Return whether this machine can run such a cluster."""
    return not missing()


def missing() -> str:
    """Return one line with the reason why this machine cannot run such a cluster, and the cure; empty if it can."""
    if sys.platform != "linux":
        return "this needs the namespaces of Linux: run it on a Linux machine"
    for tool, package in (("ip", "iproute2"), ("unshare", "util-linux"), ("mount", "mount")):
        if shutil.which(tool) is None:
            return f"this needs the command {tool}: install {package}"
    if os.geteuid() != 0:
        return "this needs root, to make networks and disks: give the command with sudo -E"
    name = f"bdl{os.getpid()}-test"
    test = f"ip netns delete {name} && mount -t tmpfs none /mnt && ip link add bdl-a type veth peer name bdl-b"
    command = f"ip netns add {name} && unshare --mount --net --pid --fork sh -c '{test}'"
    tried = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    if tried.returncode:
        reason = (tried.stderr.strip().splitlines() or ["no reason given"])[0]
        return f"the kernel refuses namespaces ({reason}): run it outside a container, or in a privileged one"
    return ""


def small_disk(stack: ExitStack, folder: Path, megabytes: int) -> None:
    """Mount a separate disk, in memory, at ``folder``; only nodes that start later can read it."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "none", str(folder)], check=True)
    stack.callback(subprocess.run, ["umount", "--lazy", str(folder)], check=False)


def fill(folder: Path, but: int = 0) -> Path:
    """Fill a disk's free space except ``but`` bytes with a file, and return the file."""
    path = folder / "ballast"
    for last in (False,) * 9 + (True,):  # other processes may write at the same time
        try:
            with path.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(folder).free - but)
            break
        except OSError:
            if last:
                raise
    return path


def stop(process: "subprocess.Popen[bytes] | subprocess.Popen[str]") -> None:
    """End a process and all processes that it started."""
    if process.poll() is None:
        everyone = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
        for each in everyone:
            with suppress(psutil.Error):
                each.kill()
        process.wait()
        psutil.wait_procs(everyone, timeout=_END_SECONDS)  # their ports are free only after that


def _sources() -> list[str]:
    """List the folders from which an editable installation imports."""
    files = [path for place in site.getsitepackages() for path in Path(place).glob("*.pth")]
    return [
        line for path in files for line in path.read_text().splitlines() if line.startswith("/") and Path(line).is_dir()
    ]


def _ip(arguments: str) -> None:
    subprocess.run(["ip", *arguments.split()], check=True, capture_output=True)
