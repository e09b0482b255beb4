"""CIBER for regression with weights of the last hidden layer; the mean is linear in the outputs of its ReLU units.

The collapsed weights by ``choice``:

    variance  the weights of the layer that vary most over the snapshots, the same for every input and snapshot: the
              paper's "three out of all the weights at the second-to-last layer" of "the greatest variance" (6.1). They
              may belong to one, two or three units
    input     for each input and snapshot the weights of one unit with the largest range·|input|: the unit with the
              widest range of its contribution to the mean over its box (ours)

Both include biases, which the paper does not specify. The average over the box is exact for every such choice
(:mod:`.rectified`). The collapsed weights affect the mean, not the variance (:mod:`.regression`).

Zeng and Van den Broeck 2023, "Collapsed Inference for Bayesian Deep Learning", sections 4 and 6.1.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, NamedTuple, final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ..artifacts import State, under
from ..config import LATER, to_mapping
from ..data.fitdata import FitData
from ..errors import require
from ..method import Inputs, Method, StageSpec
from ..networks import MlpConfig
from ..networks.base import Replicas
from ..posterior import NetworkSpec
from ..progress import Report
from ..seeds import Seed
from .head import Head, trajectory
from .integrals import few_uniforms
from .integrals.piecewise import radius
from .mixture import CollapsedMixture
from .rectified import Unit, of_units
from .regression import DEFAULT, SETTINGS, LikelihoodConfig, Regression

MOST_OF_LAYER: Final = 3  # two units with two weights each have no closed form


@dataclass(frozen=True)
class CiberSecondConfig(LikelihoodConfig):
    """The section ``methods.ciber_second`` of params.yaml.

    Attributes:
        weights: the number of collapsed incoming weights, including biases: of one unit (``input``), or of the layer
            (``variance``, 1 … 3).
        choice: ``input`` collapses weights of one unit for each input, ``variance`` the weights of the layer that vary
            most.
    """

    weights: int
    choice: Literal["input", "variance"] = field(default="input", metadata=LATER)

    def __post_init__(self) -> None:
        super().__post_init__()
        most, where = (few_uniforms.MOST, "") if self.choice == "input" else (MOST_OF_LAYER, " by choice: variance")
        require(0 < self.weights <= most, "weights", f"must be 1 … {most}{where}", self.weights)


class _Sample(NamedTuple):
    """One snapshot at some inputs; lists have an entry for each collapsed unit.

    Attributes:
        before: the inputs of the units.
        active: the pre-activation of each collapsed unit.
        numbers: the index of each collapsed unit.
        units: each collapsed unit's contribution to the mean over the box.
        base: the mean without the collapsed units.
        radius: the radius of the noise.
    """

    before: Float[Tensor, "batch width"]
    active: list[Float[Tensor, " batch"]]
    numbers: list[Tensor]  # [batch]
    units: list[Unit]
    base: Float[Tensor, " batch"]
    radius: Float[Tensor, " batch"]


@final
class CiberSecondPosterior(Regression[CiberSecondConfig]):
    """A posterior of the snapshots' networks with collapsed weights of the last hidden layer.

    Attributes:
        layer: the last hidden layer.
        chosen: the collapsed inputs of each unit with collapsed weights. None if they are selected for each input.
    """

    key, reads = "ciber_second", CiberSecondConfig

    def __init__(self, spec: NetworkSpec, config: CiberSecondConfig, weights: dict[str, Tensor]) -> None:
        super().__init__(spec, config, weights)
        assert isinstance(self.trunk, nn.Sequential)
        self._last = max(i for i, module in enumerate(self.trunk) if isinstance(module, nn.Linear))
        self._before = Replicas(self.trunk[: self._last])
        self.layer = Head.of(weights[f"trunk.{self._last}.weight"], weights[f"trunk.{self._last}.bias"])
        by_variance = config.choice == "variance"
        self.chosen = most_varied(self.layer.weights, config.weights) if by_variance else None

    @torch.no_grad()
    def predict(self, inputs: Tensor, *, rng: Seed = Seed(0)) -> CollapsedMixture:
        """Return the predictive; ``rng`` is not used.

        With ``choice: input`` it needs memory for inputs × units × inputs of a unit numbers, for one snapshot.
        """
        samples = [self._sample(number, weights, inputs) for number, weights in self.numbered()]
        units = [
            Unit(*map(_stacked, zip(*each, strict=True))) for each in zip(*(s.units for s in samples), strict=True)
        ]
        part = of_units(_stacked([s.base for s in samples]), units, _stacked([s.radius for s in samples]))
        return CollapsedMixture(part, self.config.tail)

    def drawn(
        self, number: int, weights: dict[str, Tensor], inputs: Tensor, draws: int, rng: Seed
    ) -> tuple[Tensor, Tensor]:
        sample, drawn = self._sample(number, weights, inputs), self.layer.draw(draws, rng)
        mean, past, features = sample.base.expand(draws, -1), self.layer.weights[number], sample.before
        if self.chosen is None:  # the change of the collapsed unit's pre-activation, [draw, batch]
            of_all = self.layer.drawn_shift(number, features, self.config.weights, drawn)  # [draw, batch, unit]
            shifts = [of_all.gather(-1, sample.numbers[0].expand(len(drawn), -1)[..., None])[..., 0]]
        else:
            padded = F.pad(features, (0, 1), value=1.0)
            shifts = [(drawn[:, unit, c] - past[unit, c]) @ padded[:, c].T for unit, c in self.chosen.items()]
        for unit, active, shift in zip(sample.units, sample.active, shifts, strict=True):
            mean = mean + unit.outgoing * F.relu(active + shift).double()
        return mean[..., None], sample.radius[:, None]

    def _sample(self, number: int, weights: dict[str, Tensor], inputs: Tensor) -> _Sample:
        """Return one snapshot with its collapsed units at each input."""
        names = {k: v for k, v in under("trunk.", weights).items() if int(k.split(".")[0]) < self._last}
        before = self._before.call(names, inputs)
        layer = self.layer.weights[number]
        active = F.linear(before, layer[:, :-1], layer[:, -1])  # [batch, unit]
        mean, sd = self.outputs(weights, F.relu(active))
        outgoing = self.head.weights[number, 0, :-1]
        if self.chosen is None:  # the unit with the widest effect on the mean, for each input
            collapsed = self.layer.collapse(number, before, self.config.weights)
            centre, spread = active + collapsed.shift, collapsed.half_widths.sum(-1)
            at = (outgoing.abs() * (F.relu(centre + spread) - F.relu(centre - spread))).argmax(-1)
            units = [(at, _of_unit(collapsed.shift, at), _of_unit(collapsed.half_widths, at))]
        else:  # the same units for all inputs
            features, units = F.pad(before, (0, 1), value=1.0), []
            for unit, columns in self.chosen.items():
                past, taken = self.layer.weights[:, unit, columns], features[:, columns]
                low, high = past.amin(0), past.amax(0)
                offset = ((low - past[number]) + (high - past[number])) / 2  # 0 if the snapshots are equal
                at = torch.full((len(before),), unit, device=before.device)
                units.append((at, taken @ offset, taken.abs() * ((high - low) / 2)))
        base, noise = mean[:, 0], radius(sd[:, 0], self.config.radius)
        sample = _Sample(before, [], [], [], base, noise)
        for at, shift, half_widths in units:
            passed, w = _of_unit(active, at), outgoing[at].double()
            base = base - w * F.relu(passed).double()
            sample.active.append(passed)
            sample.numbers.append(at)
            sample.units.append(Unit(w, (passed + shift).double(), half_widths.double()))
        return sample._replace(base=base)


def most_varied(weights: Float[Tensor, "snapshot unit input"], count: int) -> dict[int, list[int]]:
    """Return the inputs of the ``count`` weights of greatest variance over the snapshots, by unit.

    Among equal variances the first weights are taken.
    """
    variances = weights.double().var(0, correction=0)
    chosen: dict[int, list[int]] = {}
    for place in variances.flatten().sort(descending=True, stable=True).indices[:count].tolist():
        chosen.setdefault(place // weights.shape[-1], []).append(place % weights.shape[-1])
    return chosen


def _of_unit(values: Float[Tensor, "batch unit ..."], unit: Tensor) -> Float[Tensor, "batch ..."]:
    return values[torch.arange(len(unit), device=values.device), unit]


def _stacked(values: Sequence[Tensor]) -> Float[Tensor, "draw batch output ..."]:
    return torch.stack(list(values))[:, :, None]


def fit_second(data: FitData, inputs: Inputs, config: CiberSecondConfig, *, rng: Seed, report: Report) -> State:
    """Return all snapshots of the trajectory in ``inputs``; ``data`` and ``rng`` are not used.

    Raises:
        ConfigError: the network is not a ReLU perceptron, there are several targets, or ``weights`` is larger than the
            number of weights.
    """
    spec, weights = trajectory(inputs)
    relu = isinstance(spec.network, MlpConfig) and spec.network.activation == "relu"
    rule = "must be an mlp with relu for ciber_second"
    require(relu, "methods.sgd.network", rule, to_mapping(spec.network))
    require(spec.outputs == 1, "methods.ciber_second", "must have data of one target", spec.outputs)
    posterior = CiberSecondPosterior(spec, config, weights)
    units, width = posterior.layer.weights.shape[1:]
    if config.choice == "input":
        most, rule = width, f"must be at most {width}, a unit's incoming weights with its bias"
    else:
        most, rule = units * width, f"must be at most {units * width}, the layer's weights with its biases"
    require(config.weights <= most, "methods.ciber_second.weights", rule, config.weights)
    report(1, 1)
    return posterior.state()


CIBER_SECOND = Method(
    name="ciber_second",
    family="collapsed",
    bayesian=True,
    config=CiberSecondConfig,
    tasks=("regression",),
    stages={"student": StageSpec(fit_second, needs={"trajectory": "one_to_one"}, random=False, in_driver=True)},
    settings=SETTINGS,
    default=replace(DEFAULT, suits=lambda size: size.small),  # perceptrons for many rows have another activation
)
