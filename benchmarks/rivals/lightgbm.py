"""LightGBM (Ke et al. 2017) with a predictive distribution: the methods lightgbm_t and lightgbm_quantiles, a plugin.

Trees split by a category's own values. The number of rounds is the mean over the folds of a cross-validation, each of
which stops early; the model is then fitted to all rows. The distribution comes from the residuals of left-out rows:

- ``lightgbm_t``: f(x) + c s(x) t_ν. s² is boosted on the squared residuals with the deviance of a gamma distribution,
  or constant, whichever is better for left-out rows, and never leaves the range that it has on them, since a leaf of
  few rows can give any value; c and ν maximise their log-likelihood. LightGBMLSS boosts the parameters of a t
  together; this does not, and is named after what it does.
- ``lightgbm_quantiles``: five boosted quantiles, each shifted to its level on left-out rows, joined to a distribution.

LightGBM's models are stored as their own text, so that nothing is unpickled.
"""

import math
from dataclasses import asdict, dataclass

import numpy as np
import torch

import bdl_pipe as bdl
from bdl_pipe.artifacts import under
from bdl_pipe.baselines import student_noise
from bdl_pipe.baselines.quantiles import SCORES, Quantiles, levels
from bdl_pipe.data import units
from bdl_pipe.data.categories import NONE, Categories
from bdl_pipe.student_t import StudentT

LEAST = 1e-6  # the least variance, relative to the variance of the targets


@dataclass(frozen=True)
class LightGBMConfig:
    """``methods.lightgbm_t`` and ``methods.lightgbm_quantiles``.

    ``rounds``: at most; ``leaves`` and ``leaf_rows``: of a tree, and the fewest rows in a leaf; ``row_share`` and
    ``column_share``: drawn for each tree; ``patience``: rounds without a better score; ``folds``: of cross-validation.
    """

    rounds: int
    learning_rate: float
    leaves: int
    leaf_rows: int
    row_share: float
    column_share: float
    patience: int
    folds: int

    def __post_init__(self) -> None:
        for name, least in (("rounds", 0), ("leaf_rows", 0), ("patience", 0), ("leaves", 1), ("folds", 1)):
            bdl.require(getattr(self, name) > least, name, f"must be > {least}", getattr(self, name))
        for name in ("learning_rate", "row_share", "column_share"):
            bdl.require(0 < getattr(self, name) <= 1, name, "must be in (0, 1]", getattr(self, name))


class LightGBMPosterior(bdl.StoredPosterior):
    """The texts of models, named ``<output>.mean``, ``<output>.variance`` or ``<output>.<level>``, and constants."""

    key = "lightgbm"

    def __init__(self, state, device="cpu"):
        import lightgbm

        super().__init__(state, device)
        self._categories = Categories(under("categories.", state.tensors))
        texts = {name: values for name, values in state.tensors.items() if values.dtype == torch.uint8}
        self._models = {
            name: lightgbm.Booster(model_str=values.cpu().numpy().tobytes().decode()) for name, values in texts.items()
        }

    def predict(self, inputs, *, rng):
        about, rows = self.state().config, given(self._categories, inputs.flatten(1).cpu())
        outputs = range(about["outputs"])
        if about["head"] == "quantiles":
            raw = [[self._sums(f"{i}.{k}", rows) for k in range(len(SCORES))] for i in outputs]
            values = torch.stack([torch.stack(of_output, -1) for of_output in raw], 1)
            return Quantiles.of(values + self.tensors["shift"].cpu(), self.tensors["least"].cpu())
        mean = torch.stack([self._sums(f"{i}.mean", rows) for i in outputs], -1)
        parts = [self._log_variance(i, rows) if f"{i}.variance" in self._models else 0.0 for i in outputs]
        log_scale = torch.stack(
            [
                self.tensors["log_scale"][i].cpu() + part * torch.ones(len(rows))
                for i, part in zip(outputs, parts, strict=True)
            ],
            -1,
        )
        return StudentT(mean[None].double(), log_scale[None].double().exp(), float(self.tensors["degrees"]))

    def _log_variance(self, output, rows):
        least, most = self.tensors[f"{output}.range"].tolist()
        return self._sums(f"{output}.variance", rows).clamp(least, most)

    def _sums(self, name, rows):
        return torch.from_numpy(np.asarray(self._models[name].predict(rows, raw_score=True, num_threads=1)))


class Folds:
    """Cross-validated boosting of one split's rows."""

    def __init__(self, data, config, rng):
        rows, self.targets = (values.flatten(1) for values in data.tensors("train"))
        self.config, self.categories = config, Categories.of(data.transform, rows.shape[1])
        self.rows, self._seed = given(self.categories, rows), rng.fold("trees").integer() % 2**31
        if data.train.units is None:
            of_row = np.empty(len(rows), dtype=int)
            of_row[torch.randperm(len(rows), generator=rng.fold("folds").generator()).numpy()] = (
                np.arange(len(rows)) % config.folds
            )
        else:
            of_row = units.folds(data.train.units, config.folds, ordered=data.ordered, rng=rng.fold("folds"))
        self._pairs = list(units.left_out(of_row, ordered=data.ordered))

    def solve(self, objective, targets, **more):
        """Return the text of the model of all rows, and the left-out sums, NaN where the targets are NaN."""
        import lightgbm

        there, models = ~np.isnan(targets), []
        for rest, out in self._pairs:
            rest, out = rest[there[rest]], out[there[out]]
            if not len(rest) or not len(out):
                continue
            stop = lightgbm.early_stopping(self.config.patience, verbose=False)
            held = lightgbm.Dataset(self.rows[out], targets[out], reference=(train := self._set(rest, targets)))
            options = self._options(objective, more)
            model = lightgbm.train(options, train, self.config.rounds, valid_sets=[held], callbacks=[stop])
            models.append((model, out))
        rounds = max(1, round(float(np.mean([model.best_iteration for model, _ in models]))))
        left_out = np.full(len(targets), np.nan)
        for model, out in models:
            left_out[out] = model.predict(self.rows[out], raw_score=True, num_iteration=rounds, num_threads=1)
        whole = lightgbm.train(self._options(objective, more), self._set(np.flatnonzero(there), targets), rounds)
        return torch.tensor(list(whole.model_to_string().encode()), dtype=torch.uint8), left_out

    def _set(self, rows, targets):
        import lightgbm

        places = list(range(len(self.categories)))
        return lightgbm.Dataset(self.rows[rows], targets[rows], categorical_feature=places, free_raw_data=False)

    def _options(self, objective, more):
        config = self.config
        return {
            "objective": objective,
            "learning_rate": config.learning_rate,
            "num_leaves": config.leaves,
            "min_data_in_leaf": config.leaf_rows,
            "bagging_fraction": config.row_share,
            "bagging_freq": int(config.row_share < 1),
            "feature_fraction": config.column_share,
            "seed": self._seed,
            "deterministic": True,
            "force_row_wise": True,
            "num_threads": 1,
            "verbosity": -1,
        } | more


def given(categories, inputs):
    """Return rows as LightGBM takes them: a code of a category, or NaN for none."""
    rows = categories(inputs).numpy()
    return np.where(categories.mask.numpy() & (rows == NONE), np.nan, rows)


def started(data, config, rng, head):
    folds = Folds(data, config, rng)
    tensors = {f"categories.{name}": values for name, values in folds.categories.tensors.items()}
    about = {"posterior": LightGBMPosterior.key, "outputs": data.outputs, "head": head, "settings": asdict(config)}
    return folds, tensors, about


def fit_t(data, inputs, config, *, rng, report):
    """Fit the means and the scales of one output after another, then ν."""
    (folds, tensors, about), scaled, log_scales = started(data, config, rng, "t"), [], []
    for output, column in enumerate(folds.targets.double().numpy().T):
        tensors[f"{output}.mean"], left_out = folds.solve("regression", column)
        squared = np.maximum((column - left_out) ** 2, LEAST * max(float(column.var()), LEAST))
        there = ~np.isnan(squared)
        constant, one = math.log(float(squared[there].mean())), squared[there]
        text, log_variance = folds.solve("gamma", squared)
        there = there & ~np.isnan(log_variance)
        each = squared[there] / np.exp(log_variance[there])
        boosted = student_noise.fit([np.sqrt(each)]).density - log_variance[there].mean() / 2
        if boosted > student_noise.fit([np.sqrt(one / math.exp(constant))]).density - constant / 2:
            tensors[f"{output}.variance"] = text
            tensors[f"{output}.range"] = torch.tensor([log_variance[there].min(), log_variance[there].max()])
            scaled.append(np.sqrt(each))
            log_scales.append(0.0)
        else:
            scaled.append(np.sqrt(one / math.exp(constant)))
            log_scales.append(constant)
        report(output + 1, data.outputs)
    noise = student_noise.fit(scaled)
    log_scale = torch.tensor(log_scales).double() + 2 * torch.tensor(noise.factors).double().log()
    return bdl.State(tensors | {"log_scale": log_scale, "degrees": torch.tensor(noise.degrees).double()}, about)


def fit_quantiles(data, inputs, config, *, rng, report):
    """Fit the quantiles of one output after another."""
    folds, tensors, about = started(data, config, rng, "quantiles")
    columns = folds.targets.double().numpy().T
    shift = np.zeros((len(columns), len(SCORES)))
    for output, column in enumerate(columns):
        for number, level in enumerate(levels()):
            text, left_out = folds.solve("quantile", column, alpha=level)
            tensors[f"{output}.{number}"] = text
            shift[output, number] = np.nanquantile(column - left_out, level)
        report(output + 1, data.outputs)
    least = np.sqrt(LEAST * np.maximum(columns.var(1), LEAST))
    return bdl.State(tensors | {"shift": torch.from_numpy(shift), "least": torch.from_numpy(least)}, about)


bdl.register_posterior(LightGBMPosterior)
for name, fit in (("lightgbm_t", fit_t), ("lightgbm_quantiles", fit_quantiles)):
    bdl.register_method(
        bdl.Method(
            name=name,
            config=LightGBMConfig,
            tasks=("regression",),
            stages={"student": bdl.StageSpec(fit)},
            search={
                "learning_rate": (1e-2, 2e-1, "log"),
                "leaves": (4, 128, "integer"),
                "leaf_rows": (3, 60, "integer"),
                "row_share": (0.5, 1.0, "linear"),
                "column_share": (0.4, 1.0, "linear"),
            },
            default=bdl.Default(1.0, suits=lambda size: size.image is None),
        )
    )
