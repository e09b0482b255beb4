"""CatBoost with its own categories (Prokhorenkova et al. 2018): the methods catboost_own and catboost_t, a plugin.

The trees read a category's values, of which CatBoost makes ordered statistics of the targets. The predictive is a
Gaussian whose mean and variance are boosted (``RMSEWithUncertainty``), or classes; with ``draws`` > 1 it is a virtual
ensemble (Malinin, Prokhorenkova & Ustimenko 2021). Only the first fit stops early, on the validation rows; a second fit
to all rows takes its number of rounds.

``catboost_t`` is regression by two models, f(x) + c s(x) t_ν: one of the mean, and one of the logarithm of the squared
residuals that a cross-validation left out; c and ν maximise the log-likelihood of these residuals.
"""

import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

import bdl_pipe as bdl
from bdl_pipe.artifacts import under
from bdl_pipe.baselines import student_noise
from bdl_pipe.data import units
from bdl_pipe.data.categories import Categories
from bdl_pipe.student_t import StudentT

LEAST = 1e-6  # the least squared residual, relative to the variance of the targets
ABSENT = -50.0  # log-probability of a class without a training row


@dataclass(frozen=True)
class CatBoostOwnConfig:
    """``methods.catboost_own``; ``draws``: models in the virtual ensemble, at most half of the trees."""

    rounds: int
    learning_rate: float
    depth: int
    l2: float
    patience: int
    draws: int

    def __post_init__(self) -> None:
        bdl.require(self.rounds > 0, "rounds", "must be > 0", self.rounds)
        bdl.require(0 < self.learning_rate <= 1, "learning_rate", "must be in (0, 1]", self.learning_rate)
        bdl.require(0 < self.depth <= 16, "depth", "must be from 1 to 16", self.depth)
        bdl.require(self.l2 >= 0, "l2", "must be >= 0", self.l2)
        bdl.require(self.patience > 0, "patience", "must be > 0", self.patience)
        bdl.require(self.draws > 0, "draws", "must be > 0", self.draws)


class CatBoostOwnPosterior(bdl.StoredPosterior):
    """The bytes of one model for each output, or of one for all classes, in CatBoost's own format."""

    key = "catboost_own"

    def __init__(self, state, device="cpu"):
        from catboost import CatBoost

        super().__init__(state, device)
        models = under("model.", state.tensors)
        self._categories = Categories(under("categories.", state.tensors))
        self._models = [CatBoost().load_model(blob=models[str(i)].numpy().tobytes()) for i in range(len(models))]

    def predict(self, inputs, *, rng):
        rows, about = given(self._categories, inputs.flatten(1).cpu()), self.state().config
        draws = [self._draws(model, rows, about["draws"]) for model in self._models]
        if not about["classes"]:
            mean, variance = torch.stack(draws, 2).to(inputs).unbind(-1)  # [draw, row, output]
            return bdl.Gaussian(mean, variance)
        every = torch.full((*draws[0].shape[:2], about["outputs"]), ABSENT, dtype=torch.float64)
        every[..., about["classes"]] = draws[0].log_softmax(-1)
        return bdl.Categorical(every.log_softmax(-1).to(inputs))

    @staticmethod
    def _draws(model, rows, draws):
        """Return the predictions of a virtual ensemble [draw, row, value]."""
        count = max(1, min(draws, model.tree_count_ // 2))
        found = model.virtual_ensembles_predict(rows, prediction_type="VirtEnsembles", virtual_ensembles_count=count)
        return torch.from_numpy(np.array(found)).reshape(len(rows), count, -1).transpose(0, 1)


def given(categories, inputs):
    """Return rows as CatBoost takes them: a category as a whole number, −1 for none."""
    rows = categories(inputs).numpy().astype(object)
    rows[:, : len(categories)] = rows[:, : len(categories)].astype(int)
    return rows


def fit(data, inputs, config, *, rng, report):
    """Fit one model for each output, or one for all classes."""
    rows, labels = data.tensors("train")
    categories = Categories.of(data.transform, rows.flatten(1).shape[1])
    classes = labels.unique().tolist() if data.task == "classification" else []
    if len(classes) == 1:
        raise bdl.DataError(f"catboost_own: the training rows must be of two classes at least, all are of {classes[0]}")
    about = {"posterior": CatBoostOwnPosterior.key, "classes": classes, "outputs": data.outputs, "draws": config.draws}
    tensors, count = {f"categories.{name}": v for name, v in categories.tensors.items()}, 1 if classes else data.outputs
    for output in range(count):
        seed = rng.fold("output", output).integer() % 2**31
        search = data.search or data
        own = Categories.of(search.transform, len(categories.middle))
        model = booster(data.task, config, chosen_rounds(search, output, config, seed, own), seed, len(categories))
        model.fit(*numbers(data, "train", output, categories))
        tensors[f"model.{output}"] = torch.from_numpy(np.frombuffer(written(model), dtype=np.uint8).copy())
        report(output + 1, count)
    return bdl.State(tensors, about | {"settings": asdict(config)})


def chosen_rounds(data, output, config, seed, categories):
    """The number of rounds of the best score of the validation rows of classes that can be scored."""
    rows, targets = numbers(data, "train", output, categories)
    known, truth = numbers(data, "validation", output, categories)
    if data.task == "classification":
        there = np.isin(truth, targets)
        known, truth = known[there], truth[there]
    if not len(known) or len(np.unique(targets)) == 1:
        return config.rounds
    model = booster(data.task, config, config.rounds, seed, len(categories))
    return model.fit(rows, targets, eval_set=(known, truth), early_stopping_rounds=config.patience).tree_count_


def booster(task, config, rounds, seed, categories):
    from catboost import CatBoostClassifier, CatBoostRegressor

    options = {
        "iterations": rounds,
        "learning_rate": config.learning_rate,
        "depth": config.depth,
        "l2_leaf_reg": config.l2,
        "posterior_sampling": config.draws > 1,
        "cat_features": list(range(categories)),
        "random_seed": seed,
        "thread_count": 1,
        "allow_writing_files": False,
        "verbose": False,
    }
    if config.draws > 1:  # Langevin boosting has a rule of its own for the regularisation
        del options["l2_leaf_reg"]
    if task == "regression":
        return CatBoostRegressor(loss_function="RMSEWithUncertainty", **options)
    return CatBoostClassifier(loss_function="MultiClass", **options)


def numbers(data, part, output, categories):
    rows, targets = data.tensors(part)
    labels = targets if data.task == "classification" else targets[:, output]
    return given(categories, rows.flatten(1)), labels.numpy()


def written(model):
    with tempfile.TemporaryDirectory() as folder:
        model.save_model(f"{folder}/model.cbm", format="cbm")
        return (Path(folder) / "model.cbm").read_bytes()


@dataclass(frozen=True)
class CatBoostTConfig:
    """``methods.catboost_t``; ``folds``: of the cross-validation, each of which stops early."""

    rounds: int
    learning_rate: float
    depth: int
    l2: float
    patience: int
    folds: int

    def __post_init__(self) -> None:
        bdl.require(self.folds > 1, "folds", "must be > 1", self.folds)
        CatBoostOwnConfig(self.rounds, self.learning_rate, self.depth, self.l2, self.patience, 1)


class CatBoostTPosterior(bdl.StoredPosterior):
    """The bytes of the models ``<output>.mean`` and ``<output>.log_square``, the factors c² and ν."""

    key = "catboost_t"

    def __init__(self, state, device="cpu"):
        from catboost import CatBoost

        super().__init__(state, device)
        self._categories = Categories(under("categories.", state.tensors))
        texts = {name: values for name, values in state.tensors.items() if values.dtype == torch.uint8}
        self._models = {name: CatBoost().load_model(blob=values.numpy().tobytes()) for name, values in texts.items()}

    def predict(self, inputs, *, rng):
        rows, outputs = given(self._categories, inputs.flatten(1).cpu()), range(self.state().config["outputs"])
        mean, log_square = (
            torch.stack([torch.from_numpy(self._models[f"{i}.{part}"].predict(rows)) for i in outputs], -1)[None]
            for part in ("mean", "log_square")
        )
        return StudentT(mean, log_square.exp() * self.tensors["factor"].cpu(), float(self.tensors["degrees"]))


def fit_t(data, inputs, config, *, rng, report):
    """Fit the mean and the logarithm of the squares of one output after another, then ν."""
    rows, targets = data.tensors("train")
    categories, scaled = Categories.of(data.transform, rows.flatten(1).shape[1]), []
    coded, pairs = given(categories, rows.flatten(1)), list(left_out(data, config.folds, rng.fold("folds")))
    tensors = {f"categories.{name}": values for name, values in categories.tensors.items()}
    for output, column in enumerate(targets.double().numpy().T):
        seed = rng.fold("output", output).integer() % 2**31
        mean, predicted = cross_fitted(coded, column, pairs, config, seed, len(categories))
        square = np.maximum((column - predicted) ** 2, LEAST * max(float(column.var()), LEAST))
        log_square, level = cross_fitted(coded, np.log(square), pairs, config, seed, len(categories))
        for part, model in (("mean", mean), ("log_square", log_square)):
            tensors[f"{output}.{part}"] = torch.from_numpy(np.frombuffer(written(model), dtype=np.uint8).copy())
        known = ~np.isnan(level)
        scaled.append(np.sqrt(square[known] / np.exp(level[known])))
        report(output + 1, data.outputs)
    noise = student_noise.fit(scaled)
    tensors |= {
        "factor": torch.tensor(noise.factors).double().square(),
        "degrees": torch.tensor(noise.degrees).double(),
    }
    return bdl.State(
        tensors, {"posterior": CatBoostTPosterior.key, "outputs": data.outputs, "settings": asdict(config)}
    )


def left_out(data, count, rng):
    """Yield the rows of each cross-validated fit, and the rows that it leaves out."""
    if data.train.units is not None:
        of_row = units.folds(data.train.units, count, ordered=data.ordered, rng=rng)
    else:
        of_row = np.empty(len(data.train), dtype=int)
        of_row[torch.randperm(len(of_row), generator=rng.generator()).numpy()] = np.arange(len(of_row)) % count
    yield from units.left_out(of_row, ordered=data.ordered)


def cross_fitted(rows, targets, pairs, config, seed, categories):
    """Return a model of all rows, and the predictions of left-out rows, NaN where the targets are NaN."""
    from catboost import CatBoostRegressor

    options = {
        "learning_rate": config.learning_rate,
        "depth": config.depth,
        "l2_leaf_reg": config.l2,
        "random_seed": seed,
        "cat_features": list(range(categories)),
        "thread_count": 1,
        "allow_writing_files": False,
        "verbose": False,
    }
    there, models = ~np.isnan(targets), []
    for rest, out in pairs:
        rest, out = rest[there[rest]], out[there[out]]
        if len(rest) and len(out):
            model = CatBoostRegressor(iterations=config.rounds, use_best_model=False, **options)
            held = (rows[out], targets[out])
            model.fit(rows[rest], targets[rest], eval_set=held, early_stopping_rounds=config.patience)
            models.append((model, out))
    rounds = max(1, round(float(np.mean([model.get_best_iteration() + 1 for model, _ in models]))))
    found = np.full(len(targets), np.nan)
    for model, out in models:
        found[out] = model.predict(rows[out], ntree_end=min(rounds, model.tree_count_))
    return CatBoostRegressor(iterations=rounds, **options).fit(rows[there], targets[there]), found


bdl.register_posterior(CatBoostOwnPosterior)
bdl.register_posterior(CatBoostTPosterior)
bdl.register_method(
    bdl.Method(
        name="catboost_t",
        config=CatBoostTConfig,
        tasks=("regression",),
        stages={"student": bdl.StageSpec(fit_t)},
        search={"learning_rate": (1e-2, 3e-1, "log"), "depth": (4, 10, "integer"), "l2": (1.0, 30.0, "log")},
        default=bdl.Default(6.0, suits=lambda size: size.image is None),
    )
)
bdl.register_method(
    bdl.Method(
        name="catboost_own",
        config=CatBoostOwnConfig,
        tasks=("regression", "classification"),
        stages={"student": bdl.StageSpec(fit)},
        search={"learning_rate": (1e-2, 3e-1, "log"), "depth": (4, 10, "integer"), "l2": (1.0, 30.0, "log")},
        default=bdl.Default(1.0, suits=lambda size: size.image is None),
    )
)
