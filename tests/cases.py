"""The smallest configs that every registered method can be made with, for the conformance test.

A new method adds its config for each of its tasks to ``CONFIGS``; if it is made from another
method's artifact, that method to ``UPSTREAM``; if a room of it draws nothing, the room to ``FIXED``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bdl_pipe.method import Room
from bdl_pipe.methods import METHODS

CONVNET = {"name": "convnet", "width": 4, "blocks": 2}
MLP = {"name": "mlp", "hidden": [8]}
ADAM = {"name": "adam", "rate": 1.0e-2, "schedule": "one_cycle"}

CONFIGS: Mapping[tuple[str, str], dict[str, Any]] = {
    ("sgd", "classification"): {"network": CONVNET, "epochs": 2, "batch": 32, "optimiser": ADAM},
    ("sgd", "regression"): {"network": MLP, "epochs": 3, "batch": 32, "optimiser": ADAM},
    ("deterministic", "classification"): {},
    ("deterministic", "regression"): {},
    ("ensemble", "classification"): {},
    ("ensemble", "regression"): {},
}

# stage kind -> the method that makes it for others; a method that makes the kind itself uses its own
UPSTREAM: Mapping[str, str] = {"trajectory": "sgd", "teacher": "sgld", "coreset": "random_coreset"}

# (method, stage kind) whose result does not depend on the seed, given its inputs
FIXED = {("deterministic", "student"), ("ensemble", "student")}


@dataclass(frozen=True)
class Case:
    """One method in one room on one task."""

    method: str
    kind: str
    task: str

    def __str__(self) -> str:
        return f"{self.method}-{self.kind}-{self.task}"

    @property
    def room(self) -> Room:
        return METHODS[self.method].rooms[self.kind]  # type: ignore[index]

    @property
    def random(self) -> bool:
        return (self.method, self.kind) not in FIXED

    def upstream(self, kind: str) -> "Case":
        own = kind in METHODS[self.method].rooms
        return Case(self.method if own else UPSTREAM[kind], kind, self.task)


CASES = [Case(name, kind, task) for name, method in METHODS.items() for kind in method.rooms for task in method.tasks]
