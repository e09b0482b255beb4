"""CIBER for classes: some weights of the last layer are integrated out; all others come from a trajectory's snapshots.

p(y | x, D) ≈ (1/S) Σ_s p(y | x, snapshot s), where p(y | x, snapshot s) is averaged over the box of the collapsed
weights (:mod:`.head`), with the snapshot's other weights. With l the snapshot's logits,

    exact    p_k = E[softmax_k(l + shift + Σ_i h_iU_i)], all classes' weights at once, without approximation: one
             integral (:mod:`.integrals.uniform_logits`), up to three weights of each class
    cubic    p_k ∝ E[σ(a_k + shift_k + Σ_i h_{ki}U_{ki})], a_k = l_k − log Σ_{j≠k} exp l_j the log-odds at
             the snapshot's other logits; σ approximated by piecewise cubics (in the paper's text, one cubic)
    softmax  as cubic, with one weight of each class and the exact σ: the published code

In ``cubic`` and ``softmax``, the probabilities of one snapshot come from different integrals, each over one class's
logit, and are divided by their sum. This is not the average of eq. 2: for ten classes with logits of standard deviation
2 and half-widths of up to .4, 1 and 4, the error of a probability is up to .002, .012 and .12 with the sigmoid, .014,
.018 and .13 with one cubic, and .005, .031 and .27 without collapsed weights.

Weights: the paper collapses the weights of the last layer that vary most, 10 for 10 classes and 100 for 100. Its code
collapses one weight of each class, for each input the weight of largest range·|feature|. Ours follows the code, and the
bias is one of the weights.

Deviations. ``exact`` is ours. Cubics have as large an error in the tails, where they are 0 and 1, as in the middle, and
log 0 is not a usable score. So p_k is clamped to bounds that the exact average satisfies
(:func:`.integrals.softmax.within`), which can only reduce the error. If no collapsed weight has a range, nothing is
integrated and p_k is σ(a_k), so that a single snapshot, or snapshots with the same last layer, give their ensemble.

The draws of the predictive are the snapshots. So mutual information is I[y; snapshot | x]: disagreement within the
boxes is part of each draw's entropy, and the value is below the mutual information with all weights if p_s is the
average over the box (``exact``, and approximately the others). The joint of several inputs uses draws of the collapsed
weights (:meth:`CiberPosterior.joint`). Each snapshot has its own trained batch-normalisation statistics.

Zeng and Van den Broeck 2023, "Collapsed Inference for Bayesian Deep Learning", section 4 and appendix B.
"""

from dataclasses import dataclass
from functools import cache
from typing import Final, Literal, final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ..artifacts import State
from ..data.fitdata import FitData
from ..errors import require
from ..joint_predictive import JointCategorical
from ..method import Default, FromModel, Inputs, Method, StageSpec
from ..networks.last_layer import LastLayer, of_draws
from ..posterior import NetworkSpec
from ..predictive import Categorical
from ..progress import Report
from ..seeds import Seed
from .head import Collapsed, CollapsedSnapshots, Head, trajectory
from .integrals import few_uniforms, uniform_logits
from .integrals.layout import wide
from .integrals.piecewise import cubic_sigmoid
from .integrals.softmax import mean_sigmoid, within

POINTS: Final = 1 << 17  # averages that are computed together


@dataclass(frozen=True)
class CubicConfig:
    """The form with a piecewise-cubic sigmoid.

    Attributes:
        weights: the number of collapsed weights of each class (1). null collapses all weights of a last layer with at
            most 9 inputs.
        pieces: the number of cubics in the sigmoid (1); its largest error is .028 for 1, .0029 for 8 and 4e-5 for 32.
    """

    weights: int | None
    pieces: int
    name: Literal["cubic"] = "cubic"

    def __post_init__(self) -> None:
        good = self.weights is None or 0 < self.weights <= few_uniforms.MOST
        require(good, "weights", f"must be 1 … {few_uniforms.MOST}, or null for all", self.weights)
        require(0 < self.pieces <= 64, "pieces", "must be 1 … 64", self.pieces)


@dataclass(frozen=True)
class SoftmaxConfig:
    """The form with one collapsed weight of each class, and the exact average of its sigmoid."""

    name: Literal["softmax"] = "softmax"


@dataclass(frozen=True)
class ExactConfig:
    """The form with the exact average of the softmax over the collapsed weights of all classes together.

    Attributes:
        weights: the number of collapsed weights of each class; the work grows with the product of their nodes.
    """

    weights: int
    name: Literal["exact"] = "exact"

    def __post_init__(self) -> None:
        rule = (
            f"must be 1 … {uniform_logits.MOST}: the points of an exact average are the product of the weights' nodes"
        )
        require(0 < self.weights <= uniform_logits.MOST, "weights", rule, self.weights)


Form = ExactConfig | CubicConfig | SoftmaxConfig


@dataclass(frozen=True)
class CiberConfig:
    """The section ``methods.ciber`` of params.yaml.

    Attributes:
        form: the form of the average over the box: ``exact``, ``cubic`` or ``softmax``.
    """

    form: Form

    def count(self, inputs: int) -> int:
        """Return the number of collapsed weights of each class, which has ``inputs`` weights including the bias."""
        weights = 1 if isinstance(self.form, SoftmaxConfig) else self.form.weights
        return inputs if weights is None else weights


@final
class CiberPosterior(CollapsedSnapshots[CiberConfig]):
    """A posterior of the snapshots' networks with collapsed last layers."""

    key, reads = "ciber", CiberConfig

    def __init__(self, spec: NetworkSpec, config: CiberConfig, weights: dict[str, Tensor]) -> None:
        super().__init__(spec, config, weights)
        self._head = Head.of(weights["head.weight"], weights["head.bias"])
        self._count = config.count(self._head.weights.shape[-1])

    @torch.no_grad()
    def predict(self, inputs: Tensor, *, rng: Seed = Seed(0)) -> Categorical:
        """Return the predictive; ``rng`` is not used.

        It needs memory for a few tensors of snapshots × batch × classes, and for one trunk.
        """
        logits, collapsed = [], []
        for number, weights in self.numbered():
            features = self.features(weights, inputs)
            logits.append(F.linear(features, weights["head.weight"], weights["head.bias"]))
            collapsed.append(self._head.collapse(number, features, self._count))
        together = Collapsed(*(torch.stack(parts) for parts in zip(*collapsed, strict=True)))
        return Categorical(log_probs(torch.stack(logits), together, self.config.form))

    @torch.no_grad()
    def last_layer(self, inputs: Tensor, *, rng: Seed = Seed(0)) -> LastLayer:
        """Return the mean last layer of the snapshots at transformed inputs; ``rng`` is not used."""
        return of_draws(lambda snapshot: self.features(snapshot, inputs), self.weights)

    @torch.no_grad()
    def joint(
        self, inputs: Float[Tensor, "group row ..."], *, places: Tensor | None, draws: int, rng: Seed
    ) -> JointCategorical:
        """Return the joint of each group, by draws of the collapsed weights for each snapshot; all inputs share a draw.

        The integral over weights that several inputs share has no closed form. Given a draw, ``exact`` uses the softmax
        of the logits, so that a row's marginal equals ``predict``'s; the other forms use p_k ∝ σ(a_k + Σ (W − w)φ) with
        the exact sigmoid, normalised for each draw.
        """
        each, flat, log_probs = -(-draws // len(self._head.weights)), inputs.flatten(0, 1), []
        for number, weights in self.numbered():
            features = self.features(weights, flat)
            logits = F.linear(features, weights["head.weight"], weights["head.bias"])
            drawn = self._head.draw(each, rng.fold("weights", number))
            shift = self._head.drawn_shift(number, features, self._count, drawn)
            if isinstance(self.config.form, ExactConfig):
                log_probs.append((logits + shift).double().log_softmax(-1))
            else:
                log_probs.append(F.logsigmoid(log_odds(logits) + shift).double().log_softmax(-1))
        return JointCategorical(torch.cat(log_probs).unflatten(1, inputs.shape[:2])).at(places)


cubics = cache(cubic_sigmoid)  # cached, because fitting the cubics takes longer than predicting a batch


def log_probs(logits: Float[Tensor, "*batch class"], collapsed: Collapsed, form: Form) -> Float[Tensor, "*batch class"]:
    """Return log p for each snapshot's logits, computed in blocks of points."""
    if isinstance(form, ExactConfig):
        averages = uniform_logits.log_expected_softmax(wide(logits) + wide(collapsed.shift), collapsed.half_widths)
        still = (collapsed.half_widths == 0).all((-2, -1))[..., None]  # not integrated, so that the values are exact
        return torch.where(still, logits.log_softmax(-1), averages.to(logits))
    sigmoid = cubics(form.pieces).to(wide(logits)) if isinstance(form, CubicConfig) else None
    rows, log_probs = max(1, POINTS // logits.shape[-1]), []
    shifts, half_widths = collapsed.shift.flatten(0, -2).split(rows), collapsed.half_widths.flatten(0, -3).split(rows)
    for block, shift, half in zip(logits.flatten(0, -2).split(rows), shifts, half_widths, strict=True):
        odds, half = log_odds(block), wide(half)
        centre = wide(odds + shift)
        if sigmoid is None:
            average = mean_sigmoid(centre, half[..., 0])
        else:  # integrated only if a box reaches between the outer breakpoints, which are symmetric
            average = (centre > 0).to(centre)
            reached = centre.abs() - half.sum(-1) < sigmoid.breakpoints[-1]
            average[reached] = few_uniforms.expect(sigmoid, centre[reached], half[reached])
        logs = within(average, centre, half).to(block)
        logs = torch.where((half > 0).any(-1), logs, F.logsigmoid(odds))
        log_probs.append(logs - logs.logsumexp(-1, keepdim=True))
    return torch.cat(log_probs).reshape(logits.shape)


def log_odds(logits: Float[Tensor, "batch class"]) -> Float[Tensor, "batch class"]:
    """Return log p_k − log(1 − p_k) of the softmax, accurate in both tails."""
    logs = logits.log_softmax(-1)
    top = logits.argmax(-1, keepdim=True)
    rest = logits.scatter(-1, top, -torch.inf).logsumexp(-1, keepdim=True)
    odds = logs - torch.log1p(-logs.exp())  # p ≤ ½ except for the largest p, where 1 − p would cancel
    return odds.scatter(-1, top, logits.gather(-1, top) - rest)


def fit(data: FitData, inputs: Inputs, config: CiberConfig, *, rng: Seed, report: Report) -> State:
    """Return all snapshots of the trajectory in ``inputs``; ``data`` and ``rng`` are not used.

    Raises:
        ConfigError: there are more collapsed weights than a class has in the last layer, or than can be integrated.
    """
    spec, weights = trajectory(inputs)
    assert spec.likelihood == "categorical"
    width = weights["head.weight"].shape[-1] + 1
    most = min(uniform_logits.MOST if isinstance(config.form, ExactConfig) else few_uniforms.MOST, width)
    rule = f"must be 1 … {most} for a last layer of {width} weights a class, with the bias"
    count = config.count(width)
    require(count <= most, "methods.ciber.form.weights", rule, count)
    state = CiberPosterior(spec, config, weights).state()
    report(1, 1)
    return state


CIBER = Method(
    name="ciber",
    family="collapsed",
    bayesian=True,
    config=CiberConfig,
    tasks=("classification",),
    stages={"student": StageSpec(fit, needs={"trajectory": "one_to_one"}, random=False, in_driver=True)},
    settings={"form": {"name": "exact", "weights": 1}},
    default=Default(0.3, "iterates"),
    from_model=FromModel(lambda fit: {"form": {"name": "exact", "weights": 1}}),
)
