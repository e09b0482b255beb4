"""The joint of the targets of several rows for a network that is linear in Gaussian weights.

All outputs at all rows of a group have one Gaussian, since outputs and rows share weights. For a network that predicts
a mean and a log-variance, the Gaussian is over both. Given the log-variances, targets are Gaussian, so the joint
density is a mean over draws of the log-variances only.
"""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..joint_predictive import Joint, JointCategorical, jittered_root, normal_log_prob
from ..posterior import NetworkSpec
from ..predictive import Gaussian
from ..seeds import Seed


@final
class JointDependent(Joint):
    """The joint of regression: an equal mixture over draws of Gaussians. In each, the outputs of a row are dependent.

    Args:
        mean: the mean of each target.
        variance: the variance of each target's own noise.
        covariance: the covariance of the functions' values, for each draw or one for all draws.
    """

    def __init__(
        self,
        mean: Float[Tensor, "draw group row output"],
        variance: Float[Tensor, "draw group row output"],
        covariance: Float[Tensor, "#draw group row output row output"],
    ) -> None:
        self.mean, self.variance, self.covariance = mean.double(), variance.double(), covariance.double()
        self.draws, self.target_shape, self.is_product = len(mean), tuple(mean.shape[1:]), False

    def _row_terms(self, targets: Float[Tensor, "group row output"]) -> Float[Tensor, "draw group row"]:
        own = self.covariance.diagonal(dim1=2, dim2=4).movedim(-1, 2)  # [#draw, group, row, output, output]
        return normal_log_prob(own + torch.diag_embed(self.variance), targets.double() - self.mean).sum(-1)

    def _chain_terms(self, targets: Float[Tensor, "group row output"]) -> Float[Tensor, "draw group row"]:
        whole = self.covariance.flatten(4).flatten(2, 3) + torch.diag_embed(self.variance.flatten(2))
        terms = normal_log_prob(whole, (targets.double() - self.mean).flatten(2))
        return terms.unflatten(2, self.target_shape[1:]).sum(-1).cumsum(-1)


@final
@dataclass(frozen=True)
class LinearisedFunctions:
    """The Gaussian over a linearised network's outputs at the rows of each group.

    Attributes:
        mean: the outputs' mean.
        covariance: the covariance of all outputs at all rows, ordered by row and then by output.
        spec: the network's spec, which defines the likelihood of the outputs.
    """

    mean: Float[Tensor, "group row output"]
    covariance: Float[Tensor, "group row·output row·output"]
    spec: NetworkSpec

    def joint(self, places: Int[Tensor, "group place"] | None, *, draws: int, rng: Seed) -> Joint:
        """Return the joint of the observations in ``places``. None: each row once.

        The joint of regression with a fixed noise is a Gaussian in closed form. For classes the softmax is averaged
        over ``draws`` functions. If the network predicts a log-variance, ``draws`` vectors of log-variances are drawn
        jointly at the rows, and the joint given each is in closed form. Logits are kept in float32.
        """
        normal = torch.randn(draws, *self.mean.shape, generator=rng.fold("functions").generator()).to(self.mean)
        if self.spec.likelihood == "categorical":
            offsets = torch.einsum("gij,dgj->dgi", jittered_root(self.covariance), normal.flatten(2))
            logits = self.mean + offsets.unflatten(2, self.mean.shape[1:])
            return JointCategorical(logits.float().log_softmax(-1), places)
        shape = self.mean.shape[1:]
        blocks = self.covariance.unflatten(2, shape).unflatten(1, shape)  # [group, row, output, row, output]
        if self.spec.likelihood == "gaussian":
            mean, variance = self.mean[None], self.spec.noise_of(self.mean[None])
        else:
            mean, variance, blocks = self._given_variances(blocks, normal.chunk(2, dim=-1)[0])
        if places is not None:
            mean, variance = (torch.take_along_dim(x, places[None, :, :, None], 2) for x in (mean, variance))
            blocks = torch.take_along_dim(blocks, places[:, :, None, None, None], 1)
            blocks = torch.take_along_dim(blocks, places[:, None, None, :, None], 3)
        return JointDependent(mean, variance, blocks[None])

    def _given_variances(self, blocks: Tensor, normal: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Draw log-variances; return the means given each draw, the variances, and the covariance of the means.

        Let LLᵀ be the covariance of the log-variances and C the covariance of the means with them. A draw deviates by L
        z from its mean. Given the draw, the means shift by C L⁻ᵀ z, and their covariance falls by C L⁻ᵀ (C L⁻ᵀ)ᵀ.
        """
        mean, free = self.mean.chunk(2, dim=-1)
        shape, (above, below) = mean.shape[1:], blocks.chunk(2, dim=2)
        own, cross, theirs = (
            block.flatten(3).flatten(1, 2) for block in (*above.chunk(2, dim=4), below.chunk(2, dim=4)[1])
        )
        root = jittered_root(theirs)
        slope = torch.linalg.solve_triangular(root, cross.mT, upper=False).mT  # C L⁻ᵀ
        moved, drawn = (torch.einsum("gij,dgj->dgi", by, normal.flatten(2)).unflatten(2, shape) for by in (slope, root))
        read = self.spec.predictive(torch.cat([mean + moved, free + drawn], dim=-1).flatten(1, 2))
        assert isinstance(read, Gaussian)
        variance = read.draw_variance.unflatten(1, mean.shape[:2])
        return mean + moved, variance, (own - slope @ slope.mT).unflatten(2, shape).unflatten(1, shape)
