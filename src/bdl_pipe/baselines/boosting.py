"""The method ``boosting``: gradient-boosted trees with a predictive distribution, the usual alternative for tables.

The trees are scikit-learn's histogram gradient boosting (Ke et al. 2017), with one sum of trees for each target or
class. The number of rounds is the mean of the best numbers of the folds of a cross-validation; the model is then fitted
to all rows. The noise of regression is estimated from the residuals of left-out rows:

- ``one``: N(f(x), s²), s² the mean of the squared residuals;
- ``each input``: N(f(x), s²(x)), where s²(x) is boosted on the squared residuals with the deviance of a gamma
  distribution, on the same folds (Nelder & Lee 1998 model mean and dispersion in this way);
- ``best``: the one of these two with the larger log-likelihood of the left-out rows;
- ``student``: a Student t, f(x) + c s(x) t_ν, with the s of ``one`` or of ``each input``. The factor c and the degrees
  of freedom ν, from 2.1 to 100, maximise the log-likelihood of the left-out rows, and so does the choice of s (Lange,
  Little & Taylor 1989 estimate ν with a regression in this way). All outputs have one ν;
- ``quantiles``: a distribution from quantiles at five levels (:mod:`.quantiles`), each boosted with its pinball loss
  (Koenker & Bassett 1978) on the same folds. Trees are over-confident on their training rows, so each quantile is
  shifted until its level's share of the left-out rows is below it, like a conformal quantile (Romano, Patterson &
  Candès 2019, with folds instead of a split);
- ``auto``: ``quantiles`` if at least 15 % of the rows have the same target, such as 0 of an income; otherwise ``best``.
  A distribution around a mean does not describe such a value.

Weights of rows are those of the losses, of the scores of left-out rows, and of the estimates of noise; a quantile is
then the smallest value with its level's share of the weights. The least number of rows of a leaf counts rows.

Rows of groups are left out by whole groups. Rows with dates are cut into K + 1 consecutive folds, and each fold but the
first is predicted from all earlier ones; the noise is then estimated without the first fold.

Classes: the softmax of the sums. With ``categories: own``, trees split by subsets of a category's values (Fisher 1958),
in place of one one-hot column after the other. The trees are stored as tensors (:mod:`.trees`); no training row lies on
a threshold.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..artifacts import State, under
from ..data import units
from ..data.categories import NONE, Categories
from ..data.fitdata import FitData
from ..data.tables.columns import MANY_EQUAL
from ..errors import DataError, require
from ..method import Default, Inputs, Method, StageSpec
from ..predictive import Categorical, Gaussian, Predictive
from ..progress import Report
from ..seeds import Seed
from ..student_t import StudentT
from . import student_noise
from .quantiles import SCORES, Quantiles, levels
from .stored import StoredPosterior
from .trees import Trees, clear_of_rounding, of_boosting

_SMALLEST: Final = 1e-6  # the smallest variance relative to the targets' variance; an exact fit has variance 0
_PATIENCE: Final = 20  # boosting stops after this many rounds without a better score on left-out rows
_ABSENT: Final = -50.0  # log-probability of a class without training rows
Scaled = tuple[np.ndarray, np.ndarray | None]  # residuals over their standard deviations [row], and the rows' weights


@dataclass(frozen=True)
class BoostingConfig:
    """The section ``methods.boosting`` of params.yaml; other settings are scikit-learn's defaults.

    Attributes:
        rounds: the largest number of trees of each output.
        learning_rate: the factor that scales each tree.
        leaves: the largest number of leaves of a tree.
        folds: K, the number of folds of the cross-validation.
        noise: of a regression: ``one``, ``each input``, ``best``, ``student``, ``quantiles`` or ``auto``.
        categories: what trees split a category by: ``columns``, its one-hot columns, or ``own``, subsets of its values.
    """

    rounds: int
    learning_rate: float
    leaves: int
    folds: int
    noise: Literal["one", "each input", "best", "student", "quantiles", "auto"]
    categories: Literal["columns", "own"] = "columns"

    def __post_init__(self) -> None:
        require(self.rounds > 0, "rounds", "must be > 0", self.rounds)
        require(0 < self.learning_rate <= 1, "learning_rate", "must be in (0, 1]", self.learning_rate)
        require(self.leaves > 1, "leaves", "must be > 1", self.leaves)
        require(self.folds > 1, "folds", "must be > 1", self.folds)


@final
class BoostingPosterior(StoredPosterior):
    """Sums of trees for logits, for means and log-variances, or for quantiles: a point estimate without draws."""

    key = "boosting"

    def __init__(self, state: State, device: torch.device | str = "cpu") -> None:
        super().__init__(state, device)
        self._classes: list[int] = state.config["classes"]
        self._outputs = int(state.config["outputs"])
        of_categories = under("categories.", self.tensors)
        self._categories = Categories(of_categories) if of_categories else None
        self._sums, self._log_variances = list[Trees](), list[Trees]()
        for part, sums in (("sums", self._sums), ("variance", self._log_variances)):
            each = [under(f"{part}.{i}.", self.tensors) for i in range(self._outputs * len(SCORES))]
            sums += [Trees(tensors) for tensors in each if tensors]

    def predict(self, inputs: Tensor, *, rng: Seed = Seed(0)) -> Predictive:
        """Predict transformed inputs, in the units of the transformed targets; ``rng`` is not used."""
        rows = inputs.flatten(1) if self._categories is None else self._categories(inputs.flatten(1))
        sums = torch.cat([trees(rows) for trees in self._sums], -1)
        if "shift" in self.tensors:
            raw = sums.unflatten(1, (self._outputs, len(SCORES))) + self.tensors["shift"]
            return Quantiles.of(raw, self.tensors["least"])
        if not self._classes:
            variance = torch.cat([trees(rows) for trees in self._log_variances], -1).exp()
            if "degrees" in self.tensors:
                return StudentT(sums[None], variance[None], float(self.tensors["degrees"]))
            return Gaussian(sums[None].to(inputs.dtype), variance[None].to(inputs.dtype))
        logits = F.pad(sums, (1, 0)) if sums.shape[-1] < len(self._classes) else sums  # two classes have one sum
        every = logits.new_full((logits.shape[0], self._outputs), _ABSENT)
        every[:, self._classes] = torch.log_softmax(logits, -1)
        return Categorical(torch.log_softmax(every, -1)[None].to(inputs.dtype))


def fit(data: FitData, inputs: Inputs, config: BoostingConfig, *, rng: Seed, report: Report) -> State:
    """Fit the trees to the training rows; ``rng`` draws the folds, ``inputs`` are not used."""
    rows, targets = (values.double().numpy() for values in data.tensors("train"))
    classes = [int(label) for label in np.unique(targets)] if data.task == "classification" else []
    labels = targets if classes else None
    config = chosen(config, data)
    folds = units.folds_of(data.train.units, len(rows), labels, config.folds, ordered=data.ordered, rng=rng)
    about: dict[str, object] = {"posterior": BoostingPosterior.key, "classes": classes, "outputs": data.outputs}
    if len(classes) == 1:  # a single class has probability 1 and needs no trees
        report(1, 1)
        return State(_named("sums.0", Trees.constant([0.0])), about)
    parts = 1 if classes else data.outputs * {"one": 1, "quantiles": len(SCORES)}.get(config.noise, 2)
    flat = rows.reshape(len(rows), -1)
    categories = _categories(data, flat.shape[1], config)
    tensors = {} if categories is None else {f"categories.{name}": v for name, v in categories.tensors.items()}
    folded = _Folds(flat, folds, config, report, parts, data, categories)
    if classes:
        return State(_named("sums.0", folded.solve("classes", "classes", targets)[0]) | tensors, about)
    if config.noise == "quantiles":
        return State(_quantiles(folded, targets) | tensors, about)
    scaled = list[Scaled]()
    for i, column in enumerate(targets.T):
        trees, left_out = folded.solve(f"mean.{i}", "squared_error", column)
        spread = float(np.cov(column, ddof=0, aweights=folded.weights))
        variance, standard = _noise(folded, i, column - left_out, spread)
        tensors |= _named(f"sums.{i}", trees) | _named(f"variance.{i}", variance)
        scaled.append(standard)
    return State(tensors | (_student(tensors, scaled) if config.noise == "student" else {}), about)


def chosen(config: BoostingConfig, data: FitData) -> BoostingConfig:
    """Return the config with the noise that ``auto`` stands for; of weighted rows their share is of the weight."""
    if config.noise != "auto":
        return config
    shares = [0.0]
    for column in data.train.targets.T if data.task == "regression" else ():
        count = np.bincount(np.unique(column, return_inverse=True)[1], data.train.weights)
        shares.append(float(count.max() / count.sum()))
    return replace(config, noise="quantiles" if max(shares) >= MANY_EQUAL else "best")


def _categories(data: FitData, inputs: int, config: BoostingConfig) -> Categories | None:
    """Return the categories of a table's rows; None without any, or if the trees split by one-hot columns."""
    if config.categories == "columns" or data.transform.encoding is None:
        return None
    categories = Categories.of(data.transform, inputs)
    return categories if len(categories) else None


class _Folds:
    """Cross-validated boosting on one set of rows. Finished folds are in the checkpoints."""

    def __init__(
        self,
        rows: np.ndarray,
        folds: np.ndarray,
        config: BoostingConfig,
        report: Report,
        parts: int,
        data: FitData,
        categories: Categories | None,
    ) -> None:
        """Store the rows and the fold of each row; ``parts`` is the number of calls of :meth:`solve`."""
        self._rows, self.config, self._report, self._codes, self.weights = rows, config, report, 0, data.train.weights
        self._split_by = data.train.units is not None
        self._mask, self._given = None, rows  # which columns are categories; rows as scikit-learn takes them
        if categories is not None:
            self._rows = categories(torch.from_numpy(rows)).numpy()
            self._mask, self._codes = categories.mask.numpy(), int(categories.width.max())
            self._given = np.where(self._mask & (self._rows == NONE), np.nan, self._rows)
        self._pairs = list(units.left_out(folds, ordered=data.ordered))
        self._total, last = parts * len(self._pairs), report.load()
        self._done: dict[str, Tensor] = {} if last is None else dict(last.tensors)
        self._step = sum(name.endswith("best") for name in self._done)

    def solve(self, part: str, loss: str, targets: np.ndarray, level: float | None = None) -> tuple[Trees, np.ndarray]:
        """Return trees fitted to all rows, and each row's prediction by trees that left it out, before any link.

        Args:
            targets: the targets; rows with NaN are in no fit.
            level: the level of the loss ``quantile``.

        Returns:
            The trees; and the predictions, NaN for rows that no fold predicts.
        """
        there, models = ~np.isnan(targets), []
        for number, (rest, out) in enumerate(self._pairs):
            rest = rest[there[rest]]
            if loss == "classes":  # a class that the other folds lack cannot be scored
                out = out[np.isin(targets[out], targets[rest])]
            if not len(rest) or not len(out) or (loss == "classes" and np.ptp(targets[rest]) == 0):
                self._step += 1  # of rows by group or date, some folds may lack a class
                continue
            models.append((self._fold(f"{part}.{number}.", loss, targets, level, rest, out), out))
        if not models and self._split_by:
            raise DataError("split_by: no fold of the training rows can be scored by the others, which have one class")
        if not models:  # folds of random rows spread each class, so each class has a single row
            raise DataError(f"boosting: some class must have two training rows, got one row of each of {len(targets)}")
        rounds = max(1, round(float(np.mean([best for (_, best), _ in models]))))
        left_out = np.full(len(targets), np.nan)
        for (trees, _), out in models if loss != "classes" else ():
            left_out[out] = trees.first(rounds)(torch.from_numpy(self._rows[out]))[:, 0].numpy()
        model = self._model(loss, level, rounds).fit(self._given[there], targets[there], _at(self.weights, there))
        trees = of_boosting(model, rounds, self._codes)
        return clear_of_rounding(trees, self._rows), left_out

    def predictable(self, targets: np.ndarray) -> bool:
        """Return True if some fold can be predicted from rows with a target."""
        return any(not np.isnan(targets[rest]).all() for rest, _ in self._pairs)

    def _fold(
        self, name: str, loss: str, targets: np.ndarray, level: float | None, rest: np.ndarray, out: np.ndarray
    ) -> tuple[Trees, int]:
        """Return the trees of the rows ``rest``, and the number of rounds with the best score on the rows ``out``."""
        if f"{name}best" not in self._done:
            model = self._model(loss, level, self.config.rounds, stop=True)
            held = {"X_val": self._given[out], "y_val": targets[out], "sample_weight_val": _at(self.weights, out)}
            model.fit(self._given[rest], targets[rest], _at(self.weights, rest), **held)
            best = int(np.argmax(model.validation_score_))
            self._done |= _named(name.rstrip("."), of_boosting(model, model.n_iter_, self._codes)) | {
                f"{name}best": torch.tensor(best)
            }
            self._step += 1
            self._report(self._step, self._total, {"rounds": float(best)})
            if self._report.due():
                self._report.save(State(self._done, {}))
        return Trees(under(name, self._done)), int(self._done[f"{name}best"])

    def _model(self, loss: str, level: float | None, rounds: int, stop: bool = False) -> Any:
        from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

        options: dict[str, object] = {
            "learning_rate": self.config.learning_rate,
            "max_iter": rounds,
            "max_leaf_nodes": self.config.leaves,
            "early_stopping": stop,
            "n_iter_no_change": _PATIENCE,
            "categorical_features": self._mask,
            "random_state": 0,
        }
        if loss == "classes":
            return HistGradientBoostingClassifier(**options)
        return HistGradientBoostingRegressor(loss=loss, quantile=level, **options)


def _named(name: str, trees: Trees) -> dict[str, Tensor]:
    return {f"{name}.{key}": values for key, values in trees.tensors.items()}


def _at(weights: np.ndarray | None, rows: np.ndarray) -> np.ndarray | None:
    return None if weights is None else weights[rows]


def _noise(folded: _Folds, output: int, residuals: np.ndarray, variance: float) -> tuple[Trees, Scaled]:
    """Return the log variance as trees, from left-out residuals, for the config's ``noise``.

    Also return the residuals of the left-out rows over their standard deviations, with the rows' weights.
    """
    squared = np.maximum(residuals**2, _SMALLEST * max(variance, _SMALLEST))
    there = ~np.isnan(squared)
    weights = _at(folded.weights, there)
    constant = math.log(student_noise.mean(squared[there], weights))
    alone = Trees.constant([constant]), (np.sqrt(squared[there] / math.exp(constant)), weights)
    if folded.config.noise == "one" or not folded.predictable(squared):
        return alone
    trees, left_out = folded.solve(f"noise.{output}", "gamma", squared)
    known = ~np.isnan(left_out)
    squared, left_out, weights = squared[known], left_out[known], _at(folded.weights, known)
    of_input = trees, (np.sqrt(squared / np.exp(left_out)), weights)
    if folded.config.noise == "each input":
        return of_input
    nll = _student_nll if folded.config.noise == "student" else _nll
    worse = nll(squared, left_out, weights) >= nll(squared, np.full(len(squared), constant), weights)
    return alone if worse else of_input


def _nll(squared: np.ndarray, log_variance: np.ndarray, weights: np.ndarray | None) -> float:
    """Return the mean of −2 log N(r | 0, v) up to a constant."""
    return student_noise.mean(squared * np.exp(-log_variance) + log_variance, weights)


def _student_nll(squared: np.ndarray, log_variance: np.ndarray, weights: np.ndarray | None) -> float:
    """Return the mean of −2 log p of the residuals at the best ν and c, up to the constant of :func:`_nll`."""
    found = student_noise.fit([np.sqrt(squared / np.exp(log_variance))], [weights])
    return student_noise.mean(log_variance, weights) - 2 * found.density


def _student(tensors: dict[str, Tensor], scaled: list[Scaled]) -> dict[str, Tensor]:
    """Return the degrees of freedom, and the trees' log variances turned into log squared scales.

    Args:
        scaled: left-out residuals of each output.
    """
    found = student_noise.fit([z for z, _ in scaled], [weights for _, weights in scaled])
    starts = {
        f"variance.{i}.start": tensors[f"variance.{i}.start"] + 2 * math.log(factor)
        for i, factor in enumerate(found.factors)
    }
    return starts | {"degrees": torch.tensor(found.degrees, dtype=torch.float64)}


def _quantiles(folded: _Folds, targets: np.ndarray) -> dict[str, Tensor]:
    """Return the trees of each output and level, the shifts [output, level], and the least deviation [output]."""
    tensors, shifts = dict[str, Tensor](), np.zeros((targets.shape[1], len(SCORES)))
    of_rows = folded.weights
    way: Literal["linear", "inverted_cdf"] = "linear" if of_rows is None else "inverted_cdf"
    for output, column in enumerate(targets.T):
        for number, level in enumerate(levels()):
            trees, left_out = folded.solve(f"quantile.{output}.{number}", "quantile", column, level)
            tensors |= _named(f"sums.{output * len(SCORES) + number}", trees)
            shifts[output, number] = np.nanquantile(column - left_out, level, method=way, weights=of_rows)
    weighted = [np.cov(column, ddof=0, aweights=of_rows) for column in targets.T]
    variance = targets.var(0) if of_rows is None else np.array(weighted)
    least = np.sqrt(_SMALLEST * np.maximum(variance, _SMALLEST))
    return tensors | {"shift": torch.from_numpy(shifts), "least": torch.from_numpy(least)}


BOOSTING = Method(
    name="boosting",
    config=BoostingConfig,
    tasks=("regression", "classification"),
    stages={"student": StageSpec(fit)},
    rival=True,
    search={"learning_rate": (1e-2, 3e-1, "log"), "leaves": (4, 64, "integer")},
    weighs_rows=True,
    settings={"rounds": 1000, "learning_rate": 0.1, "leaves": 31, "folds": 5, "noise": "auto"},
    default=Default(1.0, suits=lambda size: size.image is None),
)
