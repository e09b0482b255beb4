"""Real runs on this machine beside their simulations."""

import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch
import yaml

from bdl_pipe.artifacts import State
from benchmarks.simulation.model import Cluster, Driver, Stage
from benchmarks.simulation.run import simulate
from benchmarks.simulation.workloads import ROOT
from pipeline.core.load import read_yaml, typed
from pipeline.core.settings import Needs, Settings
from pipeline.plan.plan import plan
from pipeline.work.cluster import Cluster as Executor
from pipeline.work.cluster import connected
from pipeline.work.display import Display
from pipeline.work.executor import Task
from pipeline.work.store import Store

_STEP: Final = 0.05  # seconds of a step of the full hub's tasks


def all_of(driver: Driver) -> dict[str, dict[str, float]]:
    """Run all checks, and print each beside its simulation."""
    found = dict[str, dict[str, float]]()
    for name, check in (("tasks", real_tasks), ("full hub", full_hub), ("graph", real_graph)):
        found[name] = check(driver)
        real, simulated = found[name]["real"], found[name]["simulated"]
        print(f"{name}: real {real:.1f} s, simulated {simulated:.1f} s ({simulated / real - 1:+.1%})", flush=True)
    return found


def work(payload: tuple[float, int], shared: Mapping[str, Any], report: Any) -> Any:
    """Sleep, with checkpoints: a task that needs no core. The payload has its seconds and a checkpoint's bytes."""
    seconds, size = payload
    blob = State({"blob": torch.zeros(size, dtype=torch.uint8)}, {})
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(0.05, left))
        report(int(100 * (1 - left / seconds)), 100)
        if report.due():
            report.save(blob)
    return State({"done": torch.zeros(1)}, {})


def steps(payload: tuple[int, int, float], shared: Mapping[str, Any], report: Any) -> Any:
    """Run ``count`` steps of ``seconds`` each, with a checkpoint of ``size`` bytes after each step except the last."""
    count, size, seconds = payload
    blob = State({"blob": torch.zeros(size, dtype=torch.uint8)}, {})
    for step in range(count):
        time.sleep(seconds)
        report(step + 1, count)
        if step + 1 < count:
            report.save(blob)
    return State({"done": torch.zeros(1)}, {})


def _run(of: Any, payloads: Sequence[Any], settings: Settings) -> float:
    """Return the seconds of tasks through the executor and its hub."""
    with tempfile.TemporaryDirectory(prefix="bdl-real-") as folder, Display("tasks") as display:
        store = Store(Path(folder), "a")
        store.open()
        tasks = [Task(f"t{number}", payload) for number, payload in enumerate(payloads)]
        start = time.perf_counter()
        Executor(settings).map(of, tasks, shared={}, display=display, store=store)
        return time.perf_counter() - start


def real_tasks(driver: Driver, count: int = 240, size: int = 10**6, every: float = 0.5) -> dict[str, float]:
    """Run tasks of a second on average on Ray's two workers; the hub takes a small part of the time."""
    draws = random.Random(0)
    seconds = tuple(draws.lognormvariate(-0.125, 0.5) for _ in range(count))
    settings = Settings(checkpoint_seconds=every)
    with connected(settings):
        real = _run(work, [(each, size) for each in seconds], settings)
    return {"real": real, "simulated": of_tasks(driver, seconds, size, every), "tasks": count}


def of_tasks(driver: Driver, seconds: tuple[float, ...], size: float, every: float) -> float:
    """Simulate these tasks on as many workers as this machine has cores."""
    alone = replace(driver, stage=0.0, record=0.0)
    cluster = Cluster(os.cpu_count() or 1, slots=1, every=every)
    return simulate([Stage("tasks", seconds, checkpoint=size)], cluster, alone).makespan


def full_hub(
    driver: Driver, workers: int = 8, count: int = 40, size: int = 10**7, repeats: int = 3
) -> dict[str, float]:
    """Overload the hub with checkpoints of many workers; two workers that only send checkpoints measure its speed.

    Both take turns, so that the machine's load affects both. The seconds of tasks of one step, which keep no
    checkpoint, are subtracted. The check needs a quiet machine.
    """
    settings = Settings(checkpoint_seconds=0.0, needs=Needs(cpus=1 / 8))
    seconds = dict[str, list[float]](none=[], two=[], all=[])
    with connected(settings):
        _run(steps, [(2, size, _STEP)] * workers, settings)
        for _ in range(repeats):
            seconds["none"].append(_run(steps, [(1, size, 0.0)] * workers, settings))
            seconds["two"].append(_run(steps, [(2 * count, size, 0.0)] * 2, settings))
            seconds["all"].append(_run(steps, [(count, size, _STEP)] * workers, settings))
    none, two, together = (statistics.median(each) for each in seconds.values())
    save = (two - none) / (2 * (2 * count - 1))
    hub = replace(driver, checkpoint=save, byte=0.0, stage=0.0, record=0.0, task=0.0, warm=0.0, cold=0.0)
    stage = Stage("full", (count * _STEP,) * workers, checkpoint=size)
    came = simulate([stage], Cluster(workers, slots=1, every=_STEP), hub)
    return {"real": together - none, "simulated": came.makespan, "save": save, "hub": came.hub}


def real_graph(driver: Driver) -> dict[str, Any]:
    """Run Boston's rows of params.yaml one at a time; their seconds predict the time of a run of two at a time."""
    raw = read_yaml(ROOT / "params.yaml")
    for section in ("trajectories", "teachers", "coresets", "runs"):
        raw[section] = {key: row for key, row in raw[section].items() if row["dataset"] == "boston"}
    raw["datasets"] = {"boston": raw["datasets"]["boston"]}
    seconds, walls = dict[str, float](), dict[int, float]()
    for jobs in (1, 2):
        with tempfile.TemporaryDirectory(prefix="bdl-graph-") as folder:
            place = Path(folder)
            names = ("pipeline", "stages", "src", "plugins")
            for name in names:
                shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
            (place / "params.yaml").write_text(yaml.safe_dump(raw, sort_keys=False))
            environment = {**os.environ, "PYTHONPATH": f"{place}{os.pathsep}{place / 'src'}", "BDL_TRACKING": "off"}
            environment |= {"BDL_EXECUTOR": "inline", "OMP_NUM_THREADS": "1"}
            command = [sys.executable, "-m", "pipeline", "repro", "-j", str(jobs)]
            said = subprocess.run(
                command, cwd=place, env=environment, capture_output=True, text=True, check=True
            ).stdout
            (walls[jobs],) = (
                float(line.split(" in ")[1].split()[0]) for line in said.splitlines() if "stages done" in line
            )
            if jobs == 1:
                seconds = json.loads((place / ".state/seconds.json").read_text())
    stages = [Stage(n, (seconds[n],), frozenset(s.needs), reports=False) for n, s in plan(typed(raw)).items()]
    here = replace(driver, task=0.0, warm=0.0, cold=0.0, stage=0.0, record=0.0)  # included in the stages' seconds
    came = simulate(stages, Cluster(1, slots=2, at_once=2), here)
    return {"real": walls[2], "simulated": came.makespan, "one at a time": walls[1], "seconds": seconds}
