"""Active learning: which labels to request, from a pool of rows with hidden labels.

Some rows of each class are known at the start, as is usual (Kirsch et al. 2019). Each step chooses a batch from a
random part of the pool and observes its labels, and the method is fitted again. The scores are accuracy and
NLL on rows that are never in the pool. All rows are training rows of the data set.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, final

import numpy as np

from bdl_pipe.data import catalog
from bdl_pipe.errors import ConfigError, require
from bdl_pipe.seeds import Seed

from .question import Belief, Question
from .tables import inputs_of, raw_of


@final
class Labelling:
    """One seed's pool; a round is the choice of one label.

    Args:
        start: indices of the rows that are known at the start.
        pool: indices of the rows with hidden labels.
        held: indices of the rows that are scored.
    """

    standardised = False

    def __init__(
        self,
        rows: np.ndarray,
        labels: np.ndarray,
        classes: tuple[str, ...],
        start: np.ndarray,
        pool: np.ndarray,
        held: np.ndarray,
        task: "ActiveLearning",
        rng: Seed,
    ) -> None:
        self._rows, self._labels, self.classes = rows, labels, classes
        self._known, self._pool, self._held = start, pool, held
        self._candidates, self._wanted, self._rng = task.candidates, task.wanted, rng
        self.rounds, self.refits = task.labels, (*range(0, task.labels, task.batch), task.labels)
        self._scores: dict[str, list[tuple[int, float]]] = {"accuracy": [], "nll": []}

    def known(self) -> tuple[np.ndarray, np.ndarray]:
        return self._rows[self._known], self._labels[self._known]

    def question(self, rounds: int) -> Question:
        random = self._rng.fold("candidates", len(self._known)).numpy()
        drawn = random.permutation(self._pool)
        self._asked, wanted = drawn[: self._candidates], drawn[self._candidates :][: self._wanted]
        return Question(self._rows[self._asked][None], rounds, inputs=self._rows[wanted])

    def answer(self, question: Question, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        new = self._asked[chosen[0]]
        self._known, self._pool = np.concatenate([self._known, new]), np.setdiff1d(self._pool, new)
        return self._rows[new], self._labels[new]

    def fitted(self, belief: Belief | None, rng: Seed) -> None:
        """Score the belief on the held rows.

        Raises:
            ConfigError: the agent has no belief.
        """
        if belief is None:
            raise ConfigError("method", "must be named: the scores of active learning are its posterior's")
        log_probs, labels = belief.log_probs(self._rows[self._held], rng).numpy(), self._labels[self._held]
        scores = {
            "accuracy": (log_probs.argmax(1) == labels).mean(),
            "nll": -log_probs[np.arange(len(labels)), labels].mean(),
        }
        for metric, value in scores.items():
            self._scores[metric].append((len(self._known), float(value)))

    def curves(self) -> dict[str, list[tuple[int, float]]]:
        """Return accuracy and NLL against the number of labels."""
        return self._scores


@dataclass(frozen=True)
class ActiveLearning:
    """The section ``task`` for active learning.

    Attributes:
        source: the source of a classification data set, as in ``datasets``.
        start: the number of known rows of each class at the start.
        labels: the number of labels to request.
        batch: the number of labels in each step.
        candidates: the number of rows of the pool from which each step chooses.
        wanted: the number of rows of the pool that represent future predictions (rule ``epig``).
        held: the number of rows that are scored.
    """

    source: Any = field(metadata={"read": catalog.read})
    start: int = 2
    labels: int = 60
    batch: int = 5
    candidates: int = 500
    wanted: int = 100
    held: int = 1000
    task = "classification"
    name: Literal["active_learning"] = "active_learning"

    def __post_init__(self) -> None:
        require(self.source.task == "classification", "source", "must be a data set of classes", self.source.name)
        for name in ("start", "labels", "batch", "wanted", "held"):
            require(getattr(self, name) > 0, name, "must be > 0", getattr(self, name))
        require(self.batch <= self.labels, "batch", f"must be <= labels, {self.labels}", self.batch)
        require(self.candidates >= self.batch, "candidates", f"must be >= batch, {self.batch}", self.candidates)

    def problem(self, rng: Seed) -> Labelling:
        """Draw the known rows, the held rows, and the pool.

        Raises:
            ConfigError: the data set, or one of its classes, has too few rows.
            DataError: the data set cannot be read.
        """
        raw, rows = raw_of(self.source), inputs_of(self.source)
        require(len(raw.classes) > 1, "source", "must have at least two classes", len(raw.classes))
        labels, order = raw.train.targets, rng.numpy().permutation(len(rows))
        held, rest = order[: self.held], order[self.held :]
        of_class = [rest[labels[rest] == c][: self.start] for c in range(len(raw.classes))]
        fewest = min(map(len, of_class))
        require(fewest == self.start, "start", f"must be <= {fewest}, rows of the smallest class", self.start)
        start = np.concatenate(of_class)
        pool = np.setdiff1d(rest, start)
        needed = self.labels + self.candidates + self.wanted
        rule = f"must leave {needed} of the data set's {len(rows)} rows for labels, candidates and wanted"
        require(len(pool) >= needed, "held", rule, self.held)
        return Labelling(rows, labels, raw.classes, start, pool, held, self, rng)


Configs: Final[Mapping[str, type]] = {"active_learning": ActiveLearning}
