"""RealMLP and TabM of pytabkit, trained for quantiles: a plugin with the methods realmlp and tabm_d.

RealMLP (Holzmüller, Grinsztajn & Steinwart 2024) and TabM (Gorishniy, Kotelnikov & Babenko 2025) predict a mean. Here
they are trained by pytabkit's pinball losses of five levels, and stop early by them on the validation rows; each
quantile is shifted until its level's share of the validation rows is below it, and the quantiles are joined to a
distribution.

pytabkit has no format of its models but pickles. So the state holds the rows of the fit, as TabPFN's does, and a
process that reads it fits the model again, with the same seed. Share the artifact only with people who may see the
rows.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas as pd
import torch

import bdl_pipe as bdl
from bdl_pipe.artifacts import under
from bdl_pipe.baselines.quantiles import SCORES, Quantiles, levels
from bdl_pipe.data.categories import Categories

LEAST = 1e-6  # the least variance, relative to the variance of the targets


@dataclass(frozen=True)
class PytabkitConfig:
    """``methods.realmlp`` and ``methods.tabm_d``; ``lr`` and ``epochs``: null takes pytabkit's own value."""

    lr: float | None
    epochs: int | None

    def __post_init__(self) -> None:
        bdl.require(self.lr is None or self.lr > 0, "lr", "must be > 0 or null", self.lr)
        bdl.require(self.epochs is None or self.epochs > 0, "epochs", "must be > 0 or null", self.epochs)


class PytabkitPosterior(bdl.StoredPosterior):
    """The rows ``train`` [row, column] and ``validation``, the targets of both, and the shifts [output, level]."""

    key = "pytabkit"

    def predict(self, inputs, *, rng):
        categories = Categories(under("categories.", self.tensors))
        rows = frame(categories(inputs.flatten(1).cpu()).numpy(), len(categories))
        about = self.state().config
        raw = [quantiles(self._fitted(output), rows) for output in range(about["outputs"])]
        return Quantiles.of(torch.stack(raw, 1) + self.tensors["shift"].cpu(), self.tensors["least"].cpu())

    def _fitted(self, output):
        about = self.state().config
        key = (about["name"], about["lr"], about["epochs"], about["seed"], output, about["categories"])
        parts = ("train", "train_targets", "validation", "validation_targets")
        return fitted(key, *(self.tensors[name].cpu().numpy().tobytes() for name in parts), len(self.tensors["train"]))


@lru_cache(maxsize=4)  # a prediction in the process of the fit needs no second fit
def fitted(key, train, targets, validation, validation_targets, count):
    """Return the model of an output that is fitted to these rows, given as the bytes of float64 arrays."""
    from pytabkit import RealMLP_TD_Regressor, TabM_D_Regressor

    name, lr, epochs, seed, output, categories = key
    rows, held = (np.frombuffer(part).reshape(-1, len(np.frombuffer(train)) // count) for part in (train, validation))
    known, truth = (
        np.frombuffer(part).reshape(len(of), -1) for part, of in ((targets, rows), (validation_targets, held))
    )
    pinball = f"multi_pinball({','.join(map(str, levels()))})"
    options = {"lr": lr, "n_epochs": epochs, "train_metric_name": pinball, "val_metric_name": pinball}
    model = {"realmlp": RealMLP_TD_Regressor, "tabm_d": TabM_D_Regressor}[name](
        device="cpu", random_state=seed, n_threads=1, verbosity=0, **options
    )
    at = [f"x{i}" for i in range(categories)]
    more = {"X_val": frame(held, categories), "y_val": truth[:, output].astype(np.float32)} if len(held) else {}
    return model.fit(frame(rows, categories), known[:, output].astype(np.float32), cat_col_names=at, **more)


def frame(rows, categories):
    """Return rows as pytabkit takes them: a category as text."""
    table = pd.DataFrame(rows.astype(np.float32), columns=[f"x{i}" for i in range(rows.shape[1])])
    return table.astype({f"x{i}": int for i in range(categories)}).astype({f"x{i}": str for i in range(categories)})


def quantiles(model, rows):
    """Return the model's quantiles [row, level]."""
    return torch.from_numpy(np.asarray(model.predict(rows), dtype=np.float64)).reshape(len(rows), len(SCORES))


def fitter(name):
    def fit(data, inputs, config, *, rng, report):
        """Fit a model of each output, and shift its quantiles by the validation rows."""
        own, move = data.search or data, data.transform  # all rows in the units of later predictions
        parts = {"train": own.train, "validation": own.validation}
        moved = {part: move.rows(rows.inputs, rows.targets) for part, rows in parts.items()}
        categories = Categories.of(move, moved["train"][0].flatten(1).shape[1])
        tensors = {f"categories.{key}": values for key, values in categories.tensors.items()}
        for part, (x, y) in moved.items():
            tensors |= {part: categories(x.flatten(1)), f"{part}_targets": y.double()}
        about = {"posterior": PytabkitPosterior.key, "name": name, "lr": config.lr, "epochs": config.epochs}
        about |= {"outputs": data.outputs, "seed": rng.integer() % 2**31, "categories": len(categories)}
        shift, spread = torch.zeros(data.outputs, len(SCORES)).double(), tensors["train_targets"].var(0)
        state = bdl.State(tensors | {"shift": shift, "least": (LEAST * spread.clamp_min(LEAST)).sqrt()}, about)
        posterior = PytabkitPosterior(state)
        for output in range(data.outputs):
            model = posterior._fitted(output)
            if len(own.validation):
                left = tensors["validation_targets"][:, output, None] - quantiles(
                    model, frame(tensors["validation"].numpy(), len(categories))
                )
                shift[output] = torch.tensor([left[:, k].quantile(level) for k, level in enumerate(levels())])
            report(output + 1, data.outputs)
        return bdl.State(state.tensors | {"shift": shift}, about)

    return fit


bdl.register_posterior(PytabkitPosterior)
for name in ("realmlp", "tabm_d"):
    bdl.register_method(
        bdl.Method(
            name=name,
            config=PytabkitConfig,
            tasks=("regression",),
            stages={"student": bdl.StageSpec(fitter(name))},
            search={"lr": (1e-3, 1e-1, "log") if name == "realmlp" else (3e-4, 5e-3, "log")},
            default=bdl.Default(20.0, suits=lambda size: size.image is None and size.train <= 20_000),
        )
    )
