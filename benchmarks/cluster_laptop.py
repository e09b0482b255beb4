"""A laptop outside a cluster: ``python -m benchmarks.cluster_laptop``.

A head runs on this machine, a laptop in a network namespace from which nothing of the head but its dashboard's port is
in reach. The laptop, a fresh clone, makes Boston's rows and one VBPC coreset by jobs; when the coreset is under way its
cable is pulled for 45 seconds. In the end the artifacts and scores are compared with those of another clone that knows
no cluster. Linux, as root.
"""

import argparse
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pyarrow.parquet as pq
import yaml

from benchmarks import namespaces

ROOT: Final = Path(__file__).resolve().parents[1]
CORESET: Final = "coreset@fashion_mnist-vbpc-ipc1"
KINDS: Final = ("trajectory", "teacher", "coreset", "student")
UNDER_WAY: Final = re.compile(rf"{CORESET}: .* [1-9]\d?%")


def main() -> int:
    """Run the command on the laptop and where there is no cluster, and compare what they made."""
    parser = argparse.ArgumentParser(description="Boston's rows and a coreset from outside a cluster.")
    parser.add_argument("--cut", type=float, default=45.0, metavar="SECONDS", help="for which the cable is pulled (45)")
    parser.add_argument("--jobs", type=int, default=3, metavar="N", help="stages at once (3)")
    args = parser.parse_args()
    if missing := namespaces.missing():
        raise SystemExit(missing)
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bdl-l", ignore_cleanup_errors=True)))
        with socket.socket() as free:
            free.bind(("", 0))
            port = free.getsockname()[1]
        options = ["--include-dashboard=true", "--dashboard-host=0.0.0.0", f"--dashboard-port={port}", "--num-cpus=2"]
        cluster = namespaces.Cluster(stack, place, health={}, head=options)
        cluster.allow_only(port)
        refused = cluster.there("python", "-c", f"import socket; socket.create_connection({cluster.head!r}, 3)")
        if subprocess.run(refused, capture_output=True, check=False).returncode == 0:
            raise SystemExit("the laptop reaches the head itself: this shows nothing")
        clone = cloned(place / "laptop")
        url = f"http://{cluster.head[0]}:{port}"
        print(f"$ RAY_ADDRESS={url} python -m pipeline repro -j {args.jobs} …", flush=True)
        laptop = run(clone, args.jobs, [*cluster.there()], {"RAY_ADDRESS": url, "RAY_AUTH_MODE": "disabled"})
        code = followed(laptop, cluster, args.cut)
        if code:
            return code
        here = cloned(place / "here")
        alone = run(here, args.jobs, [], {})
        said, _ = alone.communicate()
        if alone.returncode:
            raise SystemExit(said)
        return compared(clone, here)


def cloned(folder: Path) -> Path:
    """Clone the project as it was last committed."""
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    return folder


def run(folder: Path, jobs: int, enter: list[str], more: dict[str, str]) -> "subprocess.Popen[str]":
    """Start the command in a clone."""
    runs = yaml.safe_load((folder / "params.yaml").read_text())["runs"]
    boston = [f"evaluate@{key}" for key, entry in runs.items() if entry["dataset"] == "boston"]
    environment = {key: os.environ[key] for key in ("HOME", "LANG") if key in os.environ} | {
        "PATH": f"{namespaces.BIN}:{os.environ['PATH']}",
        "PYTHONPATH": f"{folder}:{folder / 'src'}",
        "BDL_TRACKING": "off",
        "BDL_CHECKPOINT_SECONDS": "2",
        "DVC_NO_ANALYTICS": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    return subprocess.Popen(
        [*enter, sys.executable, "-m", "pipeline", "repro", "-j", str(jobs), *boston, CORESET],
        cwd=folder,
        env=environment | more,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def followed(laptop: "subprocess.Popen[str]", cluster: namespaces.Cluster, cut: float) -> int:
    """Show what the terminal says, pull the cable when the coreset is under way, and return the exit code."""
    began, pulled = time.monotonic(), False
    assert laptop.stdout is not None
    for line in laptop.stdout:
        print(f"{time.monotonic() - began:5.0f} s  {line}", end="", flush=True)
        if not pulled and UNDER_WAY.match(line):
            pulled = True
            print(f"{time.monotonic() - began:5.0f} s  --- the cable is pulled for {cut:g} s ---", flush=True)
            cluster.unplug()
            threading.Timer(cut, cluster.plug).start()
    code = laptop.wait()
    if not pulled:
        raise SystemExit("the coreset was never seen under way: the cable was not pulled")
    return code


def compared(one: Path, other: Path) -> int:
    """Compare artifacts and scores of two clones, apart from seconds, dates and what a result was made from."""
    made = {kind: tensors(one / "work" / kind) for kind in KINDS}
    differ = [kind for kind in KINDS if made[kind] != tensors(other / "work" / kind)]
    ours, theirs = scores(one), scores(other)
    differ += ["evaluate"] if ours != theirs else []
    count = sum(len(files) for files in made.values())
    print(f"{count} files of weights and {len(ours)} scores: {'OTHERS in ' + ', '.join(differ) if differ else 'equal'}")
    return 1 if differ or not ours else 0


def tensors(folder: Path) -> dict[str, bytes]:
    """Read the weights below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.safetensors")}


def scores(folder: Path) -> list[str]:
    """List the scores of a clone, to the last bit, but for costs."""
    rows = [
        row for path in sorted(folder.glob("work/evaluate/*/scores.parquet")) for row in pq.read_table(path).to_pylist()
    ]
    return sorted(repr({**row, "value": row["value"].hex()}) for row in rows if row["set"] != "cost")


if __name__ == "__main__":
    sys.exit(main())
