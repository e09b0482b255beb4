"""The decide stage: every agent of a decision plays the problem of every seed, a task for each pair."""

from collections.abc import Mapping
from typing import Any

import pyarrow.parquet as pq

from bdl_decisions import DecisionConfig, decide, table
from bdl_pipe import artifacts
from bdl_pipe.artifacts import State
from bdl_pipe.progress import Report

from ..core import places
from ..core.curves import Curve
from ..core.model import Params
from ..core.settings import Settings
from ..plan.plan import Stage
from ..work.display import Display
from ..work.executor import Executor, Task
from ..work.store import Store
from . import fit


def run(stage: Stage, params: Params, executor: Executor, settings: Settings) -> Store:
    """Make ``work/decide/<key>/curves.parquet``, a row for each agent, seed, metric and round."""
    key, entry = stage.key, params.decisions[stage.key]
    about = {"decision": params.raw["decisions"][key], "seed": params.seed}
    store = Store(places.checkpoints("decide", key), fit.identity({**about, "code": dict(stage.digests)}, settings, []))
    store.open()
    pairs = [(seed, agent) for seed in range(entry.seeds) for agent in entry.agents]
    tasks = [Task(f"{agent}-{seed}", (entry, key, agent, seed, params.seed)) for seed, agent in pairs]
    with Display(f"decide {key}", Curve("decide", key).metrics) as display:
        done = executor.map(play, tasks, shared={}, display=display, store=store)
    with artifacts.publish(places.artifact("decide", key), "decide", about=about) as folder:
        pq.write_table(table(each.result for each in done), folder / "curves.parquet")
    return store


def play(task: tuple[DecisionConfig, str, str, int, int], shared: Mapping[str, Any], report: Report) -> State:
    """Play the problem of one seed with one agent."""
    return decide(*task)
