"""The interface of decisions: the questions of a problem, and the answers of a posterior.

A problem makes a :class:`Question`: groups of candidates. A rule chooses candidates from each group, by one of the
answers of a :class:`Belief`. A belief that cannot answer raises a :class:`~bdl_pipe.errors.UserError` of one line.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float
from torch import Tensor

from bdl_pipe.seeds import Seed

Points = np.ndarray | Tensor  # raw rows


@dataclass(frozen=True)
class Question:
    """Groups of candidates; each group is a separate choice.

    Attributes:
        candidates: raw rows [group, candidate, ...].
        count: the number of different candidates to choose from each group.
        known: in optimisation, all evaluations so far: inputs [row, column] and values [row].
        continuous: whether a rule may choose any other point of the unit cube in place of the candidates.
        box: the least and the largest value of each column [column] of such a point. None: the unit cube.
        inputs: in active learning, rows [row, ...] that represent future predictions.
        truth: the mean reward of each candidate [group, candidate]. Only the rule ``oracle`` reads it.
    """

    candidates: np.ndarray
    count: int = 1
    known: tuple[np.ndarray, np.ndarray] | None = None
    continuous: bool = False
    box: tuple[np.ndarray, np.ndarray] | None = None
    inputs: np.ndarray | None = None
    truth: np.ndarray | None = None

    @property
    def best(self) -> float:
        """Return the largest value so far; 0 if nothing is optimised."""
        return 0.0 if self.known is None else float(self.known[1].max())


@runtime_checkable
class Belief(Protocol):
    """An agent's belief after some observed rows, in the targets' units, without observation noise."""

    @property
    def learns(self) -> bool:
        """Return whether :meth:`learn` updates the belief row by row; otherwise it must be fitted again."""
        ...

    def values(self, candidates: Points, draws: int, rng: Seed) -> Float[Tensor, "draw group candidate"]:
        """Draw functions, each at all candidates of its group together; groups have different functions.

        A tensor of candidates that requires a gradient is differentiated, here and in :meth:`parts`, :meth:`means` and
        a function of :meth:`drawn`.
        """
        ...

    def drawn(self, rng: Seed) -> Callable[[Points], Float[Tensor, " row"]] | None:
        """Draw one function of rows [row, column]; None if the posterior cannot keep a function for later rows."""
        ...

    def parts(
        self, candidates: Points, rng: Seed
    ) -> tuple[Float[Tensor, "part group candidate"], Float[Tensor, "part group candidate"]]:
        """Return the means and standard deviations of the marginals, equal mixtures of Gaussians or points."""
        ...

    def means(self, candidates: Points, rng: Seed) -> Float[Tensor, "group candidate"]:
        """Return the mean of each candidate's predictive."""
        ...

    def log_probs(self, rows: np.ndarray, rng: Seed) -> Float[Tensor, "row class"]:
        """Return the log of the class probabilities."""
        ...

    def class_draws(self, rows: np.ndarray, draws: int, rng: Seed) -> Float[Tensor, "draw row class"]:
        """Return the log of the class probabilities of all rows under each of several draws of one function."""
        ...

    def learn(self, rows: np.ndarray, targets: np.ndarray) -> None:
        """Update the belief by observed rows."""
        ...


@runtime_checkable
class Problem(Protocol):
    """One seed's problem: it makes questions, observes the choices, and scores them.

    Attributes:
        rounds: the number of choices that an agent makes.
        refits: the rounds, starting with 0 and in order, at which an agent's posterior is fitted to all known rows.
        classes: the names of the classes; empty if targets are numbers.
        standardised: whether a fit standardises numbers by the known rows.
    """

    rounds: int
    refits: tuple[int, ...]
    classes: tuple[str, ...]
    standardised: bool

    def known(self) -> tuple[np.ndarray, np.ndarray]:
        """Return all rows and targets observed so far."""
        ...

    def question(self, rounds: int) -> Question:
        """Return the question for the next ``rounds`` rounds."""
        ...

    def answer(self, question: Question, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Observe the chosen candidates [group, count] of a question; return their rows and targets."""
        ...

    def fitted(self, belief: Belief | None, rng: Seed) -> None:
        """Score the belief after each refit; it is None if the agent has no posterior."""
        ...

    def curves(self) -> dict[str, list[tuple[int, float]]]:
        """Return the scores so far: metric -> pairs of a round and a value."""
        ...
