"""The method ``linear``: a linear model of the transformed inputs, a baseline that is fitted in a second.

Regression: exact Bayesian linear regression (``linear_regression``) with a bias; its prior and noise variance maximise
the evidence of the training rows. Classes: scikit-learn's logistic regression at its MAP, fitted to all rows; the prior
variance C of the weights' N(0, C I) is the power of ten with the largest log-likelihood of the validation rows. With
weights of rows, all of these are of the weighted log-likelihood.

The state: ``mean``, ``factor`` and ``noise_variance`` of a ``LinearPosterior``; or ``weight`` [class, input] and
``bias`` [class].
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..artifacts import State
from ..data.fitdata import FitData
from ..errors import DataError, without_warnings
from ..linear_regression import best_variances, posterior, scaled, with_bias
from ..method import Default, Inputs, Method, StageSpec
from ..predictive import Categorical
from ..progress import Report
from ..seeds import Seed
from .exact_layer import LinearFunctionsPosterior
from .stored import StoredPosterior

if TYPE_CHECKING:
    from sklearn.linear_model import LogisticRegression

_STRENGTHS: Final = tuple(10.0**power for power in range(-4, 5))  # values of C, in the order of trial
_STEPS: Final = 1_000  # the most steps of L-BFGS
_MOST: Final = 50_000_000  # the most input values, rows × columns: 0.4 GB, which the SVD copies


@dataclass(frozen=True)
class LinearConfig:
    """The section ``methods.linear`` of params.yaml, which has no keys: all settings are chosen from the data."""


@final
class LinearRegressionPosterior(LinearFunctionsPosterior):
    """The posterior of a linear regression of the transformed inputs."""

    key = "linear_regression"

    def features(self, inputs: Float[Tensor, "row d"]) -> Float[Tensor, "row d1"]:
        return with_bias(inputs.double())


@final
class LogisticRegressionPosterior(StoredPosterior):
    """A logistic regression of the transformed inputs, a point estimate."""

    key = "logistic_regression"

    def predict(self, inputs: Tensor, *, rng: Seed = Seed(0)) -> Categorical:
        """Predict transformed inputs, computed in float64; ``rng`` is not used."""
        logits = inputs.flatten(1).double() @ self.tensors["weight"].mT + self.tensors["bias"]
        return Categorical(torch.log_softmax(logits, -1)[None].to(inputs.dtype))


def fit(data: FitData, inputs: Inputs, config: LinearConfig, *, rng: Seed, report: Report) -> State:
    """Fit the model to the training rows; ``inputs`` and ``rng`` are not used.

    Raises:
        DataError: the training inputs have too many values.
    """
    size = data.train.inputs.size
    if size > _MOST:
        raise DataError(f"linear: the data must have at most {_MOST:,} numbers in their training rows, got {size:,}")
    report(1, 1)
    if data.task == "classification":
        fitted = _logistic(data, _strength(data.search or data))
        weight, bias = torch.from_numpy(fitted.coef_), torch.from_numpy(fitted.intercept_)
        if len(fitted.classes_) == 2:  # scikit-learn has one row, for the second class
            weight, bias = torch.cat([0 * weight, weight]), torch.cat([0 * bias, bias])
        present = torch.from_numpy(np.asarray(fitted.classes_, dtype=np.int64))
        softmax = {"weight": weight.new_zeros(data.outputs, weight.shape[1])}
        softmax["bias"] = bias.new_full((data.outputs,), -50.0)  # a class without training rows has probability 1e-22
        softmax["weight"][present], softmax["bias"][present] = weight, bias
        return State(softmax, {"posterior": LogisticRegressionPosterior.key})
    rows, targets = (values.double() for values in data.tensors("train"))
    weights = data.weights("train")
    phi, targets = scaled(with_bias(rows), targets, None, weights)
    layer = posterior(phi, targets, *best_variances(phi, targets, None if weights is None else float(weights.sum())))
    tensors = {name: values.clone() for name, values in vars(layer).items()}
    return State(tensors, {"posterior": LinearRegressionPosterior.key})


def _strength(data: FitData) -> float:
    """Return the C with the largest log-likelihood of validation rows; without these rows, scikit-learn's default 1."""
    if not len(data.validation):
        return 1.0
    rows, labels = (values.numpy() for values in data.tensors("validation"))
    scores = []
    for strength in _STRENGTHS:
        fitted = _logistic(data, strength)
        log_probs = np.full((len(rows), data.outputs), -50.0)  # log-probability of a class without training rows
        # on separable rows a weak prior may round a probability to 0; if a label has it, the score is −inf and loses
        with np.errstate(divide="ignore"):
            log_probs[:, fitted.classes_] = fitted.predict_log_proba(rows.reshape(len(rows), -1).astype(float))
        each, weights = log_probs[np.arange(len(rows)), labels], data.validation.weights
        scores.append(float(each.mean() if weights is None else (weights * each).sum()))
    return _STRENGTHS[int(np.argmax(scores))]


def _logistic(data: FitData, strength: float) -> "LogisticRegression":
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    rows, labels = (values.numpy() for values in data.tensors("train"))
    with without_warnings(ConvergenceWarning):  # separable rows with a weak prior; the score decides
        flat, weights = rows.reshape(len(rows), -1).astype(float), data.train.weights
        return LogisticRegression(C=strength, max_iter=_STEPS).fit(flat, labels, weights)


LINEAR = Method(
    name="linear",
    config=LinearConfig,
    tasks=("regression", "classification"),
    online=("regression",),
    stages={"student": StageSpec(fit, random=False)},
    rival=True,
    optimal=True,
    weighs_rows=True,
    default=Default(
        0.1,
        suits=lambda size: size.image is None and size.train * size.width <= _MOST,
        automatic=lambda size: (
            f"{size.train:,} rows are fewer than any table on which networks were measured" if size.tiny else ""
        ),
    ),
)
