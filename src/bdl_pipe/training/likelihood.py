"""How a network's outputs are read where the noise of regression is one variance, learned as a point."""

import math
from typing import final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ..method import Task
from ..predictive import Categorical, Gaussian, Predictive


@final
class HomoscedasticLikelihood(nn.Module):
    """The likelihood of a network's outputs, whose noise is the same for all outputs and inputs.

    For classes it is a softmax; for regression the outputs are means with one noise variance σ².

    Attributes:
        log_variance: log σ² [1], in the units of the transformed targets; regression only.
    """

    def __init__(self, task: Task, initial_variance: float) -> None:
        super().__init__()
        self._task = task
        if task == "regression":
            self.log_variance = nn.Parameter(torch.full((1,), math.log(initial_variance)))

    def forward(self, outputs: Float[Tensor, "draw batch output"]) -> Predictive:
        """Return the predictive of network outputs, one network a draw."""
        if self._task == "classification":
            return Categorical(F.log_softmax(outputs, dim=-1))
        return Gaussian(outputs, self.log_variance.exp().expand_as(outputs))
