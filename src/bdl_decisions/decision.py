"""Decisions: a task and the agents that play it over seeds; the registered tasks, and the table of their curves."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
import torch

from bdl_pipe import config
from bdl_pipe.artifacts import State
from bdl_pipe.data.size import Size
from bdl_pipe.errors import ConfigError, UserError, require
from bdl_pipe.plugins import PluginError, Registered, variant_name
from bdl_pipe.seeds import Seed

from . import active, bandits, optimisation
from .agents import Agent
from .loop import play
from .question import Belief, Problem
from .rules import RULES

SCHEMA: Final = pa.schema(
    {"decision": pa.string(), "agent": pa.string(), "seed": pa.int64()}
    | {"metric": pa.string(), "round": pa.int64(), "value": pa.float64()}
)


@runtime_checkable
class Task(Protocol):
    """A decision task: a frozen dataclass with a field ``name: Literal["…"]``."""

    @property
    def task(self) -> str:
        """Return the agents' prediction task, ``regression`` or ``classification``."""
        ...

    def problem(self, rng: Seed) -> Problem:
        """Make the problem of a seed, the same for all agents."""
        ...


TASKS: Final[Registered[type[Task]]] = Registered(
    "decision task", {**bandits.Configs, **active.Configs, **optimisation.Configs}
)


def register_task(task: type[Task]) -> None:
    """Register a task under the name in its config.

    Raises:
        PluginError: the config is not a frozen dataclass with ``name``, ``task`` and ``problem``, or its name is taken.
    """
    name = variant_name(task, "decision task")
    lacks = [attribute for attribute in ("task", "problem") if not hasattr(task, attribute)]
    if lacks:
        raise PluginError(f"the decision task {name} must have {' and '.join(lacks)}")
    TASKS.add(name, task, task.__module__)


def _task(value: object, path: str) -> Task:
    return config.variant(dict(TASKS.items()), value, path)


@dataclass(frozen=True)
class DecisionConfig:
    """An entry of the section ``decisions`` of params.yaml.

    Attributes:
        task: the decision task; ``name`` chooses it.
        agents: name -> the agent.
        seeds: the number of problems that each agent plays.
    """

    task: Any = field(metadata={"read": _task})
    agents: dict[str, Agent]
    seeds: int = 1

    def __post_init__(self) -> None:
        require(self.seeds >= 1, "seeds", "must be >= 1", self.seeds)
        require(len(self.agents) > 0, "agents", "must have at least one agent")
        for name, agent in self.agents.items():
            try:
                agent.check(self.task.task)
            except ConfigError as error:
                raise ConfigError(f"agents.{name}.{error.path}", error.rule, error.value) from None
            except UserError as error:
                raise ConfigError(f"agents.{name}", str(error)) from None

    def files(self) -> list[Path]:
        """List the users' files that the task, or the source of its rows, reads."""
        reader = self.task if hasattr(self.task, "files") else getattr(self.task, "source", None)
        return [Path(path) for path in getattr(reader, "files", tuple)()]

    def methods(self) -> set[str]:
        """Return the methods of the agents and of their upstream runs."""
        size = Size(self.task.task, rows=100, width=4, has_test=True)
        return {run.method.name for agent in self.agents.values() if agent.method for run in agent.plan(size)}

    def modules(self) -> set[str]:
        """Return the modules that define the task, the source of its rows and the rules."""
        rules = {RULES.module_of(agent.rule) for agent in self.agents.values()} - {None}
        source = {type(self.task.source).__module__} if hasattr(self.task, "source") else set()
        return {type(self.task).__module__, *source, *map(str, rules)}


def decide(entry: DecisionConfig, decision: str, agent: str, seed: int, root: int) -> State:
    """Play the problem of one seed by one agent.

    Args:
        decision: the entry's key, which is part of all addresses.
        root: the root of all addresses.

    Returns:
        The curves: metric -> float64 [point, 2], rounds and values.

    Raises:
        UserError: the posterior cannot answer the rule, or the data cannot be used.
        Diverged: a fit diverged even at its smallest rates.
    """
    address, player = Seed(root).fold("decisions", decision, seed), entry.agents[agent]
    problem = entry.task.problem(address.fold("problem"))

    def fit(rows: np.ndarray, targets: np.ndarray, rng: Seed) -> Belief | None:
        return player.fit(rows, targets, problem.classes, rng, standardised=problem.standardised)

    player_address = address.fold("agent", agent)
    curves = play(problem, fit, player.choosing, player_address, width=player.width, region=player.region)
    tensors = {metric: torch.tensor(points, dtype=torch.float64).reshape(-1, 2) for metric, points in curves.items()}
    return State(tensors, {"decision": decision, "agent": agent, "seed": seed})


def table(states: Iterable[State]) -> pa.Table:
    """Return the curves of several agents and seeds as a table of :data:`SCHEMA`."""
    rows = [
        {**state.config, "metric": metric, "round": int(at), "value": value}
        for state in states
        for metric, points in sorted(state.tensors.items())  # a stored state has another order
        for at, value in points.tolist()
    ]
    return pa.Table.from_pylist(rows, SCHEMA)
