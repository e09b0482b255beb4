"""Copy the project, run its commands in the copy, and start Ray, for the tutorials that use the pipeline.

You do not need this module in your own clone: type the commands in a terminal.
"""

import atexit
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

_PARTS: Final = (
    "pipeline",
    "stages",
    "src",
    "data",
    "plugins",
    ".dvc",
    "dvc.yaml",
    ".dvcignore",
    ".gitignore",
    "params.yaml",
)
_LEFT_OUT: Final = ("cache", "tmp", "*.egg-info", "__pycache__")


def project() -> Path:
    """Copy this project without its data sets and their runs; the copy is removed when this process ends."""
    root = Path(__file__).resolve().parents[2]
    folder = Path(tempfile.mkdtemp(prefix="tutorial-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name in _PARTS:
        if (root / name).is_dir():
            shutil.copytree(root / name, folder / name, ignore=shutil.ignore_patterns(*_LEFT_OUT))
        else:
            shutil.copy(root / name, folder / name)
    _without_data(folder / "params.yaml")
    git = ["git", "-c", "user.name=tutorial", "-c", "user.email=tutorial@localhost"]
    for words in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", "start"]):
        subprocess.run([*git, *words], cwd=folder, check=True)
    return folder


def run(folder: Path, command: str, *, hide: tuple[str, ...] = (), **variables: str) -> None:
    """Run a command in the project ``folder`` and print the command and its standard output, as in a terminal.

    Args:
        hide: texts; output lines that contain one of them are not printed. Standard error is never printed.
        variables: environment variables, in addition to the variables of this process.

    Raises:
        SystemExit: the command failed; the message has its output.
    """
    words = [sys.executable, *command.split()[1:]] if command.startswith("python ") else command.split()
    paths = os.pathsep.join([str(folder / "src"), str(folder)])
    env = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **variables}
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{command} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    print("$", *(f"{name}={value}" for name, value in variables.items() if name.startswith("RAY")), command)
    for line in done.stdout.replace(f"{folder}/", "").splitlines():
        if not any(text in line for text in hide):
            print(line)


def ray_head() -> str:
    """Start Ray's head on this machine until this process ends, as ``ray start --head`` does; return its address.

    Raises:
        SystemExit: Ray did not start; the message has Ray's log.
    """
    port, client, agent = _free_ports(3)
    words = ["ray", "start", "--head", "--block", "--num-cpus=2", "--node-ip-address=127.0.0.1", f"--port={port}"]
    words += [f"--ray-client-server-port={client}", f"--dashboard-agent-listen-port={agent}"]
    words += ["--include-dashboard=false", "--disable-usage-stats", "--min-worker-port=0", "--max-worker-port=0"]
    log = Path(tempfile.mkdtemp(prefix="tutorial-ray-")) / "log"
    atexit.register(shutil.rmtree, log.parent, ignore_errors=True)
    with log.open("w") as out:
        head = subprocess.Popen(words, stdout=out, stderr=out, start_new_session=True)
    atexit.register(_end, head)
    while "Ray runtime started" not in log.read_text():
        if head.poll() is not None:
            raise SystemExit(f"Ray did not start:\n{log.read_text()[-2000:]}")
        time.sleep(0.2)
    return f"127.0.0.1:{port}"


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _end(head: "subprocess.Popen[bytes]") -> None:
    """Stop the head and its child processes."""
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        whole = psutil.Process(head.pid)
        for process in [*whole.children(recursive=True), whole]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    head.wait()


def _without_data(params: Path) -> None:
    """Empty the sections of data sets and runs, so that ``repro`` runs only the tutorial's own runs."""
    from ruamel.yaml import YAML

    yaml = YAML()
    sections = yaml.load(params)
    for name in ("datasets", "trajectories", "teachers", "coresets", "runs"):
        sections[name] = {}
    yaml.dump(sections, params)
