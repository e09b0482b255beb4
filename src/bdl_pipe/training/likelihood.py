"""A likelihood whose noise of regression is one variance, learned as a point; learners that mix draws under it."""

import math
from abc import abstractmethod
from typing import Any, final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ..method import Task
from ..predictive import Categorical, Gaussian, Predictive
from ..seeds import Seed
from .learner import Learner


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


class MixtureLearner(Learner):
    """A learner whose predictive is a mixture of several draws of its network.

    Attributes:
        spec: the description of the learner; its ``config`` has ``draws`` and ``validation_draws``.
        likelihood: the likelihood of the network's outputs.
    """

    spec: Any
    likelihood: HomoscedasticLikelihood

    @abstractmethod
    def drawn_outputs(self, inputs: Tensor, draws: int, rng: Seed) -> Float[Tensor, "draw batch output"]:
        """Return the outputs of each draw; draw k is the same network for every batch."""

    @final
    def log_likelihood(self, outputs: Float[Tensor, "batch output"], targets: Tensor) -> Float[Tensor, ""]:
        """Return log p(y_i | outputs_i), mean over the batch."""
        return self.likelihood(outputs[None]).log_prob(targets).mean()

    @final
    def predict(self, inputs: Tensor, *, rng: Seed) -> Predictive:
        return self.likelihood(self.drawn_outputs(inputs, self.spec.config.draws, rng))

    @final
    def validate(self, inputs: Tensor, *, rng: Seed) -> Predictive:
        return self.likelihood(self.drawn_outputs(inputs, self.spec.config.validation_draws, rng))

    def undecayed(self) -> set[str]:
        """Return the names of the likelihood's parameters."""
        return {name for name, _ in self.named_parameters() if name.startswith("likelihood.")}
