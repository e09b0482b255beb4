"""A generative layer away from its start, and its parts in dense float64."""

import numpy as np
import scipy.stats
import torch
from torch import Tensor

from bdl_pipe.last_layer import Generative
from bdl_pipe.seeds import Seed

COUNTS = (7, 0, 30, 12)
WIDTH, CLASSES, ROWS = 5, len(COUNTS), 23


def draws(*shape: int, at: str) -> Tensor:
    return torch.randn(*shape, generator=Seed(0).fold(at).generator(), dtype=torch.float64)


def make(seed: int = 0, **options: float) -> Generative:
    """A layer whose every parameter is away from its start, in float64."""
    settings = {"dirichlet": 0.75, "prior_variance": 1.7, "wishart_dof": 3.0, "wishart_scale": 0.6} | options
    layer = Generative(WIDTH, CLASSES, class_counts=COUNTS, **settings).double()
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            parameter.copy_(0.5 * draws(*parameter.shape, at=f"{name} {seed}"))
    return layer


def parts(layer: Generative) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """μ [k, h], S [k, h, h], Σ [h, h], α_T [k], from the parameters by their definition (eq. 78), dense."""
    root = layer.log_root_precision.detach().exp().diag()
    spread = layer.log_std.detach().exp().diag_embed()
    alpha = 0.75 + torch.tensor(COUNTS, dtype=torch.float64)
    return layer.mean.detach(), spread @ spread.mT, torch.linalg.inv(root @ root.T), alpha


def mixture(features: Tensor, mean: Tensor, covariance: Tensor, weights: Tensor) -> np.ndarray:
    """p(k) N(φ | mean[k], covariance[k]) [batch, class], by scipy."""
    return np.stack(
        [
            p * scipy.stats.multivariate_normal(m, c).pdf(features)
            for m, c, p in zip(mean.numpy(), covariance.numpy(), (weights / weights.sum()).numpy(), strict=True)
        ],
        axis=1,
    )
