"""The affine subspace of a trajectory's principal components, and the tempered posterior of its coordinates.

Izmailov, Maddox, Kirichenko, Garipov, Vetrov & Wilson 2019, sections 3 and 4. With w_1 … w_T the snapshots, w̄ their
mean and v_k, s_k the right singular vectors and singular values of the deviations w_t − w̄, weights are

    w(z) = w̄ + Σ_k z_k p_k,   p_k = s_k v_k / √(T − 1),   k = 1 … K,

so that N(0, I) over z gives the leading part of the snapshots' sample covariance, as in SWAG's low-rank part: z = 1 is
one standard deviation of the trajectory. The posterior is

    p(z | D) ∝ Π_i p(y_i | x_i, w(z))^(1/temperature) N(z; 0, prior_variance I).

The noise of regression is the network's own (``posterior.NetworkSpec``): if it predicts a log-variance, the head's
weights for it are drawn with all other weights. The sum may be over some of the rows, drawn once for a fit, and scaled
up to all rows.

Batch normalisation: within the likelihood each batch is normalised by its own statistics, as in training and in the
published code. The running statistics of a drawn network are recomputed on training rows, as in SWAG.

Deviation: the deviations are from the mean w̄ of the trajectory's last snapshots, where the paper uses SWAG's running
mean and deviations.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.func import functional_call

from ..artifacts import State
from ..data.fitdata import FitData
from ..data.size import Section
from ..errors import require, require_positive
from ..method import Inputs, ModelFit
from ..networks import fastest_order
from ..networks.normalisation import evaluation
from ..posterior import NetworkDraws
from ..progress import Phase, Report
from ..seeds import Seed
from .snapshots import BatchNormConfig, Snapshots, batch_norm


def from_model(settings: Section, fit: ModelFit) -> Section:
    """Return the hyperparameters for a user's model: ``settings``, in a subspace that its few snapshots span."""
    dimension = max(1, min(5, fit.snapshots - 1))
    return {**settings, "dimension": dimension, "draws": fit.draws, **batch_norm(fit)}


@dataclass(frozen=True)
class SubspaceConfig(BatchNormConfig):
    """The config that all subspace methods share.

    Attributes:
        dimension: K, the number of principal components.
        temperature: the likelihood is raised to the power 1/temperature; 1 gives the posterior, infinity the prior.
        prior_variance: the prior variance of each coordinate; a coordinate of 1 is one standard deviation of the
            trajectory along its component.
        rows: the number of training rows in the likelihood, which is scaled up to all rows. null: all rows.
        draws: the number of networks in the predictive.
    """

    dimension: int
    temperature: float
    prior_variance: float
    rows: int | None
    draws: int

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "dimension", "temperature", "prior_variance", "draws", or_null=("rows",))


@dataclass(frozen=True)
class Plane:
    """The plane of w̄ and the scaled components p_k, in float64."""

    mean: Float[Tensor, " weight"]
    components: Float[Tensor, "dimension weight"]

    def point(self, z: Float[Tensor, " dimension"]) -> Float[Tensor, " weight"]:
        """Return w(z), the weights at the coordinates z."""
        return self.mean + z @ self.components


def principal(snapshots: Float[Tensor, "epoch weight"], dimension: int) -> Plane:
    """Return the plane of the leading components, with signs as the eigensolver returns them.

    The components are computed from the Gram matrix of the deviations A = USVᵀ. Its eigenvectors are U, and UᵀA = SVᵀ
    needs no division by a small singular value; the decomposed matrix is only [epoch, epoch].
    """
    exact = snapshots.double()
    mean = exact.mean(0)
    centred = exact - mean
    _, vectors = torch.linalg.eigh(centred @ centred.T)  # eigenvalues ascend
    leading = vectors.flip(1)[:, :dimension]
    return Plane(mean, leading.T @ centred / (len(exact) - 1) ** 0.5)


@final
class Target:
    """The likelihood of a subspace's coordinates on training rows.

    Attributes:
        plane: the plane of the coordinates.
        num_train: the number of all training rows, to which the likelihood is scaled up.
    """

    def __init__(self, data: FitData, inputs: Inputs, config: SubspaceConfig, method: str, rng: Seed) -> None:
        """Create the target from the trajectory in ``inputs``.

        Raises:
            ConfigError: the dimension is larger than the number of snapshots minus one, the number of components.
        """
        (trajectory,) = inputs["trajectory"]
        self._snapshots = Snapshots(trajectory, data, config, rng)
        most = self._snapshots.count - 1
        key, rule = f"methods.{method}.dimension", f"must be <= the trajectory's snapshots less one ({most})"
        require(config.dimension <= most, key, rule, config.dimension)
        self.plane = principal(self._snapshots.flat(), config.dimension)
        self._order = fastest_order(self._snapshots.network)
        rows, self._targets = data.drawn(config.rows, rng.fold("likelihood"))
        # a copy even with one channel, where both orders are equal in memory: convolutions choose by strides
        self._inputs = rows.clone(memory_format=self._order) if rows.ndim == 4 else rows
        self.num_train = len(data.train)
        self._scale, self._temperature = self.num_train / len(self), config.temperature

    def __len__(self) -> int:
        """Return the number of training rows in the likelihood's sum."""
        return len(self._inputs)

    def tempered(self, z: Float[Tensor, " dimension"], rows: Int[Tensor, " row"]) -> Float[Tensor, ""]:
        """Return (1/temperature) Σ log p(y_i | x_i, w(z)) over the batch ``rows``, in float64.

        It is differentiable and scaled up to all training rows, so that its sum over all batches is an unbiased
        estimate of the full sum.
        """
        network, device = self._snapshots.network, self._inputs.device
        weights, chosen = dict[str, Tensor](), rows.to(device)
        for name, value in self._snapshots.named(self.plane.point(z)).items():
            there = value.to(device)  # filters in the images' memory order
            weights[name] = there.contiguous(memory_format=self._order) if there.ndim == 4 else there
        with evaluation(network, batch_statistics=True):
            outputs = functional_call(network, weights, (self._inputs[chosen],))
        targets = self._targets[chosen]
        exact = targets.double() if targets.is_floating_point() else targets  # labels stay whole numbers
        logs = self._snapshots.spec.predictive(outputs[None].double()).log_prob(exact)
        return logs.sum().cpu() * self._scale / self._temperature

    @torch.no_grad()
    def total(self, z: Float[Tensor, " dimension"], batch: int) -> float:
        """Return the sum of :meth:`tempered` over all rows, in order, in batches whose sizes differ by at most 1."""
        parts = torch.arange(len(self)).tensor_split(-(-len(self) // batch))
        return sum(self.tempered(z, part).item() for part in parts)

    def networks(self, coordinates: Float[Tensor, "draw dimension"], report: Report) -> NetworkDraws:
        """Return the networks at these coordinates; can resume, see :meth:`Snapshots.draws`."""

        def draw(numbers: range) -> dict[str, Tensor]:
            return self._snapshots.named(torch.stack([self.plane.point(coordinates[k]) for k in numbers]))

        return self._snapshots.draws(draw, len(coordinates), report=report)


def fitted(
    target: Target, sample: Callable[[Report], Float[Tensor, "draw dimension"]], steps: int, draws: int, report: Report
) -> State:
    """Return the networks at ``draws`` coordinates as a posterior's state; both parts of the fit can resume.

    Args:
        sample: draws the coordinates in ``steps`` steps.
    """
    last = report.load()
    if last is not None and last.config["phase"] == "networks":
        coordinates = last.tensors["coordinates"]
    else:
        coordinates = sample(Phase(report, "coordinates", 0, steps + draws))
    then = Phase(report, "networks", steps, steps + draws, {"coordinates": coordinates})
    return target.networks(coordinates, then).state()
