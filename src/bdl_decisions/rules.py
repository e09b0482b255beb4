"""Rules: functions that choose candidates, given a belief and a question. Each uses one of a belief's answers.

Most choose the largest values of an acquisition function: the value of a label or an evaluation, from class
probabilities or functions' values. Functions of classes take log p(class | row, draw) as [draw, row, class],
each draw being one function at all rows, and return nats [row]. Expectations over draws are exact for the given draws.

Add your own rule, a function, with :func:`register_rule`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from bdl_pipe.errors import UserError, require
from bdl_pipe.plugins import PluginError, Registered
from bdl_pipe.predictive import mixture
from bdl_pipe.seeds import Seed

from .ascent import Propose, bound_of, function_of, improvement_of, mean_of, proposes, upper_bound
from .question import Belief, Question

Choose = Callable[
    [Any, Question, float, Seed], np.ndarray
]  # (belief or None, question, width, address) -> [group, count]
Of = Literal["numbers", "classes", "any"]
MOST_OUTCOMES: Final = 10_000  # outcomes of a batch without its last row; BatchBALD sums over all outcomes
_AT_ONCE: Final = 20_000_000  # the largest number of joint probabilities in memory
_DRAWS: Final = 100  # number of drawn functions in an expectation


@dataclass(frozen=True)
class Rule:
    """A rule that chooses candidates.

    Attributes:
        choose: (belief, question, width, address) -> indices of candidates, int64 [group, count].
        of: the kind of targets for which the rule works.
        needs_posterior: whether the rule uses a belief.
        propose: (belief, question, width, address) -> points of the unit cube [count, column], which are chosen in
            place of candidates if the question is continuous. None: the rule chooses from the candidates.
    """

    choose: Choose
    of: Of = "numbers"
    needs_posterior: bool = True
    propose: Propose | None = None


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
    return torch.stack([different(of_group) for of_group in drawn.unbind(1)]).numpy()


def marginal_thompson(belief: Belief, question: Question, width: float, rng: Seed) -> np.ndarray:
    """Choose the largest of values drawn independently from the marginals."""
    mean, deviation = belief.parts(question.candidates, rng.fold("parts"))
    shape = (question.count, *mean.shape[1:])
    which = torch.randint(len(mean), shape, generator=rng.fold("which").generator())
    normal = torch.randn(shape, dtype=mean.dtype, generator=rng.fold("normal").generator())
    drawn = mean.gather(0, which) + deviation.gather(0, which) * normal
    return torch.stack([different(of_group) for of_group in drawn.unbind(1)]).numpy()


def ucb(belief: Belief, question: Question, width: float, rng: Seed) -> np.ndarray:
    """Choose the largest mean + width · standard deviation."""
    return _top(upper_bound(*belief.parts(question.candidates, rng), width), question.count)


def most_improvement(belief: Belief, question: Question, width: float, rng: Seed) -> np.ndarray:
    """Choose the largest expected improvement: in closed form for one choice, by joint draws for several."""
    if question.count == 1:
        return _top(expected_improvement(*belief.parts(question.candidates, rng), question.best), 1)
    drawn = belief.values(question.candidates, _DRAWS, rng)
    return np.array([batch_improvement(values, question.best, question.count) for values in drawn.unbind(1)])


def most_information(belief: Belief, question: Question, width: float, rng: Seed) -> np.ndarray:
    """Choose rows one after the other, each for the largest mutual information of batch and function."""
    draws = belief.class_draws(question.candidates[0], _DRAWS, rng)
    return np.array([batch_bald(draws, question.count)])


def most_about_predictions(belief: Belief, question: Question, width: float, rng: Seed) -> np.ndarray:
    """Choose the largest expected predictive information gains."""
    if question.inputs is None:
        raise UserError("rule: must fit the task (epig is for active learning), got epig")
    candidates = question.candidates[0]
    draws = belief.class_draws(np.concatenate([candidates, question.inputs]), _DRAWS, rng)
    return _top(epig(draws[:, : len(candidates)], draws[:, len(candidates) :])[None], question.count)


def _largest(value: Callable[[Belief, np.ndarray, Seed], Tensor]) -> Choose:
    """Return the rule that chooses the candidates with the largest values (belief, candidates, address) -> [row]."""

    def choose(belief: Belief, question: Question, width: float, rng: Seed) -> np.ndarray:
        return _top(value(belief, question.candidates[0], rng)[None], question.count)

    return choose


def _top(scores: Tensor, count: int) -> np.ndarray:
    return scores.topk(count, dim=-1).indices.cpu().numpy()


def entropy(log_probs: Float[Tensor, "row class"]) -> Float[Tensor, " row"]:
    """Return H[y | x] of the mean over draws."""
    return torch.special.entr(log_probs.exp()).sum(-1)


def margin(log_probs: Float[Tensor, "row class"]) -> Float[Tensor, " row"]:
    """Return minus the difference of the two largest probabilities (Scheffer et al. 2001)."""
    first, second = log_probs.topk(2, dim=-1).values.exp().unbind(-1)
    return second - first


def bald(draws: Float[Tensor, "draw row class"]) -> Float[Tensor, " row"]:
    """Return I[y; f | x] = H[y | x] − E_f H[y | x, f] (Houlsby et al. 2011)."""
    return entropy(mixture(draws)) - torch.special.entr(draws.exp()).sum(-1).mean(0)


def epig(draws: Float[Tensor, "draw row class"], targets: Float[Tensor, "draw target class"]) -> Float[Tensor, " row"]:
    """Return E_{x*} I[y; y* | x, x*], the expected predictive information gain (Bickford Smith et al. 2023, eq. 8).

    Args:
        targets: log-probabilities of the same draws at the inputs x* of future predictions.
    """
    here, there, joint = draws.exp(), targets.exp(), list[Tensor]()
    for part in here.split(max(1, _AT_ONCE // (here.shape[-1] * there[0].numel())), dim=1):
        probs = torch.einsum("src,stk->rctk", part, there) / len(draws)
        joint.append(torch.special.entr(probs).sum((1, 3)).mean(-1))
    return entropy(mixture(draws)) + entropy(mixture(targets)).mean() - torch.cat(joint)


def batch_bald(draws: Float[Tensor, "draw row class"], count: int) -> list[int]:
    """Choose ``count`` rows one after the other, each with the largest I[y_1 … y_n; f] (Kirsch et al. 2019, alg. 1).

    The entropy of the joint of a batch is a sum over all outcomes, without sampling of outcomes.

    Raises:
        ConfigError: the rows before the last have too many joint outcomes.
    """
    classes = draws.shape[-1]
    most = 1 + int(math.log(MOST_OUTCOMES) / math.log(classes) + 1e-9)
    require(count <= most, "batch", f"must be <= {most} for batch_bald with {classes} classes", count)
    probs = draws.exp()
    inner = torch.special.entr(probs).sum(-1).mean(0)  # [row]
    joint = probs.new_ones(len(draws), 1)  # p(y_1 … y_{n−1} | draw) [draw, outcome]
    chosen, taken = list[int](), probs.new_zeros(probs.shape[1])
    for _ in range(min(count, probs.shape[1])):
        gain = joint_entropy(joint, probs) - inner - sum(inner[row] for row in chosen)
        taken[chosen] = -torch.inf
        chosen.append(int((gain + taken).argmax()))
        joint = (joint[:, :, None] * probs[:, None, chosen[-1]]).flatten(1)
    return chosen


def joint_entropy(joint: Float[Tensor, "draw outcome"], probs: Float[Tensor, "draw row class"]) -> Tensor:
    """Return H[y_1 … y_{n−1}, y] for each row's y [row], given the probabilities of the outcomes of n − 1 rows."""
    entropies = []
    for part in probs.split(max(1, _AT_ONCE // (joint.shape[1] * probs.shape[2])), dim=1):
        every = torch.einsum("so,src->orc", joint, part) / len(joint)
        entropies.append(torch.special.entr(every).sum((0, 2)))
    return torch.cat(entropies)


def expected_improvement(
    mean: Float[Tensor, "part group row"], deviation: Float[Tensor, "part group row"], best: float
) -> Float[Tensor, "group row"]:
    """Return E[max(f − best, 0)] of an equal mixture of N(mean, deviation²) (Jones et al. 1998, eq. 15).

    A part without deviation is a point, such as a draw of a network.
    """
    gain = mean.double() - best
    scale = deviation.double().clamp_min(1e-300)
    z = gain / scale
    density = torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi)
    return torch.where(deviation > 0, gain * torch.special.ndtr(z) + scale * density, gain.clamp_min(0)).mean(0)


def batch_improvement(values: Float[Tensor, "draw row"], best: float, count: int) -> list[int]:
    """Choose ``count`` rows one after the other, each with the largest E[max(f_1, …, f_n, best)] over the draws.

    It is the greedy form of Ginsbourger et al. 2010, "Kriging is well-suited to parallelize optimization"; draws of
    functions at all rows together give the expectation.
    """
    chosen, reached = list[int](), values.new_full((len(values), 1), best)
    taken = values.new_zeros(values.shape[1])
    for _ in range(min(count, values.shape[1])):
        gain = (values - reached).clamp_min(0).mean(0)
        taken[chosen] = -torch.inf
        chosen.append(int((gain + taken).argmax()))
        reached = torch.maximum(reached, values[:, chosen[-1:]])
    return chosen


def different(scores: Float[Tensor, "draw row"]) -> Int[Tensor, " draw"]:
    """Return each draw's best row that no earlier draw has taken."""
    taken, chosen = scores.new_zeros(scores.shape[1]), list[int]()
    for of_draw in scores:
        chosen.append(int((of_draw + taken).argmax()))
        taken[chosen[-1]] = -torch.inf
    return torch.tensor(chosen)


RULES: Final[Registered[Rule]] = Registered(
    "rule",
    {
        "uniform": Rule(uniform, "any", needs_posterior=False),
        "oracle": Rule(oracle, needs_posterior=False),
        "greedy": Rule(greedy, propose=proposes(mean_of)),
        "thompson": Rule(thompson, propose=proposes(function_of)),
        "marginal_thompson": Rule(marginal_thompson),
        "ucb": Rule(ucb, propose=proposes(bound_of)),
        "expected_improvement": Rule(most_improvement, propose=proposes(improvement_of)),
        "entropy": Rule(_largest(lambda belief, rows, rng: entropy(belief.log_probs(rows, rng))), "classes"),
        "margin": Rule(_largest(lambda belief, rows, rng: margin(belief.log_probs(rows, rng))), "classes"),
        "bald": Rule(_largest(lambda belief, rows, rng: bald(belief.class_draws(rows, _DRAWS, rng))), "classes"),
        "batch_bald": Rule(most_information, "classes"),
        "epig": Rule(most_about_predictions, "classes"),
    },
)


def register_rule(
    name: str, choose: Choose, of: Of = "numbers", *, propose: Propose | None = None, needs_posterior: bool = True
) -> None:
    """Add a rule; agents use it by ``rule: <name>``. See :class:`Rule` for the arguments.

    Raises:
        PluginError: the rule is not a function, or its name is taken.
    """
    if not callable(choose):
        raise PluginError(f"the rule {name} must be a function (belief, question, width, address) -> [group, count]")
    RULES.add(name, Rule(choose, of, needs_posterior, propose), choose.__module__)
