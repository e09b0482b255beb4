"""The contract of decisions: what a problem asks, and what a posterior must answer.

A problem hands over a :class:`Question`: groups of candidates. A rule chooses candidates of each group, and for that it
asks a :class:`Belief` for one of five answers:

- ``values``: draws of functions, each at all candidates of its group together;
- ``parts``: the marginal distribution of the function at each candidate, an equal mixture of Gaussians or of points;
- ``means``: the mean of each candidate's predictive;
- ``log_probs``: the class probabilities of each candidate;
- ``class_draws``: the class probabilities of all candidates under each of several draws of one function.

A belief that cannot answer raises a :class:`~bdl_pipe.errors.UserError` of one line.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float
from torch import Tensor

from ..seeds import Seed


@dataclass(frozen=True)
class Question:
    """Candidates, of which each group's are chosen from together.

    Attributes:
        candidates: raw rows [group, candidate, ...].
        count: how many different candidates are chosen of each group.
        best: the largest value that was observed so far, of optimisation.
        inputs: rows of the inputs that predictions are wanted at, of active learning [row, ...].
        truth: the mean reward of each candidate [group, candidate]. The rule ``oracle`` alone reads it.
    """

    candidates: np.ndarray
    count: int = 1
    best: float = 0.0
    inputs: np.ndarray | None = None
    truth: np.ndarray | None = None


@runtime_checkable
class Belief(Protocol):
    """What an agent believes after a number of rows, in the units of the targets, without the noise of observations."""

    @property
    def learns(self) -> bool:
        """Say whether :meth:`learn` updates the belief row by row; it must be fitted anew otherwise."""
        ...

    def values(self, candidates: np.ndarray, draws: int, rng: Seed) -> Float[Tensor, "draw group candidate"]:
        """Draw functions, each at all candidates of its group together; groups have different functions."""
        ...

    def parts(
        self, candidates: np.ndarray, rng: Seed
    ) -> tuple[Float[Tensor, "part group candidate"], Float[Tensor, "part group candidate"]]:
        """Return the means and standard deviations of the marginals, which are equal mixtures over parts."""
        ...

    def means(self, candidates: np.ndarray, rng: Seed) -> Float[Tensor, "group candidate"]:
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
    """One seed's problem: it asks, observes what is chosen, and scores it.

    Attributes:
        rounds: how many choices an agent makes.
        refits: the rounds, from 0 on and in order, at which an agent's posterior is fitted to all rows known by then.
        classes: the names of the classes; empty: targets are numbers.
        standardised: whether a fit standardises numbers by those that are known.
    """

    rounds: int
    refits: tuple[int, ...]
    classes: tuple[str, ...]
    standardised: bool

    def known(self) -> tuple[np.ndarray, np.ndarray]:
        """Return all rows and targets that were observed so far."""
        ...

    def question(self, rounds: int) -> Question:
        """Ask for the choices of the next ``rounds`` rounds."""
        ...

    def answer(self, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Observe the chosen candidates [group, count]; return their rows and targets."""
        ...

    def fitted(self, belief: Belief | None, rng: Seed) -> None:
        """Take note of the belief after each refit, to score it; None: the agent has none."""
        ...

    def curves(self) -> dict[str, list[tuple[int, float]]]:
        """Return the scores so far: metric -> pairs of a round and a value."""
        ...
