"""Scores of a fitted posterior: on test rows, on shifted rows, against other data, and its cost.

The functions are pure: they take a :class:`~bdl_pipe.posterior.Predictor` and examples, and start no process. Rows are
predicted by ``Predictor.batches``, of ``EvaluateConfig.batch`` rows.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import torch

from .. import metrics
from ..data.examples import Examples
from ..metrics import cost
from ..metrics.ood.predictives import OOD_SCORES as OOD_SCORES
from ..metrics.ood.predictives import ood_scores as ood_scores
from ..metrics.ood.predictives import register_ood_score as register_ood_score
from ..networks.last_layer import LastLayer as LastLayer
from ..posterior import Predictor
from ..predictive import Categorical, Continuous
from ..scores import Quantity, Set
from ..seeds import Seed
from . import references
from .gathered import USUAL as USUAL
from .gathered import DrawnRows, Gathered, has_one_noise, normalised
from .gathered import EvaluateConfig as EvaluateConfig
from .gathered import Scores as Scores
from .joint import joint_scores, keeps_functions, lines_between_classes
from .joint import same_class_along as same_class_along
from .unfamiliar import last_layer as last_layer
from .unfamiliar import stored_rows as stored_rows
from .unfamiliar import training_rows as training_rows

Figures = dict[Quantity, tuple[float, int]]  # quantity -> (value, number of examples behind it)


@dataclass(frozen=True)
class CleanResult:
    """The scores and predictions of one posterior on the test rows.

    Attributes:
        metrics: name -> (value, n).
        predictions: one row per test row; see :func:`score_clean`.
        calibration: the reliability diagram, for classes: bin, lower, upper, count, confidence, accuracy.
        line: P(Y_1 = Y_2) along lines between test rows, for classes; see :func:`.joint.lines_between_classes`.
        in_distribution_scores: score -> [n], higher for rows that look like training data: what :func:`score_ood`
            compares with.
        unfamiliar: what scores of the unfamiliar are computed from; see :mod:`.unfamiliar`.
        draws: predictions by draw of some test rows, where there are several draws; see :class:`.gathered.DrawnRows`.
    """

    metrics: Scores
    predictions: pa.Table
    calibration: pa.Table | None
    line: pa.Table | None
    in_distribution_scores: dict[str, np.ndarray]
    unfamiliar: pa.Table | None = None
    draws: pa.Table | None = None

    @property
    def tables(self) -> dict[str, pa.Table]:
        """Return the tables to store, by name.

        They are ``predictions``, where there are several draws ``draws``, and, for classes, ``calibration``,
        ``same_class`` and, where there are unfamiliar sets, ``unfamiliar``.
        """
        tables = {"predictions": self.predictions, "calibration": self.calibration, "same_class": self.line}
        tables |= {"unfamiliar": self.unfamiliar, "draws": self.draws}
        return {name: table for name, table in tables.items() if table is not None}


def score_clean(
    fitted: Predictor, examples: Examples, config: EvaluateConfig, rng: Seed, device: torch.device | str = "cpu"
) -> CleanResult:
    """Return all scores and predictions of one posterior on the test rows.

    The scores are the metrics of :data:`bdl_pipe.metrics.METRICS` that the predictive has, in that order.
    ``mutual_information`` and ``batch_nll`` need more than one draw, ``out_of_reach`` a likelihood that is zero
    somewhere, the scores of several rows together what :func:`.joint.joint_scores` says, the scores
    ``…_recalibrated`` (classes), ``…_before`` (regression) and ``…_conformal`` a recalibrated posterior, and the scores
    ``reference_…`` a stored reference of these rows. Scores of regression are of the recalibrated predictive, except
    the scores of several rows together, of the reference and of the noise.

    A prediction of classes has the columns row, target, p_0 …, entropy, mutual_information, log_prob; a prediction of
    regression, in original units, row, target, mean, variance, quantiles q05, q50 and q95, pit, which is F(y) of the
    target (these suffixed _0, _1 … for several outputs), log_prob.

    Raises:
        Diverged: a prediction is not finite.
    """
    gathered, has_joint = Gathered(), keeps_functions(fitted.posterior)
    distances, drawn = references.Distances(references.find(examples, fitted.transform)), DrawnRows(len(examples))
    row = fitted.transform.inputs(examples.inputs[:1], device)[None]
    one_noise = examples.targets.ndim > 1 and has_one_noise(fitted.posterior, row, rng)
    for rows, transformed in fitted.transformed_batches(examples.inputs, config.batch, rng=rng, device=device):
        before, targets = fitted.own_units(transformed), torch.tensor(examples.targets[rows], device=device)
        predictive = before if fitted.recalibration is None else fitted.final(transformed)
        if fitted.recalibration is not None:
            of_rows = before, targets, examples.inputs[rows], config
            gathered.add_recalibrated(fitted, fitted.recalibration, transformed, *of_rows)
        for name, values in ood_scores(before).items():
            gathered.ood_scores.setdefault(name, []).append(values)
        gathered.add(predictive, targets, metrics.registered(), config)
        gathered.add_columns(predictive, targets)
        distances.add(rows, transformed)
        drawn.add(rows, before, targets)
        if isinstance(transformed, Continuous):
            gathered.add_noise(transformed, is_one=one_noise)
        if config.joint_pairs and not has_joint:
            gathered.terms.append(before.draw_log_prob(targets).cpu())
    scores = gathered.scores() | distances.scores()
    terms = torch.cat(gathered.terms, dim=1) if gathered.terms else None
    scores |= joint_scores(fitted, examples, terms, config, rng, device)
    if "log_likelihood" in scores:
        scores |= normalised(scores["log_likelihood"], fitted.transform, examples.targets)
    assert scores.keys() <= metrics.METRICS.keys(), "a score that no metric describes"
    scores = {name: scores[name] for name in metrics.METRICS if name in scores}
    in_distribution = {name: np.concatenate(parts) for name, parts in gathered.ood_scores.items()}
    line = lines_between_classes(fitted, examples, config, rng, device)
    return CleanResult(scores, gathered.table(), gathered.calibration, line, in_distribution, draws=drawn.table())


def score_classification(
    fitted: Predictor, examples: Examples, config: EvaluateConfig, rng: Seed, device: torch.device | str = "cpu"
) -> Scores:
    """Return the metrics of a posterior of classes on shifted rows: corrupted rows, or rows of another data set.

    They are the metrics that are marked as ``always``: ``accuracy nll brier ece``. Where only some of the fitted
    classes occur among the rows, probabilities are not renormalised over these classes, since the posterior does not
    know which classes occur (as in the published code of Maddox et al., 2019, for CIFAR-10 to STL-10).
    """
    gathered, always = Gathered(), [metric for metric in metrics.registered() if metric.always]
    for rows, predictive in fitted.batches(examples.inputs, config.batch, rng=rng, device=device):
        assert isinstance(predictive, Categorical), "only images are shifted, and they have classes"
        targets = torch.tensor(examples.targets[rows], device=device)
        gathered.add(predictive, targets, always, config)
    return gathered.scores()


def score_ood(
    fitted: Predictor,
    inputs: np.ndarray,
    in_distribution_scores: dict[str, np.ndarray],
    config: EvaluateConfig,
    rng: Seed,
    device: torch.device | str = "cpu",
) -> dict[str, Scores]:
    """Compute how well each OOD score separates the test rows (``CleanResult.in_distribution_scores``) from ``inputs``.

    Returns:
        score -> ``auroc aupr_in aupr_out fpr95``; n counts both sets. The scores are the registered ones
        (:data:`OOD_SCORES`) and the method's own.
    """
    parts = [ood_scores(predictive) for _, predictive in fitted.batches(inputs, config.batch, rng=rng, device=device)]
    scores: dict[str, Scores] = {}
    for name, inside in in_distribution_scores.items():
        outside = np.concatenate([part[name] for part in parts])
        results = metrics.detection(inside, outside)
        scores[name] = {metric: (value, len(inside) + len(outside)) for metric, value in results.items()}
    return scores


def measure_cost(
    fitted: Predictor,
    inputs: np.ndarray,
    config: EvaluateConfig,
    rng: Seed,
    device: torch.device | str = "cpu",
) -> Scores:
    """Return ``parameters`` and ``bytes`` stored, and ``seconds_per_1000`` predictions (the median of three passes).

    Predictions are timed on the first two batches of ``inputs``, as ``n`` says.
    """
    state, inputs = fitted.posterior.state(), inputs[: 2 * config.batch]

    def once() -> None:
        for _ in fitted.batches(inputs, config.batch, rng=rng, device=device):
            pass

    taken = cost.seconds(once, device)
    return {
        "parameters": (float(cost.stored_parameters(state)), 1),
        "bytes": (float(cost.stored_bytes(state)), 1),
        "seconds_per_1000": (1000 * taken / len(inputs), len(inputs)),
    }


def score_all(
    fitted: Predictor,
    test: Examples,
    config: EvaluateConfig,
    rng: Seed,
    device: torch.device | str = "cpu",
    *,
    ood: Mapping[str, Examples],
    transfer: Mapping[str, Examples],
    train: Examples | None = None,
) -> tuple[Figures, CleanResult]:
    """Score a posterior on the test rows, against other data sets, on labelled rows of other sets, and by its cost.

    Args:
        ood, transfer: name -> rows: uint8 images with labels.
        train: the training rows, or :func:`training_rows` of them; with them and unfamiliar sets the result has
            ``unfamiliar``.
    """
    clean = score_clean(fitted, test, config, rng, device)
    figures = _named("test", clean.metrics)
    for name, other in ood.items():
        by_score = score_ood(fitted, other.inputs, clean.in_distribution_scores, config, rng, device)
        for score, metrics_of_score in by_score.items():
            figures |= _named("ood", metrics_of_score, name, score=score)
    for name, other in transfer.items():
        figures |= _named("transfer", score_classification(fitted, other, config, rng, device), name)
    if ood and train is not None:
        clean = replace(clean, unfamiliar=stored_rows(fitted, train, test, ood, config, rng, device))
    return figures | _named("cost", measure_cost(fitted, test.inputs, config, rng, device)), clean


def score_corrupted(
    fitted: Predictor,
    name: str,
    rows: Iterable[tuple[int, Examples]],
    config: EvaluateConfig,
    rng: Seed,
    device: torch.device | str = "cpu",
) -> Figures:
    """Score a posterior of classes on the rows (severity, corrupted rows) of the corruption ``name``."""
    figures: Figures = {}
    for severity, corrupted in rows:
        scores = score_classification(fitted, corrupted, config, rng, device)
        figures |= _named("corrupted", scores, name, severity)
    return figures


def _named(
    where: Set, scores: Scores, name: str | None = None, severity: int | None = None, score: str | None = None
) -> Figures:
    return {Quantity(metric, where, name, severity, score): figure for metric, figure in scores.items()}
