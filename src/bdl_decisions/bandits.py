"""Contextual bandits: the wheel, and rows of a table with an arm for each class, or with edible and poisonous rows.

A reward is predicted from a context and an arm in blocks: each arm has one block of columns, and the row of an arm has
(context, 1) in this arm's block and zeros in all others (Zhou et al. 2020, "Neural contextual bandits with UCB-based
exploration", section 5). So one posterior answers for all arms, and a linear posterior is a linear model for each arm.

Regret is expected: the best arm's mean reward minus the chosen arm's, so that it contains no reward noise. It is
divided by the regret of uniform choices in the same rounds, the mean over arms without sampling, so that 1 means no
better than chance. Agents get rewards divided by the largest mean reward, which is assumed to be known. Rewards are not
standardised by the rewards so far, which would hide that other rewards can be much larger.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, final

import numpy as np

from bdl_pipe.data import catalog
from bdl_pipe.data.raw import FEWEST_ROWS
from bdl_pipe.errors import require
from bdl_pipe.seeds import Seed

from .loop import refits
from .question import Belief, Question
from .tables import numbers_of

_POINTS: Final = 40  # number of points of a curve


@final
class Bandit:
    """A bandit with all rounds known: contexts [round, column] and mean rewards [round, arm].

    Args:
        rewards: the rewards that each arm would give, drawn beforehand, so that all agents of a seed get the same luck.
        means: the mean rewards given the context.
        initial: rounds of each arm before the first fit, which pull the arms in turn. These are at least ten rounds in
            all, and continue until rewards differ.
        growth: a posterior is fitted again when the known rows have grown by this factor.
    """

    classes: tuple[str, ...] = ()
    standardised = False

    def __init__(
        self, contexts: np.ndarray, rewards: np.ndarray, means: np.ndarray, initial: int, growth: float
    ) -> None:
        for name, values in (("rewards", rewards), ("rewards", means), ("contexts", contexts)):
            wrong = values[~np.isfinite(values)]
            require(not len(wrong), name, "must be finite", wrong[:1].tolist())
        differ = bool((means != means[:, :1]).any())
        require(differ, "rewards", "must have a mean that differs between arms", float(means[0, 0]))
        scale = np.abs(means).max()
        self._rows, self._rewards, self._means = contexts, rewards / scale, means / scale
        arms = means.shape[1]
        turn = np.arange(len(means)) % arms
        least = max(FEWEST_ROWS, initial * arms)
        varied = np.flatnonzero(rewards[np.arange(len(means)), turn] != rewards[0, 0])
        least = max(least, int(varied[0]) + 1 if len(varied) else least)
        require(least < len(means), "rounds", f"must be more than the {least} rounds before the first fit", len(means))
        self._chosen, self._done = turn[:least], least
        self._before, self.rounds = least, len(means) - least
        self.refits = refits(self.rounds, least, growth)

    def known(self) -> tuple[np.ndarray, np.ndarray]:
        rounds = np.arange(self._done)
        rows = in_blocks(self._rows[: self._done], self._means.shape[1])[rounds, self._chosen]
        return rows, self._rewards[rounds, self._chosen]

    def question(self, rounds: int) -> Question:
        here = slice(self._done, self._done + rounds)
        return Question(in_blocks(self._rows[here], self._means.shape[1]), truth=self._means[here])

    def answer(self, question: Question, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        arms, here = chosen[:, 0], np.arange(self._done, self._done + len(chosen))
        self._chosen, self._done = np.concatenate([self._chosen, arms]), self._done + len(chosen)
        rows = in_blocks(self._rows[here], self._means.shape[1])[np.arange(len(arms)), arms]
        return rows, self._rewards[here, arms]

    def fitted(self, belief: Belief | None, rng: Seed) -> None:
        """Do nothing: regret depends only on the choices."""

    def curves(self) -> dict[str, list[tuple[int, float]]]:
        """Return ``regret``, cumulative since the first fit, and ``simple_regret``, over the last quarter of rounds.

        Both are divided by the regret of uniform choices.
        """
        means = self._means[self._before : self._done]
        best, chosen = means.max(1), means[np.arange(len(means)), self._chosen[self._before :]]
        regret, of_uniform = best - chosen, best - means.mean(1)
        share = regret.cumsum() / np.maximum(of_uniform.cumsum(), 1e-300)
        places = np.unique(np.linspace(1, len(means), min(_POINTS, len(means))).round().astype(int))
        last = slice(3 * len(means) // 4, None)
        simple = float(regret[last].sum() / max(of_uniform[last].sum(), 1e-300))
        curve = [(int(place), float(share[place - 1])) for place in places]
        return {"regret": curve, "simple_regret": [(len(means), simple)]}


def in_blocks(contexts: np.ndarray, arms: int) -> np.ndarray:
    """Return the row of each arm [round, arm, arm·(column + 1)]: (context, 1) in the arm's own block."""
    padded = np.concatenate([contexts, np.ones((len(contexts), 1))], 1)
    return np.einsum("ab,rc->rabc", np.eye(arms), padded).reshape(len(contexts), arms, -1)


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """The settings of every bandit.

    Attributes:
        rounds: the number of rounds, including the rounds before the first fit.
        initial: the number of rounds of each arm before the first fit.
        growth: a posterior is fitted again when the known rows have grown by this factor.
    """

    task = "regression"
    rounds: int = 2000
    initial: int = 3
    growth: float = 1.6

    def __post_init__(self) -> None:
        for name, least in (("rounds", 0), ("initial", 0), ("growth", 1)):
            require(getattr(self, name) > least, name, f"must be > {least}", getattr(self, name))


@dataclass(frozen=True)
class Wheel(Rounds):
    """The wheel bandit (Riquelme, Tucker & Snoek 2018, "Deep Bayesian bandits showdown", section 5.4).

    Contexts are uniform in the unit disc. Arm 0 gives 1.2, the other arms 1.0; but beyond radius δ one other arm, which
    depends on the quadrant, gives 50. All rewards have a standard deviation of 0.01.

    Attributes:
        delta: the radius δ.
    """

    delta: float
    name: Literal["wheel"] = "wheel"

    def __post_init__(self) -> None:
        require(0 < self.delta < 1, "delta", "must be between 0 and 1", self.delta)
        super().__post_init__()

    def problem(self, rng: Seed) -> Bandit:
        """Draw contexts and rewards."""
        random = rng.numpy()
        angle, radius = 2 * np.pi * random.random(self.rounds), np.sqrt(random.random(self.rounds))
        contexts = np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1)
        means = np.tile([1.2, 1.0, 1.0, 1.0, 1.0], (self.rounds, 1))
        quadrant = 1 + 2 * (contexts[:, 0] < 0) + (contexts[:, 1] < 0)
        far = np.flatnonzero(radius > self.delta)
        means[far, quadrant[far]] = 50.0
        rewards = means + 0.01 * random.standard_normal(means.shape)
        return Bandit(contexts, rewards, means, self.initial, self.growth)


@dataclass(frozen=True)
class RowsBandit(Rounds):
    """A bandit with the rows of a labelled data set as contexts, without repetition, in random order.

    Attributes:
        source: the source of a classification data set, as in ``datasets``.
        game: ``label`` has an arm for each class, with reward 1 for the row's class. ``mushroom`` has an arm to pass,
            with reward 0, and an arm to eat: +5 if the label is ``edible``, else +5 or −35 with probability ½ each
            (Riquelme et al. 2018).
        edible: the label of edible rows in ``mushroom``.
    """

    source: Any = field(metadata={"read": catalog.read})
    game: Literal["label", "mushroom"] = "label"
    edible: str = "e"
    name: Literal["rows_bandit"] = "rows_bandit"

    def __post_init__(self) -> None:
        require(self.source.task == "classification", "source", "must be a data set of classes", self.source.name)
        super().__post_init__()

    def problem(self, rng: Seed) -> Bandit:
        """Draw the rows' order and the rewards.

        Raises:
            ConfigError: the data set has fewer rows than rounds, or does not have the label ``edible``.
            DataError: the data set cannot be read.
        """
        rows, labels, classes = numbers_of(self.source)
        require(len(rows) >= self.rounds, "rounds", f"must be <= {len(rows)}, the rows of the data set", self.rounds)
        random = rng.numpy()
        order = random.permutation(len(rows))[: self.rounds]
        rows, labels = rows[order], labels[order]
        if self.game == "label":
            means = np.eye(len(classes))[labels]
            return Bandit(rows, means, means, self.initial, self.growth)
        require(self.edible in classes, "edible", f"must be one of {', '.join(classes)}", self.edible)
        good = labels == classes.index(self.edible)
        luck = np.where(random.random(len(rows)) < 0.5, 5.0, -35.0)
        nothing = np.zeros(len(rows))
        means = np.stack([nothing, np.where(good, 5.0, -15.0)], 1)
        return Bandit(rows, np.stack([nothing, np.where(good, 5.0, luck)], 1), means, self.initial, self.growth)


Configs: Final[Mapping[str, type]] = {"wheel": Wheel, "rows_bandit": RowsBandit}
