"""CIBER for regression: some weights before a mean are integrated out; all others come from a trajectory's snapshots.

    ciber_last     weights of the last layer, in which the mean is linear
    ciber_second   incoming weights of ReLU units of the last hidden layer (:mod:`.second_to_last`)

q is uniform on the box of the collapsed weights over all snapshots (:mod:`.head`); all other weights, and the noise
variance, come from each snapshot. A triangular likelihood replaces the Gaussian that the network was trained with. Its
average over the box is exact (:mod:`.output_distributions`), and the mixture over the snapshots is the predictive
(:mod:`.mixture`, which adds a tail). Zeng and Van den Broeck 2023, sections 4 and 6.1.

In the last layer the collapsed weights are, for each input and snapshot, the weights of largest range·|input|. The
paper collapses all weights; its code collapses two and the bias.

Deviations. The published code standardises before it splits the data and integrates over the range of the *test*
targets; here transforms come from the training rows, and a density integrates to one over the line. The collapsed
weights affect only the mean: the units of ``ciber_second`` would also affect the variance; we keep the snapshot's
variance.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Final, Literal, final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ..artifacts import State
from ..data.fitdata import FitData
from ..errors import require
from ..joint_regression import JointContinuous
from ..method import Default, FromModel, Inputs, Method, StageSpec
from ..posterior import NetworkSpec
from ..predictive import Gaussian
from ..progress import Report
from ..seeds import Seed
from .head import CollapsedSnapshots, Config, Head, trajectory
from .integrals.piecewise import radius
from .mixture import CollapsedMixture
from .output_distributions import Linear


@dataclass(frozen=True)
class LikelihoodConfig:
    """The settings of the triangular likelihood.

    Attributes:
        radius: the triangle's radius: ``variance`` gives √6σ, with the Gaussian's variance; ``density`` gives 2.297σ,
            the nearest to the Gaussian in L2.
        tail: the share of a Gaussian of equal moments in each sample's distribution. With 0, a target out of reach of
            all samples has log-likelihood −∞.
    """

    radius: Literal["variance", "density"]
    tail: float

    def __post_init__(self) -> None:
        require(0 <= self.tail < 1, "tail", "must be in [0, 1)", self.tail)


@dataclass(frozen=True)
class CiberLastConfig(LikelihoodConfig):
    """The section ``methods.ciber_last`` of params.yaml.

    Attributes:
        weights: the number of collapsed weights of each target's mean, including the bias. null collapses all.
    """

    weights: int | None

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.weights is None or self.weights > 0, "weights", "must be > 0 or null", self.weights)


class Regression(CollapsedSnapshots[Config]):
    """A posterior of the snapshots' regression networks; the first rows of their heads are the means'."""

    def __init__(self, spec: NetworkSpec, config: Config, weights: dict[str, Tensor]) -> None:
        super().__init__(spec, config, weights)
        self.head = Head.of(weights["head.weight"][:, : spec.outputs], weights["head.bias"][:, : spec.outputs])

    @torch.no_grad()
    def joint(
        self, inputs: Float[Tensor, "group row ..."], *, places: Tensor | None, draws: int, rng: Seed
    ) -> JointContinuous:
        """Return the joint of each group, by draws of the collapsed weights for each snapshot; all inputs share a draw.

        The integral over weights that several inputs share has no closed form. Given a draw, a target is its mean plus
        triangular noise, and the tail is a Gaussian with the same moments.
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
        predictive = self.spec.predictive(F.linear(features, weights["head.weight"], weights["head.bias"])[None])
        assert isinstance(predictive, Gaussian)
        return predictive.draw_mean[0].double(), predictive.draw_variance[0].double().sqrt()


@final
class CiberLastPosterior(Regression[CiberLastConfig]):
    """A posterior of the snapshots' networks with collapsed weights of the means' last layer."""

    key, reads = "ciber_last", CiberLastConfig

    @torch.no_grad()
    def predict(self, inputs: Tensor, *, rng: Seed = Seed(0)) -> CollapsedMixture:
        """Return the predictive; ``rng`` is not used."""
        parts = list[tuple[Tensor, Tensor, Tensor]]()  # centre, half-widths and radius for each snapshot
        for number, weights in self.numbered():
            features = self.features(weights, inputs)
            mean, sd = self.outputs(weights, features)
            collapsed = self.head.collapse(number, features, self._count)
            noise = radius(sd, self.config.radius)
            parts.append((mean + collapsed.shift, collapsed.half_widths.double(), noise))
        return CollapsedMixture(Linear(*(torch.stack(p) for p in zip(*parts, strict=True))), self.config.tail)

    @property
    def _count(self) -> int:
        return self.head.weights.shape[-1] if self.config.weights is None else self.config.weights

    def drawn(
        self, number: int, weights: dict[str, Tensor], inputs: Tensor, draws: int, rng: Seed
    ) -> tuple[Tensor, Tensor]:
        features = self.features(weights, inputs)
        mean, sd = self.outputs(weights, features)
        shift = self.head.drawn_shift(number, features, self._count, self.head.draw(draws, rng))
        return mean + shift.double(), radius(sd, self.config.radius)


def fit_last(data: FitData, inputs: Inputs, config: CiberLastConfig, *, rng: Seed, report: Report) -> State:
    """Return all snapshots of the trajectory in ``inputs``; ``data`` and ``rng`` are not used.

    Raises:
        ConfigError: there are more collapsed weights than a target has in the last layer.
    """
    spec, weights = trajectory(inputs)
    width = weights["head.weight"].shape[-1] + 1
    rule = f"must be at most {width}, the last layer's weights of a target with its bias"
    require(config.weights is None or config.weights <= width, "methods.ciber_last.weights", rule, config.weights)
    report(1, 1)
    return CiberLastPosterior(spec, config, weights).state()


# A triangle has no tail, but a few rows have targets beyond it. Exact integrals take 15 s per 1,000 predictions, and
# a tenth of the rows is predicted.
DEFAULT: Final = Default(0.5, "iterates", lambda size: {"tail": 0.2}, suits=lambda size: size.rows <= 100_000)
SETTINGS: Final = {"weights": 3, "radius": "variance"}
CIBER_LAST = Method(
    name="ciber_last",
    family="collapsed",
    bayesian=True,
    config=CiberLastConfig,
    tasks=("regression",),
    stages={"student": StageSpec(fit_last, needs={"trajectory": "one_to_one"}, random=False, in_driver=True)},
    program=True,
    settings=SETTINGS,
    default=DEFAULT,
    from_model=FromModel(lambda fit: {**SETTINGS, "tail": 0.01}),
)
