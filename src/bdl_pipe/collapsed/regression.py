"""CIBER for regression: some weights before a mean are integrated out, the others are a trajectory's snapshots.

    ciber_last     weights of the last layer: the mean is linear in them
    ciber_second   incoming weights of one ReLU unit of the last hidden layer: the mean is linear in what it passes on

q is uniform on the box of the collapsed weights over all snapshots (:mod:`.head`); the others, and the noise's variance
with all that it depends on, are each snapshot's in turn. The Gaussian likelihood that the network was trained with is
replaced by a triangular one; its average over the box is exact (:mod:`.output_distributions`), and their mixture over
the snapshots is the predictive (:mod:`.mixture`, which adds a tail). Zeng and Van den Broeck 2023, sections 4 and 6.1.

Which weights: for each input and snapshot those of the largest range·|input|. The paper has all of the last layer, and
the three before it that vary most, which may belong to three units and are the same for all inputs; its code two and
the bias. ``ciber_second`` takes the unit whose part of the mean has the widest range over its own box.

Deviations. The published code standardises before it splits and integrates over the range of the *test* targets; here
transforms are the training rows', and a density integrates to one over the line. The collapsed weights move the mean
alone: the unit of ``ciber_second`` would move the variance, too, which stays the snapshot's.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Final, Literal, final

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.func import functional_call

from ..artifacts import State, under
from ..config import to_mapping
from ..data.fitdata import FitData
from ..errors import require
from ..joint_predictive import JointContinuous
from ..method import Default, Inputs, Method, StageSpec
from ..networks import MlpConfig
from ..posterior import NetworkSpec
from ..predictive import Gaussian
from ..progress import Report
from ..seeds import Seed
from .head import Collapsed, Head
from .integrals import few_uniforms
from .integrals.triangle import radius
from .mixture import CollapsedMixture
from .output_distributions import Linear, Rectified
from .snapshots import CollapsedSnapshots, Config, trajectory


@dataclass(frozen=True)
class LikelihoodConfig:
    """The settings of the triangular likelihood.

    Attributes:
        radius: ``variance``: √6σ, of the Gaussian's variance; ``density``: the nearest to it in L2, 2.297σ.
        tail: the share of a Gaussian of equal moments in each sample's distribution; 0: none, and a target out of reach
            of all samples has log-likelihood −∞.
    """

    radius: Literal["variance", "density"]
    tail: float

    def __post_init__(self) -> None:
        require(0 <= self.tail < 1, "tail", "must be in [0, 1)", self.tail)


@dataclass(frozen=True)
class CiberLastConfig(LikelihoodConfig):
    """The section ``methods.ciber_last`` of params.yaml.

    Attributes:
        weights: collapsed weights of each target's mean, its bias among them; null: all.
    """

    weights: int | None

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.weights is None or self.weights > 0, "weights", "must be > 0 or null", self.weights)


@dataclass(frozen=True)
class CiberSecondConfig(LikelihoodConfig):
    """The section ``methods.ciber_second`` of params.yaml.

    Attributes:
        weights: collapsed incoming weights of one unit, its bias among them.
    """

    weights: int

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.weights <= few_uniforms.MOST, "weights", f"must be 1 … {few_uniforms.MOST}", self.weights)


class _Regression(CollapsedSnapshots[Config]):
    """A posterior of the snapshots' networks of regression; the first part of their heads is that of the means."""

    def __init__(self, spec: NetworkSpec, config: Config, weights: dict[str, Tensor]) -> None:
        super().__init__(spec, config, weights)
        self.head = Head.of(weights["head.weight"][:, : spec.outputs], weights["head.bias"][:, : spec.outputs])

    @torch.no_grad()
    def joint(
        self, inputs: Float[Tensor, "group row ..."], *, places: Tensor | None, draws: int, rng: Seed
    ) -> JointContinuous:
        """Return the joint of each group by draws of the collapsed weights, which all inputs share, for each snapshot.

        The integral over weights that several inputs share has no closed form. Given a draw, a target is its mean and
        triangular noise, and the tail a Gaussian of the moments of that.
        """
        flat, (groups, rows) = inputs.flatten(0, 1), inputs.shape[:2]
        snapshots = len(self.head.weights)
        each, located = -(-draws // snapshots), list[tuple[Tensor, Tensor]]()
        for number, weights in self.numbered():
            located.append(self.drawn(number, weights, flat, each, rng.fold("weights", number)))
        centre = torch.cat([place for place, _ in located])  # [draw, batch, output]
        radii = torch.cat([noise.expand(each, -1, -1) for _, noise in located])
        if places is not None:
            observed = (torch.arange(groups, device=places.device)[:, None] * rows + places).flatten()
            centre, radii, rows = centre[:, observed], radii[:, observed], places.shape[1]
        assert isinstance(self.config, LikelihoodConfig)
        part = Linear(centre, torch.zeros_like(centre)[..., None], radii)
        return JointContinuous(CollapsedMixture(part, self.config.tail), (groups, rows, centre.shape[-1]), len(centre))

    @abstractmethod
    def drawn(
        self, number: int, weights: dict[str, Tensor], inputs: Tensor, draws: int, rng: Seed
    ) -> tuple[Float[Tensor, "draw batch output"], Float[Tensor, "batch output"]]:
        """Return the means under draws of the collapsed weights, and the radius of the noise, for one snapshot."""

    def outputs(self, weights: dict[str, Tensor], features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean and standard deviation of one snapshot [batch, output]."""
        found = self.spec.predictive(F.linear(features, weights["head.weight"], weights["head.bias"])[None])
        assert isinstance(found, Gaussian)
        return found.draw_mean[0].double(), found.draw_variance[0].double().sqrt()


@final
class CiberLastPosterior(_Regression[CiberLastConfig]):
    """A posterior of the snapshots' networks, the last layer of whose means is collapsed."""

    key, reads = "ciber_last", CiberLastConfig

    @torch.no_grad()
    def predict(self, inputs: Tensor, *, rng: Seed = Seed(0)) -> CollapsedMixture:
        """Predict without ``rng``: nothing is drawn."""
        parts = [self._part(number, weights, inputs) for number, weights in self.numbered()]
        return CollapsedMixture(Linear(*(torch.stack(p) for p in zip(*parts, strict=True))), self.config.tail)

    def _part(self, number: int, weights: dict[str, Tensor], inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return centre, half-widths and radius for one snapshot."""
        features = functional_call(self.trunk, under("trunk.", weights), (inputs,))
        mean, sd = self.outputs(weights, features)
        collapsed = self.head.collapse(number, features, self._count)
        return mean + collapsed.shift, collapsed.half_widths.double(), radius(sd, self.config.radius)

    @property
    def _count(self) -> int:
        """Return the number of collapsed weights of each target's mean."""
        return self.head.weights.shape[-1] if self.config.weights is None else self.config.weights

    def drawn(
        self, number: int, weights: dict[str, Tensor], inputs: Tensor, draws: int, rng: Seed
    ) -> tuple[Tensor, Tensor]:
        features = functional_call(self.trunk, under("trunk.", weights), (inputs,))
        mean, sd = self.outputs(weights, features)
        shift = self.head.drawn_shift(number, features, self._count, self.head.draw(draws, rng))
        return mean + shift.double(), radius(sd, self.config.radius)


@dataclass(frozen=True)
class _Unit:
    """The collapsed unit of each input, for one snapshot.

    Attributes:
        before: the inputs of the units.
        active: what each unit passes to its rectifier.
        collapsed: the boxes of each unit's incoming weights.
        number: the collapsed unit.
        outgoing: the weight of the collapsed unit in the mean.
        base: the mean without the collapsed unit.
        radius: the radius of the noise.
    """

    before: Float[Tensor, "batch width"]
    active: Float[Tensor, "batch unit"]
    collapsed: Collapsed
    number: Int[Tensor, " batch"]
    outgoing: Float[Tensor, " batch"]
    base: Float[Tensor, " batch"]
    radius: Float[Tensor, " batch"]

    def own(self, values: Float[Tensor, "batch unit ..."]) -> Float[Tensor, "batch ..."]:
        """Return the values of the collapsed unit, in float64."""
        return values[torch.arange(len(self.number), device=values.device), self.number].double()


@final
class CiberSecondPosterior(_Regression[CiberSecondConfig]):
    """A posterior of the snapshots' networks, one of whose last hidden units is collapsed for each input.

    Attributes:
        incoming: weights of such a unit, with its bias.
    """

    key, reads = "ciber_second", CiberSecondConfig

    def __init__(self, spec: NetworkSpec, config: CiberSecondConfig, weights: dict[str, Tensor]) -> None:
        super().__init__(spec, config, weights)
        assert isinstance(self.trunk, nn.Sequential)
        self._last = max(i for i, module in enumerate(self.trunk) if isinstance(module, nn.Linear))
        self._before = self.trunk[: self._last]
        self._layer = Head.of(weights[f"trunk.{self._last}.weight"], weights[f"trunk.{self._last}.bias"])
        self.incoming = self._layer.weights.shape[-1]

    @torch.no_grad()
    def predict(self, inputs: Tensor, *, rng: Seed = Seed(0)) -> CollapsedMixture:
        """Predict without ``rng``: nothing is drawn.

        Memory: inputs × units × their inputs, of one snapshot.
        """
        parts = [self._part(number, weights, inputs) for number, weights in self.numbered()]
        stacked = [torch.stack(p)[:, :, None] for p in zip(*parts, strict=True)]  # one output
        return CollapsedMixture(Rectified(*stacked), self.config.tail)

    def _part(self, number: int, weights: dict[str, Tensor], inputs: Tensor) -> tuple[Tensor, ...]:
        """Return base, sign, centre, half-widths and radius for one snapshot."""
        unit = self._unit(number, weights, inputs)
        w, size = unit.outgoing, unit.outgoing.abs()
        moved = (
            size * unit.own(unit.active + unit.collapsed.shift),
            size[:, None] * unit.own(unit.collapsed.half_widths),
        )
        return unit.base, torch.where(w < 0, -1.0, 1.0).to(w), *moved, unit.radius

    def drawn(
        self, number: int, weights: dict[str, Tensor], inputs: Tensor, draws: int, rng: Seed
    ) -> tuple[Tensor, Tensor]:
        unit = self._unit(number, weights, inputs)
        drawn = self._layer.draw(draws, rng)
        shift = self._layer.drawn_shift(number, unit.before, self.config.weights, drawn)  # [draw, batch, unit]
        passed = F.relu(torch.stack([unit.own(unit.active + one) for one in shift]))
        return (unit.base + unit.outgoing * passed)[..., None], unit.radius[:, None]

    def _unit(self, number: int, weights: dict[str, Tensor], inputs: Tensor) -> "_Unit":
        """Return the collapsed unit of each input for one snapshot."""
        names = {k: v for k, v in under("trunk.", weights).items() if int(k.split(".")[0]) < self._last}
        before = functional_call(self._before, names, (inputs,))
        own = self._layer.weights[number]
        active = F.linear(before, own[:, :-1], own[:, -1])  # [batch, unit]
        mean, sd = self.outputs(weights, F.relu(active))
        collapsed = self._layer.collapse(number, before, self.config.weights)
        outgoing = self.head.weights[number, 0, :-1]
        centre, spread = active + collapsed.shift, collapsed.half_widths.sum(-1)
        effect = outgoing.abs() * (F.relu(centre + spread) - F.relu(centre - spread))
        unit = effect.argmax(-1)  # [batch]
        rows, w = torch.arange(len(unit), device=unit.device), outgoing[unit].double()
        base = mean[:, 0] - w * F.relu(active[rows, unit]).double()
        return _Unit(before, active, collapsed, unit, w, base, radius(sd[:, 0], self.config.radius))


def fit_last(data: FitData, inputs: Inputs, config: CiberLastConfig, *, rng: Seed, report: Report) -> State:
    """Return all snapshots of the one trajectory in ``inputs``; data and rng are not used.

    Raises:
        ConfigError: more collapsed weights than the last layer has for a target.
    """
    spec, weights = trajectory(inputs)
    width = weights["head.weight"].shape[-1] + 1
    rule = f"must be at most {width}, the last layer's weights of a target with its bias"
    require(config.weights is None or config.weights <= width, "methods.ciber_last.weights", rule, config.weights)
    report(1, 1)
    return CiberLastPosterior(spec, config, weights).state()


def fit_second(data: FitData, inputs: Inputs, config: CiberSecondConfig, *, rng: Seed, report: Report) -> State:
    """Return all snapshots of the one trajectory in ``inputs``; data and rng are not used.

    Raises:
        ConfigError: the network is not a ReLU perceptron, there are several targets, or more weights than a unit has.
    """
    spec, weights = trajectory(inputs)
    relu = isinstance(spec.network, MlpConfig) and spec.network.activation == "relu"
    rule = "must be an mlp with relu for ciber_second"
    require(relu, "methods.sgd.network", rule, to_mapping(spec.network))
    require(spec.outputs == 1, "methods.ciber_second", "must have data of one target", spec.outputs)
    posterior = CiberSecondPosterior(spec, config, weights)
    width = posterior.incoming
    rule = f"must be at most {width}, a unit's incoming weights with its bias"
    require(config.weights <= width, "methods.ciber_second.weights", rule, config.weights)
    report(1, 1)
    return posterior.state()


# A triangle has no tail, but a few rows have targets beyond it. Exact integrals take 15 s per 1,000 predictions, and a
# tenth of the rows is predicted.
DEFAULT: Final = Default(0.5, "iterates", lambda size: {"tail": 0.2}, suits=lambda size: size.rows <= 100_000)
CIBER_LAST = Method(
    name="ciber_last",
    config=CiberLastConfig,
    tasks=("regression",),
    stages={"student": StageSpec(fit_last, needs={"trajectory": "one_to_one"}, in_driver=True)},
    default=DEFAULT,
)
CIBER_SECOND = Method(
    name="ciber_second",
    config=CiberSecondConfig,
    tasks=("regression",),
    stages={"student": StageSpec(fit_second, needs={"trajectory": "one_to_one"}, in_driver=True)},
    default=DEFAULT,
)
