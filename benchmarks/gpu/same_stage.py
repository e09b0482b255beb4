"""One stage of the pipeline, run four times on a GPU: with torch's defaults, twice with the pipeline's, and killed.

    BDL_DEVICE=cuda BDL_EXECUTOR=inline BDL_TRACKING=off python -m benchmarks.gpu.same_stage OUT.json

The stage is ``trajectory fashion_mnist-experts`` (two seeds, an epoch of Fashion-MNIST each). The last run is killed by
SIGKILL at a fraction of its time; it is then run again and continues from its checkpoint. The output has the seconds of
each run, the SHA-256 of each seed's tensors, and the largest difference of a weight from the second run's, over the
largest weight of its tensor.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bdl_pipe.artifacts import State, read_state
from benchmarks.gpu.bits import far
from pipeline.core import places

KIND, KEY = "trajectory", os.environ.get("SAME_STAGE", "fashion_mnist-experts")
BY_ITSELF = """
import runpy, sys
import pipeline.work.executor
pipeline.work.executor.repeat_bits = lambda device: None
sys.argv[0] = "stages"
runpy.run_module("stages", run_name="__main__")
"""
STAGE = [sys.executable, "-W", "ignore", "-m", "stages", KIND, KEY]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--runs", nargs="+", default=["torch", "first", "second", "killed"])
    chosen = parser.parse_args()
    made: dict[str, dict[str, State]] = {}
    rows: dict[str, dict[str, Any]] = {}
    for name in chosen.runs:
        clean()
        start = time.perf_counter()
        rows[name] = {"killed at": kill()} if name == "killed" else {}
        command = [sys.executable, "-W", "ignore", "-c", BY_ITSELF, KIND, KEY] if name == "torch" else STAGE
        rows[name] |= {"rc": subprocess.run(command).returncode, "seconds": round(time.perf_counter() - start, 1)}
        place = places.artifact(KIND, KEY)
        files = sorted(place.rglob("*.safetensors"))
        rows[name] |= {f"sha256, {f.stem}": hashlib.sha256(f.read_bytes()).hexdigest()[:16] for f in files}
        made[name] = {f.stem: read_state(f.with_suffix("")) for f in files}
        reference = made.get("first", made[name])
        rows[name]["far from first"] = [far(made[name][seed], reference[seed]) for seed in made[name]]
        chosen.out.write_text(json.dumps(rows, indent=1))
    if "torch" in made and "first" in made:
        rows["torch"]["far from first"] = [far(made["torch"][seed], made["first"][seed]) for seed in made["torch"]]
        chosen.out.write_text(json.dumps(rows, indent=1))


def clean() -> None:
    """Remove the stage's result and its checkpoints."""
    shutil.rmtree(places.artifact(KIND, KEY), ignore_errors=True)
    shutil.rmtree(places.checkpoints(KIND, KEY), ignore_errors=True)
    for path in (places.record(KIND, KEY), places.identity(KIND, KEY)):
        path.unlink(missing_ok=True)


def kill() -> float:
    """Run the stage until it has kept a checkpoint for some seconds, and end it by SIGKILL; return when."""
    start = time.perf_counter()
    process = subprocess.Popen(STAGE, env={**os.environ, "BDL_CHECKPOINT_SECONDS": "2"})
    while process.poll() is None and not any(p.is_file() for p in places.checkpoints(KIND, KEY).rglob("*.part")):
        time.sleep(0.2)
    time.sleep(3)
    process.kill()
    process.wait()
    return round(time.perf_counter() - start, 1)


if __name__ == "__main__":
    main()
