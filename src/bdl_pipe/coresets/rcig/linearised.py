"""A network linearised in its weights, trained by ridge regression on a coreset, and the gradient through training.

Around weights θ₀ the model is g(x) = J(x)τ + H(x)W, with H(x) the features [h], J(x) the derivative of the network's
output with respect to the trunk's weights and the head's bias, and W the head's weights, which replace θ₀'s. On a
coreset (x̂, ŷ) of n̂ rows λ penalises both τ and W. With K = H_S H_Sᵀ, A = (K + λI)⁻¹ and R = Ŷ − J_Sτ, W is H_Sᵀ A R,
and the loss of τ is

    L_S(τ) = λ/(2n̂k) [tr Rᵀ A R + ‖τ‖²],      ∇L_S = λ/(n̂k) [τ − J_Sᵀ A R],
    ∇²L_S = λ/(n̂k) [J_Sᵀ (A ⊗ I_k) J_S + I].

For an outer loss L_t(τ, S) the gradient with respect to S is ∂L_t/∂S − ∂/∂S [vᵀ∇L_S] with v = (∇²L_S)⁻¹ ∂L_t/∂τ held
fixed (Loo et al. 2023). At the minimum of L_S the model is kernel ridge regression with the network's tangent kernel.
"""

from dataclasses import dataclass
from functools import partial
from typing import Literal, final

import torch
from jaxtyping import Float
from scipy.sparse.linalg import LinearOperator, cg
from torch import Tensor, nn
from torch.func import functional_call, jacrev, jvp, vjp, vmap

from ... import networks
from ...errors import ConfigError, Diverged, require_positive

Tangent = Float[Tensor, " weight"]


@dataclass(frozen=True)
class ExactConfig:
    """Solve both linear problems with one factor of the dual matrix [n̂k, n̂k] and J [n̂k, weight]; for few rows."""

    name: Literal["exact"]


@dataclass(frozen=True)
class ConjugateGradientConfig:
    """Solve both linear problems by conjugate gradients from 0, with a product with J and one with Jᵀ per iteration.

    If the solver makes all ``iterations`` without reaching ``tolerance``, it uses the last iterate without a warning.

    Attributes:
        iterations: the largest number of iterations.
        tolerance: the ratio of the residual's norm to the right side's norm at which iterations stop.
    """

    name: Literal["cg"]
    iterations: int
    tolerance: float

    def __post_init__(self) -> None:
        require_positive(self, "iterations", "tolerance")


SolverConfig = ExactConfig | ConjugateGradientConfig


@final
class Linearisation:
    """Features and tangents of networks of one architecture, with a softplus instead of each ReLU.

    The gradient with respect to the images needs second derivatives, which a piecewise linear ReLU does not have.
    """

    def __init__(self, network: networks.Network, softplus: float) -> None:
        """Create the linearisation by modifying ``network``, a network of the architecture.

        Args:
            softplus: β of log(1 + e^{βx})/β.

        Raises:
            ConfigError: the network has no ReLU.
        """
        relus = [name for name, module in network.named_modules() if isinstance(module, nn.ReLU)]
        if not relus:
            raise ConfigError("network", "must have ReLU layers, which are replaced by softplus")
        for name in relus:
            network.set_submodule(name, nn.Softplus(beta=softplus))
        self._trunk = network.trunk.eval()

    def at(self, network: networks.Network) -> "Model":
        """Return the model around the weights of ``network``, without their gradients."""
        return Model(self._trunk, network)


@final
class Model:
    """The linearised model around one network's weights."""

    def __init__(self, trunk: nn.Module, network: networks.Network) -> None:
        assert isinstance(network.head, nn.Linear)
        self._trunk, self._head = trunk, network.head.weight.detach()
        self._weights = {name: p.detach() for name, p in network.trunk.named_parameters()}
        self._buffers = {name: b.detach() for name, b in network.trunk.named_buffers()}
        self._shapes = {name: weight.shape for name, weight in self._weights.items()}

    @property
    def size(self) -> int:
        """Return the size of τ."""
        return sum(shape.numel() for shape in self._shapes.values()) + len(self._head)

    def features(self, images: Tensor) -> Float[Tensor, "row feature"]:
        """Compute H."""
        return self._call(self._weights, images)

    def both(self, images: Tensor, tangent: Tangent) -> tuple[Float[Tensor, "row feature"], Float[Tensor, "row class"]]:
        """Compute H and Jτ, both differentiable in the images, and Jτ also in τ."""
        sizes = [shape.numel() for shape in self._shapes.values()]
        *parts, bias = tangent.split([*sizes, len(self._head)])
        along = {name: p.view(shape) for (name, shape), p in zip(self._shapes.items(), parts, strict=True)}
        features, moved = jvp(partial(self._call, images=images), (self._weights,), (along,))[:2]
        return features, moved @ self._head.T + bias

    def transposed(self, images: Tensor, outputs: Float[Tensor, "row class"]) -> Tangent:
        """Compute Jᵀ times ``outputs``."""
        pull = vjp(partial(self._call, images=images), self._weights)[1]
        (named,) = pull(outputs @ self._head)
        return torch.cat([*(named[name].flatten() for name in self._shapes), outputs.sum(0)])

    def jacobian(self, images: Tensor) -> Float[Tensor, "output weight"]:
        """Compute J for all rows and classes, ordered by row and then by class."""

        def outputs(weights: dict[str, Tensor], image: Tensor) -> Tensor:
            return (self._call(weights, image[None]) @ self._head.T)[0]

        named = vmap(jacrev(outputs), (None, 0))(self._weights, images)
        parts = [named[name].flatten(2) for name in self._shapes]
        bias = torch.eye(len(self._head), dtype=parts[0].dtype, device=parts[0].device).expand(len(images), -1, -1)
        return torch.cat([*parts, bias], 2).flatten(0, 1)

    def _call(self, weights: dict[str, Tensor], images: Tensor) -> Tensor:
        features: Tensor = functional_call(self._trunk, weights | self._buffers, (images,))
        return features


@dataclass(frozen=True)
class Fitted:
    """The model on a coreset given τ, differentiable in the coreset and in τ.

    Attributes:
        features: H_S.
        moved: J_S τ.
        dual: A R, in float64; the head is H_Sᵀ A R.
        factor: the Cholesky factor of K + λI, in float64.
    """

    features: Float[Tensor, "row feature"]
    moved: Float[Tensor, "row class"]
    dual: Float[Tensor, "row class"]
    factor: Float[Tensor, "row row"]


def fitted(model: Model, images: Tensor, labels: Tensor, tangent: Tangent, penalty: float) -> Fitted:
    """Fit the head on the coreset given τ.

    Raises:
        Diverged: the features are not finite.
    """
    features, moved = model.both(images, tangent)
    factor = gram_factor(features, penalty)
    return Fitted(features, moved, torch.cholesky_solve((labels - moved).double(), factor), factor)


def gram_factor(features: Float[Tensor, "row feature"], penalty: float) -> Float[Tensor, "row row"]:
    """Return the Cholesky factor of H Hᵀ + λI, in float64.

    Raises:
        Diverged: the features are not finite.
    """
    wide = features.double()
    factor, failed = torch.linalg.cholesky_ex(wide @ wide.T + penalty * torch.eye(len(wide)).to(wide))
    if bool(failed) or not bool(factor.isfinite().all()):
        raise Diverged("the coreset's features became NaN or infinite: lower the learning rate")
    return factor


@final
class InnerProblem:
    """L_S of a model and coreset, its solution and its adjoint, without a graph."""

    def __init__(self, model: Model, images: Tensor, labels: Tensor, penalty: float, solver: SolverConfig) -> None:
        self._model, self._images, self._labels = model, images.detach(), labels.detach()
        self._penalty, self._solver, self._size = penalty, solver, labels.numel()
        self._factor = gram_factor(model.features(self._images), penalty)
        if isinstance(solver, ExactConfig):
            self._jacobian = model.jacobian(self._images)
            wide = self._jacobian.double()
            gram = self._factor @ self._factor.T  # K + λI, the same for all classes
            self._dual = torch.linalg.cholesky(wide @ wide.T + torch.kron(gram, torch.eye(labels.shape[1]).to(gram)))

    def solution(self) -> Tangent:
        """Return the τ that minimises L_S, or the solver's last iterate."""
        if isinstance(self._solver, ExactConfig):
            dual = torch.cholesky_solve(self._labels.double().flatten()[:, None], self._dual)
            return self._jacobian.T @ dual[:, 0].to(self._jacobian.dtype)
        target = torch.cholesky_solve(self._labels.double(), self._factor).to(self._labels.dtype)
        return self._conjugate(self._model.transposed(self._images, target), self._solver)

    def adjoint(self, slope: Tangent) -> Tangent:
        """Return v = (∇²L_S)⁻¹ ``slope``."""
        right = slope * (self._size / self._penalty)
        if isinstance(self._solver, ExactConfig):
            inner = torch.cholesky_solve((self._jacobian @ right).double()[:, None], self._dual)
            return right - self._jacobian.T @ inner[:, 0].to(self._jacobian.dtype)
        return self._conjugate(right, self._solver)

    def _conjugate(self, right: Tangent, solver: ConjugateGradientConfig) -> Tangent:
        """Solve (JᵀAJ + I)τ = ``right``."""

        def product(vector: object) -> object:
            tangent = torch.as_tensor(vector).to(right)
            _, moved = self._model.both(self._images, tangent)
            solved = torch.cholesky_solve(moved.double(), self._factor).to(moved.dtype)
            return (self._model.transposed(self._images, solved) + tangent).cpu().numpy()

        start = right.cpu().numpy()
        operator = LinearOperator((len(right), len(right)), matvec=product, dtype=start.dtype)
        solved, _ = cg(operator, start, rtol=solver.tolerance, maxiter=solver.iterations)
        return torch.as_tensor(solved).to(right)


def slope_along(
    model: Model, images: Tensor, labels: Tensor, fit: Fitted, tangent: Tangent, along: Tangent, penalty: float
) -> Float[Tensor, ""]:
    """Compute vᵀ∇L_S(τ), differentiable in the coreset.

    Args:
        fit: the result of :func:`fitted` at ``tangent``.
        tangent: τ.
        along: v.
    """
    _, moved = model.both(images, along)
    return penalty / labels.numel() * ((tangent * along).sum() - (moved.double() * fit.dual).sum())
