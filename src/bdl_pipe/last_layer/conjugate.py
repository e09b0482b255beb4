"""The exact posterior of a last layer for regression, given the features of all training rows and the noise Σ.

The model is the same as in :mod:`~bdl_pipe.last_layer.regression`: y = Wφ + ε, ε ~ N(0, Σ), each row of W is N(0, sI).
With Σ = U diag(d) Uᵀ the outputs Uᵀy are independent given W, and the rows of UᵀW have the same prior as the rows of W:

    (UᵀW)_k | Y ~ N(S_k Φᵀ(YU)_k / d_k, S_k),    S_k⁻¹ = ΦᵀΦ / d_k + I / s = V diag(λ / d_k + 1 / s) Vᵀ

where ΦᵀΦ = V diag(λ) Vᵀ. For one output this is Bayesian linear regression (Bishop 2006, eqs 3.53–3.54).

Source: Harrison, Willes & Snoek 2023, "Variational Bayesian Last Layers", appendix C.6: after training "we may discard
the variational posterior and leverage exact conjugacy". For several outputs the posterior is a matrix normal, like the
layer's q(W) = MN(W̄, I, S), only if Σ is a multiple of I. The exact posterior has no KL weight.
"""

from collections.abc import Iterable
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..errors import DataError
from ..joint_predictive import GaussianFunctions
from ..predictive import Gaussian
from ..seeds import Seed
from .densities import check_features, widen
from .layer import full_precision
from .regression import Regression


@final
class ConjugateRegression(nn.Module):
    """The exact posterior of W, which predicts in closed form. It has buffers but no parameters.

    Attributes:
        mean: E[W | Y].
        basis: V.
        variance: 1 / (λ / d_k + 1 / s), the variances of S_k in the basis V.
        mixing: U², the share of each rotated output in the variance of each output.
        noise_variance: the diagonal of Σ.
    """

    mean: Tensor
    basis: Tensor
    variance: Tensor
    mixing: Tensor
    noise_variance: Tensor

    def __init__(
        self,
        mean: Float[Tensor, "output h"],
        basis: Float[Tensor, "h h"],
        variance: Float[Tensor, "output h"],
        mixing: Float[Tensor, "output output"],
        noise_variance: Float[Tensor, " output"],
    ) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("basis", basis)
        self.register_buffer("variance", variance)
        self.register_buffer("mixing", mixing)
        self.register_buffer("noise_variance", noise_variance)

    @classmethod
    def skeleton(cls, outputs: int, features: int) -> "ConjugateRegression":
        """Return a posterior to load a ``state_dict`` into."""
        rows, square = torch.zeros(outputs, features), torch.zeros(features, features)
        return cls(rows, square, rows.clone(), torch.zeros(outputs, outputs), torch.zeros(outputs))

    def predict(self, features: Float[Tensor, "batch h"], *, rng: Seed = Seed(0)) -> Gaussian:
        """Return N(E[W]φ, Σ_k U_ik² φᵀS_kφ + Σ_ii) of each output i, one draw; ``rng`` is not used.

        As in :meth:`Regression.predict`, the correlations of the outputs are omitted.
        """
        with full_precision(features):
            features = features.to(self.mean.dtype)
            spread = (features @ self.basis).square() @ self.variance.mT @ self.mixing.mT
            return Gaussian((features @ self.mean.mT)[None], (spread + self.noise_variance)[None])

    def functions(self, features: Float[Tensor, "group row h"]) -> GaussianFunctions:
        """Return the Gaussian over Wφ at the rows of each group; its noise is Σ_ii, as in ``predict``."""
        with full_precision(features):
            features = features.to(self.mean.dtype)
            rotated = (features @ self.basis)[:, None]  # [group, 1, row, h]
            covariance = torch.einsum("ik,gkrq->girq", self.mixing, rotated * self.variance[:, None] @ rotated.mT)
            noise = self.noise_variance[None]
            return GaussianFunctions((features @ self.mean.mT)[None], covariance[None], noise, classes=False)


@torch.no_grad()
def condition(layer: Regression, batches: Iterable[tuple[Tensor, Tensor]]) -> ConjugateRegression:
    """Return the exact posterior at the layer's Σ and prior, in one pass; the layer is not changed.

    Args:
        batches: (features [batch, h], targets [batch, output]) of the training rows, from the fixed trunk.

    Raises:
        DataError: there are no rows, features are not finite or not ``in_features`` wide, or targets have another
            shape.
    """
    gram = widen(layer.mean.new_zeros(layer.in_features, layer.in_features))
    cross, rows = widen(torch.zeros_like(layer.mean)).mT, 0
    for features, targets in batches:
        check_features(features, layer.in_features)
        expected = (len(features), len(layer.mean))
        if tuple(targets.shape) != expected:
            raise DataError(f"targets must have shape {expected}, got {tuple(targets.shape)}")
        features, rows = widen(features), rows + len(features)
        gram, cross = gram + features.mT @ features, cross + features.mT @ widen(targets)
    if rows == 0:
        raise DataError("batches must have at least one row, got none")
    if not torch.isfinite(gram).all():
        raise DataError("features must be finite")
    noise, rotation = torch.linalg.eigh(widen(layer.noise_covariance))  # d, U
    squares, basis = torch.linalg.eigh(gram)  # λ, V
    variance = 1 / (squares.clamp_min(0) / noise[:, None] + 1 / layer.prior_variance)  # [output, h]
    rotated = variance * (basis.mT @ cross @ rotation).mT / noise[:, None] @ basis.mT  # UᵀE[W]
    like = layer.mean.dtype
    diagonal = layer.noise_covariance.diagonal().clone()
    parts = (rotation @ rotated, basis, variance, rotation.square(), diagonal)
    return ConjugateRegression(*(part.to(like) for part in parts))
