"""Predictive distributions in NumPy, as estimators answer: numbers and arrays in, arrays of the targets' shape out.

A :class:`.predictive.Predictive` has tensors and serves methods and metrics. A distribution here wraps one for the user
of an estimator, and draws from it (:func:`sample`).
"""

from collections.abc import Sequence
from typing import Any, Final, final

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from .derived_predictive import Exponential, Mixture
from .errors import ConfigError, DataError, require
from .predictive import Categorical, Continuous, Gaussian, Predictive
from .seeds import Seed
from .student_t import StudentT

_FURTHEST: Final = 1e-9  # the probability beyond each end of the bracket in which draws are searched
_TOLERANCE: Final = 1e-12  # the largest error of a draw's level


def levels_of(level: ArrayLike) -> list[float]:
    """Return one level, or each of several, as numbers.

    Raises:
        ConfigError: a level is not a number in (0, 1), or there is none.
    """
    try:
        levels = np.asarray(level, dtype=np.float64)
    except (TypeError, ValueError):
        raise ConfigError("level", "must be a number in (0, 1), or several in a list", level) from None
    require(levels.ndim < 2 and levels.size > 0, "level", "must be a number in (0, 1), or several in a list", level)
    for each in levels.ravel().tolist():
        require(0 < each < 1, "level", "must be in (0, 1)", each)
    values: list[float] = levels.ravel().tolist()
    return values


def count_of(draws: object) -> int:
    """Return a number of draws.

    Raises:
        ConfigError: it is not a whole number above 0.
    """
    whole = isinstance(draws, int | np.integer) and not isinstance(draws, bool)
    require(whole and int(draws) > 0, "draws", "must be > 0", draws)  # type: ignore[call-overload]
    return int(draws)  # type: ignore[call-overload]


class Distribution:
    """The distribution of each row's target, p(y | x, data), with answers in NumPy.

    Attributes:
        predictive: the same distribution with tensors, and with its draws.
    """

    def __init__(self, predictive: Predictive, rng: Seed) -> None:
        """Wrap a predictive of rows; ``rng`` addresses the random numbers of :meth:`sample`."""
        self.predictive, self._rng = predictive, rng

    def __len__(self) -> int:
        return len(self.mean)

    @property
    def mean(self) -> np.ndarray:
        """Return E[y | x] of each row, float64."""
        return self._shaped(_array(self.predictive.mean))

    @property
    def variance(self) -> np.ndarray:
        """Return Var[y | x], of the shape of ``mean``, float64."""
        return self._shaped(_array(self.predictive.variance))

    @property
    def std(self) -> np.ndarray:
        """Return the standard deviation, of the shape of ``mean``, float64."""
        deviations: np.ndarray = np.sqrt(self.variance)
        return deviations

    def sample(self, draws: int = 1) -> np.ndarray:
        """Draw each row's target independently, [draw, n] or [draw, n, output]; every call returns the same draws.

        Raises:
            ValueError: ``draws`` is not a whole number above 0.
        """
        return self._drawn(sample(self.predictive, count_of(draws), self._rng).numpy())

    def _shaped(self, values: np.ndarray) -> np.ndarray:
        return values

    def _drawn(self, values: np.ndarray) -> np.ndarray:
        return values

    def _draws(self) -> str:
        parts = getattr(self.predictive, "draw_mean", getattr(self.predictive, "draw_log_probs", ()))
        return f", {len(parts)} draws" if len(parts) > 1 else ""


@final
class NumberDistribution(Distribution):
    """The distribution of a regression's targets, in their own units: [n], or [n, output] of several outputs.

    Quantiles, intervals and the distribution function are of each output separately.
    """

    predictive: Continuous

    def __init__(self, predictive: Continuous, rng: Seed, flat: bool = True) -> None:
        """Wrap a predictive; ``flat`` leaves out the outputs' dimension, as the targets of ``fit`` do."""
        super().__init__(predictive, rng)
        self._flat = flat

    def __repr__(self) -> str:
        mean, std = self.mean, self.std
        ends = [
            f"{name} {low:.4g} to {high:.4g}"
            for name, low, high in (("mean", mean.min(), mean.max()), ("std", std.min(), std.max()))
        ]
        of = "" if self._flat else f" of {mean.shape[1]} outputs"
        return f"<distribution of {len(mean):,} rows{of}: {', '.join(ends)}{self._draws()}>"

    def quantile(self, level: ArrayLike) -> np.ndarray:
        """Return the value below which a target lies with probability ``level``, of the shape of ``mean``.

        Args:
            level: a number in (0, 1); several in a list give [level, …].

        Raises:
            ValueError: a level is not in (0, 1).
        """
        values = np.stack([self._shaped(_array(self.predictive.quantile(each))) for each in levels_of(level)])
        return values if np.ndim(level) else values[0]

    def interval(self, level: ArrayLike = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Return the ends of the central intervals of probability ``level``, each as :meth:`quantile`.

        They are the posterior's own. The estimator's ``predict_interval`` calibrates them if it has ``conformal``.

        Raises:
            ValueError: a level is not in (0, 1).
        """
        levels = np.array(levels_of(level))
        low, high = self.quantile((1 - levels) / 2), self.quantile((1 + levels) / 2)
        return (low, high) if np.ndim(level) else (low[0], high[0])

    def cdf(self, values: ArrayLike | Tensor) -> np.ndarray:
        """Return P(y ≤ value | x), float64.

        Args:
            values: a number for all rows, or an array that broadcasts with ``mean``: [n] has a value for each row, and
                [k, 1] k values for all rows of one output.

        Raises:
            ValueError: the values are not numbers, or do not broadcast.
        """
        shape = self.mean.shape
        given = _numbers(values, "values")
        try:
            wanted = np.broadcast_shapes(given.shape, shape)
        except ValueError:
            raise DataError(
                f"values: must broadcast with the mean's shape {list(shape)}, got {list(given.shape)}"
            ) from None
        require(
            wanted[len(wanted) - len(shape) :] == shape, "values", f"must broadcast with {list(shape)}", given.shape
        )
        every = np.broadcast_to(given, wanted).reshape(-1, *self.predictive.mean.shape)
        device = self.predictive.mean.device
        below = [_array(self.predictive.cdf(torch.tensor(each, device=device))) for each in every]
        return np.stack(below).reshape(wanted)

    def log_prob(self, y: ArrayLike | Tensor) -> np.ndarray:
        """Return log p(y | x) of each row's target, natural logarithm of a density, float64 [n].

        Raises:
            ValueError: the targets are not numbers of the shape of ``mean``.
        """
        shape, given = self.mean.shape, _numbers(y, "y")
        require(given.shape == shape, "y", f"must have the shape {list(shape)}", list(given.shape))
        mean = self.predictive.mean
        return _array(self.predictive.log_prob(torch.tensor(given, device=mean.device).reshape(mean.shape)))

    def _shaped(self, values: np.ndarray) -> np.ndarray:
        return values[:, 0] if self._flat else values

    def _drawn(self, values: np.ndarray) -> np.ndarray:
        return values[:, :, 0] if self._flat else values


@final
class ClassDistribution(Distribution):
    """The probabilities of the classes of each row, [n, class].

    Attributes:
        classes: the labels, in the order of the probabilities.
    """

    predictive: Categorical

    def __init__(self, predictive: Categorical, rng: Seed, classes: np.ndarray) -> None:
        super().__init__(predictive, rng)
        self.classes = classes

    def __repr__(self) -> str:
        names, rows = ", ".join(map(str, self.classes[:5])), len(self)
        return f"<distribution of {rows:,} rows over {len(self.classes)} classes: {names}{self._draws()}>"

    def entropy(self) -> np.ndarray:
        """Return H[y | x] of each row, in nats: all uncertainty, float64 [n]."""
        return _array(self.predictive.entropy())

    def mutual_information(self) -> np.ndarray:
        """Return I[y; θ | x] of each row, in nats: the uncertainty of the model, float64 [n]; 0 without draws."""
        return _array(self.predictive.mutual_information())

    def log_prob(self, y: Sequence[Any] | np.ndarray) -> np.ndarray:
        """Return log p(y | x) of each row's label, float64 [n].

        Raises:
            ValueError: a label is not among the classes.
        """
        places = {label: place for place, label in enumerate(self.classes.tolist())}
        labels = np.asarray(y).ravel().tolist()
        require(len(labels) == len(self), "y", f"must have {len(self)} labels", len(labels))
        absent = [label for label in labels if label not in places]
        require(not absent, "y", "must be classes of fit", absent[:1])
        at = torch.tensor([places[label] for label in labels], device=self.predictive.mean.device)
        return _array(self.predictive.log_prob(at))

    def _drawn(self, values: np.ndarray) -> np.ndarray:
        return self.classes[values]


def _array(values: Tensor) -> np.ndarray:
    return values.detach().double().cpu().numpy()


def _numbers(values: object, name: str) -> np.ndarray:
    if isinstance(values, Tensor):
        return _array(values)
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise ConfigError(name, "must be numbers", values) from None


def sample(predictive: Predictive, draws: int, rng: Seed) -> Tensor:
    """Draw the targets of each row separately: labels int64 [draw, batch], or float64 [draw, batch, output].

    Draws of a mixture of Gaussians are exact. Draws of other distributions invert the distribution function and stay in
    its central 1 − 2·10⁻⁹. Random numbers are drawn on the CPU.
    """
    if isinstance(predictive, Categorical):
        probabilities = predictive.mean.double().cpu()
        return torch.multinomial(probabilities, draws, replacement=True, generator=rng.generator()).T
    assert isinstance(predictive, Continuous)
    if isinstance(predictive, Exponential):
        return sample(predictive.base, draws, rng).exp()
    shape = (draws, *predictive.mean.shape)
    if isinstance(predictive, Mixture):
        shares = torch.tensor(predictive.shares, dtype=torch.float64).expand(shape[1], -1)
        which = torch.multinomial(shares, draws, replacement=True, generator=rng.fold("part").generator()).T
        drawn = torch.stack([sample(part, draws, rng.fold("of", k)) for k, part in enumerate(predictive.parts)])
        return drawn.gather(0, which[None, :, :, None].expand(1, *shape))[0]
    if isinstance(predictive, Gaussian):
        mean, sd = predictive.draw_mean.double().cpu(), predictive.draw_variance.double().sqrt().cpu()
        which = torch.randint(len(mean), (draws, shape[1], 1), generator=rng.fold("component").generator())
        index = which.expand(shape)
        normal = torch.randn(shape, dtype=torch.float64, generator=rng.fold("normal").generator())
        return mean.gather(0, index) + sd.gather(0, index) * normal
    if isinstance(predictive, StudentT):
        which = torch.randint(
            len(predictive.draw_mean), (draws, shape[1], 1), generator=rng.fold("component").generator()
        )
        index, parts = which.expand(shape), (predictive.draw_mean, predictive.squared_scale, predictive.degrees)
        mean, squared, degrees = (
            part.double().cpu().expand(predictive.draw_mean.shape).gather(0, index) for part in parts
        )
        normal = torch.randn(shape, dtype=torch.float64, generator=rng.fold("normal").generator())
        precision = torch._standard_gamma(degrees / 2, generator=rng.fold("precision").generator()) / (degrees / 2)
        return mean + (squared / precision).sqrt() * normal
    levels = torch.rand(shape, dtype=torch.float64, generator=rng.generator()).clamp(_FURTHEST, 1 - _FURTHEST)
    lowest, highest = predictive.bracket(_FURTHEST)[0].cpu(), predictive.bracket(1 - _FURTHEST)[1].cpu()
    return torch.stack([_inverted(predictive, level, lowest, highest) for level in levels])


def _inverted(predictive: Continuous, levels: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return the values [batch, output] at which the distribution function has these levels (Chandrupatla 1997)."""
    from scipy.optimize.elementwise import find_root  # at the top it would add half a second to every import

    values, wanted, device = ((low + high) / 2).numpy().ravel(), levels.numpy().ravel(), predictive.mean.device

    def excess(at: np.ndarray, which: np.ndarray) -> np.ndarray:
        values[which] = at
        below = predictive.cdf(torch.tensor(values).reshape(levels.shape).to(device)).cpu().numpy().ravel()
        return below[which] - wanted[which]

    ends = low.double().numpy().ravel(), high.double().numpy().ravel()
    roots = find_root(excess, ends, args=(np.arange(len(wanted)),), tolerances={"fatol": _TOLERANCE})
    return torch.tensor(roots.x).reshape(levels.shape)
