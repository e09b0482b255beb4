"""Decisions in your own loop, by ask and tell: where to evaluate a function, which arm to pull, which rows to label.

    search = Maximise([(0.0, 1.0), (1e-4, 1e-1)], method="vbll")
    while len(search.values) < 40:
        rows = search.ask(2)
        search.tell(rows, [measure(row) for row in rows])

Each remembers what it was told; nothing else decides the next answer, so that :meth:`save` and ``load`` go on with the
same bits. Until there are enough rows for a fit, and while their values or inputs are all equal, answers are random.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import fields
from numbers import Integral
from pathlib import Path
from typing import Any, ClassVar, Final, Self, final

import numpy as np
from numpy.typing import ArrayLike

from bdl_pipe.data.raw import FEWEST_ROWS
from bdl_pipe.errors import ArtifactError, DataError, NothingToFit, UserError, require, short
from bdl_pipe.files import write_bytes
from bdl_pipe.registry import METHODS
from bdl_pipe.seeds import Seed

from .agents import Agent
from .ascent import around_best, candidates
from .bandits import in_blocks
from .beliefs import PosteriorBelief
from .question import Question
from .rules import uniform

_CANDIDATES: Final = 1000  # where the ascent of an acquisition function starts


def _numbers(name: str, values: ArrayLike) -> np.ndarray:
    """Return float64 of any shape; NaN for None.

    Raises:
        DataError: the values are no numbers, or have rows of different lengths.
    """
    try:
        return np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise DataError(f"{name}: must be numbers, got {values!r}") from None


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


class Decider(ABC):
    """What all three share: the agent, the address of its random numbers, and the rows that it was told.

    Args:
        method: a registered method.
        rule: the rule by which its posterior chooses, of :data:`.rules.RULES`.
        seed: the root of all random numbers.
        agent: further settings of :class:`.agents.Agent`: ``pace``, ``override``, ``width``, ``region``, …
    """

    task: ClassVar[str] = "regression"

    def __init__(self, method: str, rule: str, seed: int = 0, **agent: Any) -> None:
        require(_is_whole(seed) and seed >= 0, "seed", "must be a whole number >= 0", seed)
        known = {field.name for field in fields(Agent)}
        for name in agent:
            require(name in known, name, f"must be one of {', '.join(sorted(known))}", name)
        self._settings = {"method": method, "rule": rule, "seed": seed, **agent}
        self._agent = Agent(rule=rule, method=method, **agent)
        self._agent.check(self.task)
        self._address = Seed(seed).fold("own")

    def _fit(self, rows: np.ndarray, targets: np.ndarray, classes: tuple[str, ...] = ()) -> PosteriorBelief | None:
        """Return the belief given all rows; None if there is nothing to fit yet."""
        if len(rows) < FEWEST_ROWS:
            return None
        try:
            return self._agent.fit(rows, targets, classes, self._address.fold("fit", len(rows)))
        except NothingToFit:
            return None

    def save(self, path: str | Path) -> None:
        """Write the settings and all that it was told as JSON, whole or not at all."""
        facts = {"kind": type(self).__name__, "settings": self._settings, **self._told()}
        write_bytes(Path(path), json.dumps(facts).encode())

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what :meth:`save` wrote.

        Raises:
            ArtifactError: the file is missing or holds something else.
        """
        try:
            facts = json.loads(Path(path).read_text("utf-8"))
            kind, settings = facts.pop("kind"), facts.pop("settings")
        except (OSError, ValueError, KeyError, AttributeError) as error:
            raise ArtifactError(f"{path}: must be a file of {cls.__name__}.save ({error})") from None
        if kind != cls.__name__:
            raise ArtifactError(f"{path}: must be a file of {cls.__name__}.save, got one of {kind}")
        try:
            return cls._from(facts, settings)
        except UserError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise ArtifactError(f"{path}: must be a file of {cls.__name__}.save ({error!r})") from None

    @abstractmethod
    def _told(self) -> dict[str, Any]:
        """Return the facts that :meth:`_from` reads."""

    @classmethod
    @abstractmethod
    def _from(cls, facts: dict[str, Any], settings: dict[str, Any]) -> Self: ...


@final
class Maximise(Decider):
    """The search for the largest value of a function of numbers.

    Args:
        bounds: the least and the largest value of each input. Use the logarithm of an input that spans decades.
        start: the number of random inputs before the first fit.
        agent: see :class:`Decider`. A method has its settings for few rows in place of what you do not pass: ``gp``
            has an ``override``, and ``vbll`` an ``override`` and a ``region`` (see ``docs/decisions.md``).

    Attributes:
        rows, values: all evaluations so far, in their order: float64 [row, column] and [row].

    Raises:
        ConfigError: bounds are no pairs of finite numbers in order, or a setting is wrong.
        DataError: bounds are no numbers, or no pairs.
    """

    def __init__(
        self,
        bounds: Sequence[tuple[float, float]],
        method: str = "vbll",
        rule: str = "expected_improvement",
        *,
        start: int = 10,
        seed: int = 0,
        **agent: Any,
    ) -> None:
        few_rows = METHODS[method].few_rows if method in METHODS else {}
        super().__init__(method, rule, seed, **dict(few_rows) | agent)
        self._settings |= {"start": start}
        box = _numbers("bounds", bounds)
        good = box.ndim == 2 and box.shape[1:] == (2,) and len(box) > 0
        require(good and bool(np.isfinite(box).all() and (box[:, 0] < box[:, 1]).all()), "bounds",
                "must be pairs (least, largest) of finite numbers", bounds)  # fmt: skip
        require(_is_whole(start) and start >= FEWEST_ROWS, "start", f"must be a whole number >= {FEWEST_ROWS}", start)
        self._bounds, self._start = box.tolist(), start
        self._low, self._span = box[:, 0], box[:, 1] - box[:, 0]
        self.rows, self.values = np.zeros((0, len(box))), np.zeros(0)

    @property
    def best(self) -> tuple[np.ndarray, float]:
        """Return the input with the largest value so far, and this value.

        Raises:
            DataError: there is no evaluation yet.
        """
        if not len(self.values):
            raise DataError("best: must come after the first tell")
        return self.rows[self.values.argmax()], float(self.values.max())

    def ask(self, count: int = 1) -> np.ndarray:
        """Return the next inputs to evaluate [count, column]. Asked twice before :meth:`tell`, they are the same.

        Raises:
            ConfigError: the count is not a whole number above 0.
        """
        require(_is_whole(count) and count > 0, "count", "must be a whole number > 0", count)
        address = self._address.fold("ask", len(self.values))
        random, cube = address.fold("candidates").numpy(), (self.rows - self._low) / self._span
        enough = len(self.values) >= self._start
        belief = self._fit(cube, self.values) if enough and self._agent.choosing.needs_posterior else None
        rule, width = self._agent.choosing, self._agent.width
        if rule.choose is uniform or (belief is None and rule.needs_posterior) or not enough:
            return self._low + self._span * random.random((count, len(self._low)))
        starts = candidates(cube[self.values.argmax()], max(count, _CANDIDATES), random)[None]
        question = Question(starts, count, (cube, self.values), continuous=True)
        if self._agent.region is not None:
            question = around_best(question, self._agent.region, address.fold("region"))
        if rule.propose is None:
            points = question.candidates[0, rule.choose(belief, question, width, address)[0]]
        else:
            points = rule.propose(belief, question, width, address)
        return self._low + self._span * points

    def tell(self, rows: ArrayLike, values: ArrayLike) -> None:
        """Add evaluations: inputs [row, column], asked for or not, and their values [row].

        Raises:
            DataError: an input is outside the bounds, or a number is not finite.
        """
        rows, values = np.atleast_2d(_numbers("rows", rows)), np.atleast_1d(_numbers("values", values))
        if values.shape != (len(rows),) or not np.isfinite(values).all():
            hint = "give a failed evaluation the worst value that you know"
            raise DataError(f"values: must be {len(rows)} finite numbers, got {values.tolist()}; {hint}")
        inside = (rows >= self._low - 1e-9 * self._span) & (rows <= self._low + (1 + 1e-9) * self._span)
        if rows.shape[1:] != self._low.shape or not inside.all():
            raise DataError(f"rows: must be [row, {len(self._low)}] inside the bounds, got {rows.tolist()}")
        self.rows, self.values = np.concatenate([self.rows, rows]), np.concatenate([self.values, values])

    def _told(self) -> dict[str, Any]:
        return {"bounds": self._bounds, "rows": self.rows.tolist(), "values": self.values.tolist()}

    @classmethod
    def _from(cls, facts: dict[str, Any], settings: dict[str, Any]) -> "Maximise":
        made = cls(facts["bounds"], **settings)
        if facts["values"]:
            made.tell(facts["rows"], facts["values"])
        return made


@final
class Arms(Decider):
    """A contextual bandit: which of several arms to pull in a context.

    Args:
        arms: the number of arms.
        initial: the number of times that each arm is pulled before the first fit.
        growth: the posterior is fitted again when the pulls have grown by this factor.

    Attributes:
        contexts, pulled, rewards: all pulls so far, in their order.

    Raises:
        ConfigError: a setting is wrong.
    """

    def __init__(
        self, arms: int, method: str = "vbll", rule: str = "thompson", *, initial: int = 3, growth: float = 1.5,
        seed: int = 0, **agent: Any
    ) -> None:  # fmt: skip
        super().__init__(method, rule, seed, **agent)
        require(_is_whole(arms) and arms >= 2, "arms", "must be a whole number >= 2", arms)
        require(_is_whole(initial) and initial >= 1, "initial", "must be a whole number >= 1", initial)
        require(growth > 1, "growth", "must be > 1", growth)
        self._settings |= {"arms": arms, "initial": initial, "growth": growth}
        self._arms, self._initial, self._growth = arms, initial, growth
        self.contexts: np.ndarray | None = None
        self.pulled, self.rewards = list[int](), list[float]()
        self._belief: PosteriorBelief | None = None
        self._fitted = 0

    def ask(self, context: ArrayLike) -> int:
        """Return the arm to pull in a context [column].

        Raises:
            DataError: the context has another width than those of the pulls, or a number is not finite.
        """
        row, pulls = self._row(context), len(self.pulled)
        if pulls < self._initial * self._arms:
            return pulls % self._arms
        belief = self._current()
        address = self._address.fold("ask", pulls)
        if belief is None:
            return int(address.numpy().integers(self._arms))
        question = Question(in_blocks(row, self._arms))
        return int(self._agent.choosing.choose(belief, question, self._agent.width, address)[0, 0])

    def tell(self, context: ArrayLike, arm: int, reward: float) -> None:
        """Add a pull and its reward.

        Raises:
            DataError: the arm does not exist, the context has another width, or a number is not finite.
        """
        row, rewards = self._row(context), _numbers("reward", reward).reshape(-1)
        if not (_is_whole(arm) and 0 <= arm < self._arms and len(rewards) == 1 and np.isfinite(rewards).all()):
            got = f"got {short(arm)}, {short(reward)}"
            raise DataError(f"a pull must be an arm of 0 … {self._arms - 1} and a finite number, {got}")
        self.contexts = row if self.contexts is None else np.concatenate([self.contexts, row])
        self.pulled.append(int(arm))
        self.rewards.append(float(rewards[0]))

    def _row(self, context: ArrayLike) -> np.ndarray:
        """Return a context as one row [1, column].

        Raises:
            DataError: it has another width than those of the pulls, or a number is not finite.
        """
        row = _numbers("context", context).reshape(1, -1)
        if self.contexts is not None and row.shape[1] != self.contexts.shape[1]:
            raise DataError(f"context: must have {self.contexts.shape[1]} numbers, got {row.shape[1]}")
        if not np.isfinite(row).all():
            raise DataError(f"context: must be finite numbers, got {short(row[0].tolist())}")
        return row

    def _current(self) -> PosteriorBelief | None:
        """Return the belief of the last due fit, with the pulls since then if it learns row by row."""
        assert self.contexts is not None
        due, pulls = self._initial * self._arms, len(self.pulled)
        while (after := max(round(due * self._growth), due + 1)) <= pulls:
            due = after
        rows = in_blocks(self.contexts, self._arms)[np.arange(pulls), self.pulled]
        targets = np.array(self.rewards)
        if self._fitted < due or self._belief is None:
            self._belief, self._fitted = self._fit(rows[:due], targets[:due]), due
        if self._belief is not None and self._belief.learns and self._fitted < pulls:
            for pull in range(self._fitted, pulls):  # one by one, so that all ways to this pull have the same bits
                self._belief.learn(rows[pull : pull + 1], targets[pull : pull + 1])
            self._fitted = pulls
        return self._belief

    def _told(self) -> dict[str, Any]:
        contexts = [] if self.contexts is None else self.contexts.tolist()
        return {"contexts": contexts, "pulled": self.pulled, "rewards": self.rewards}

    @classmethod
    def _from(cls, facts: dict[str, Any], settings: dict[str, Any]) -> "Arms":
        made = cls(**settings)
        for pull in zip(facts["contexts"], facts["pulled"], facts["rewards"], strict=True):
            made.tell(*pull)
        return made


@final
class Pool(Decider):
    """A pool of rows without labels: which rows to label next.

    Args:
        rows: the pool: numbers [row, column], or images uint8 [row, channel, height, width].
        start: the number of random rows before the first fit.
        candidates: the number of rows, drawn for each question, among which the rule chooses.

    Attributes:
        labels: row number -> its label, in the order of telling.

    Raises:
        ConfigError: the pool is no array of finite numbers, or a setting is wrong.
    """

    task = "classification"

    def __init__(
        self, rows: ArrayLike, method: str = "d_vbll", rule: str = "bald", *, start: int = 20, candidates: int = 500,
        seed: int = 0, **agent: Any
    ) -> None:  # fmt: skip
        super().__init__(method, rule, seed, **agent)
        self._rows = np.asarray(rows)
        good = self._rows.ndim >= 2 and self._rows.dtype.kind in "biuf" and bool(np.isfinite(self._rows).all())
        require(good, "rows", "must be an array of finite numbers with a row each", list(self._rows.shape))
        few = f"must be at least {FEWEST_ROWS}, so that there are enough for a fit"
        require(len(self._rows) >= FEWEST_ROWS, "rows", few, len(self._rows))
        require(FEWEST_ROWS <= start <= len(self._rows), "start", f"must be {FEWEST_ROWS} … {len(self._rows)}", start)
        require(candidates > 0, "candidates", "must be > 0", candidates)
        self._settings |= {"start": start, "candidates": candidates}
        self._start, self._candidates, self.labels = start, candidates, dict[int, Any]()

    def ask(self, count: int = 1) -> np.ndarray:
        """Return the numbers of the next rows to label [count].

        Raises:
            ConfigError: fewer rows are left.
        """
        left = np.setdiff1d(np.arange(len(self._rows)), list(self.labels))
        good = _is_whole(count) and 0 < count <= len(left)
        require(good, "count", f"must be 1 … {len(left)}, the rows that are left", count)
        address = self._address.fold("ask", len(self.labels))
        drawn = address.fold("candidates").numpy().permutation(left)
        known, names = np.array(list(self.labels), np.int64), sorted({str(label) for label in self.labels.values()})
        enough, rule = len(known) >= self._start, self._agent.choosing
        belief = None
        if enough and rule.needs_posterior:
            places = np.array([names.index(str(label)) for label in self.labels.values()], np.int64)
            belief = self._fit(self._rows[known], places, tuple(names))
        if belief is None:
            return drawn[:count]
        candidates, others = drawn[: max(count, self._candidates)], drawn[-self._candidates :]
        question = Question(self._rows[candidates][None], count, inputs=self._rows[others])
        return candidates[rule.choose(belief, question, self._agent.width, address)[0]]

    def tell(self, numbers: ArrayLike, labels: Sequence[Any]) -> None:
        """Add the labels of rows.

        Raises:
            DataError: a row is not in the pool or has a label already; or a label is missing, or is another one of the
                same name, as 1 and "1". No label of the call is then kept.
        """
        given = np.atleast_1d(np.asarray(numbers)).tolist()
        if len(given) != len(labels):
            raise DataError(f"labels: must be {len(given)}, one for each row, got {len(labels)}")
        wrong = [label for label in labels if not isinstance(label, Hashable) or label is None or label != label]
        if wrong:
            raise DataError(f"labels: must be texts or numbers, none of them missing, got {wrong[0]!r}")
        new = dict[int, Any]()
        for number, label in zip(given, labels, strict=True):
            if not _is_whole(number) or not 0 <= number < len(self._rows) or number in self.labels or number in new:
                raise DataError(f"numbers: must be rows of 0 … {len(self._rows) - 1} without a label, got {number!r}")
            new[number] = label.item() if isinstance(label, np.generic) else label
        names = dict[str, Any]()
        for label in [*self.labels.values(), *new.values()]:  # a class is known by its name
            other = names.setdefault(str(label), label)
            if type(other) is not type(label) or other != label:
                raise DataError(f"labels: must be of one type, got {other!r} and {label!r}")
        self.labels |= new

    def _told(self) -> dict[str, Any]:
        return {"rows": self._rows.tolist(), "dtype": self._rows.dtype.str, "labels": list(self.labels.items())}

    @classmethod
    def _from(cls, facts: dict[str, Any], settings: dict[str, Any]) -> "Pool":
        made = cls(np.array(facts["rows"], facts["dtype"]), **settings)
        made.tell([number for number, _ in facts["labels"]], [label for _, label in facts["labels"]])
        return made
