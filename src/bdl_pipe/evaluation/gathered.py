"""The section ``evaluate`` of params.yaml; the sums, columns and draws that evaluation gathers over batches."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, final

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Float
from torch import Tensor

from .. import metrics
from ..config import LATER
from ..data.transform import Transform
from ..errors import require, require_positive
from ..joint_predictive import GaussianFunctions
from ..metrics.registered import BEFORE
from ..metrics.regression import LEVEL
from ..posterior import GaussianPosterior, Posterior, Predictor
from ..predictive import Categorical, Continuous, Predictive
from ..recalibration import Recalibration
from ..seeds import Seed

MOST_ROWS: Final = 500
MOST_DRAWS: Final = 32
Scores = dict[str, tuple[float, int]]  # metric -> (value, number of examples behind it)


@dataclass(frozen=True)
class EvaluateConfig:
    """The section ``evaluate`` of params.yaml.

    Attributes:
        calibration_bins: the number of equal-width bins of the expected calibration error.
        batch: the largest number of inputs in one forward pass.
        joint_pairs: the number of random pairs of test rows for the joint likelihood; 0 for none.
        joint_groups: the number of groups of test rows for the joint likelihood of several rows; 0 for none. Group k
            lies around pair k of ``joint_pairs``. A posterior that holds functions is scored on these pairs only.
    """

    calibration_bins: int
    batch: int
    joint_pairs: int
    joint_groups: int = field(default=0, metadata=LATER)

    def __post_init__(self) -> None:
        require_positive(self, "calibration_bins", "batch")
        require(self.joint_pairs >= 0, "joint_pairs", "must be >= 0", self.joint_pairs)
        rule = f"must be in [0, {self.joint_pairs}], at most joint_pairs"
        require(0 <= self.joint_groups <= self.joint_pairs, "joint_groups", rule, self.joint_groups)


USUAL: Final = EvaluateConfig(calibration_bins=15, batch=250, joint_pairs=10_000, joint_groups=250)  # as in params.yaml


@dataclass
class Gathered:
    """The sums and columns gathered over batches.

    Attributes:
        sums: metric -> what its value follows from.
    """

    sums: dict[str, metrics.Mean | metrics.Bins] = field(default_factory=dict)
    columns: dict[str, list[np.ndarray]] = field(default_factory=dict)
    ood_scores: dict[str, list[np.ndarray]] = field(default_factory=dict)
    terms: list[Tensor] = field(default_factory=list)
    noise: list[Tensor] = field(default_factory=list)

    def add(
        self,
        predictive: Predictive,
        targets: Tensor,
        wanted: Iterable[metrics.Metric],
        config: EvaluateConfig,
    ) -> None:
        """Add a batch to the metrics that have a function and, for classes, to the calibration bins."""
        for metric in wanted:
            mean = metric.batch(predictive, targets)
            if mean is not None:
                self._sum(metric.name, mean)
        if isinstance(predictive, Categorical):
            self._sum("ece", metrics.bins_of(predictive, targets, config.calibration_bins))

    def add_columns(self, predictive: Predictive, targets: Tensor) -> None:
        """Add a batch of test rows to the table of predictions."""
        if isinstance(predictive, Categorical):
            columns = {"target": targets} | {f"p_{k}": p for k, p in enumerate(predictive.mean.unbind(-1))}
            columns |= {"entropy": predictive.entropy(), "mutual_information": predictive.mutual_information()}
        else:
            assert isinstance(predictive, Continuous)
            low, high = metrics.interval(predictive, LEVEL)
            values = {"target": targets, "mean": predictive.mean, "variance": predictive.variance}
            values |= {"q05": low, "q50": predictive.quantile(0.5), "q95": high}
            values["pit"] = predictive.cdf(targets.double()).clamp(0, 1)
            several = targets.shape[1] > 1
            columns = {
                f"{name}_{k}" if several else name: column
                for name, outputs in values.items()
                for k, column in enumerate(outputs.unbind(-1))
            }
        for name, column in (columns | {"log_prob": predictive.log_prob(targets)}).items():
            self.columns.setdefault(name, []).append(column.cpu().numpy())

    def add_noise(self, transformed: Continuous, *, is_one: bool) -> None:
        """Add a batch of the noise's variances, in the units in which a method's likelihood is stated.

        ``is_one``: the noise is one for all inputs, see :func:`has_one_noise`; else the predictive shows it.
        """
        variance = metrics.noise_variance(transformed)
        self.noise.append(torch.ones_like(variance) if is_one else variance)

    def add_recalibrated(
        self,
        fitted: Predictor,
        recalibration: Recalibration,
        transformed: Predictive,
        before: Predictive,
        targets: Tensor,
        rows: np.ndarray,
        config: EvaluateConfig,
    ) -> None:
        """Score what is not the batch's final predictive, tempered classes or a regression before, and conformal sets.

        ``before`` is ``transformed`` in the targets' own units, and ``rows`` are the raw inputs. See
        :meth:`bdl_pipe.posterior.Predictor.final`.
        """
        if isinstance(transformed, Categorical):
            better = recalibration.apply(transformed)
            assert isinstance(better, Categorical)
            self._sum("nll_recalibrated", metrics.nll(better, targets))
            self._sum("ece_recalibrated", metrics.bins_of(better, targets, config.calibration_bins))
            members = recalibration.class_set(transformed, LEVEL, rows)
            self._sum("coverage_conformal", metrics.Mean.of(members.gather(1, targets.long()[:, None])))
            self._sum("size_conformal", metrics.Mean.of(members.sum(1)))
            return
        assert isinstance(transformed, Continuous)
        for metric in BEFORE:
            mean = metric.batch(before, targets)
            assert mean is not None
            self._sum(f"{metric.name}_before", mean)
        low, high = recalibration.interval(transformed, fitted.transform, LEVEL, rows)
        self._sum("coverage_conformal", metrics.Mean.of(((low <= targets) & (targets <= high)).all(-1)))
        self._sum("width_conformal", metrics.Mean.of(high - low))

    def scores(self) -> Scores:
        """Return the scores of all batches that need nothing else."""
        scores = {name: (metrics.METRICS[name].value(of), int(np.sum(of.count))) for name, of in self.sums.items()}
        if self.noise:
            variance = torch.cat(self.noise)
            ratio = float((variance.amax(0) / variance.amin(0)).max())
            scores["noise_ratio"] = (ratio, len(variance))
        return scores

    @property
    def calibration(self) -> pa.Table | None:
        """Return the reliability diagram of classes."""
        bins = self.sums.get("ece")
        return pa.table(bins.table()) if isinstance(bins, metrics.Bins) else None

    def table(self) -> pa.Table:
        """Return the predictions, one for each row."""
        columns = {name: np.concatenate(parts) for name, parts in self.columns.items()}
        return pa.table({"row": np.arange(len(columns["log_prob"])), **columns})

    def _sum(self, name: str, more: Any) -> None:
        self.sums[name] = self.sums[name] + more if name in self.sums else more


@final
class DrawnRows:
    """Predictions by draw of some test rows, gathered over batches, so that a metric of draws needs no new prediction.

    For each fit with several draws, 500 test rows, drawn once for all runs on a data set, and at most 32 draws, evenly
    spaced, are stored: for classes the log-probabilities in float16 (a relative error below 5e-4), for regression the
    log densities of the targets in float32, before recalibration.

    Args:
        count: test rows.
    """

    def __init__(self, count: int) -> None:
        rows = Seed(0).fold("rows of draws").numpy().permutation(count)[:MOST_ROWS]
        self._is_kept = np.zeros(count, dtype=bool)
        self._is_kept[rows] = True
        self._parts: dict[str, list[np.ndarray]] = {}

    def add(self, rows: slice, predictive: Predictive, targets: Tensor) -> None:
        """Add the kept rows of a batch, in original units; a predictive of one draw has none."""
        of_targets = predictive.draw_log_prob(targets)
        if len(of_targets) == 1:
            return
        at = np.flatnonzero(self._is_kept[rows])
        draws = torch.linspace(0, len(of_targets) - 1, min(len(of_targets), MOST_DRAWS)).round().long()
        if isinstance(predictive, Categorical):
            name, values, kind = "log_probs", predictive.draw_log_probs, "float16"
        else:
            name, values, kind = "log_density", of_targets, "float32"
        stored = values[draws.to(values.device)][:, torch.from_numpy(at).to(values.device)].transpose(0, 1).flatten(1)
        with np.errstate(over="ignore"):  # the logarithm of a probability below e^-65504 is stored as −∞
            self._parts.setdefault(name, []).append(stored.cpu().numpy().astype(kind))
        self._parts.setdefault("row", []).append((rows.start + at).astype(np.int32))

    def table(self) -> pa.Table | None:
        """Return the columns row, and log_probs [draw · class] or log_density [draw]; None for a single draw."""
        whole = {name: np.concatenate(parts) for name, parts in self._parts.items()}
        if not whole:
            return None
        columns = {"row": pa.array(whole.pop("row"))}
        for name, values in whole.items():  # as lists: another fit of the run may have another number of draws
            ends = pa.array(np.arange(len(values) + 1) * values.shape[1], pa.int32())
            columns[name] = pa.ListArray.from_arrays(ends, values.ravel())
        return pa.table(columns)


def has_one_noise(posterior: Posterior, row: Float[Tensor, "1 1 ..."], rng: Seed) -> bool:
    """Return whether a posterior's Gaussian over functions has one noise for all inputs (``GaussianFunctions.noise``).

    Such a posterior's predictive adds the variance of the functions to the noise, and does not show the noise alone.

    Args:
        row: a transformed input, as a group of one row.
    """
    if not isinstance(posterior, GaussianPosterior):
        return False
    functions = posterior.functions(row, rng=rng)
    return isinstance(functions, GaussianFunctions) and functions.noise.ndim == 2


def normalised(log_likelihood: tuple[float, int], transform: Transform, targets: np.ndarray) -> Scores:
    """Return the log-likelihood in units of the transformed targets.

    Of z = (y − shift)/scale, p(z) = p(y) Π scale; of z = (log y − shift)/scale, p(z) = p(y) Π y scale.
    """
    value, count = log_likelihood
    wider = 0.0 if transform.scale is None else float(transform.scale.double().log().sum())
    if transform.log:
        wider += float(np.log(targets).sum(1).mean())
    return {"log_likelihood_normalised": (value + wider, count)}
