"""Rules: functions that choose candidates, given a belief and a question. Each uses one of a belief's answers.

Add your own rule, a function, with :func:`register_rule`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import torch

from bdl_pipe.errors import UserError
from bdl_pipe.plugins import PluginError, Registered
from bdl_pipe.seeds import Seed

from . import acquisition
from .question import Belief, Question

Choose = Callable[
    [Any, Question, float, Seed], np.ndarray
]  # (belief or None, question, width, address) -> [group, count]
Of = Literal["numbers", "classes", "any"]
_DRAWS: Final = 100  # number of drawn functions in an expectation


@dataclass(frozen=True)
class Rule:
    """A rule that chooses candidates.

    Attributes:
        choose: (belief, question, width, address) -> indices of candidates, int64 [group, count].
        of: the kind of targets for which the rule works.
        needs_posterior: whether the rule uses a belief.
    """

    choose: Choose
    of: Of = "numbers"
    needs_posterior: bool = True


def uniform(belief: Belief | None, question: Question, width: float, rng: Seed) -> np.ndarray:
    """Choose at random."""
    random = rng.numpy().random(question.candidates.shape[:2])
    return random.argsort(1)[:, : question.count]


def oracle(belief: Belief | None, question: Question, width: float, rng: Seed) -> np.ndarray:
    """Choose the largest true means.

    Raises:
        UserError: the problem has no true means.
    """
    if question.truth is None:
        raise UserError("rule: must fit the task (oracle is for bandits), got oracle")
    return _top(torch.from_numpy(question.truth), question.count)


def greedy(belief: Belief, question: Question, width: float, rng: Seed) -> np.ndarray:
    """Choose the largest mean."""
    return _top(belief.means(question.candidates, rng), question.count)


def thompson(belief: Belief, question: Question, width: float, rng: Seed) -> np.ndarray:
    """Choose the largest value of a function drawn at all candidates together, a function for each choice."""
    drawn = belief.values(question.candidates, question.count, rng)
    return torch.stack([acquisition.different(drawn[:, g]) for g in range(drawn.shape[1])]).numpy()


def marginal_thompson(belief: Belief, question: Question, width: float, rng: Seed) -> np.ndarray:
    """Choose the largest of values drawn independently from the marginals."""
    mean, deviation = belief.parts(question.candidates, rng.fold("parts"))
    shape = (question.count, *mean.shape[1:])
    which = torch.randint(len(mean), shape, generator=rng.fold("which").generator())
    normal = torch.randn(shape, dtype=mean.dtype, generator=rng.fold("normal").generator())
    drawn = mean.gather(0, which) + deviation.gather(0, which) * normal
    return torch.stack([acquisition.different(drawn[:, g]) for g in range(drawn.shape[1])]).numpy()


def ucb(belief: Belief, question: Question, width: float, rng: Seed) -> np.ndarray:
    """Choose the largest mean + width · standard deviation."""
    mean, deviation = belief.parts(question.candidates, rng)
    spread = (deviation.square().mean(0) + mean.var(0, correction=0)).sqrt()
    return _top(mean.mean(0) + width * spread, question.count)


def expected_improvement(belief: Belief, question: Question, width: float, rng: Seed) -> np.ndarray:
    """Choose the largest expected improvement: in closed form for one choice, by joint draws for several."""
    if question.count == 1:
        found = acquisition.expected_improvement(*belief.parts(question.candidates, rng), question.best)
        return _top(found, 1)
    drawn = belief.values(question.candidates, _DRAWS, rng)
    batches = [acquisition.batch_improvement(values, question.best, question.count) for values in drawn.unbind(1)]
    return np.array(batches)


def entropy(belief: Belief, question: Question, width: float, rng: Seed) -> np.ndarray:
    """Choose the largest entropies."""
    return _top(acquisition.entropy(belief.log_probs(question.candidates[0], rng))[None], question.count)


def margin(belief: Belief, question: Question, width: float, rng: Seed) -> np.ndarray:
    """Choose the smallest differences of the two largest probabilities."""
    return _top(acquisition.margin(belief.log_probs(question.candidates[0], rng))[None], question.count)


def bald(belief: Belief, question: Question, width: float, rng: Seed) -> np.ndarray:
    """Choose the rows with the largest mutual information between label and function."""
    return _top(acquisition.bald(belief.class_draws(question.candidates[0], _DRAWS, rng))[None], question.count)


def batch_bald(belief: Belief, question: Question, width: float, rng: Seed) -> np.ndarray:
    """Choose rows one after the other, each for the largest mutual information of batch and function."""
    draws = belief.class_draws(question.candidates[0], _DRAWS, rng)
    return np.array([acquisition.batch_bald(draws, question.count)])


def epig(belief: Belief, question: Question, width: float, rng: Seed) -> np.ndarray:
    """Choose the largest expected predictive information gains."""
    if question.inputs is None:
        raise UserError("rule: must fit the task (epig is for active learning), got epig")
    candidates = question.candidates[0]
    draws = belief.class_draws(np.concatenate([candidates, question.inputs]), _DRAWS, rng)
    gains = acquisition.epig(draws[:, : len(candidates)], draws[:, len(candidates) :])
    return _top(gains[None], question.count)


def _top(scores: torch.Tensor, count: int) -> np.ndarray:
    found: np.ndarray = scores.topk(count, dim=-1).indices.cpu().numpy()
    return found


RULES: Final[Registered[Rule]] = Registered(
    "rule",
    {
        "uniform": Rule(uniform, "any", needs_posterior=False),
        "oracle": Rule(oracle, needs_posterior=False),
        "greedy": Rule(greedy),
        "thompson": Rule(thompson),
        "marginal_thompson": Rule(marginal_thompson),
        "ucb": Rule(ucb),
        "expected_improvement": Rule(expected_improvement),
        "entropy": Rule(entropy, "classes"),
        "margin": Rule(margin, "classes"),
        "bald": Rule(bald, "classes"),
        "batch_bald": Rule(batch_bald, "classes"),
        "epig": Rule(epig, "classes"),
    },
)


def register_rule(name: str, choose: Choose, of: Of = "numbers") -> None:
    """Add a rule; agents use it by ``rule: <name>``.

    Raises:
        PluginError: the rule is not a function, or its name is taken.
    """
    if not callable(choose):
        raise PluginError(f"the rule {name} must be a function (belief, question, width, address) -> [group, count]")
    RULES.add(name, Rule(choose, of), choose.__module__)
