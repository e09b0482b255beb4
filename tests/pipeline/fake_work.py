"""Methods that are quick, slow or wrong on purpose, importable by workers; and a registry of them."""

import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bdl_pipe.artifacts import State
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.errors import UserError, require
from bdl_pipe.method import Inputs, Method, StageSpec, Summary
from bdl_pipe.progress import Report
from bdl_pipe.seeds import Seed
from bdl_pipe.training.snapshots import snapshot
from pipeline.stages import fit
from pipeline.work.display import Display
from pipeline.work.executor import Done, Executor, Task


@dataclass(frozen=True)
class WalkConfig:
    """A random walk of ``steps`` steps."""

    steps: int
    scale: float = 1.0

    def __post_init__(self) -> None:
        require(self.steps > 0, "steps", "must be > 0", self.steps)


@dataclass(frozen=True)
class NothingConfig:
    pass


def walk(data: FitData, inputs: Inputs, config: WalkConfig, *, rng: Seed, report: Report) -> State:
    """x ← x + scale·ε, resumable to the bit."""
    last = report.load()
    x = last.tensors["x"] if last else torch.zeros(5)
    for step in range(last.config["step"] if last else 0, config.steps):
        x = x + config.scale * torch.randn(5, generator=rng.fold("step", step).generator())
        if log := os.environ.get("WALK_LOG"):
            with open(log, "a") as file:
                file.write(f"{step}\n")
        report(step + 1, config.steps, {"norm": float(x.norm())})
        if report.due():
            report.save(State({"x": x}, {"step": step + 1}))
    return State({"x": x}, {"count": sum(len(v) for v in inputs.values())})


def spread(states: Sequence[Sequence[State]], data: Sequence[FitData], config: WalkConfig) -> Summary:
    assert len(states) == len(data)
    values = [torch.stack([s.tensors["x"] for s in split]).std(0).mean() for split in states]
    traces = {"first weight": [[float(s.tensors["x"].flatten()[0])] for s in states[0]]}
    remarks = [f"they differ in {len(states)} splits"] if len(states[0]) > 1 else []
    return Summary({"spread": float(max(values))}, remarks, traces)


WALK = Method(
    "walk",
    WalkConfig,
    ("classification", "regression"),
    {
        "trajectory": StageSpec(walk, summarise=spread),
        "teacher": StageSpec(walk),
        "coreset": StageSpec(walk),
        "student": StageSpec(walk, needs={"trajectory": "one_to_one"}),
    },
)


def pair(data: FitData, inputs: Inputs, config: WalkConfig, *, rng: Seed, report: Report) -> State:
    """Return the inputs: all trajectories and one coreset."""
    (coreset,) = inputs["coreset"]
    trajectories = torch.stack([state.tensors["x"] for state in inputs["trajectory"]])
    return State({"coreset": coreset.tensors["x"], "trajectories": trajectories}, {"kinds": sorted(inputs)})


PAIR = Method(
    "pair",
    WalkConfig,
    ("classification", "regression"),
    {
        "coreset": StageSpec(walk, needs={"trajectory": "one_to_one"}),
        "student": StageSpec(pair, needs={"trajectory": "all", "coreset": "cyclic"}),
    },
)


def last(data: FitData, inputs: Inputs, config: NothingConfig, *, rng: Seed, report: Report) -> State:
    """The first weight of each trajectory's last snapshot."""
    return State({"ends": torch.stack([snapshot(state, -1)["w"][0] for state in inputs["trajectory"]])})


LAST = Method("last", NothingConfig, ("regression",), {"student": StageSpec(last, needs={"trajectory": "all"})})
MAY = Method(
    "may",
    WalkConfig,
    ("classification", "regression"),
    {"student": StageSpec(walk, needs={"trajectory": "one_to_one", "coreset": "one_to_one"}, input_optional=True)},
)
ONLY_CLASSES = Method("only_classes", NothingConfig, ("classification",), {"teacher": StageSpec(walk)})
REGISTRY: Mapping[str, Method] = {m.name: m for m in (WALK, PAIR, LAST, MAY, ONLY_CLASSES)}


def run(executor: Executor, work: Any, *tasks: Task, shared: Any = None, **more: Any) -> list[Done]:
    with Display("tasks") as display:
        return executor.map(work, tasks, shared=shared or {}, display=display, **more)


def slow_square(payload: tuple[int, float], shared: Mapping[str, Any], report: Report) -> int:
    """payload[0]² after payload[1] seconds."""
    time.sleep(payload[1])
    return payload[0] ** 2


def square(payload: int, shared: Mapping[str, Any], report: Report) -> int:
    """payload² + the sum of the shared values; a task must get only the values that it asked for."""
    assert torch.get_num_threads() == 1
    report(1, 1)
    return payload**2 + sum(int(v) for v in shared.values())


def steps(payload: int, shared: Mapping[str, Any], report: Report) -> State:
    """A resumable sum of 1..payload; its worker dies once, at half way, if ``shared["fuse"]`` does not exist.

    With ``shared["stop"]`` the task fails at half way, every time.
    """
    last = report.load()
    total, start = (int(last.tensors["sum"]), last.config["step"]) if last else (0, 0)
    for step in range(start, payload):
        total += step + 1
        report(step + 1, payload)
        if report.due():
            report.save(State({"sum": torch.tensor(total)}, {"step": step + 1}))
        if "fuse" in shared and step == payload // 2 and not Path(shared["fuse"]).exists():
            Path(shared["fuse"]).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if "stop" in shared and step == payload // 2:
            raise UserError("stopped")
    return State({"sum": torch.tensor(total)}, {"began_at": start})


def doomed(payload: int, shared: Mapping[str, Any], report: Report) -> State:
    """Take ``payload`` steps; after each, the worker keeps a checkpoint and dies."""
    last = report.load()
    step = last.config["step"] if last else 0
    if step < payload:
        report.save(State({"x": torch.zeros(1)}, {"step": step + 1}))
        os.kill(os.getpid(), signal.SIGKILL)
    return State({"x": torch.zeros(1)}, {"step": step})


def wrong(payload: int, shared: Mapping[str, Any], report: Report) -> int:
    if payload == 1:
        raise UserError("the number must not be 1")
    raise ZeroDivisionError("by two")


def waits_or_fails(payload: str, shared: Mapping[str, Any], report: Report) -> int:
    """Wait for the file ``payload``; fail without one."""
    if not payload:
        raise UserError("there is no file to wait for")
    while not Path(payload).exists():
        time.sleep(0.05)
    return 1


class _Fused(Report):
    """Passes on to ``report``; writes each attempt's first step to ``path``, and kills the first attempt at step 7."""

    def __init__(self, report: Report, path: Path) -> None:
        self._report, self._path, self._heard = report, path, False

    def __call__(self, step: int, total: int, metrics: Mapping[str, float] | None = None) -> None:
        self._report(step, total, metrics)
        if not self._heard:
            with self._path.open("a") as file:
                file.write(f"{step} ")
        self._heard = True

    def due(self) -> bool:
        return self._report.due()

    def save(self, state: State) -> None:
        self._report.save(state)
        if state.config["step"] == 7 and self._path.read_text() == "1 ":
            os.kill(os.getpid(), signal.SIGKILL)

    def load(self) -> State | None:
        return self._report.load()


def fused_member(payload: Any, shared: Mapping[str, Any], report: Report) -> State:
    """The work of a stage's task; with a fuse, its first attempt dies."""
    path = shared["fuse"]
    return fit.make(payload, shared, _Fused(report, Path(path)) if path else report)


def ends(payload: str, shared: Mapping[str, Any], report: Report) -> tuple[bool, float, bytes]:
    """From the folder ``payload``: whether a file with a relative path exists there, and parts of the shared files."""
    os.chdir(payload)
    weights, file = shared["state"].tensors, shared["files"]["notes"]
    return file.file.is_here(), float(weights.rows("w", -1, None).sum()), file.read(1, 3)


def placed(payload: tuple[str, int], shared: Mapping[str, Any], report: Report) -> tuple[list[str], str, float, float]:
    """Return the task's GPUs and node, and when it began and ended.

    It ends once payload[1] tasks have left a file in the folder payload[0], so that many run at once.
    """
    import ray

    context, began, folder = ray.get_runtime_context(), time.time(), Path(payload[0])
    (folder / context.get_task_id()).touch()
    while len(list(folder.iterdir())) < payload[1]:
        time.sleep(0.02)
    return [str(gpu) for gpu in context.get_accelerator_ids()["GPU"]], context.get_node_id(), began, time.time()
