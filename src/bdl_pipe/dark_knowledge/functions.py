"""Students that keep the dependence between inputs: one network gives several functions, each defined at all inputs.

The last layer has K blocks b_k(x), each with one value for each output. A function is a linear combination of the
blocks, with coefficients c that are the same at all inputs:

    f_c(x) = Σ_k c_k b_k(x)          logits of softmax, or the mean of N(f_c(x), e^{α(x)})

*heads*: c is one of the K unit vectors, and block s imitates draw s of the teacher. *latent*: c = (1, z) with
z ~ N(0, I_d), and f = a(x) + B(x) z is a draw of a Gaussian over functions (over logits, for classes). Draw s of the
teacher has the latent z_s = √S u_s. Here F = U Σ Vᵀ is the singular value decomposition of the draws' centred values at
probe inputs [draw, input × output], and u_s is row s of the first d columns of U. So the latents have the moments of
N(0, I): Σ_s z_s = 0 and (1/S) Σ_s z_s z_sᵀ = I. The student minimises (1/S) Σ_s L̂(a(x) + B(x) z_s against draw s).

Fixed points over all functions of x. A head is the draw that it imitates. In regression with a latent, a = E f,
B(x) B(x′)ᵀ is the covariance of the teacher's functions after a projection on the d latents, and e^α = E (y − f)². At
each input the mean and the variance of y are exactly the teacher's, whatever d is; covariances between inputs are exact
where the teacher's functions span at most d dimensions. No d-dimensional linear latent keeps a larger share of the
trace of the covariance at the probe inputs: it is the share of the d largest eigenvalues. What the latent does not keep
is in e^α, as noise that is independent between inputs. For classes with a latent the cross-entropy defines the
projection.

The losses of all students against a predictive are cross-entropies, which omit the constant of the KL.

    classes:    L̂ = −Σ_k p(y = k | x) log S(y = k | x, w)                            (eq. 8)
    regression: L̂ = ½ [α(x, w) + e^{−α(x, w)} {(m(x) − μ(x, w))² + v(x)}]             (eq. 11)

(Korattikara et al. 2015.) p, or the mean m and the variance v, come from one teacher draw, as in the paper (m = f(x |
θ^s), v = 1/λ_n), or from a whole predictive. Both losses are linear in the teacher's distribution: the expectation over
draws of the loss of one draw is the loss of the mixture of all draws. The minimum over all functions of x is at S = E p
for classes, and at μ = E y, e^α = Var y for regression. Eq. 11 omits ½ log 2π per output, as in the paper.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from .. import networks
from ..artifacts import State
from ..config import LATER, read, to_mapping
from ..errors import require
from ..networks.base import Replicas
from ..posterior import Likelihood
from ..predictive import Categorical, Gaussian, Predictive
from ..seeds import Seed

_NULL: Final = 1e-5  # singular values below this share of the largest are rounding


@dataclass(frozen=True)
class PlainConfig:
    """The student that is one function: it keeps the teacher's predictive at each single input."""

    name: Literal["plain"]


@dataclass(frozen=True)
class HeadsConfig:
    """The student with several heads, each of which imitates one draw of the teacher.

    Attributes:
        heads: the largest number of heads. A teacher with more draws is thinned evenly to this number; if a teacher has
            fewer draws, each draw has a head.
        draws_per_step: the number of draws that each step imitates.
    """

    name: Literal["heads"]
    heads: int
    draws_per_step: int

    def __post_init__(self) -> None:
        require(self.heads > 1, "heads", "must be > 1", self.heads)
        require(self.draws_per_step > 0, "draws_per_step", "must be > 0", self.draws_per_step)


@dataclass(frozen=True)
class LatentConfig:
    """The student with a latent variable that is the same at all inputs.

    Attributes:
        dimension: d, the largest dimension of the latent. If the teacher's functions span fewer dimensions around their
            mean, the latent has that number of dimensions.
        draws: the number of functions in a prediction; the latents come in pairs of z and −z.
        probe: the number of inputs at which the teacher's draws are compared, to compute their latents.
        draws_per_step: the number of draws that each step imitates.
        probe_at: the inputs at which the draws are compared: ``inputs`` of the student, or training ``rows`` without
            noise, each at most once.
        share: the share of the draws' variance at these inputs that the latent keeps: d is the least number of
            dimensions that keeps it, and at most ``dimension``. With null, d is ``dimension``.
    """

    name: Literal["latent"]
    dimension: int
    draws: int
    probe: int
    draws_per_step: int
    probe_at: Literal["inputs", "rows"] = field(default="inputs", metadata=LATER)
    share: float | None = field(default=None, metadata=LATER)

    def __post_init__(self) -> None:
        for name in ("dimension", "probe", "draws_per_step"):
            require(getattr(self, name) > 0, name, "must be > 0", getattr(self, name))
        require(self.share is None or 0 < self.share <= 1, "share", "must be in (0, 1] or null", self.share)
        require(self.draws > 0 and self.draws % 2 == 0, "draws", "must be even and > 0", self.draws)


StudentConfig = PlainConfig | HeadsConfig | LatentConfig


@dataclass(frozen=True)
class FunctionsSpec:
    """The description of a network that gives several functions.

    Attributes:
        network: the architecture.
        input_shape, outputs: the shape of an input, and the number of classes or target columns.
        likelihood: ``categorical`` or ``gaussian_head``.
        blocks: K, the number of blocks of function values.
        draws: the number of functions in a prediction, each with its own latent; null: the functions are the heads.
    """

    network: networks.NetworkConfig
    input_shape: tuple[int, ...]
    outputs: int
    likelihood: Likelihood
    blocks: int
    draws: int | None

    @property
    def variances(self) -> int:
        """Return the number of blocks of log-variances: one for each head, or one for all latents; 0 for classes."""
        if self.likelihood == "categorical":
            return 0
        return self.blocks if self.draws is None else 1

    def build(self, rng: Seed) -> networks.Network:
        """Build the network, with weights initialised from ``rng``."""
        width = (self.blocks + self.variances) * self.outputs
        return networks.build(self.network, self.input_shape, width, rng=rng)

    def read(
        self, outputs: Float[Tensor, "batch width"], coefficients: Float[Tensor, "draw block"]
    ) -> tuple[Float[Tensor, "draw batch output"], Float[Tensor, "draw batch output"] | None]:
        """Return the functions with ``coefficients`` at a batch, and the log-variances of the noise in regression."""
        parts = outputs.unflatten(-1, (-1, self.outputs)).transpose(0, 1)  # [block, batch, output]
        values = torch.einsum("sk,kbo->sbo", coefficients, parts[: self.blocks])
        if self.likelihood == "categorical":
            return values, None
        variances = parts[self.blocks :]
        if self.draws is None:
            return values, torch.einsum("sk,kbo->sbo", coefficients, variances)
        return values, variances.expand_as(values)


@final
class StudentFunctions:
    """A posterior over the functions of one network.

    Attributes:
        weights: the network's ``state_dict``.
    """

    key = "student_functions"

    def __init__(self, spec: FunctionsSpec, weights: Mapping[str, Tensor]) -> None:
        self.spec, self.weights = spec, dict(weights)
        network = spec.build(Seed(0)).eval().to(next(iter(self.weights.values())).device)
        network.load_state_dict(self.weights)
        network.to(memory_format=networks.fastest_order(network))  # type: ignore[call-overload]
        self._networks = Replicas(network)

    @torch.no_grad()
    def predict(self, inputs: Tensor, *, rng: Seed) -> Predictive:
        """Return the mixture of all heads, or of functions with latents drawn from ``rng``, the same for all inputs."""
        if self.spec.draws is None:
            coefficients = torch.eye(self.spec.blocks)
        else:
            half = self.spec.draws // 2
            latents = torch.randn(half, self.spec.blocks - 1, generator=rng.fold("latent").generator())
            coefficients = torch.cat([torch.ones(2 * half, 1), torch.cat([latents, -latents])], 1)
        coefficients = coefficients.to(inputs.device)
        values, log_variances = self.spec.read(self._outputs(inputs), coefficients)
        if log_variances is None:
            return Categorical(F.log_softmax(values, dim=-1))
        return Gaussian(values, log_variances.exp())

    @torch.no_grad()
    def affine(
        self, inputs: Tensor
    ) -> tuple[
        Float[Tensor, "batch output"], Float[Tensor, "latent batch output"], Float[Tensor, "batch output"] | None
    ]:
        """Return a(x), B(x) and α(x) of a student with a latent; in regression they are its Gaussian over functions."""
        identity = torch.eye(self.spec.blocks, device=inputs.device)
        blocks, log_variances = self.spec.read(self._outputs(inputs), identity)
        return blocks[0], blocks[1:], None if log_variances is None else log_variances[0]

    def _outputs(self, inputs: Tensor) -> Float[Tensor, "batch width"]:
        with self._networks.one() as network:
            outputs: Tensor = network(inputs)
        return outputs

    def state(self) -> State:
        stored = {name: value.contiguous() for name, value in self.weights.items()}
        return State(stored, {"posterior": self.key, "spec": to_mapping(self.spec)})

    @classmethod
    def from_state(cls, state: State, device: torch.device | str = "cpu") -> "StudentFunctions":
        spec = read(FunctionsSpec, state.config["spec"], "spec")
        return cls(spec, {name: value.to(device) for name, value in state.tensors.items()})


def function_values(predictive: Categorical | Gaussian) -> Float[Tensor, "draw batch output"]:
    """Return the values that a latent changes linearly: means, or logits whose mean over classes is zero."""
    if isinstance(predictive, Categorical):
        return predictive.draw_log_probs - predictive.draw_log_probs.mean(-1, keepdim=True)
    return predictive.draw_mean


def embed(
    values: Float[Tensor, "draw batch output"], dimension: int, share: float | None = None
) -> Float[Tensor, "draw latent"]:
    """Return the latents z_s of functions from their values at probe inputs; the latents have mean 0 and covariance I.

    A latent has ``dimension`` coordinates, or fewer if the functions span fewer dimensions around their mean.

    Args:
        share: in (0, 1]; the latent has only as many coordinates as keep this share of the values' variance.
    """
    flat = values.flatten(1).double()
    left, sizes, _ = torch.linalg.svd(flat - flat.mean(0), full_matrices=False)
    spanned = int((sizes > _NULL * sizes[0].clamp_min(torch.finfo(torch.float32).tiny)).sum())
    if share is not None:
        kept = sizes[:spanned].square().cumsum(0)  # of 1, …, spanned coordinates
        spanned = min(spanned, 1 + int((kept < share * sizes.square().sum()).sum()))
    return (len(flat) ** 0.5 * left[:, : min(dimension, spanned)]).to(values.dtype)


def classification_loss(
    student_log_probs: Float[Tensor, "*row class"], teacher_probs: Float[Tensor, "*row class"]
) -> Float[Tensor, "*row"]:
    """Return eq. 8 for each input.

    Args:
        student_log_probs: log S(y = k | x, w), normalised.
        teacher_probs: p(y = k | x).
    """
    return -(teacher_probs * student_log_probs).sum(-1)


def regression_loss(
    student_mean: Float[Tensor, "*row output"],
    student_log_variance: Float[Tensor, "*row output"],
    teacher_mean: Float[Tensor, "*row output"],
    teacher_variance: Float[Tensor, "*row output"] | float,
) -> Float[Tensor, "*row"]:
    """Return eq. 11 for each input, summed over output columns; all in the same units.

    Args:
        student_mean, student_log_variance: μ and α.
        teacher_mean: m.
        teacher_variance: v, with the noise: 1/λ_n for one draw.
    """
    expected = (teacher_mean - student_mean).square() + teacher_variance  # E (y − μ)² under the teacher
    return 0.5 * (student_log_variance + (-student_log_variance).exp() * expected).sum(-1)
