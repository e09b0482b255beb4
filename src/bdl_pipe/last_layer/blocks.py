"""A generative last layer with a sparse covariance: Σ and S[k] are block-diagonal.

Harrison, Willes & Snoek 2023, appendix D.2, restrict Σ and S[k] to diagonals, since they know no cheap log N(φ | μ[k],
Σ + S[k]) of dense ones. They write that "improvements may results from sparse covariance structures", and name none.
Here features of the same block of b neighbours have a dense covariance, and blocks are independent. Σ + S[k] and its
inverse then have the same blocks, which holds neither for bands nor for sparse Cholesky factors. With K classes and h
features the factors cost O(K h b²) a step, and a row's densities O(K h b); b = 1 is the diagonal layer. Which features
are neighbours is the trunk's order: the neighbours of a ConvNet are pixels of one channel.

The prior of each block of Σ is the inverse Wishart of eq. 65 with N = b. The densities after training (``refit``) stay
diagonal, with the layer's class means.
"""

import math
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..errors import require
from ..networks.last_layer import LOG_2PI, widen
from .generative import Generative

Blocks = Float[Tensor, "*batch group block block"]


@final
class BlockGenerative(Generative):
    """A :class:`Generative` layer with blocks: S[k] = PPᵀ, Σ⁻¹ = LLᵀ, P and L lower triangular in each block (eq. 78).

    Parameters, besides those of the diagonal layer, which are the diagonals of P and L: ``factor``, P below its
    diagonal [class, group, block, block], and ``root_precision``, L below its diagonal [group, block, block]. Both are
    0 at the start.
    """

    def __init__(self, in_features: int, num_classes: int, *, block: int, **options: Any) -> None:
        """Initialise the diagonal layer.

        Args:
            block: b > 1, the number of features of a block, which divides ``in_features``.
            options: the other arguments of :class:`Generative`; ``wishart_dof`` must be > b − 1.

        Raises:
            ConfigError: an argument is out of range.
        """
        super().__init__(in_features, num_classes, **options)
        require(block > 1, "block", "must be > 1", block)
        require(in_features % block == 0, "block", f"must divide the {in_features} features", block)
        require(self.wishart_dof > block - 1, "wishart_dof", f"must be > {block - 1}, block − 1", self.wishart_dof)
        self.block, groups = block, in_features // block
        self.factor = nn.Parameter(torch.zeros(num_classes, groups, block, block))
        self.root_precision = nn.Parameter(torch.zeros(groups, block, block))

    def _of_blocks(self, features: Tensor) -> Float[Tensor, "*batch group block"]:
        return widen(features).unflatten(-1, (-1, self.block))

    @property
    def _spread_root(self) -> Blocks:
        """Return P of each class."""
        return widen(self.factor).tril(-1) + torch.diag_embed(self._of_blocks(self.log_std).exp())

    @property
    def _noise_root(self) -> Blocks:
        """Return L."""
        return widen(self.root_precision).tril(-1) + torch.diag_embed(self._of_blocks(self.log_root_precision).exp())

    @property
    def noise_covariance(self) -> Blocks:
        """Return the blocks of Σ = L⁻ᵀL⁻¹."""
        return _inverse(self._noise_root)

    @property
    def noise_variance(self) -> Float[Tensor, " feature"]:
        return self.noise_covariance.diagonal(dim1=-2, dim2=-1).flatten().to(self.mean.dtype)

    def _log_densities(self, features: Tensor) -> Float[Tensor, "batch class"]:
        root = self._spread_root
        return block_log_densities(features, self.mean, self.noise_covariance + root @ root.mT)

    def _fit(self, offset: Float[Tensor, "batch feature"]) -> tuple[Float[Tensor, " batch"], Float[Tensor, " class"]]:
        root = self._noise_root
        rows = torch.einsum("ngi,gij->ngj", self._of_blocks(offset), root)  # Lᵀ(φ − μ)
        trace = (root.mT @ self._spread_root).square().sum((-3, -2, -1))
        return rows.square().sum((-2, -1)).to(offset.dtype), trace.to(self.mean.dtype)

    def kl(self) -> Float[Tensor, ""]:
        return super().kl() + 0.5 * self.factor.tril(-1).square().sum() / self.prior_variance

    def noise_log_prior(self) -> Float[Tensor, ""]:
        """Return Σ log IW(Σ_g | ν, MI) over blocks (eq. 65 with N = b), including constants."""
        dof, size, groups = self.wishart_dof, self.block, len(self.root_precision)
        constant = 0.5 * dof * size * math.log(self.wishart_scale / 2)
        constant -= float(torch.mvlgamma(torch.tensor(dof / 2, dtype=torch.float64), size))
        trace = (2 * self.log_root_precision).exp().sum() + self.root_precision.tril(-1).square().sum()
        log_det = (dof + size + 1) * self.log_root_precision.sum()
        return groups * constant + log_det - 0.5 * self.wishart_scale * trace

    def _prior_density(self, features: Tensor) -> Float[Tensor, " batch"]:
        prior = self.prior_variance * torch.eye(self.block).to(self.noise_covariance) + self.noise_covariance
        return block_log_densities(features, torch.zeros_like(self.mean[:1]), prior[None])[:, 0]

    def _precise(self, means: Float[Tensor, "draw class feature"]) -> tuple[Tensor, Float[Tensor, "draw class"]]:
        root = self._noise_root
        weight = torch.einsum("gij,...gj->...gi", root @ root.mT, self._of_blocks(means)).flatten(-2)
        return weight, (means * weight).sum(-1)

    def _drawn_offset(self, normal: Float[Tensor, "draw class feature"]) -> Tensor:
        return torch.einsum("kgij,...kgj->...kgi", self._spread_root, self._of_blocks(normal)).flatten(-2)

    def _class_means(self, count: Tensor, mean: Tensor) -> tuple[Tensor, Blocks]:
        root, identity = self._noise_root, torch.eye(self.block).to(self._noise_root)
        after = count[:, None, None, None] * (root @ root.mT)  # T_y Σ⁻¹ [class, group, block, block]
        covariance = torch.linalg.inv(identity / self.prior_variance + after)
        shift = torch.einsum("kgij,kgj->kgi", after, self._of_blocks(mean))
        return torch.einsum("kgij,kgj->kgi", covariance, shift).flatten(-2), covariance

    def _set_spread(self, variance: Blocks) -> None:
        root = torch.linalg.cholesky(variance)
        self.factor.copy_(root.tril(-1))
        self.log_std.copy_(root.diagonal(dim1=-2, dim2=-1).flatten(-2).log())


def block_log_densities(
    features: Float[Tensor, "batch feature"],
    mean: Float[Tensor, "class feature"],
    covariance: Float[Tensor, "class group block block"],
) -> Float[Tensor, "batch class"]:
    """Return log N(φ | mean[k], C[k]) of every pair, with C[k] block-diagonal.

    As :func:`~bdl_pipe.networks.last_layer.log_densities`, it centres and needs no tensor of size [batch, class,
    feature]: φᵀC⁻¹φ is a product of the rows' φφᵀ within blocks, [batch, feature·block], with C⁻¹.
    """
    root, size = torch.linalg.cholesky(widen(covariance)), covariance.shape[-1]
    centre = mean.detach().mean(0)
    z, offset = (widen(rows - centre).unflatten(-1, (-1, size)) for rows in (features, mean))
    precision = _inverse(root)
    scaled = torch.einsum("kgij,kgj->kgi", precision, offset)
    log_det = 2 * root.diagonal(dim1=-2, dim2=-1).log().sum((-2, -1))
    constant = (scaled * offset).sum((-2, -1)) + log_det + mean.shape[-1] * LOG_2PI  # [class]
    products = (z[..., :, None] * z[..., None, :]).flatten(1)
    exponent = z.flatten(1) @ scaled.flatten(1).T - 0.5 * (products @ precision.flatten(1).T + constant)
    return exponent.to(torch.promote_types(features.dtype, mean.dtype))


def _inverse(root: Blocks) -> Blocks:
    identity = torch.eye(root.shape[-1]).to(root)
    inner = torch.linalg.solve_triangular(root, identity.expand_as(root), upper=False)
    return inner.mT @ inner
