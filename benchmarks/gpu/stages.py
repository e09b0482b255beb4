"""The pipeline's own stages on a GPU, several in parallel: the exit code, seconds and scores of each.

    BDL_DEVICE=cuda BDL_EXECUTOR=inline BDL_TRACKING=off python -m benchmarks.gpu.stages OUT --jobs 14 --seconds 160

Each stage of params.yaml is a process, ``python -m stages KIND KEY``, which starts when its inputs exist; the stage
with the longest remaining chain starts first. Prepared data must lie in ``work/``. When a stage ends, one line of JSON
is written to ``OUT/stages.jsonl`` and, if it failed, its output to ``OUT/failed.log``. At the end ``OUT/scores.jsonl``
has the scores of each evaluated run, split and seed. Stages that still run at the time limit are killed and named.
``--evaluate`` runs the evaluations alone, of the fits that lie in ``work/student``.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq

from pipeline.core import places
from pipeline.core.load import load
from pipeline.plan import plan

LONG = {  # seconds that tell the order alone, of one run on a CPU
    "teacher@boston-sghmc": 200.0,
    "trajectory@fashion_mnist-sgd": 150.0,
    "teacher@fashion_mnist-sghmc": 100.0,
    "coreset@fashion_mnist-bpc_fkl-ipc10": 80.0,
    "student@fashion_mnist-ffg_u": 70.0,
}
METRICS = ("accuracy", "nll", "rmse", "ece")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--only", nargs="*", default=[], help="stages that have this in their names, and their needs")
    parser.add_argument("--evaluate", action="store_true", help="evaluate the fits that exist, and fit nothing")
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    stages = {name: stage for name, stage in plan.plan(load()).items() if stage.kind not in ("prepare", "report")}
    if chosen.evaluate:
        stages = {
            name: s
            for name, s in stages.items()
            if s.kind == "evaluate"
            and places.artifact("student", s.key).is_dir()
            and not places.artifact("evaluate", s.key).is_dir()
        }
    elif chosen.only:
        wanted = {name for name in stages if any(part in name for part in chosen.only)}
        data = {name: stage for name, stage in plan.plan(load()).items() if stage.kind == "prepare"}
        stages = {name: s for name, s in stages.items() if name in wanted | plan.ancestors(stages | data, wanted)}
    run(stages, chosen.out, chosen.jobs, time.monotonic() + chosen.seconds)
    with (chosen.out / "scores.jsonl").open("w") as file:
        for stage in stages.values():
            for row in scores(stage.key) if stage.kind == "evaluate" else []:
                file.write(json.dumps(row) + "\n")


def weights(stages: plan.Plan) -> dict[str, float]:
    """Return the seconds from the start of each stage to the end of all that needs it."""
    found: dict[str, float] = {}
    for name in reversed([*stages]):
        after = [found[other] for other, stage in stages.items() if name in stage.needs]
        found[name] = LONG.get(name, 10.0) + max(after, default=0.0)
    return found


def run(stages: plan.Plan, out: Path, jobs: int, end: float) -> None:
    """Run the stages in their order until ``end`` of the monotonic clock."""
    weight, began = weights(stages), time.monotonic()
    left = sorted(stages, key=lambda name: -weight[name])
    active: dict[str, tuple[subprocess.Popen[str], float]] = {}
    done, failed = set[str](), set[str]()
    log, told = (out / "stages.jsonl").open("a"), (out / "failed.log").open("a")

    def tell(name: str, rc: int | str, start: float) -> None:
        now = time.monotonic()
        row = {"stage": name, "rc": rc, "from": round(start - began, 1), "seconds": round(now - start, 1)}
        log.write(json.dumps(row) + "\n")
        log.flush()

    while (left or active) and time.monotonic() < end:
        for name in list(left):
            needs = stages[name].needs & stages.keys()
            if needs & failed:
                failed.add(name)
                left.remove(name)
                tell(name, "input failed", time.monotonic())
            elif len(active) < jobs and needs <= done:
                left.remove(name)
                stage, output = stages[name], (out / f"{name}.log").open("w")
                command = [sys.executable, "-m", "stages", stage.kind, stage.key]
                active[name] = (
                    subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, text=True),
                    time.monotonic(),
                )
        time.sleep(0.1)
        for name, (process, start) in list(active.items()):
            rc = process.poll()
            if rc is not None:
                del active[name]
                (failed if rc else done).add(name)
                tell(name, rc, start)
                if rc:
                    told.write(f"== {name}\n{(out / f'{name}.log').read_text()[-3000:]}\n")
                    told.flush()
                os.unlink(out / f"{name}.log")
    for name, (process, start) in active.items():
        process.kill()
        tell(name, "not ended", start)
    for name in left:
        tell(name, "not begun", time.monotonic())


def scores(key: str) -> list[dict[str, object]]:
    """Read the scores of a run on its test rows, and its cost, by split and seed; [] where there are none."""
    path = places.artifact("evaluate", key) / "scores.parquet"
    if not path.is_file():
        return []
    rows = pq.read_table(path).to_pylist()
    tests = [r for r in rows if (r["set"] == "test" and r["metric"] in METRICS) or r["set"] == "cost"]
    return [{"run": key} | {k: r[k] for k in ("split", "seed", "metric", "value")} for r in tests if not r["score"]]


if __name__ == "__main__":
    main()
