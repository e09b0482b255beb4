"""The sums and columns that evaluation gathers over batches, and the scores and tables that follow from them."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Float
from torch import Tensor

from .. import metrics
from ..data.examples import Examples
from ..data.transform import Transform
from ..joint_predictive import GaussianFunctions
from ..posterior import GaussianPosterior, Posterior, Predictor
from ..predictive import Categorical, Continuous, Predictive
from ..recalibration import Recalibration
from ..seeds import Seed
from .config import EvaluateConfig

Scores = dict[str, tuple[float, int]]  # metric -> (value, number of examples behind it)
INTERVAL = 0.9


@dataclass
class Gathered:
    """The sums and columns gathered over batches."""

    means: dict[str, metrics.Mean] = field(default_factory=dict)
    bins: metrics.Bins | None = None
    recalibrated_bins: metrics.Bins | None = None
    columns: dict[str, list[np.ndarray]] = field(default_factory=dict)
    ood_scores: dict[str, list[np.ndarray]] = field(default_factory=dict)
    terms: list[Tensor] = field(default_factory=list)
    noise: list[Tensor] = field(default_factory=list)

    def mean(self, name: str, more: metrics.Mean) -> None:
        """Add values to the mean ``name``."""
        self.means[name] = self.means.get(name, metrics.Mean()) + more

    def column(self, name: str, values: Tensor) -> None:
        """Append a batch to the column ``name``."""
        self.columns.setdefault(name, []).append(values.cpu().numpy())

    def add_registered(self, predictive: Predictive, targets: Tensor, wanted: Iterable[metrics.Metric]) -> None:
        """Add a batch to the means of the metrics that have a function."""
        for metric in wanted:
            mean = metric.batch(predictive, targets)
            if mean is not None:
                self.mean(metric.name, mean)

    def add_bins(self, predictive: Categorical, targets: Tensor, config: EvaluateConfig) -> None:
        """Add a batch to the calibration bins."""
        more = metrics.bins_of(predictive, targets, config.calibration_bins)
        self.bins = more if self.bins is None else self.bins + more

    def add_classes(self, predictive: Categorical, targets: Tensor, config: EvaluateConfig) -> None:
        """Add a batch of test rows to entropies, calibration bins and the table of predictions."""
        self.add_bins(predictive, targets, config)
        entropy, information = predictive.entropy(), predictive.mutual_information()
        self.mean("entropy", metrics.Mean.of(entropy))
        if len(predictive.draw_log_probs) > 1:
            self.mean("mutual_information", metrics.Mean.of(information))
            self.mean("batch_nll", metrics.batch_nll(predictive.draw_log_prob(targets)))
        for k, probability in enumerate(predictive.mean.unbind(-1)):
            self.column(f"p_{k}", probability)
        self.column("entropy", entropy)
        self.column("mutual_information", information)
        self.column("log_prob", predictive.log_prob(targets))

    def add_regression(self, predictive: Continuous, targets: Tensor) -> None:
        """Add a batch of test rows to the means of the central interval and to the table of predictions."""
        low, high = metrics.interval(predictive, INTERVAL)
        self.mean("coverage_90", metrics.covered(low, high, targets))
        self.mean("width_90", metrics.Mean.of(high - low))
        outputs, below = targets.shape[1], predictive.cdf(targets.double()).clamp(0, 1)
        moments = (("mean", predictive.mean), ("variance", predictive.variance))
        quantiles = (("q05", low), ("q50", predictive.quantile(0.5)), ("q95", high))
        for name, values in (("target", targets), *moments, *quantiles, ("pit", below)):
            for k, column in enumerate(values.unbind(-1)):
                self.column(name if outputs == 1 else f"{name}_{k}", column)
        self.column("log_prob", predictive.log_prob(targets))

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
            self.mean("nll_recalibrated", metrics.nll(better, targets))
            more = metrics.bins_of(better, targets, config.calibration_bins)
            self.recalibrated_bins = more if self.recalibrated_bins is None else self.recalibrated_bins + more
            members = recalibration.class_set(transformed, INTERVAL, rows)
            self.mean("coverage_conformal", metrics.Mean.of(members.gather(1, targets.long()[:, None])))
            self.mean("size_conformal", metrics.Mean.of(members.sum(1)))
            return
        assert isinstance(before, Continuous) and isinstance(transformed, Continuous)
        self.mean("nll_before", metrics.nll(before, targets))
        self.mean("crps_before", metrics.crps(before, targets))
        self.mean("coverage_90_before", metrics.covered(*metrics.interval(before, INTERVAL), targets))
        low, high = recalibration.interval(transformed, fitted.transform, INTERVAL, rows)
        self.mean("coverage_conformal", metrics.Mean.of(((low <= targets) & (targets <= high)).all(-1)))
        self.mean("width_conformal", metrics.Mean.of(high - low))

    def scores(self) -> Scores:
        """Return the scores of all batches that need nothing else."""
        scores = {name: (metrics.METRICS[name].value(mean), mean.count) for name, mean in self.means.items()}
        if self.bins is not None:
            scores["ece"] = (self.bins.ece(), int(self.bins.count.sum()))
        if self.recalibrated_bins is not None:
            again = self.recalibrated_bins
            scores["ece_recalibrated"] = (again.ece(), int(again.count.sum()))
        if self.noise:
            variance = torch.cat(self.noise)
            ratio = float((variance.amax(0) / variance.amin(0)).max())
            scores["noise_ratio"] = (ratio, len(variance))
        return scores

    def table(self, examples: Examples) -> pa.Table:
        """Return the predictions, one for each row."""
        columns: dict[str, np.ndarray] = {"row": np.arange(len(examples))}
        if self.bins is not None:
            columns["target"] = np.asarray(examples.targets)
        return pa.table(columns | {name: np.concatenate(parts) for name, parts in self.columns.items()})


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
