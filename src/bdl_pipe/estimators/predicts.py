"""The predictives of new rows of a fitted estimator: batch by batch, jointly, as draws, and of its calibrated fits."""

from collections.abc import Iterator
from typing import Final

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted

from ..distribution import count_of, sample
from ..errors import require
from ..joint_predictive import DRAWS, Joint
from ..predictive import Predictive
from ..recalibration import Recalibration
from ..seeds import Seed, own_settings
from .fitted import warn_of_few
from .given import TakesRows
from .plan import is_number

_TILE: Final = 16  # rows; products of matrices give a row the same bits in each number of rows that this divides
_MOST: Final = 10_000_000  # the most values, row × score, that cross-conformal holds in memory


class Predicts(TakesRows):
    """An estimator that predicts new rows.

    Attributes:
        device, threads: the parameters of :class:`.base.BayesianEstimator`.
    """

    device: str
    threads: int | None

    def _batches(self, x: object) -> Iterator[tuple[slice, Predictive]]:
        """Yield the predictive of each batch of new rows, in the targets' own units."""
        rows = self._rows(x)
        with own_settings(self.threads), torch.no_grad():
            for at, predictive in self.fitted_.batches(rows):
                yield at, self.fitted_.predictor().final(predictive)

    def _means(self, x: object, *, std: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Return the predictive's means [n, output or class] and, if asked for, standard deviations; float64.

        The last row is repeated up to a whole number of tiles, so that a row's answer is the same bits in any number of
        rows up to a batch.
        """
        rows, means, deviations = self._rows(x), list[torch.Tensor](), list[torch.Tensor]()
        count, padded = len(rows), np.concatenate([rows, np.repeat(rows[-1:], -len(rows) % _TILE, axis=0)])
        with own_settings(self.threads), torch.no_grad():
            for _, predictive in self.fitted_.batches(padded):
                final = self.fitted_.predictor().final(predictive)
                means.append(final.mean.double().cpu())
                deviations += [final.variance.double().sqrt().cpu()] if std else []
        mean = torch.cat(means).numpy()[:count]
        return mean, torch.cat(deviations).numpy()[:count] if std else mean

    def _predictive(self, X: object) -> tuple[Predictive, Seed]:
        """Return the predictive of all rows, and the address of its samples."""
        rows = self._rows(X)
        with own_settings(self.threads), torch.no_grad():
            fitted, address = self.fitted_.predictor(), self.fitted_.address().fold("predict")
            predictive = fitted.predict(rows, rng=address, device=self.device)
        return predictive, self.fitted_.address().fold("sample")

    def joint(self, X: object, rows: int | None = None, *, draws: int = DRAWS) -> Joint:
        """Return the joint distribution of the targets of several rows, which share a function.

        It is not recalibrated: a recalibration applies to single rows.

        Args:
            rows: the number of consecutive rows in a group; each group has its own joint. None puts all rows in one
                group.
            draws: number of functions to draw if the posterior has no draws of its own.

        Returns:
            A joint; its ``log_prob`` takes targets as tensors of shape ``target_shape``: indices into ``classes_``
            [group, row], or values [group, row, output].

        Raises:
            NotFittedError, ValueError: as :meth:`predict_dist`; or the rows are not whole groups.
        """
        raw = self._rows(X)
        many = len(raw) if rows is None else rows
        whole = is_number(many) and int(many) == many
        require(whole and many > 0 and len(raw) % many == 0, "rows", f"must divide the {len(raw)} rows of X", many)
        grouped = raw.reshape(len(raw) // many, many, *raw.shape[1:])
        with own_settings(self.threads), torch.no_grad():
            return self.fitted_.predictor().joint(grouped, rng=self.fitted_.address(), device=self.device, draws=draws)

    def _is_calibrated(self, conformal: bool | None) -> bool:
        """Return whether intervals and sets are calibrated: as asked for, or if the fit has calibration rows."""
        check_is_fitted(self, "fitted_")
        return any(part.recalibration is not None for part in self.fitted_.parts) if conformal is None else conformal

    def _calibrated(self, x: object, levels: list[float]) -> tuple[np.ndarray, list[int], list[Recalibration]]:
        """Return new rows, and the numbers of the fits that have left-out rows with what is learnt from these rows.

        They are the split fit, or the fits of cross-conformal.

        Raises:
            ValueError: no fit has left-out rows.
        """
        check_is_fitted(self, "fitted_")
        numbers = [i for i, part in enumerate(self.fitted_.parts) if part.recalibration is not None]
        if not numbers:
            name = type(self).__name__
            raise ValueError(
                f"conformal intervals and sets need calibration data: create {name}(…, conformal='split') or 'cross', "
                "and fit again"
            )
        rows, learnt = self._rows(x), [r for i in numbers if (r := self.fitted_.predictor(i).recalibration)]
        warn_of_few(learnt, rows, max(levels), self.fitted_)
        return rows, numbers, learnt

    def _each_part(
        self, rows: np.ndarray, numbers: list[int], learnt: list[Recalibration]
    ) -> Iterator[tuple[np.ndarray, list[Predictive]]]:
        """Yield batches of raw rows with each fit's predictive, in transformed units."""
        batch = max(1, min(1000, _MOST // max(1, sum(len(each.scores) for each in learnt))))
        with own_settings(self.threads), torch.no_grad():
            for many in zip(*(self.fitted_.batches(rows, i, batch) for i in numbers), strict=True):
                yield rows[many[0][0]], [predictive for _, predictive in many]

    def _samples(self, x: object, draws: int) -> np.ndarray:
        """Draw the targets of each row independently, as :func:`.targets.sample`."""
        draws = count_of(draws)
        check_is_fitted(self, "fitted_")
        rng, batches = self.fitted_.address().fold("sample"), self._batches(x)
        return np.concatenate([sample(part, draws, rng.fold(at.start)).numpy() for at, part in batches], axis=1)
