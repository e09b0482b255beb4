"""Scores of a fitted posterior: on test rows, on shifted rows, against other data, and its cost.

Pure functions of a :class:`~bdl_pipe.posterior.Predictor` and examples; who runs them, and in how many
processes, is not their business. Rows are predicted by ``Predictor.batches``, of ``EvaluateConfig.batch``.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from . import metrics
from .data.examples import Examples
from .data.transform import Transform
from .errors import require, short
from .metrics import cost
from .plugins import PluginError, Registered
from .posterior import Predictor
from .predictive import Categorical, Continuous, Predictive
from .recalibration import Recalibration
from .seeds import Seed

Scores = dict[str, tuple[float, int]]  # metric -> (value, number of examples behind it)
OodScore = Callable[[Predictive], Tensor | None]
INTERVAL = 0.9


@dataclass(frozen=True)
class EvaluateConfig:
    """The section ``evaluate`` of params.yaml.

    Attributes:
        calibration_bins: equal-width bins of the expected calibration error.
        batch: most inputs in one forward pass.
        joint_pairs: pairs of test rows for the joint likelihood; 0: none.
    """

    calibration_bins: int
    batch: int
    joint_pairs: int

    def __post_init__(self) -> None:
        require(self.calibration_bins > 0, "calibration_bins", "must be > 0", self.calibration_bins)
        require(self.batch > 0, "batch", "must be > 0", self.batch)
        require(self.joint_pairs >= 0, "joint_pairs", "must be >= 0", self.joint_pairs)


@dataclass(frozen=True)
class CleanResult:
    """The scores and predictions of one posterior on the test rows.

    Attributes:
        metrics: name -> (value, n).
        predictions: one row per test row; see :func:`score_clean`.
        calibration: the reliability diagram, for classes: bin, lower, upper, count, confidence, accuracy.
        in_distribution_scores: score -> [n], higher for rows that look like training data: what :func:`score_ood`
            compares with.
    """

    metrics: Scores
    predictions: pa.Table
    calibration: pa.Table | None
    in_distribution_scores: dict[str, np.ndarray]


@dataclass
class _Collected:
    """The sums and columns gathered over batches."""

    means: dict[str, metrics.Mean] = field(default_factory=dict)
    bins: metrics.Bins | None = None
    recalibrated_bins: metrics.Bins | None = None
    columns: dict[str, list[np.ndarray]] = field(default_factory=dict)
    ood_scores: dict[str, list[np.ndarray]] = field(default_factory=dict)
    terms: list[Tensor] = field(default_factory=list)

    def mean(self, name: str, more: metrics.Mean) -> None:
        """Add values to the mean ``name``."""
        self.means[name] = self.means.get(name, metrics.Mean()) + more

    def column(self, name: str, values: Tensor) -> None:
        """Append a batch to the column ``name``."""
        self.columns.setdefault(name, []).append(values.cpu().numpy())


def score_clean(
    fitted: Predictor, examples: Examples, config: EvaluateConfig, rng: Seed, device: torch.device | str = "cpu"
) -> CleanResult:
    """Return all scores and predictions of one posterior on the test rows.

    Classes: ``accuracy nll brier ece entropy``, ``mutual_information batch_nll`` where there is more than one
    draw, ``joint_nll joint_gap``; a prediction row holds row, target, p_0 …, entropy,
    mutual_information, log_prob. Regression, in original units: ``rmse nll log_likelihood
    coverage_90 width_90 crps``, and ``out_of_reach``, the share of targets where the method's own likelihood is
    zero, for one that is zero anywhere; a prediction row holds row, target, mean, variance (suffixed _0, _1 …
    where there are several outputs), log_prob.

    ``log_likelihood_normalised`` is that of regression in units of the transformed targets.

    Where the posterior was recalibrated: ``nll_recalibrated``, ``ece_recalibrated`` or ``crps_recalibrated``, and of
    conformal sets at 90 % ``coverage_conformal`` and ``size_conformal`` (classes) or ``width_conformal``.

    Raises:
        Diverged: a prediction is not finite.
    """
    gathered = _Collected()
    for rows, transformed in fitted.transformed_batches(examples.inputs, config.batch, rng=rng, device=device):
        predictive, targets = fitted.own_units(transformed), torch.tensor(examples.targets[rows], device=device)
        if fitted.recalibration is not None:
            _recalibrated(gathered, fitted, fitted.recalibration, transformed, targets, config)
        for name, values in ood_scores(predictive).items():
            gathered.ood_scores.setdefault(name, []).append(values)
        if isinstance(predictive, Categorical):
            _classes(gathered, predictive, targets, config)
        elif isinstance(predictive, Continuous):
            _regression(gathered, predictive, targets)
    scores = _values(gathered)
    if "accuracy" in scores:
        scores |= _joint(gathered, config.joint_pairs, rng)
    if "log_likelihood" in scores:
        scores |= _normalised(scores["log_likelihood"], fitted.transform, examples.targets)
    calibration = None if gathered.bins is None else pa.table(gathered.bins.table())
    in_distribution = {name: np.concatenate(parts) for name, parts in gathered.ood_scores.items()}
    return CleanResult(scores, _table(examples, gathered), calibration, in_distribution)


def score_classification(
    fitted: Predictor, examples: Examples, config: EvaluateConfig, rng: Seed, device: torch.device | str = "cpu"
) -> Scores:
    """Return ``accuracy nll brier ece`` of a posterior of classes on shifted rows.

    They are the rows under one corruption, or those of another set.

    Where only some of the classes occur among the rows, the probabilities stay those over all classes of the
    fitted set: nothing is renormalised over the classes that occur, as nobody tells the posterior which those are
    (and as in the published code of Maddox et al., 2019, for CIFAR-10 to STL-10).
    """
    gathered = _Collected()
    for rows, predictive in fitted.batches(examples.inputs, config.batch, rng=rng, device=device):
        assert isinstance(predictive, Categorical), "only images are shifted, and they have classes"
        _common(gathered, predictive, torch.tensor(examples.targets[rows], device=device), config)
    return _values(gathered)


def score_ood(
    fitted: Predictor,
    inputs: np.ndarray,
    in_distribution_scores: dict[str, np.ndarray],
    config: EvaluateConfig,
    rng: Seed,
    device: torch.device | str = "cpu",
) -> dict[str, Scores]:
    """Say how well each of the test rows' scores (``CleanResult.in_distribution_scores``) tells them from ``inputs``.

    Returns:
        score -> ``auroc aupr_in aupr_out fpr95`` by it; n counts both sets. Scores are those that are registered
        (:data:`OOD_SCORES`) and the method's own.
    """
    parts = [ood_scores(predictive) for _, predictive in fitted.batches(inputs, config.batch, rng=rng, device=device)]
    scores: dict[str, Scores] = {}
    for name, known in in_distribution_scores.items():
        other = np.concatenate([part[name] for part in parts])
        results = metrics.detection(known, other)
        scores[name] = {metric: (value, len(known) + len(other)) for metric, value in results.items()}
    return scores


def max_prob(predictive: Predictive) -> Tensor | None:
    """Return the log of the largest class probability, which tells apart probabilities that float32 rounds to 1."""
    return predictive.log_probs.max(-1).values if isinstance(predictive, Categorical) else None


def mutual_information(predictive: Predictive) -> Tensor | None:
    """Return the mutual information of classes, negated; None for a single draw, which has none."""
    if not isinstance(predictive, Categorical) or len(predictive.draw_log_probs) == 1:
        return None
    return -predictive.mutual_information()


def variance(predictive: Predictive) -> Tensor | None:
    """Return the variance of regression, summed over outputs and negated."""
    return -predictive.variance.sum(-1) if isinstance(predictive, Continuous) else None


# What any predictive is asked: scores [batch] that are high where an input looks like the training data; None where it
# has no such score.
OOD_SCORES: Final[Registered[OodScore]] = Registered(
    "OOD score", {"max_prob": max_prob, "mutual_information": mutual_information, "variance": variance}
)


def register_ood_score(name: str, score: OodScore) -> None:
    """Add a score of the unfamiliar, of which ``auroc_<name>`` and its like are reported for every run.

    Args:
        score: a predictive -> [batch], high where an input looks like the training data; or None where the predictive
            does not have what it takes.

    Raises:
        PluginError: it is no function, or its name is taken.
    """
    if not callable(score):
        raise PluginError(f"the OOD score {name} must be a function of a predictive, got {short(score)}")
    OOD_SCORES.add(name, score, score.__module__)


def ood_scores(predictive: Predictive) -> dict[str, np.ndarray]:
    """Return scores [batch] that are high where an input looks like the training data.

    They are the registered ones, then the method's own.

    Raises:
        PluginError: a score is not one number for each input.
    """
    rows = len(predictive.mean)
    scores = {name: value for name, of in OOD_SCORES.items() if (value := of(predictive)) is not None}
    for name, value in predictive.scores.items():
        if name in scores:
            raise PluginError(f"the OOD score {name} of {type(predictive).__name__} is taken: give it another name")
        scores[name] = value
    for name, value in scores.items():
        shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        if shape != (rows,):
            raise PluginError(f"the OOD score {name} must be a tensor of shape {(rows,)}, got {shape}")
    return {name: value.double().cpu().numpy() for name, value in scores.items()}


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


def _common(gathered: _Collected, predictive: Categorical, targets: Tensor, config: EvaluateConfig) -> None:
    gathered.mean("accuracy", metrics.accuracy(predictive, targets))
    gathered.mean("nll", metrics.nll(predictive, targets))
    gathered.mean("brier", metrics.brier(predictive, targets))
    more = metrics.bins_of(predictive, targets, config.calibration_bins)
    gathered.bins = more if gathered.bins is None else gathered.bins + more


def _classes(gathered: _Collected, predictive: Categorical, targets: Tensor, config: EvaluateConfig) -> None:
    _common(gathered, predictive, targets, config)
    entropy, information = predictive.entropy(), predictive.mutual_information()
    gathered.mean("entropy", metrics.Mean.of(entropy))
    terms = metrics.target_terms(predictive, targets)
    if len(predictive.draw_log_probs) > 1:
        gathered.mean("mutual_information", metrics.Mean.of(information))
        gathered.mean("batch_nll", metrics.batch_nll(terms))
    for k, probability in enumerate(predictive.mean.unbind(-1)):
        gathered.column(f"p_{k}", probability)
    gathered.column("entropy", entropy)
    gathered.column("mutual_information", information)
    gathered.column("log_prob", predictive.log_prob(targets))
    gathered.terms.append(terms.cpu())


def _regression(gathered: _Collected, predictive: Continuous, targets: Tensor) -> None:
    gathered.mean("mse", metrics.squared_error(predictive, targets))
    gathered.mean("nll", metrics.nll(predictive, targets))
    gathered.mean("log_likelihood", metrics.log_likelihood(predictive, targets))
    low, high = metrics.interval(predictive, INTERVAL)
    gathered.mean("coverage_90", metrics.covered(low, high, targets))
    gathered.mean("width_90", metrics.Mean.of(high - low))
    gathered.mean("crps", metrics.crps(predictive, targets))
    first, last = predictive.reach
    if bool((first.isfinite() & last.isfinite()).all()):
        gathered.mean("out_of_reach", metrics.Mean.of((targets < first) | (targets > last)))
    outputs = targets.shape[1]
    for name, values in (("target", targets), ("mean", predictive.mean), ("variance", predictive.variance)):
        for k, column in enumerate(values.unbind(-1)):
            gathered.column(name if outputs == 1 else f"{name}_{k}", column)
    gathered.column("log_prob", predictive.log_prob(targets))


def _recalibrated(
    gathered: _Collected,
    fitted: Predictor,
    recalibration: Recalibration,
    transformed: Predictive,
    targets: Tensor,
    config: EvaluateConfig,
) -> None:
    """Score the recalibrated predictive and the conformal sets of a batch."""
    better = fitted.own_units(recalibration.apply(transformed))
    gathered.mean("nll_recalibrated", metrics.nll(better, targets))
    if isinstance(better, Categorical):
        assert isinstance(transformed, Categorical)
        more = metrics.bins_of(better, targets, config.calibration_bins)
        gathered.recalibrated_bins = more if gathered.recalibrated_bins is None else gathered.recalibrated_bins + more
        members = recalibration.class_set(transformed, INTERVAL)
        gathered.mean("coverage_conformal", metrics.Mean.of(members.gather(1, targets.long()[:, None])))
        gathered.mean("size_conformal", metrics.Mean.of(members.sum(1)))
        return
    assert isinstance(better, Continuous) and isinstance(transformed, Continuous)
    gathered.mean("crps_recalibrated", metrics.crps(better, targets))
    low, high = recalibration.interval(transformed, fitted.transform, INTERVAL)
    gathered.mean("coverage_conformal", metrics.Mean.of(((low <= targets) & (targets <= high)).all(-1)))
    gathered.mean("width_conformal", metrics.Mean.of(high - low))


def _values(gathered: _Collected) -> Scores:
    scores = {name: (mean.value, mean.count) for name, mean in gathered.means.items() if name != "mse"}
    if "mse" in gathered.means:
        scores = {"rmse": (gathered.means["mse"].root, gathered.means["mse"].count)} | scores
    if gathered.bins is not None:
        scores["ece"] = (gathered.bins.ece(), int(gathered.bins.count.sum()))
    if gathered.recalibrated_bins is not None:
        again = gathered.recalibrated_bins
        scores["ece_recalibrated"] = (again.ece(), int(again.count.sum()))
    return scores


def _normalised(log_likelihood: tuple[float, int], transform: Transform, targets: np.ndarray) -> Scores:
    """Return the log-likelihood in units of the transformed targets.

    Of z = (y − shift)/scale, p(z) = p(y) Π scale; of z = (log y − shift)/scale, p(z) = p(y) Π y scale.
    """
    value, count = log_likelihood
    wider = 0.0 if transform.scale is None else float(transform.scale.double().log().sum())
    if transform.log:
        wider += float(np.log(targets).sum(1).mean())
    return {"log_likelihood_normalised": (value + wider, count)}


def _joint(gathered: _Collected, pairs: int, rng: Seed) -> Scores:
    terms = torch.cat(gathered.terms, dim=1)  # [draw, row]
    rows = terms.shape[1]
    if not pairs or rows < 2:
        return {}
    # from the root alone: every posterior is asked about the same pairs
    random = Seed(rng.root).fold("evaluate", "pairs", rows, pairs).numpy()
    first = random.integers(rows, size=pairs)
    second = (first + 1 + random.integers(rows - 1, size=pairs)) % rows  # another row, each as likely
    nll, gap = metrics.joint_scores(terms, torch.from_numpy(first), torch.from_numpy(second))
    return {"joint_nll": (nll.value, nll.count), "joint_gap": (gap.value, gap.count)}


def _table(examples: Examples, gathered: _Collected) -> pa.Table:
    columns: dict[str, np.ndarray] = {"row": np.arange(len(examples))}
    if gathered.bins is not None:
        columns["target"] = np.asarray(examples.targets)
    return pa.table(columns | {name: np.concatenate(parts) for name, parts in gathered.columns.items()})
