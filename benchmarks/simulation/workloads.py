"""The workloads of the simulation and their assumed seconds: tables, a sweep, ImageNet's data, many short tasks."""

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks.simulation.model import HOUR, Stage
from pipeline.core.load import typed
from pipeline.core.model import FIT_KINDS
from pipeline.core.params_files import read_params
from pipeline.plan.plan import plan

ROOT: Final = Path(__file__).resolve().parents[2]
_UCI, _IMAGES, _RESNET = 60.0, 3 * HOUR, 6 * HOUR
_HERE: Final = 10.0  # seconds of a stage in the driver's process
_PREDICTIONS: Final = 4e6  # bytes of an evaluation's result
CORESETS: Final = {  # hours in Lee et al. 2025, table 12; for FRePo and RCIG we assume VBPC's
    "vbpc": 5.5,
    "bpc_cd": 8.5,
    "bpc_rkl": 9.0,
    "fbpc": 10.5,
    "bpc_fkl": 12.0,
    "frepo": 5.5,
    "rcig": 5.5,
}
TABLES: Final[Mapping[str, Mapping[str, tuple[float, float, float]]]] = {
    # a task's seconds on a GPU by stage kind, a checkpoint's bytes, the data's bytes; assumed, except the experts' half
    # hour and the 165 s of a chain, which are the paper's (Lee et al. 2025, tables 5 and 12), as are CORESETS
    **{
        name: {"trajectory": (_UCI, 1e5, 1e6), "student": (_UCI, 1e5, 1e6), "evaluate": (5.0, 0.0, 1e6)}
        for name in ("ciber-table1", "ciber-table2", "vbll-table2", "vbll-table3")
    },
    "ciber-table3": {
        "trajectory": (_IMAGES, 3e8, 2e8),
        "teacher": (_IMAGES, 3e8, 2e8),
        "student": (600.0, 3e8, 2e8),
        "evaluate": (120.0, 0.0, 2e8),
    },
    "inducing-table2": {
        "trajectory": (_RESNET, 2e8, 2e8),
        "student": (_RESNET, 2e8, 2e8),
        "evaluate": (120.0, 0.0, 2e8),
    },
    **{
        name: {"trajectory": (_IMAGES, 3e8, 2e8), "student": (_IMAGES, 3e8, 2e8), "evaluate": (120.0, 0.0, 2e8)}
        for name in ("vbll-table1", "vbll-table4")
    },
    **{
        name: {
            "trajectory": (0.5 * HOUR, 3e6, 2e8),
            "coreset": (60.0, 3e7, 2e8),
            "student": (165.0, 3e6, 2e8),
            "evaluate": (60.0, 0.0, 2e8),
        }
        for name in ("vbpc-table1", "vbpc-table8", "vbpc-table9")
    },
}


def paper_tables() -> list[Stage]:
    """List the stages of the tables of ``params/paper`` that have seconds in ``TABLES``, as the plan has them."""
    stages = []
    for table, costs in TABLES.items():
        params = typed(read_params(ROOT / f"params/paper/{table}.yaml"))
        for name, stage in plan(params).items():
            needs = frozenset(f"{table}/{need}" for need in stage.needs)
            run = params.run(stage.kind, stage.key) if stage.kind in FIT_KINDS else None
            if stage.kind not in costs or (run and run.stage.in_driver):
                stages.append(Stage(f"{table}/{name}", (_HERE,), needs, here=True))
                continue
            seconds, checkpoint, data = costs[stage.kind]
            if run and stage.kind == "coreset":
                seconds = CORESETS[run.method.name] * HOUR if run.method.name in CORESETS else seconds
            count = run.spec.seeds * params.datasets[run.spec.dataset].splits if run else 1
            result = checkpoint / 3 or _PREDICTIONS  # Adam keeps two numbers beside each weight
            about: dict[str, Any] = {"checkpoint": checkpoint, "data": data, "result": result}
            stages.append(Stage(f"{table}/{name}", (seconds,) * count, needs, **about))
    return stages


def _lengths(count: int, mean: float, seed: int) -> tuple[float, ...]:
    """Draw log-normal seconds."""
    draws = random.Random(seed)
    return tuple(mean * draws.lognormvariate(-0.125, 0.5) for _ in range(count))


def sweep(trials: int = 10_000, seed: int = 0) -> list[Stage]:
    """List trials of ten minutes on average, with CIFAR's bytes and a checkpoint of 30 MB at each quarter."""
    return [Stage("sweep", _lengths(trials, 600.0, seed), checkpoint=3e7, parts=4, data=2e8, reports=False)]


def seeds(tasks: int = 10_000, checkpoint: float = 3e7, result: float = 1e7, seed: int = 0) -> list[Stage]:
    """List a stage of tasks as long as the sweep's trials, with checkpoints by the clock, and results."""
    return [Stage("seeds", _lengths(tasks, 600.0, seed), checkpoint=checkpoint, data=2e8, result=result)]


def imagenet(tasks: int) -> list[Stage]:
    """List fits of twelve hours on 150 GB of images, with checkpoints of 200 MB."""
    return [Stage("imagenet", (12 * HOUR,) * tasks, checkpoint=2e8, data=1.5e11, result=7e7)]


def short(tasks: int = 100_000, together: int = 1) -> list[Stage]:
    """List tasks of two seconds on average, ``together`` of them in one."""
    lengths = _lengths(tasks, 2.0, 0)
    packed = tuple(sum(lengths[start : start + together]) for start in range(0, tasks, together))
    return [Stage("short", packed, reports=False)]


def without(stages: list[Stage], table: str) -> list[Stage]:
    """Return the stages without the stages of one table."""
    return [stage for stage in stages if not stage.name.startswith(f"{table}/")]
