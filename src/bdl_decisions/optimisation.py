"""Bayesian optimisation of costly functions: test functions from the literature, and any table of evaluations.

An agent maximises; to minimise a function, its sign is changed. Inputs lie in the unit cube. Each step chooses a batch:
any points, for which a rule starts from candidates, half of them uniform, half around the best input so far; or rows of
a table, from all that are left.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, final

import numpy as np

from bdl_pipe.data import catalog
from bdl_pipe.errors import require
from bdl_pipe.seeds import Seed

from .ascent import candidates
from .functions import FUNCTIONS
from .question import Belief, Question
from .tables import inputs_of, raw_of


@final
class Search:
    """One seed's search for the largest value; a round is an evaluation.

    Args:
        value: inputs [row, column] -> the value of each.
        start: the first inputs.
        optimum: the largest possible value.
        batch: the number of evaluations in each step.
        candidates: the number of candidates in each step.
        grid: all possible inputs. None means the unit cube.
    """

    classes: tuple[str, ...] = ()
    standardised = True

    def __init__(
        self,
        value: Callable[[np.ndarray], np.ndarray],
        start: np.ndarray,
        optimum: float,
        *,
        rounds: int,
        batch: int,
        candidates: int,
        rng: Seed,
        grid: np.ndarray | None = None,
    ) -> None:
        self._value, self._optimum, self._count, self._rng, self._grid = value, optimum, candidates, rng, grid
        self._rows, self._values, self._before = start, value(start), len(start)
        self.rounds, self.refits = rounds, tuple(range(0, rounds, batch))

    def known(self) -> tuple[np.ndarray, np.ndarray]:
        return self._rows, self._values

    def question(self, rounds: int) -> Question:
        random, best = self._rng.fold("candidates", len(self._rows)).numpy(), self._rows[self._values.argmax()]
        if self._grid is None:
            asked = candidates(best, self._count, random)
        else:
            seen = {row.tobytes() for row in self._rows}
            rest = np.array([row for row in self._grid if row.tobytes() not in seen])
            asked = rest[random.permutation(len(rest))[: self._count]]
        return Question(asked[None], rounds, (self._rows, self._values), continuous=self._grid is None)

    def answer(self, question: Question, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rows = question.candidates[0, chosen[0]]
        values = self._value(rows)
        self._rows, self._values = np.concatenate([self._rows, rows]), np.concatenate([self._values, values])
        return rows, values

    def fitted(self, belief: Belief | None, rng: Seed) -> None:
        """Do nothing: regret depends only on the evaluations."""

    def curves(self) -> dict[str, list[tuple[int, float]]]:
        """Return ``regret``, the optimum minus the best value so far, and ``mean_regret``, its mean over the rounds."""
        reached = self._optimum - np.maximum.accumulate(self._values)[self._before - 1 :]
        curve = [(number, float(value)) for number, value in enumerate(reached)]
        return {"regret": curve, "mean_regret": [(self.rounds, float(reached[1:].mean()))]}


@dataclass(frozen=True, kw_only=True)
class Steps:
    """The settings of every search.

    Attributes:
        start: the number of random evaluations before the first fit.
        evaluations: the number of evaluations after the first fit.
        batch: the number of evaluations between refits. A belief that learns row by row chooses them one by one, any
            other belief chooses them together.
        candidates: the number of candidates in each step.
    """

    task = "regression"
    start: int = 10
    evaluations: int = 40
    batch: int = 4
    candidates: int = 1000

    def __post_init__(self) -> None:
        for name in ("start", "evaluations", "batch"):
            require(getattr(self, name) > 0, name, "must be > 0", getattr(self, name))
        require(self.candidates > self.batch, "candidates", f"must be > batch, {self.batch}", self.candidates)

    @property
    def sizes(self) -> dict[str, Any]:
        """Return the sizes of a search."""
        return {"rounds": self.evaluations, "batch": self.batch, "candidates": self.candidates}


@dataclass(frozen=True)
class Optimisation(Steps):
    """The section ``task`` for a function from the literature.

    Attributes:
        function: a key of ``FUNCTIONS``.
    """

    function: Literal["branin", "hartmann3", "hartmann6", "ackley5", "ackley20", "levy10", "rosenbrock4"]
    name: Literal["optimisation"] = "optimisation"

    def problem(self, rng: Seed) -> Search:
        """Draw the first evaluations."""
        function = FUNCTIONS[self.function]
        start = rng.numpy().random((self.start, function.columns))
        return Search(lambda x: -function.value(x), start, -function.minimum, **self.sizes, rng=rng)


@dataclass(frozen=True)
class TableOptimisation(Steps):
    """The section ``task`` for a table of evaluations: its columns are inputs, its target is the value.

    Attributes:
        source: the source of a regression data set with one target and no repeated inputs.
        goal: whether to search for the smallest or the largest value.
    """

    source: Any = field(metadata={"read": catalog.read})
    goal: Literal["minimise", "maximise"] = "minimise"
    name: Literal["table_optimisation"] = "table_optimisation"

    def __post_init__(self) -> None:
        require(self.source.task == "regression", "source", "must be a data set of numbers", self.source.name)
        super().__post_init__()

    def problem(self, rng: Seed) -> Search:
        """Draw the first evaluations; columns are scaled to the unit cube.

        Raises:
            ConfigError: the table has several targets, repeated inputs, or fewer rows than ``start`` + ``evaluations``.
            DataError: the table cannot be read.
        """
        rows, values = inputs_of(self.source).astype(np.float64), raw_of(self.source).train.targets
        require(values.shape[1] == 1, "source", "must have one target", f"{values.shape[1]} targets")
        needed = self.start + self.evaluations
        require(len(rows) >= needed, "evaluations", f"must leave {len(rows)} rows with start", needed)
        low, high = rows.min(0), rows.max(0)
        grid = (rows - low) / np.where(high > low, high - low, 1.0)
        sign = -1.0 if self.goal == "minimise" else 1.0
        value_of = {row.tobytes(): sign * float(value) for row, value in zip(grid, values[:, 0], strict=True)}
        require(
            len(value_of) == len(grid), "source", "must not have equal inputs twice", f"{len(value_of)} of {len(grid)}"
        )

        def value(x: np.ndarray) -> np.ndarray:
            return np.array([value_of[row.tobytes()] for row in np.ascontiguousarray(x)])

        start = grid[rng.numpy().permutation(len(grid))[: self.start]]
        return Search(value, start, max(value_of.values()), **self.sizes, rng=rng, grid=grid)


Configs: Final[Mapping[str, type]] = {"optimisation": Optimisation, "table_optimisation": TableOptimisation}
