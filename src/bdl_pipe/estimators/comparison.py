"""Several methods on the same folds of the same rows: the report's scores, and the differences that exceed chance.

comparison = compare(X, y, ["ensemble", "vbll", "swag", "gp"], cv=5)
comparison.table, comparison.differences, comparison.plot_reliability(), comparison.plot_cost()
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from ..metrics import COSTS, METRICS
from ..metrics.comparison import Difference
from ..metrics.standings import Candidate, difference, sentences, standings
from ..metrics.table import OF_TEST_ROWS, metric_of
from ..registry import METHODS
from ..scores import Estimate, Quantity, RunScores

if TYPE_CHECKING:
    import pandas as pd

    from ..drawing import Drawing, Mark

_COSTS: Final = ("fit_seconds", "seconds_per_1000")
_ALL_COSTS: Final = tuple(cost.name for cost in COSTS)


@dataclass(frozen=True)
class Line:
    """A reliability line.

    Attributes:
        said: probabilities that the method stated.
        seen: the share of rows in which the stated event occurred.
    """

    said: np.ndarray
    seen: np.ndarray


@final
class Comparison:
    """The scores of several methods on the same folds; a table in a notebook.

    Attributes:
        task: ``classification`` or ``regression``.
        folds: the number of folds.
        scores: method -> all of its scores.
        reliability: method -> its line.
    """

    def __init__(
        self, task: str, scores: Mapping[str, RunScores], reliability: Mapping[str, Line], test_over_train: float
    ) -> None:
        """Build the tables from the scores of each method.

        Args:
            test_over_train: a fold's number of test rows divided by its number of training rows.
        """
        self.task, self.scores, self.reliability = task, dict(scores), dict(reliability)
        self.folds = next(iter(scores.values())).splits
        self._ratio = test_over_train
        self._candidates = {
            name: Candidate(name, name, of, Path(), method=name, optimal=name in METHODS and METHODS[name].optimal)
            for name, of in scores.items()
        }

    @cached_property
    def table(self) -> "pd.DataFrame":
        """Every score of every method as a mean over folds: one row for each method, the lowest NLL first."""
        return self._frame(lambda of: of.mean)

    @cached_property
    def errors(self) -> "pd.DataFrame":
        """The standard errors of :attr:`table`; folds share training rows, so compare with :attr:`differences`."""
        return self._frame(lambda of: math.nan if of.error is None else of.error)

    @cached_property
    def differences(self) -> "pd.DataFrame":
        """Each method's losses minus the losses of the method with the lowest NLL, paired over folds.

        Columns: metric, method, to, mean, error, low, high, apart. Losses are the NLL, and the RMSE or minus the
        accuracy. Errors are Nadeau and Bengio's; the 95 % intervals from low to high hold simultaneously.
        """
        pd, (best, *others) = _pandas(), self.table.index
        rows = []
        for metric in ("nll", "accuracy" if self.task == "classification" else "rmse"):
            for name in others:
                gap = self.difference(name, best, metric, comparisons=len(others))
                ends = gap.mean - gap.half, gap.mean + gap.half
                rows.append([metric, name, best, gap.mean, gap.error, *ends, gap.apart])
        return pd.DataFrame(rows, columns=["metric", "method", "to", "mean", "error", "low", "high", "apart"])

    def difference(self, one: str, other: str, metric: str = "nll", *, comparisons: int = 1) -> Difference:
        """Return one method's loss minus another's, with its standard error (Nadeau & Bengio 2003).

        Args:
            metric: ``nll``, ``rmse`` or ``accuracy``; the loss of ``accuracy`` is its negative.
            comparisons: the number of intervals that hold simultaneously.

        Raises:
            KeyError: the comparison has no method of this name.
        """
        pair = self._candidates[one], self._candidates[other]
        paired = difference(*pair, comparisons, metric, self._ratio)
        assert paired is not None, "all methods have the same folds"
        return paired

    @cached_property
    def verdict(self) -> str:
        """A sentence with the best method by NLL, and the methods that do not differ from it by more than chance."""
        ordered = standings([*self._candidates.values()], self._ratio)
        folds, tied = ordered[0].candidate.scores.splits, any(one.to_best and not one.to_best.apart for one in ordered)
        few = [f"{folds} folds are too few to establish a small difference: use cv=5 or more."] if folds < 5 else []
        return " ".join([*sentences(ordered), *(few if tied else [])])

    def plot_reliability(self) -> "Drawing":
        """Plot how often each method is right against its stated probability, for classes or for central intervals.

        Raises:
            ImportError: matplotlib is not installed.
        """
        figures = _figures()
        classes = self.task == "classification"
        axes = ("confidence", "accuracy") if classes else ("level of the interval", "share of targets inside")
        lines = {name: [*zip(of.said, of.seen, strict=True)] for name, of in self.reliability.items()}
        return figures.calibration(lines, self._marks(), *axes)

    def plot_cost(self) -> "Drawing":
        """Plot the NLL against the seconds of a fit and against the seconds to predict 1,000 rows.

        Raises:
            ImportError: matplotlib is not installed.
        """
        figures = _figures()
        priced = []
        for (name, of), mark in zip(self.scores.items(), self._marks(), strict=True):
            nll = of.estimate(Quantity("nll"))
            assert nll is not None
            estimates = {cost: of.estimate(Quantity(cost, "cost")) for cost in _COSTS}
            costs = {cost: estimate.mean for cost, estimate in estimates.items() if estimate is not None}
            priced.append(figures.Priced(name, mark, nll, costs))
        drawing = figures.against_costs(priced, _COSTS)
        assert drawing is not None, "a fit takes time"
        return drawing

    def __repr__(self) -> str:
        return f"{self.table.to_string()}\n{self.verdict}"

    def _repr_html_(self) -> str:
        shown = [metric for metric in self.table.columns if metric in METRICS or metric in _COSTS]
        cells = {metric: [self._cell(name, metric) for name in self.table.index] for metric in shown}
        frame = _pandas().DataFrame(cells, index=self.table.index)
        frame = frame.rename(columns=lambda metric: metric_of(metric).label)
        return f"{frame.to_html(escape=True)}<p>{self.verdict}</p>"

    def _marks(self) -> "list[Mark]":
        from ..drawing import Mark

        return [Mark(number, number) for number in range(len(self.scores))]

    def _cell(self, name: str, metric: str) -> str:
        mean, error = (float(of.at[name, metric]) for of in (self.table, self.errors))  # type: ignore[arg-type]
        return f"{mean:.4g}" if metric in _COSTS or not math.isfinite(error) else f"{mean:.4g} ± {error:.2g}"

    def _frame(self, value: Callable[[Estimate], float]) -> "pd.DataFrame":
        scored = {of.metric for scores in self.scores.values() for of in scores.quantities}
        names = [name for name in (*OF_TEST_ROWS, *_ALL_COSTS) if name in scored]
        rows = {name: {metric: _value(of, metric, value) for metric in names} for name, of in self.scores.items()}
        frame: pd.DataFrame = _pandas().DataFrame.from_dict(rows, orient="index", columns=names)
        nll = {name: _value(scores, "nll", lambda of: of.mean) for name, scores in self.scores.items()}
        frame.index.name = "method"
        return frame.loc[sorted(rows, key=lambda name: (nll[name], name))]


def _value(of: RunScores, metric: str, value: Callable[[Estimate], float]) -> float:
    estimate = of.estimate(Quantity(metric, "cost" if metric in _ALL_COSTS else "test"))
    return math.nan if estimate is None else value(estimate)


def _pandas() -> Any:
    try:
        import pandas
    except ModuleNotFoundError:
        raise ImportError("tables of a comparison need pandas: pip install 'bdl-pipe[figures]'") from None
    return pandas


def _figures() -> Any:
    try:
        from .. import figures
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("matplotlib"):
            raise
        raise ImportError("plots need matplotlib: pip install 'bdl-pipe[figures]'") from None
    return figures
