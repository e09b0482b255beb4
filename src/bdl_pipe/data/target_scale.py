"""The choice between targets and their logarithms, by the leave-one-out density of ridge regression.

Leave-one-out residuals of ridge regression have a closed form: e_i/(1 − h_i), where e are the residuals and h is the
diagonal of Φ(ΦᵀΦ + Λ)⁻¹Φᵀ (Hastie, Tibshirani & Friedman 2009, section 7.10). If s² is the mean square of the
leave-one-out residuals, a left-out target has the mean log density −½ log(2πs²) − ½. Subtracting log y turns a log
density of log y into a log density of y. Only the training rows of a split are used.
"""

import math
from collections.abc import Callable
from typing import Final

import numpy as np
from jaxtyping import Float
from torch import Tensor

_ROWS: Final = 20_000  # more rows are thinned evenly to this number
_RIDGE: Final = 1.0  # the penalty of each weight except the bias; columns are standardised


def logarithms_fit_better(
    transformed: Callable[[np.ndarray], Float[Tensor, "row column"]], inputs: np.ndarray, targets: np.ndarray
) -> bool:
    """Return True if the logarithms of targets have the larger leave-one-out log density.

    Args:
        transformed: raw training rows -> network inputs.
        inputs: the raw training rows.
        targets: the targets of these rows, > 0, in original units [row, output].
    """
    chosen = np.unique(np.linspace(0, len(targets) - 1, _ROWS).round().astype(int))
    rows, own = transformed(inputs[chosen]).double().numpy(), targets[chosen]
    logs = np.log(own)
    return left_out_density(rows, logs) - float(logs.sum(1).mean()) > left_out_density(rows, own)


def left_out_density(rows: np.ndarray, targets: np.ndarray) -> float:
    """Return the mean log density of left-out targets over rows; outputs are independent."""
    phi = np.concatenate([rows, np.ones((len(rows), 1))], axis=1)
    ridge = np.full(phi.shape[1], _RIDGE)
    ridge[-1] = 1e-8  # the bias has a tiny penalty, so that the matrix of one row has an inverse
    inverse = np.linalg.inv(phi.T @ phi + np.diag(ridge))
    leverage = np.einsum("nd,de,ne->n", phi, inverse, phi)
    residuals = (targets - phi @ (inverse @ (phi.T @ targets))) / np.maximum(1 - leverage, 1e-12)[:, None]
    square = np.maximum((residuals**2).mean(axis=0), np.finfo(float).tiny)
    return float(-0.5 * (np.log(2 * math.pi * square) + 1).sum())
