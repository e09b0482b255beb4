"""Metrics of stored predictions: they need no posterior, so that one that is added fits and predicts nothing again.

A metric is a function of the predictions of one fit (:mod:`bdl_pipe.metrics.stored`) that returns a number, or None
where these predictions have none.

    def spread(fit):
        return float(fit.uncertainty.std())

    register_metric_of_predictions("spread", spread, label="Spread", better=0)
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

from ..errors import short
from ..plugins import PluginError, Registered
from . import conformal, halves
from .brier_parts import brier_parts
from .metric import Metric
from .pit import quantile_error
from .registered import METRICS
from .selective import gain, oracle, risk_coverage
from .stored import Stored, StoredClasses, StoredValues

OfPredictions = Callable[[Any], float | None]  # the argument is of the metric's kind
Task = Literal["classes", "regression", "both"]

LEVEL: Final = 0.9
_KINDS: Final[dict[Task, tuple[type, ...]]] = {
    "classes": (StoredClasses,),
    "regression": (StoredValues,),
    "both": (StoredClasses, StoredValues),
}


@dataclass(frozen=True)
class StoredMetric:
    """A score of stored predictions.

    Attributes:
        metric: name, label, about, better, percent: what a report prints.
        of: computes the score; None where the predictions have none.
        task: which predictions ``of`` takes.
    """

    metric: Metric
    of: OfPredictions
    task: Task

    def score(self, fit: Stored) -> float | None:
        """Return the score of the predictions of one fit; None where they have none.

        Raises:
            PluginError: the function returns no finite number.
        """
        if not isinstance(fit, _KINDS[self.task]):
            return None
        value = self.of(fit)
        if value is None:
            return None
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise PluginError(f"the metric {self.metric.name} must be a finite number or None, got {short(value)}")
        return float(value)


def _calibration(name: str, title: str, about: str) -> tuple[StoredMetric, ...]:
    """Return the error of a measure, its mean under perfect calibration, and the p-value."""
    error = Metric(f"ece_{name}", f"{title} %", about, better=-1, percent=True)
    right = Metric(
        f"ece_{name}_expected", f"{title} if right %", f"{about}: its mean if the probabilities were right", 0, True
    )
    chance = Metric(
        f"ece_{name}_p", f"{title} p", f"how often {title} is as large if the probabilities are right", better=0
    )
    return (
        StoredMetric(error, lambda fit: fit.calibration[name].value, "classes"),
        StoredMetric(right, lambda fit: fit.calibration[name].expected, "classes"),
        StoredMetric(chance, lambda fit: fit.calibration[name].p_value, "classes"),
    )


def _brier(part: str, about: str, better: Literal[-1, 0, 1]) -> StoredMetric:
    def of(fit: StoredClasses) -> float | None:
        parts = brier_parts(fit.probs, fit.labels)
        return None if parts is None else float(getattr(parts, part))

    return StoredMetric(Metric(f"brier_{part}", f"Brier {part}", about, better), of, "classes")


def _sets(score: str, function: halves.Score) -> StoredMetric:
    def of(fit: StoredClasses) -> float | None:
        if len(fit) < 2:
            return None
        return float(halves.class_sets(function, fit.probs, fit.labels, LEVEL, fit.rng).sum(1).mean())

    about = f"mean number of classes in the sets of {score.upper()} that hold 90 %, each half from the other"
    return StoredMetric(Metric(f"set_size_{score}", f"Set {score.upper()}", about, better=-1), of, "classes")


def _worst(fit: StoredClasses) -> float | None:
    if len(fit) < 2:
        return None
    members = halves.class_sets(lambda probs, _: conformal.lac(probs), fit.probs, fit.labels, LEVEL, fit.rng)
    held = members[range(len(fit)), fit.labels]
    return conformal.held_by_group(held, fit.probs.argmax(1))[0].share


def _width(way: Literal["widened", "moved"]) -> OfPredictions:
    def of(fit: StoredValues) -> float | None:
        low, centre, high = (fit.quantile(level) for level in ((1 - LEVEL) / 2, 0.5, (1 + LEVEL) / 2))
        if low is None or centre is None or high is None or len(fit) < 2:
            return None
        targets = fit.targets[:, 0]
        found = (
            halves.widened(low, centre, high, targets, LEVEL, fit.rng)
            if way == "widened"
            else halves.moved(low, high, targets, LEVEL, fit.rng)
        )
        return found.width if math.isfinite(found.width) else None

    return of


def _quantiles(value: str) -> OfPredictions:
    return lambda fit: None if fit.pit is None else float(getattr(quantile_error(fit.pit), value))


METRICS_OF_PREDICTIONS: Final[Registered[StoredMetric]] = Registered(
    "metric of predictions",
    {
        one.metric.name: one
        for one in (
            *_calibration("adaptive", "Adaptive ECE", "calibration error over bins of equal mass"),
            *_calibration("class_wise", "Class-wise ECE", "calibration error of each class, mean over classes"),
            *_calibration("smooth", "Smooth ECE", "calibration error by a kernel, without bins"),
            _brier("reliability", "how far shares are from stated probabilities, squared; corrected", -1),
            _brier("resolution", "how far shares differ between probabilities, squared; corrected", +1),
            _brier("uncertainty", "Brier's score of the shares of the classes; corrected", 0),
            _sets("lac", lambda probs, _: conformal.lac(probs)),
            _sets("aps", conformal.aps),
            _sets("raps", conformal.raps),
            StoredMetric(
                Metric(
                    "worst_class_coverage",
                    "Worst class %",
                    "lowest share of targets in sets of LAC over predicted classes; 90 % over all rows",
                    better=+1,
                    percent=True,
                ),
                _worst,
                "classes",
            ),
            StoredMetric(
                Metric("quantile_error", "Quantile error", "mean squared gap of shares and levels of quantiles", -1),
                _quantiles("value"),
                "regression",
            ),
            StoredMetric(
                Metric(
                    "quantile_error_expected", "Quantile error if right", "its mean if the predictives are right", 0
                ),
                _quantiles("expected"),
                "regression",
            ),
            StoredMetric(
                Metric("pit_p", "PIT p", "p-value of the test that F(y) is uniform (Kolmogorov and Smirnov)", 0),
                _quantiles("p_value"),
                "regression",
            ),
            StoredMetric(
                Metric(
                    "width_at_90",
                    "Width at 90 %",
                    "mean width of intervals widened to hold 90 %, each half from the other; original units",
                    better=-1,
                ),
                _width("widened"),
                "regression",
            ),
            StoredMetric(
                Metric(
                    "width_cqr_90",
                    "Width CQR",
                    "mean width of intervals moved to hold 90 %, each half from the other; original units",
                    better=-1,
                ),
                _width("moved"),
                "regression",
            ),
            StoredMetric(
                Metric("aurc", "AURC", "mean risk over all coverages, the least certain refused first", -1),
                lambda fit: risk_coverage(fit.losses, fit.uncertainty).aurc,
                "both",
            ),
            StoredMetric(
                Metric("aurc_oracle", "AURC of an oracle", "mean risk where the largest losses are refused first", 0),
                lambda fit: oracle(fit.losses).aurc,
                "both",
            ),
            StoredMetric(
                Metric("augrc", "AUGRC", "area below the share of accepted losses, by coverage", -1),
                lambda fit: risk_coverage(fit.losses, fit.uncertainty).augrc,
                "both",
            ),
            StoredMetric(
                Metric("refusal_gain", "Refusal gain %", "share of an oracle's saving by refusal (AUGRC)", +1, True),
                lambda fit: gain(fit.losses, fit.uncertainty),
                "both",
            ),
            StoredMetric(
                Metric("coverage_at_1", "Coverage at 1 %", "largest coverage with at most 1 % wrong", +1, True),
                lambda fit: risk_coverage(fit.losses, fit.uncertainty).coverage_at(0.01),
                "classes",
            ),
            StoredMetric(
                Metric("coverage_at_5", "Coverage at 5 %", "largest coverage with at most 5 % wrong", +1, True),
                lambda fit: risk_coverage(fit.losses, fit.uncertainty).coverage_at(0.05),
                "classes",
            ),
            StoredMetric(
                Metric("risk_at_80", "Risk at 80 %", "mean loss of the 80 % most certain rows", -1),
                lambda fit: risk_coverage(fit.losses, fit.uncertainty).risk_at(0.8),
                "both",
            ),
        )
    },
)


def scores(fit: Stored) -> dict[str, tuple[float, int]]:
    """Return all scores that the predictions of one fit have: name -> (value, number of rows)."""
    found = ((name, one.score(fit)) for name, one in METRICS_OF_PREDICTIONS.items())
    return {name: (value, len(fit)) for name, value in found if value is not None}


def register_metric_of_predictions(
    name: str,
    of: OfPredictions,
    *,
    label: str,
    better: Literal[-1, 0, 1],
    about: str = "",
    percent: bool = False,
    task: Task = "both",
) -> None:
    """Add a metric of stored predictions.

    Args:
        name: its name in stored scores.
        of: computes the score of the predictions of one fit; None where they have none.
        label: its title in a report.
        better: +1: a higher value is better; -1: a lower value is better; 0: neither is.
        about: one sentence for readers.
        percent: a report prints the value as per cent.
        task: the predictions that ``of`` takes: ``classes``, ``regression`` or ``both``.

    Raises:
        PluginError: ``of`` is no function, the task is none, or the name is taken.
    """
    if not callable(of):
        raise PluginError(f"the metric {name} must be a function of stored predictions, got {short(of)}")
    if task not in _KINDS:
        raise PluginError(f"the task of the metric {name} must be classes, regression or both, got {short(task)}")
    if name in METRICS:
        raise PluginError(f"the metric {name} is taken: a metric of predictives has this name")
    METRICS_OF_PREDICTIONS.add(name, StoredMetric(Metric(name, label, about, better, percent), of, task), of.__module__)
