"""The likelihood of a network's outputs with a learned noise, and learners that average draws under it."""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal, final

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from .. import networks
from ..errors import require
from ..method import Task
from ..networks import Network
from ..posterior import Tails
from ..predictive import Categorical, Gaussian, Predictive
from ..seeds import Seed
from ..student_t import FREE, StudentT, degrees_of, free_of
from .learner import Learner, Weights, begin

NoiseOf = Literal["one", "each input"]
_LOG_VARIANCE, _SLOPE = "likelihood.log_variance", "likelihood.slope"
_LEAST, _MOST = 1e-8, 1e4  # bounds of an estimated variance, or of its part above the floor


@final
class OutputLikelihood(nn.Module):
    """The likelihood of a network's outputs: a softmax for classes, a distribution with a learned noise for regression.

    With one noise the outputs are means, and σ² is the same for all outputs and inputs. With a noise of each input the
    network has twice as many outputs, means and then g(x), and log σ²(x) = a + b g(x) (Nix & Weigend 1994). b is 1 in
    training; an estimate on held-out rows reduces it where they do not show the noise to vary (:func:`least_head_nll`).
    With the tails of a Student t, σ²(x) is its squared scale, and the network has three times as many outputs: the last
    ones, on a line of their own, give degrees of freedom (:func:`~bdl_pipe.student_t.degrees_of`).

    Attributes:
        log_variance: log σ², or a [1], in the units of the transformed targets; regression only. For a Student t [2].
        slope: b [1], or [2] for a Student t; only with a noise of each input.
        each_input: whether each input has its own noise.
    """

    slope: Tensor

    def __init__(self, task: Task, initial_variance: float, noise: NoiseOf = "one", tails: Tails = "gaussian") -> None:
        """Create the likelihood with the variance ``initial_variance``, if g is 0.

        Raises:
            ConfigError: ``noise`` is not ``one`` for classes, or ``tails`` is ``student`` with one noise.
        """
        super().__init__()
        self._task, self.each_input, self._student = task, noise == "each input", tails == "student"
        require(task == "regression" or not self.each_input, "noise", "must be one: classes have no noise", noise)
        require(self.each_input or not self._student, "tails", "must be gaussian unless noise is each input", tails)
        if task == "regression":
            level = torch.full((1 + self._student,), math.log(initial_variance))
            level[1:] = 0.0
            self.log_variance = nn.Parameter(level)
        if self.each_input:
            self.register_buffer("slope", torch.ones(1 + self._student))

    def width(self, outputs: int) -> int:
        """Return the number of outputs of a network for ``outputs`` classes or target columns."""
        return outputs * (1 + self.each_input + self._student)

    def forward(self, outputs: Float[Tensor, "draw batch output"]) -> Predictive:
        """Return the predictive of network outputs; each draw is one network."""
        if self._task == "classification":
            return Categorical(F.log_softmax(outputs, dim=-1))
        if not self.each_input:
            return Gaussian(outputs, self.log_variance.exp().expand_as(outputs))
        if self._student:
            means, free, tails = outputs.chunk(3, dim=-1)
            squared = (self.log_variance[0] + self.slope[0] * free).exp()
            return StudentT(means, squared, degrees_of(self.log_variance[1] + self.slope[1] * tails))
        means, free = outputs.chunk(2, dim=-1)
        return Gaussian(means, (self.log_variance + self.slope * free).exp())


class MixtureLearner(Learner):
    """A learner whose predictive is a mixture of several draws of its network.

    Attributes:
        spec: the description of the learner; its ``config`` has the fields ``draws`` and ``validation_draws``.
        likelihood: the likelihood of the network's outputs.
    """

    spec: Any
    likelihood: OutputLikelihood

    @abstractmethod
    def drawn_outputs(self, inputs: Tensor, draws: int, rng: Seed) -> Float[Tensor, "draw batch output"]:
        """Return the outputs of each draw; draw k is the same network in every batch."""

    @final
    def log_likelihood(self, outputs: Float[Tensor, "batch output"], targets: Tensor) -> Float[Tensor, ""]:
        """Return the mean of log p(y_i | outputs_i) over the batch."""
        return self.likelihood(outputs[None]).log_prob(targets).mean()

    @final
    def predict(self, inputs: Tensor, *, rng: Seed) -> Predictive:
        return self.likelihood(self.drawn_outputs(inputs, self.spec.config.draws, rng))

    @final
    def validate(self, inputs: Tensor, *, rng: Seed) -> Predictive:
        return self.likelihood(self.drawn_outputs(inputs, self.spec.config.validation_draws, rng))

    @final
    def estimated(self, predicted: Sequence[tuple[Predictive, Tensor]]) -> tuple[float, dict[str, Tensor]]:
        """Return the score and, if the noise is learned, its maximum-likelihood estimate on these rows.

        The estimate is one variance, or the line of :func:`least_head_nll` for variances of each input. The variance of
        the training residuals is too small if the network overfits. The likelihood is of the mixture of all draws, so
        that the estimate excludes the draws' disagreement.
        """
        variance = getattr(self.likelihood, "log_variance", None)
        if variance is None or not variance.requires_grad:
            return super().estimated(predicted)
        if self.likelihood.each_input:
            return least_head(predicted, None)
        score, best = least_variance(predicted)
        return score, {_LOG_VARIANCE: torch.full_like(variance.detach(), best)}

    @final
    def with_estimated(self, weights: Mapping[str, Tensor], estimates: Mapping[str, Tensor]) -> Weights:
        return with_line_of_noise(weights, estimates, _LOG_VARIANCE, _SLOPE)

    def undecayed(self) -> set[str]:
        """Return the names of the likelihood's parameters."""
        return {name for name, _ in self.named_parameters() if name.startswith("likelihood.")}


def with_likelihood(spec: Any, rng: Seed, start: Weights | None) -> tuple[Network, OutputLikelihood]:
    """Return the network of a learner, with new weights or with the weights ``start``, and its likelihood.

    Args:
        spec: a ``LearnerSpec``, whose ``config`` has the fields ``network``, ``noise_variance``, ``noise`` and, if the
            method can have tails of a Student t, ``tails``.

    Raises:
        ConfigError: each input has its own noise, and the task is classification or ``start`` is given.
    """
    config = spec.config
    tails: Tails = getattr(config, "tails", "gaussian")
    likelihood = OutputLikelihood(spec.task, config.noise_variance, config.noise, tails)
    one = start is None or not likelihood.each_input
    require(one, "noise", "must be one with a trajectory as input, of which the means are used", config.noise)
    width = likelihood.width(spec.outputs)
    return begin(networks.build(config.network, spec.input_shape, width, rng=rng), start), likelihood


def least_nll(
    draws: Float[Tensor, "draw row output"], targets: Float[Tensor, "row output"], variance: Tensor | float = 0.0
) -> tuple[float, float]:
    """Minimise the mean of −log (1/S) Σ_s N(y | f_s, u + v) over one variance v of all outputs.

    Args:
        variance: u, the variance of each draw's function, which is kept.

    Returns:
        The minimum, and log v.
    """
    from scipy.optimize import minimize_scalar  # here, because the import takes half a second

    def nll(log_variance: float) -> float:
        total = torch.full_like(draws, math.exp(log_variance)) + variance
        return -float(Gaussian(draws, total).log_prob(targets).mean())

    bounds = (math.log(_LEAST), math.log(_MOST))
    minimum = minimize_scalar(nll, bounds=bounds, method="bounded", options={"xatol": 1e-4})
    return float(minimum.fun), float(minimum.x)


def least_variance(predicted: Sequence[tuple[Predictive, Tensor]]) -> tuple[float, float]:
    """Minimise the loss of :func:`least_nll` on rows, given as parts (Gaussians of all draws, targets)."""
    means = [of.draw_mean for of, _ in predicted if isinstance(of, Gaussian)]
    return least_nll(torch.cat(means, 1).double(), torch.cat([held for _, held in predicted]).double())


def least_noise(
    predicted: Sequence[tuple[Predictive, Tensor]], noise: Float[Tensor, " output"], weights: Tensor | None = None
) -> tuple[float, float]:
    """Minimise the mean of −log N(y | f, cσ²) over c, where f is the predicted mean, and σ² a variance of each output.

    The predicted variance of the function is not used: the network has not seen these rows yet, and after a second fit
    this variance explains less of the residuals.

    Args:
        predicted: Gaussians with one draw, and the targets of the rows.
        weights: of the rows in the mean [row]. None: equal ones.

    Returns:
        The least loss, and log c: c is the mean of squared residuals over σ².
    """
    means = torch.cat([of.draw_mean for of, _ in predicted if isinstance(of, Gaussian)], 1).double()[0]
    targets, variance = torch.cat([held for _, held in predicted]).double(), noise.detach().double()
    squared = (targets - means).square() / variance  # [row, output]
    factor = (squared if weights is None else _shares(weights)[:, None] * squared).mean().clamp_min(_LEAST)
    score = 0.5 * (1 + (2 * math.pi * factor * variance).log()).sum()
    return float(score), float(factor.log())


def least_head_nll(
    predicted: Sequence[tuple[Predictive, Tensor]], floor: float | None, weights: Tensor | None = None
) -> tuple[float, float, float]:
    """Minimise the mean of −log p(y) over a line (shift, slope) that transforms variances; return minimum and line.

    A network's head has an output g for each variance, which is exp g, or floor + log(1 + exp g). The line replaces g
    by shift + slope·g, 0 ≤ slope ≤ 1, for all draws, rows and outputs. Slope 1 shifts all log-variances by one number;
    slope 0 gives one variance for all. With one draw and no floor the loss is convex in the line. Otherwise the better
    of two descents is returned: one starts from slope 0, the other from slope 1 about the same variance. The score is
    NaN if a number is not finite.

    Args:
        predicted: Gaussians with a variance for each row, and the targets of the rows.
        floor: see ``NetworkSpec.variance_floor``.
        weights: of the rows in the mean [row]. None: equal ones.
    """
    from scipy.optimize import minimize
    from scipy.special import expit, logsumexp

    gaussians = [of for of, _ in predicted if isinstance(of, Gaussian)]
    mean = torch.cat([of.draw_mean for of in gaussians], 1).double()  # [draw, row, output]
    variance = torch.cat([of.draw_variance for of in gaussians], 1).double().numpy(force=True)
    targets = torch.cat([held for _, held in predicted]).double()
    free = _to_head((variance - (floor or 0.0)).clip(_LEAST), floor)
    square = (targets - mean).square().numpy(force=True)
    centre, (draws, rows) = float(free.mean()), free.shape[:2]
    about = free - centre
    if not math.isfinite(centre + float(square.mean())):
        return math.nan, 0.0, 1.0
    of_rows = None if weights is None else _shares(weights).numpy(force=True)  # [row], 1 in the mean

    def nll(line: np.ndarray) -> tuple[float, np.ndarray]:
        g = line[0] + line[1] * about
        v = np.exp(g) if floor is None else floor + np.logaddexp(0, g)
        each = -0.5 * (np.log(2 * math.pi * v) + square / v).sum(-1)  # [draw, row]
        of_row = logsumexp(each, 0)
        share = np.exp(each - of_row)[..., None]  # each draw's weight in the mixture's derivative
        by_g = share * (v if floor is None else expit(g)) * (1 - square / v) / (2 * v)
        if of_rows is not None:
            of_row, by_g = of_rows * of_row, of_rows[:, None] * by_g
        return math.log(draws) - float(of_row.mean()), np.array([by_g.sum(), (by_g * about).sum()]) / rows

    level = _to_head(np.clip(square.mean() + (floor or 0.0), _LEAST, _MOST), floor)
    ends = [(_to_head(np.float64(_LEAST), floor), _to_head(np.float64(_MOST), floor)), (0.0, 1.0)]
    starts = [0.0] if floor is None and draws == 1 else [0.0, 1.0]
    minima = [minimize(nll, [level, slope], jac=True, bounds=ends) for slope in starts]
    best = min(minima, key=lambda minimum: float(minimum.fun))
    level, slope = best.x.tolist()
    return float(best.fun), level - slope * centre, slope


def least_student_nll(
    predicted: Sequence[tuple[Predictive, Tensor]], floor: float | None, weights: Tensor | None = None
) -> tuple[float, Float[Tensor, " 2"], Float[Tensor, " 2"]]:
    """Minimise the mean of −log p(y) over two lines, of squared scales and of degrees of freedom; see least_head_nll.

    Args:
        predicted: Student ts of a network, and the targets of the rows.
        weights: of the rows in the mean [row]. None: equal ones.

    Returns:
        The least loss found, and the lines' shifts and slopes, of squared scales first.
    """
    from scipy.optimize import minimize

    students = [of for of, _ in predicted if isinstance(of, StudentT)]
    mean = torch.cat([of.draw_mean for of in students], 1).double()  # [draw, row, output]
    squared = torch.cat([of.squared_scale for of in students], 1).double().numpy(force=True)
    free = torch.from_numpy(_to_head((squared - (floor or 0.0)).clip(_LEAST), floor)).to(mean.device)
    tails = free_of(torch.cat([of.degrees for of in students], 1).double())
    targets = torch.cat([held for _, held in predicted]).double()
    both = torch.stack([free, tails.clamp(*FREE)])
    centre, spread = both.mean((1, 2, 3)), float((targets - mean).square().mean())
    if not math.isfinite(float(centre.sum()) + spread):
        return math.nan, torch.zeros(2), torch.ones(2)
    about = both - centre[:, None, None, None]

    def nll(line: np.ndarray) -> tuple[float, np.ndarray]:
        lines = torch.tensor(line.reshape(2, 2), device=mean.device, requires_grad=True)
        with torch.enable_grad():
            g, h = lines[0, :, None, None, None] + lines[1, :, None, None, None] * about
            scale = g.exp() if floor is None else floor + F.softplus(g)
            each = StudentT(mean, scale, degrees_of(h)).log_prob(targets)
            loss = -(each if weights is None else _shares(weights) * each).mean()
            (slopes,) = torch.autograd.grad(loss, lines)
        return float(loss.detach()), slopes.numpy(force=True).ravel()

    least, most = (float(_to_head(np.float64(end), floor)) for end in (_LEAST, _MOST))
    common = float(_to_head(np.clip(spread, _LEAST, _MOST), floor))
    starts = [[common, 0.0, 0.0, 0.0], [*centre.tolist(), 1.0, 1.0]]
    ends = [(least, most), FREE, (0.0, 1.0), (0.0, 1.0)]
    minima = [minimize(nll, start, jac=True, bounds=ends) for start in starts]
    best = min(minima, key=lambda minimum: float(minimum.fun))
    level, slope = torch.from_numpy(best.x).to(centre.device).reshape(2, 2)
    return float(best.fun), (level - slope * centre).float(), slope.float()


def _shares(weights: Tensor) -> Tensor:
    return weights.double() / weights.double().mean()


def least_head(
    predicted: Sequence[tuple[Predictive, Tensor]], floor: float | None, weights: Tensor | None = None
) -> tuple[float, dict[str, Tensor]]:
    """Return the score of :func:`least_head_nll`, and its line as the tensors that :func:`with_line` takes.

    For Student ts the tensors hold the two lines of :func:`least_student_nll`.
    """
    if isinstance(predicted[0][0], StudentT):
        score, shifts, slopes = least_student_nll(predicted, floor, weights)
        return score, {"shift": shifts, "slope": slopes}
    score, shift, slope = least_head_nll(predicted, floor, weights)
    return score, {"shift": torch.tensor(shift), "slope": torch.tensor(slope)}


def with_line(
    weight: Float[Tensor, "*member twice h"],
    bias: Float[Tensor, "*member twice"],
    line: Mapping[str, Tensor],
) -> tuple[Tensor, Tensor]:
    """Return the head with its variance outputs g, the second half, replaced by shift + slope·g.

    Two lines replace the second and the last third of the outputs.
    """
    shift, slope = (line[name].reshape(-1).to(bias) for name in ("shift", "slope"))
    weight, bias, outputs = weight.clone(), bias.clone(), bias.shape[-1] // (1 + len(slope))
    shift, slope = shift.repeat_interleave(outputs), slope.repeat_interleave(outputs)
    weight[..., outputs:, :] *= slope[:, None].to(weight)
    bias[..., outputs:] = bias[..., outputs:] * slope + shift
    return weight, bias


def with_line_of_noise(
    weights: Mapping[str, Tensor], estimates: Mapping[str, Tensor], level: str, slope: str
) -> Weights:
    """Replace weights by estimates; if they are the line of :func:`least_head`, log-variances a + b·g move along it.

    Args:
        level: the name of a in ``weights``.
        slope: the name of b.
    """
    if "slope" not in estimates:
        return {**weights, **estimates}
    line = {name: number.to(weights[level]) for name, number in estimates.items()}
    moved = {level: line["shift"] + line["slope"] * weights[level], slope: line["slope"] * weights[slope]}
    return {**weights, **moved}


def _to_head(variance: np.ndarray | np.float64, floor: float | None) -> Any:
    """Return g such that exp g is the variance or, with a floor, log(1 + exp g) is the variance above it."""
    return np.log(variance) if floor is None else variance + np.log(-np.expm1(-variance))
