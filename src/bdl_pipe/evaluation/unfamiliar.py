"""Store the outputs of a fit on a limited number of rows, for OOD scores.

For each fit, the probabilities, logits, features and evaluation's own scores of 1,500 training rows, 1,000 test rows
and 500 rows of each unfamiliar set are stored; the rows are drawn once for all runs on a data set. Features are in
float16, or in float32 if float16 cannot hold them. Features of a trunk wider than 128 are projected on 128 random
orthogonal directions, which nearly keep distances and angles (Johnson & Lindenstrauss 1984). ReAct clips each feature,
so that it is computed here, from all of them. The training rows are the training rows of a final fit.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Float
from torch import Tensor

from ..data.examples import Examples
from ..errors import DataError
from ..metrics.ood.arrays import react
from ..metrics.ood.predictives import ood_scores
from ..metrics.ood.rows import ORIGIN, OWN, REACT, TEST, TRAIN
from ..networks.last_layer import LastLayer
from ..posterior import FeaturesPosterior, Posterior, Predictor
from ..predictive import Categorical
from ..seeds import Seed
from .gathered import EvaluateConfig

MOST: Final = {TRAIN: 1_500, TEST: 1_000}
MOST_OTHERS: Final = 500
WIDEST: Final = 128


def kept(examples: Examples, name: str) -> tuple[np.ndarray, Examples]:
    """Return the numbers of the rows of a set that are stored, in their order, and these rows."""
    most, address = MOST.get(name, MOST_OTHERS), Seed(0).fold("unfamiliar rows", name)
    rows = np.arange(len(examples))
    if len(rows) > most:
        rows = np.sort(address.numpy().choice(len(rows), most, replace=False))
    return rows, Examples(examples.inputs[rows], examples.targets[rows])


def training_rows(examples: Examples) -> Examples:
    """Return the training rows that are stored."""
    return kept(examples, TRAIN)[1]


def last_layer(posterior: Posterior, inputs: Tensor, *, rng: Seed) -> LastLayer:
    """Return the features and logits of transformed inputs.

    Raises:
        DataError: the posterior has no features.
    """
    layer = _last_layer(posterior, inputs, rng)
    if layer is None:
        key = getattr(posterior, "key", type(posterior).__name__)
        raise DataError(f"a posterior {key} has no features: no last layer on a trunk that is known here")
    return layer


def _last_layer(posterior: Posterior, inputs: Tensor, rng: Seed) -> LastLayer | None:
    return posterior.last_layer(inputs, rng=rng) if isinstance(posterior, FeaturesPosterior) else None


def stored_rows(
    fitted: Predictor,
    train: Examples,
    test: Examples,
    others: Mapping[str, Examples],
    config: EvaluateConfig,
    rng: Seed,
    device: torch.device | str = "cpu",
) -> pa.Table | None:
    """Return the stored rows of a posterior of classes, or None for other posteriors.

    The columns are set, row, target (−1 on unfamiliar sets), log_probs, features and logits where the posterior has
    them, and ``score_…`` for each score of :func:`..metrics.ood.predictives.ood_scores` and, where the draws share
    their features and have a linear last layer, for :func:`..metrics.ood.react`. A row of the set ``origin`` holds the
    features at which the logits are nearest to 0.

    Args:
        train: all training rows, or :func:`training_rows` of them.
        others: name -> the rows of an unfamiliar set.

    Raises:
        Diverged: a prediction is not finite.
        DataError: a set has the name of another part of the table.
    """
    taken = {TRAIN, TEST, ORIGIN} & others.keys()
    if taken:
        raise DataError(f"an unfamiliar set must not have the name {taken.pop()}, which stored rows have")
    tables, of_train = list[dict[str, np.ndarray]](), list[LastLayer]()
    for name, examples in {TRAIN: train, TEST: test, **others}.items():
        rows, chosen = kept(examples, name)
        outputs = _outputs(fitted, chosen, config, rng, device)
        if outputs is None:
            return None
        part, layers = outputs
        of_train = layers if name == TRAIN else of_train
        if layers and layers[0].weight is not None:
            bias = None if layers[0].bias is None else layers[0].bias.numpy(force=True)
            fitted_to, of_rows = (
                torch.cat([one.features for one in some]).cpu().numpy() for some in (of_train, layers)
            )
            score = react(fitted_to, of_rows, layers[0].weight.numpy(force=True), bias)
            part |= {} if score is None else {f"{OWN}{REACT}": score.astype(np.float32)}
        target = chosen.targets if name in (TRAIN, TEST) else np.full(len(rows), -1)
        tables.append({"set": np.full(len(rows), name), "row": rows, "target": target.astype(np.int32), **part})
    return _table(tables)


def _outputs(
    fitted: Predictor, examples: Examples, config: EvaluateConfig, rng: Seed, device: torch.device | str
) -> tuple[dict[str, np.ndarray], list[LastLayer]] | None:
    """Return the columns of some rows, and the last layer at each batch of them; None for regression."""
    parts, layers = dict[str, list[np.ndarray]](), list[LastLayer]()
    for rows, predictive in fitted.batches(examples.inputs, config.batch, rng=rng, device=device):
        if not isinstance(predictive, Categorical):
            return None
        columns = {"log_probs": predictive.log_probs.cpu().numpy()}
        columns |= {f"{OWN}{name}": values.astype(np.float32) for name, values in ood_scores(predictive).items()}
        inputs = fitted.transform.inputs(examples.inputs[rows], device)
        layer = _last_layer(fitted.posterior, inputs, rng.fold("predict"))
        if layer is not None:
            width = layer.features.shape[1]
            projection = None if width <= WIDEST else _directions(width).to(layer.features)
            for name, features in (("features", layer.features), (ORIGIN, layer.origin)):
                if features is not None:
                    columns[name] = (features if projection is None else features @ projection).cpu().numpy()
            if layer.logits is not None:
                columns["logits"] = layer.logits.cpu().numpy()
            layers.append(layer)
        for name, values in columns.items():
            parts.setdefault(name, []).append(values)
    origin = parts.pop(ORIGIN, [])
    whole = {name: np.concatenate(values) for name, values in parts.items()}
    return whole | ({ORIGIN: origin[0]} if origin else {}), layers


def _directions(width: int) -> Float[Tensor, "width direction"]:
    """Return random directions at right angles, of length 1."""
    normal = torch.randn(width, WIDEST, generator=Seed(0).fold("unfamiliar directions", width).generator())
    return torch.linalg.qr(normal.double()).Q.float()


def _table(sets: list[dict[str, np.ndarray]]) -> pa.Table:
    """Return one table of all sets, with a row for the origin if it is known."""
    origin = [part.pop(ORIGIN) for part in sets if ORIGIN in part][:1]
    whole = {name: np.concatenate([part[name] for part in sets]) for name in sets[0]}
    if origin:
        classes = whole["log_probs"].shape[1]
        of_origin = {name: np.zeros_like(values[:1]) for name, values in whole.items()}
        of_origin |= {"set": np.array([ORIGIN]), "row": np.array([-1]), "target": np.array([-1], np.int32)}
        of_origin |= {"features": origin[0][None], "log_probs": np.full((1, classes), -np.log(classes), np.float32)}
        whole = {name: np.concatenate([values, of_origin[name]]) for name, values in whole.items()}
    if "features" in whole and np.abs(whole["features"]).max() < np.finfo(np.float16).max:
        whole["features"] = whole["features"].astype(np.float16)
    columns = {name: pa.array(values.ravel()) for name, values in whole.items()}
    for name, values in whole.items():
        if values.ndim == 2:
            columns[name] = pa.FixedSizeListArray.from_arrays(columns[name], values.shape[1])
    return pa.table(columns)
