"""The likelihood of a coreset's classes under draws of a network's weights."""

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor


def mean_log_likelihood(
    logits: Float[Tensor, "draw row class"], classes: Int[Tensor, " row"]
) -> Float[Tensor, " draw"]:
    """Compute the mean over rows of log p(class | logits) for each draw."""
    of_rows = F.log_softmax(logits, -1).gather(-1, classes.expand(len(logits), -1)[..., None])
    return of_rows[..., 0].mean(-1)
