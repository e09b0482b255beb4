"""A likelihood whose noise of regression is one variance, learned as a point; learners that mix draws under it."""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final, final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ..method import Task
from ..predictive import Categorical, Gaussian, Predictive
from ..seeds import Seed
from .learner import Learner

_BOUNDS: Final = (math.log(1e-8), math.log(1e4))  # of a variance that validation rows choose, in transformed units
_LEAST: Final = 1e-12  # of a variance above its floor
_SHIFTS: Final = (-2.0, 8.0)  # of log-variances


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

    @final
    def held_out(self, predicted: Sequence[tuple[Predictive, Tensor]]) -> tuple[float, dict[str, Tensor]]:
        """Return the score, and the noise variance of the largest likelihood of these rows, where it is learned.

        The variance that training leaves is that of residuals which the network was fitted to: too small by as much as
        it has learned them by heart. All draws of a row stay apart, so that it is the noise beside their disagreement.
        """
        variance = getattr(self.likelihood, "log_variance", None)
        if variance is None or not variance.requires_grad:
            return super().held_out(predicted)
        means = [of.draw_mean for of, _ in predicted if isinstance(of, Gaussian)]
        draws, targets = torch.cat(means, 1).double(), torch.cat([held for _, held in predicted]).double()
        score, best = least_nll(draws, targets)
        return score, {"likelihood.log_variance": torch.full_like(variance.detach(), best)}

    def undecayed(self) -> set[str]:
        """Return the names of the likelihood's parameters."""
        return {name for name, _ in self.named_parameters() if name.startswith("likelihood.")}


def least_nll(draws: Float[Tensor, "draw row output"], targets: Float[Tensor, "row output"]) -> tuple[float, float]:
    """Return the least mean −log (1/S) Σ_s N(y | f_s, v) over one variance v of all outputs, and log v."""

    def nll(log_variance: float) -> float:
        return -float(Gaussian(draws, torch.full_like(draws, math.exp(log_variance))).log_prob(targets).mean())

    return least(nll, _BOUNDS)


def least_shift(predicted: Sequence[tuple[Predictive, Tensor]], floor: float | None) -> tuple[float, float]:
    """Return the least mean −log p(y) over one number added to every log-variance before its floor, and the number.

    Variances stay in their order; those that training made too small for rows that it knows by heart grow. All draws
    of a row stay apart.

    Args:
        predicted: Gaussians with a variance of each row, and the targets of the rows.
        floor: as ``NetworkSpec.variance_floor``.
    """
    known = [of for of, _ in predicted if isinstance(of, Gaussian)]
    mean = torch.cat([of.draw_mean for of in known], 1).double()  # [draw, row, output]
    variance = torch.cat([of.draw_variance for of in known], 1).double()
    targets = torch.cat([held for _, held in predicted]).double()
    free = variance.log() if floor is None else _inverse_softplus((variance - floor).clamp_min(_LEAST))

    def nll(shift: float) -> float:
        grown = (free + shift).exp() if floor is None else floor + F.softplus(free + shift)
        return -float(Gaussian(mean, grown).log_prob(targets).mean())

    return least(nll, _SHIFTS)


def _inverse_softplus(values: Tensor) -> Tensor:
    """Return x of log(1 + exp(x)) = value > 0."""
    return values + torch.log(-torch.expm1(-values))


def least(score: Callable[[float], float], bounds: tuple[float, float]) -> tuple[float, float]:
    """Return the least value of ``score`` between two ends, and where it is."""
    from scipy.optimize import minimize_scalar  # half a second, which every process of every method would pay

    found = minimize_scalar(score, bounds=bounds, method="bounded", options={"xatol": 1e-4})
    return float(found.fun), float(found.x)
