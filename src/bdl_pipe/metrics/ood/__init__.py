"""OOD scores: scores of how unfamiliar a row is, from stored arrays, and how well they detect rows of other data sets.

:mod:`.predictives` has the scores of predictives, :mod:`.arrays` the scores as functions of arrays, :mod:`.rows`
computes them from the rows that evaluation stores, :mod:`.areas` has areas with their errors, and :mod:`.table` the
tables of runs by scores.
"""

from .areas import Area, area
from .arrays import (
    energy,
    entropy,
    gen,
    kl_matching,
    mahalanobis,
    max_logit,
    max_softmax,
    mutual_information,
    nearest,
    react,
    relative_mahalanobis,
    vim,
)
from .rows import SCORES, Rows, StoredFit, of_table, read, register_stored_score, scores_of
from .table import Result, frame, group_of, load, markdown, result, sentence, table, to_table

__all__ = [
    "SCORES",
    "Area",
    "Result",
    "Rows",
    "StoredFit",
    "area",
    "energy",
    "entropy",
    "frame",
    "gen",
    "group_of",
    "kl_matching",
    "load",
    "mahalanobis",
    "markdown",
    "max_logit",
    "max_softmax",
    "mutual_information",
    "nearest",
    "of_table",
    "react",
    "read",
    "register_stored_score",
    "relative_mahalanobis",
    "result",
    "scores_of",
    "sentence",
    "table",
    "to_table",
    "vim",
]
