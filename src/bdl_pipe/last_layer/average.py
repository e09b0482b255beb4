"""The average of a last layer's predictives over draws of its features (eq. 69–73)."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..predictive import Categorical, Gaussian, Predictive
from ..student_t import StudentT


def averaged(parts: Sequence[Any]) -> Predictive:
    """Return the equal mixture of predictives of one kind, after the softmax (eq. 71); the log of mean densities."""
    if len(parts) == 1:
        only: Predictive = parts[0]
        return only
    if isinstance(parts[0], Gaussian):
        return Gaussian(torch.cat([p.draw_mean for p in parts]), torch.cat([p.draw_variance for p in parts]))
    if isinstance(parts[0], StudentT):
        squared = torch.cat([p.squared_scale for p in parts])
        return StudentT(torch.cat([p.draw_mean for p in parts]), squared, parts[0].degrees)
    mixed = dict[str, Tensor]()
    for name in parts[0].scores:  # [batch] (eq. 73)
        densities = torch.stack([p.scores[name] for p in parts])
        mixed[name] = torch.logsumexp(densities, 0) - math.log(len(parts))
    return Categorical(torch.stack([p.log_probs for p in parts]), mixed)
