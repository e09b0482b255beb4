"""CatBoost with its own categories (Prokhorenkova et al. 2018): a plugin with the method catboost_own.

The trees read a category's values, of which CatBoost makes ordered statistics of the targets. The predictive is a
Gaussian whose mean and variance are boosted (``RMSEWithUncertainty``), or classes; with ``draws`` > 1 it is a virtual
ensemble (Malinin, Prokhorenkova & Ustimenko 2021). Only the first fit stops early, on the validation rows; a second fit
to all rows takes its number of rounds.
"""

import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

import bdl_pipe as bdl
from bdl_pipe.artifacts import under
from bdl_pipe.data.categories import Categories

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


bdl.register_posterior(CatBoostOwnPosterior)
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
