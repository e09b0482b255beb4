"""Read the rows that evaluation stores for OOD scores, and compute the scores of these rows.

for (split, seed), fit in read(Path("work/evaluate/fashion_mnist-swag/unfamiliar.parquet")):
    print(split, seed, scores_of(fit)["energy"]["mnist5k"])
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from jaxtyping import Float, Int

from ...errors import DataError
from ...plugins import PluginError, Registered
from ...scores import by_fit
from . import arrays

TRAIN, TEST, ORIGIN = "train", "test", "origin"
REACT: Final = "react"  # computed by evaluation, which has the features of all directions and the last layer's weights
OWN: Final = "score_"  # prefix of the columns of scores that evaluation computed
_ALWAYS: Final = ("split", "seed", "set", "row", "target", "log_probs")


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of one set, with one fit's outputs.

    Attributes:
        log_probs: the logarithms of the predicted probabilities.
        labels: the classes of training and test rows; −1 for other rows.
        features: the inputs of the last layer; None if the posterior has no such layer.
        logits: the outputs of the last layer; None if the posterior has no such layer.
        origin: the features at which the logits are nearest to 0; None if the last layer is not linear.
        own: scores that evaluation computed: the registered scores, the method's own, and ReAct.
    """

    log_probs: Float[np.ndarray, "row class"]
    labels: Int[np.ndarray, " row"]
    features: Float[np.ndarray, "row width"] | None = None
    logits: Float[np.ndarray, "row class"] | None = None
    origin: Float[np.ndarray, " width"] | None = None
    own: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.log_probs)


@dataclass(frozen=True, eq=False)
class StoredFit:
    """The stored rows of one fit: training rows, test rows, and the rows of each unfamiliar set."""

    train: Rows
    test: Rows
    others: Mapping[str, Rows]


@dataclass(frozen=True)
class StoredScore:
    """A score that is computed from stored rows.

    Attributes:
        label: its title in a table.
        of: (training rows, rows) -> [row], high if a row looks like the training data; None if the rows lack a field
            that the score needs.
    """

    label: str
    of: Callable[[Rows, Rows], np.ndarray | None]


def _of_logits(score: Callable[[np.ndarray], np.ndarray]) -> Callable[[Rows, Rows], np.ndarray | None]:
    return lambda train, rows: None if rows.logits is None else score(rows.logits)


def _of_features(score: Callable[[Any, Any], np.ndarray | None]) -> Callable[[Rows, Rows], np.ndarray | None]:
    return lambda train, rows: None if train.features is None or rows.features is None else score(train, rows)


@lru_cache(maxsize=1)  # for both of Mahalanobis' scores
def _distance(train: Any, rows: Any) -> np.ndarray:
    return arrays.class_distance(train.features, train.labels, rows.features)


def _relative(train: Any, rows: Any) -> np.ndarray:
    return -(_distance(train, rows) - arrays.whole_distance(train.features, rows.features))


def _vim(train: Any, rows: Any) -> np.ndarray | None:
    if train.logits is None or train.origin is None:
        return None
    return arrays.vim(train.features, train.logits, rows.features, rows.logits, train.origin)


SCORES: Final[Registered[StoredScore]] = Registered(
    "score of stored rows",
    {
        "max_softmax": StoredScore("Max softmax", lambda train, rows: arrays.max_softmax(rows.log_probs)),
        "max_logit": StoredScore("Max logit", _of_logits(arrays.max_logit)),
        "entropy": StoredScore("Entropy", lambda train, rows: arrays.entropy(rows.log_probs)),
        "energy": StoredScore("Energy", _of_logits(arrays.energy)),
        REACT: StoredScore("ReAct", lambda train, rows: rows.own.get(REACT)),
        "gen": StoredScore("GEN", lambda train, rows: arrays.gen(rows.log_probs)),
        "kl_matching": StoredScore("KL", lambda train, rows: arrays.kl_matching(train.log_probs, rows.log_probs)),
        "mahalanobis": StoredScore("Mahalanobis", _of_features(lambda train, rows: -_distance(train, rows))),
        "relative_mahalanobis": StoredScore("Relative Mahalanobis", _of_features(_relative)),
        "nearest": StoredScore(
            "Nearest neighbours", _of_features(lambda train, rows: arrays.nearest(train.features, rows.features))
        ),
        "vim": StoredScore("ViM", _of_features(_vim)),
    },
)
_KNOWN_AS: Final = {"max_prob": "max_softmax"}  # evaluation's name of a score -> its name here


def register_stored_score(name: str, label: str, of: Callable[[Rows, Rows], np.ndarray | None]) -> None:
    """Add a score of stored rows, which the tables then have; nothing is fitted or predicted again.

    Raises:
        PluginError: ``of`` is no function, or the name is taken.
    """
    if not callable(of):
        raise PluginError(f"the score {name} must be a function of training rows and rows, got {of!r}")
    SCORES.add(name, StoredScore(label, of), of.__module__)


def label_of(name: str) -> str:
    """Return the title of a score in a table."""
    return SCORES[name].label if name in SCORES else name.replace("_", " ").capitalize()


def scores_of(fit: StoredFit) -> dict[str, dict[str, np.ndarray]]:
    """Return score -> set -> [row] of the test rows and each unfamiliar set: the registered scores, then the own ones.

    Raises:
        PluginError: a score is not one finite number for each row.
    """
    parts = {TEST: fit.test, **fit.others}
    ends = np.cumsum([len(rows) for rows in parts.values()])[:-1]
    together = _together(list(parts.values()))  # so that each score is fitted once
    scores = {name: values for name, score in SCORES.items() if (values := score.of(fit.train, together)) is not None}
    for name, values in together.own.items():
        scores.setdefault(_KNOWN_AS.get(name, name), values)
    for name, values in scores.items():
        if np.shape(values) != (len(together),) or np.isnan(values).any():
            raise PluginError(f"the score {name} must be one number for each of {len(together)} rows, got others")
    return {name: dict(zip(parts, np.split(np.asarray(values), ends), strict=True)) for name, values in scores.items()}


def read(path: Path) -> Iterator[tuple[tuple[int, int], StoredFit]]:
    """Yield ((split, seed), stored rows) of each fit in a file that evaluation wrote.

    Raises:
        DataError: the file is no such table.
    """
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise DataError(f"{path} must be a table of stored rows: {error}") from error
    missing = {*_ALWAYS} - {*table.column_names}
    if missing:
        raise DataError(f"{path} must have the columns {', '.join(_ALWAYS)}, got no {sorted(missing)}")
    for at, rows in by_fit(table):
        yield at, of_table(rows)


def of_table(table: pa.Table) -> StoredFit:
    """Return the stored rows of one fit.

    Raises:
        DataError: there are no training rows or no test rows.
    """
    sets = {name: _rows(table.filter(pc.field("set") == name)) for name in table["set"].unique().to_pylist()}
    origin = sets.pop(ORIGIN, None)
    if not {TRAIN, TEST} <= sets.keys():
        raise DataError(f"stored rows must have the sets {TRAIN} and {TEST}, got {', '.join(sets) or 'none'}")
    train = sets.pop(TRAIN)
    if origin is not None and origin.features is not None:
        train = replace(train, origin=origin.features[0])
    return StoredFit(train, sets.pop(TEST), sets)


def _rows(table: pa.Table) -> Rows:
    matrices, scores = dict[str, np.ndarray](), dict[str, np.ndarray]()
    for name in table.column_names:
        if name in ("log_probs", "features", "logits"):
            column = table[name].combine_chunks()
            width = column.type.list_size
            matrices[name] = column.flatten().to_numpy(zero_copy_only=False).reshape(-1, width)
        elif name.startswith(OWN):
            scores[name.removeprefix(OWN)] = table[name].to_numpy()
    return Rows(labels=table["target"].to_numpy(), own=scores, **matrices)


def _together(parts: list[Rows]) -> Rows:
    def joined(name: str) -> np.ndarray | None:
        values = [getattr(part, name) for part in parts]
        return None if any(value is None for value in values) else np.concatenate(values)

    scores = {name: np.concatenate([part.own[name] for part in parts]) for name in parts[0].own}
    log_probs, labels = joined("log_probs"), joined("labels")
    assert log_probs is not None and labels is not None
    return Rows(log_probs, labels, joined("features"), joined("logits"), None, scores)
