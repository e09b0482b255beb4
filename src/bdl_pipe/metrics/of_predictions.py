"""Metrics of stored predictions: a new metric needs no posterior, and repeats no fit and no prediction.

A metric is a function of the predictions of one fit (:mod:`bdl_pipe.metrics.stored`). It returns a number, or None if
the metric is not defined for these predictions. :func:`bdl_pipe.register_metric` adds a metric.

    for (split, seed), fit in stored.read(Path("work/evaluate/houses-vbll/predictions.parquet")):
        print(split, seed, scores(fit))
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import numpy as np

from ..errors import short
from ..plugins import PluginError
from . import conformal
from .brier_parts import brier_parts
from .metric import StoredMetric
from .pit import quantile_error
from .registered import METRICS
from .selective import contributions, gain, gain_contributions, oracle, risk_coverage
from .stored import Stored, StoredClasses, StoredValues

LEVEL: Final = 0.9
THIRDS: Final = {"coverage_narrow": "narrowest", "coverage_middle": "middle", "coverage_wide": "widest"}
_EQUAL: Final = 1e-4  # widths whose relative difference is smaller are equal, up to the rounding of quantiles
_STEP: Final = 0.02  # step of the level that measures how fast sets grow with it
_KINDS: Final[Mapping[str, tuple[type, ...]]] = {
    "classification": (StoredClasses,),
    "regression": (StoredValues,),
    "both": (StoredClasses, StoredValues),
}


def scores(fit: Stored) -> dict[str, tuple[float, int]]:
    """Return all scores that the predictions of one fit have: name -> (value, number of rows).

    Raises:
        PluginError: a metric's function returns no finite number.
    """
    found = ((name, score(metric, fit)) for name, metric in stored_metrics().items())
    return {name: (value, len(fit)) for name, value in found if value is not None}


def score(metric: StoredMetric, fit: Stored) -> float | None:
    """Return a score of the predictions of one fit; None if they have no such score.

    Raises:
        PluginError: the function returns no finite number.
    """
    value = metric.function(fit) if isinstance(fit, _KINDS[metric.task]) else None
    if value is None:
        return None
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise PluginError(f"the metric {metric.name} must be a finite number or None, got {short(value)}")
    return float(value)


def stored_metrics(task: Literal["classification", "regression"] | None = None) -> dict[str, StoredMetric]:
    """Return the metrics of stored predictions of one task or of both: the library's, then the added ones, by name."""
    added = {name: metric for name, metric in METRICS.items() if isinstance(metric, StoredMetric)}
    return {name: one for name, one in (LIBRARY | added).items() if task is None or one.task in (task, "both")}


def _calibration(name: str, title: str, about: str) -> tuple[StoredMetric, ...]:
    """Return the error of a measure, its mean under perfect calibration, and the p-value."""
    key, classes = f"ece_{name}", {"task": "classification", "question": "trust"}

    def of(value: str) -> Callable[[StoredClasses], float]:
        return lambda fit: float(getattr(fit.calibration[name], value))

    return (
        _metric(key, f"{title} %", about, -1, of("value"), percent=True, beside=f"{key}_expected", **classes),
        _metric(
            f"{key}_expected",
            f"{title} by chance %",
            f"{about}: its mean if the probabilities are right",
            0,
            of("expected"),
            percent=True,
            task="classification",
        ),
        _metric(
            f"{key}_p",
            f"{title} p",
            f"p-value: how often chance gives {title} this large if the probabilities are right",
            0,
            of("p_value"),
            **classes,
        ),
    )


def _metric(
    name: str, label: str, about: str, better: Literal[-1, 0, 1], function: Callable[[Any], float | None], **more: Any
) -> StoredMetric:
    return StoredMetric(name=name, label=label, about=about, better=better, function=function, **more)


def _brier(part: str, about: str, better: Literal[-1, 0, 1]) -> StoredMetric:
    def of(fit: StoredClasses) -> float | None:
        parts = brier_parts(fit.probs, fit.labels)
        return None if parts is None else float(getattr(parts, part))

    return _metric(
        f"brier_{part}", f"Brier {part}", about, better, of, task="classification", question="trust", unit="digits"
    )


def _sets(name: str, function: conformal.Score) -> StoredMetric:
    def of(fit: StoredClasses) -> float | None:
        if len(fit) < 2:
            return None
        return float(conformal.sets_by_halves(function, fit.probs, fit.labels, LEVEL, fit.rng).sum(1).mean())

    def rows(fit: StoredClasses) -> np.ndarray:
        """Return sizes plus each row's effect on the threshold, to first order: rows outside their set raise it."""
        low, members, high = (
            conformal.sets_by_halves(function, fit.probs, fit.labels, LEVEL + step, fit.rng)
            for step in (-_STEP, 0, _STEP)
        )
        slope = (high.sum() - low.sum()) / len(fit) / (2 * _STEP)  # d mean size / d level
        own = members.sum(1) - slope * members[np.arange(len(fit)), fit.labels]
        return members.sum(1).mean() + own - own.mean()

    about = f"mean number of classes in {name.upper()} sets with 90 % coverage; each half calibrates the other"
    label = f"Set size {name.upper()}"
    return _metric(f"set_size_{name}", label, about, -1, of, task="classification", question="intervals", rows=rows)


def _worst(fit: StoredClasses) -> float | None:
    if len(fit) < 2:
        return None
    members = conformal.sets_by_halves(lambda probs, _: conformal.lac(probs), fit.probs, fit.labels, LEVEL, fit.rng)
    held = members[range(len(fit)), fit.labels]
    return conformal.held_by_group(held, fit.probs.argmax(1))[0].share


def _width(way: Literal["widened", "moved"]) -> Callable[[StoredValues], float | None]:
    def of(fit: StoredValues) -> float | None:
        if fit.interval is None or len(fit) < 2:
            return None
        (low, centre, high), targets = fit.interval, fit.targets[:, 0]
        if way == "widened" and not ((low < centre) & (centre < high)).all():
            return None
        if way == "widened":
            low, high = conformal.widened_by_halves(low, centre, high, targets, LEVEL, fit.rng)
        else:
            low, high = conformal.moved_by_halves(low, high, targets, LEVEL, fit.rng)
        width = float((high - low).mean())
        return width if math.isfinite(width) else None

    return of


def _third(number: int) -> Callable[[StoredValues], float | None]:
    """Return the share of targets inside the central intervals of a third of the rows: 0 has the narrowest intervals.

    Rows with equally wide intervals stay in their order. If all are equally wide, thirds have no meaning.
    """

    def of(fit: StoredValues) -> float | None:
        if fit.interval is None or len(fit) < len(THIRDS):
            return None
        (low, _, high), targets = fit.interval, fit.targets[:, 0]
        width = high - low
        if not np.isfinite(width).all() or np.ptp(width) <= _EQUAL * width.max():
            return None
        rows = np.array_split(np.argsort(width, kind="stable"), len(THIRDS))[number]
        return float(((low <= targets) & (targets <= high))[rows].mean())

    return of


def _quantiles(value: str) -> Callable[[StoredValues], float | None]:
    return lambda fit: None if fit.pit is None else float(getattr(quantile_error(fit.pit), value))


def _coverage_at(risk: float) -> Callable[[StoredClasses], float]:
    return lambda fit: risk_coverage(fit.losses, fit.uncertainty).coverage_at(risk)


LIBRARY: Final = {
    metric.name: metric
    for metric in (
        *_calibration("adaptive", "Adaptive ECE", "calibration error over bins with equal numbers of rows"),
        *_calibration("class_wise", "Class-wise ECE", "calibration error of each class, mean over classes"),
        *_calibration("smooth", "Smooth ECE", "calibration error by a kernel, without bins"),
        _brier("reliability", "squared gap between frequencies and stated probabilities; corrected for bias", -1),
        _brier("resolution", "squared gap between frequencies and their mean; corrected for bias", +1),
        _brier("uncertainty", "Brier score of the constant prediction of class frequencies; corrected for bias", 0),
        _sets("lac", lambda probs, _: conformal.lac(probs)),
        _sets("aps", conformal.aps),
        _sets("raps", conformal.raps),
        _metric(
            "worst_class_coverage",
            "Worst class %",
            "lowest coverage of a predicted class by LAC sets, which cover 90 % of all rows",
            +1,
            _worst,
            percent=True,
            task="classification",
            question="intervals",
        ),
        _metric(
            "quantile_error",
            "Quantile error",
            "mean squared gap of a quantile's level and the share of targets below it",
            -1,
            _quantiles("value"),
            task="regression",
            question="intervals",
            beside="quantile_error_expected",
            unit="digits",
        ),
        _metric(
            "quantile_error_expected",
            "Quantile error by chance",
            "mean squared gap of a quantile's level and the share of targets below it, if the predictives are right",
            0,
            _quantiles("expected"),
            task="regression",
            unit="digits",
        ),
        _metric(
            "pit_p",
            "PIT p",
            "p-value of Kolmogorov and Smirnov's test that F(y) is uniform",
            0,
            _quantiles("p_value"),
            task="regression",
            question="intervals",
        ),
        *(
            _metric(
                name,
                f"Coverage, {third} %",
                f"share of targets inside 90 % intervals, in the third of the rows with the {third} intervals",
                0,
                _third(number),
                percent=True,
                task="regression",
                question="intervals",
            )
            for number, (name, third) in enumerate(THIRDS.items())
        ),
        _metric(
            "width_at_90",
            "Calibrated width",
            "mean width of intervals scaled to 90 % coverage, original units; each half calibrates the other",
            -1,
            _width("widened"),
            task="regression",
            question="intervals",
        ),
        _metric(
            "width_cqr_90",
            "Width CQR",
            "mean width of intervals with ends moved to 90 % coverage, original units; each half calibrates the other",
            -1,
            _width("moved"),
            task="regression",
            question="intervals",
        ),
        _metric(
            "augrc",
            "AUGRC",
            "area under the generalised risk against coverage; a random order gives half of the mean loss",
            -1,
            lambda fit: risk_coverage(fit.losses, fit.uncertainty).augrc,
            question="refuse",
            rows=lambda fit: contributions(fit.losses, fit.uncertainty),
            unit="digits",
        ),
        _metric(
            "refusal_gain",
            "Refusal gain %",
            "reduction of AUGRC by refusal, as a share of an oracle's reduction",
            +1,
            lambda fit: gain(fit.losses, fit.uncertainty),
            percent=True,
            question="refuse",
            rows=lambda fit: gain_contributions(fit.losses, fit.uncertainty),
        ),
        _metric(
            "aurc",
            "AURC",
            "mean risk over all coverages, with the least certain rows refused first",
            -1,
            lambda fit: risk_coverage(fit.losses, fit.uncertainty).aurc,
            question="refuse",
            beside="aurc_oracle",
            unit="digits",
        ),
        _metric(
            "aurc_oracle",
            "AURC of an oracle",
            "mean risk over all coverages, with the largest losses refused first",
            0,
            lambda fit: oracle(fit.losses).aurc,
            unit="digits",
        ),
        _metric(
            "coverage_at_1",
            "Coverage at 1 %",
            "largest share of rows that can be answered with at most 1 % wrong",
            +1,
            _coverage_at(0.01),
            percent=True,
            task="classification",
            question="refuse",
        ),
        _metric(
            "coverage_at_5",
            "Coverage at 5 %",
            "largest share of rows that can be answered with at most 5 % wrong",
            +1,
            _coverage_at(0.05),
            percent=True,
            task="classification",
            question="refuse",
        ),
        _metric(
            "risk_at_80",
            "Risk at 80 %",
            "mean loss of the 80 % most certain rows",
            -1,
            lambda fit: risk_coverage(fit.losses, fit.uncertainty).risk_at(0.8),
            question="refuse",
            unit="digits",
        ),
    )
}
