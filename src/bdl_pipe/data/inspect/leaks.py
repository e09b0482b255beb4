"""Doubts whether random test rows tell how well new rows are predicted: a line each, with the command that helps.

Groups, dates, equal rows and telling columns are searched for. A doubt about groups or dates needs an effect
(intraclass correlation) and a significance: if targets do not depend on a column, an F test on ranks (normal errors,
independent rows) raises a doubt about it with probability 1e-6. Doubts about equal rows and telling columns have
thresholds of size alone. No result of a fit depends on this module.

Rates on random tables (benchmarks/doubts.py, 100 of each kind). Of 800 clean tables none had a doubt; if a feature that
moves the target drifts along years, 7 of 100 had one about the years. Of 100 tables with a leak of random strength the
doubt was raised about an identifier in 80, about units with two constant columns in 78, about texts whose rows are near
each other in 9, about dates in 87, about copies in 88 (not in a table of one feature with classes), of rows with equal
features and another target in 37 (40 of the others were copies), about a near copy of the target in 66. The rule of
nearest rows alone raises the doubt about 3 of 24 panels, the other two rules of groups about 8.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from ...seeds import Seed
from ..tables.kinds import Features

_SIGNIFICANCE: Final = np.log(1e-6)
_ALIKE: Final = 0.1  # the least intraclass correlation of targets of a group's rows
_DRIFT: Final = 0.05  # and of residuals of a period's rows
_PERIODS: Final = 10
_GROUPS: Final = 15  # fewer values are categories
_LARGEST: Final = 0.2  # the largest share of rows of one group
_NEAREST: Final = 0.85  # the least share of rows whose nearest row is of their group
_PROBES, _COMPARED, _OF_GROUP, _COLUMNS = 200, 4_000, 30, 60  # rows and columns that are compared, to take seconds
_MODELLED: Final = 5_000  # rows of the linear model of residuals
_SLOTS: Final = 20  # categories of a column in this model
_EQUAL: Final = 0.01  # the least share of equal rows
_MEASURED: Final = 0.3  # the least intraclass correlation of residuals of rows with equal features
_CHANCE: Final = 5  # the least factor by which equal rows exceed those of a shuffled column
_TELLS: Final = {"regression": 0.95, "classification": 0.98}  # 0.95: as a rank correlation of .999 does
_FEWEST: Final = 50  # rows of a telling column
_NAMES: Final = re.compile(r"(^|[ _.-])(?i:id|nr|no|key|uid|subject|patient|person|user|customer)$|[a-z]I[dD]$")
_TIMES: Final = re.compile(r"(?i)(^|[ _.-])(year|yr|jahr|ann[eé]e|año|anno)$")


@dataclass(frozen=True)
class Inspected:
    """A table's features, and its targets as ranks or, for each class, as 0 and 1 [column, n]."""

    features: Features
    answers: np.ndarray
    path: Path
    targets: Sequence[str]
    classes: bool

    @property
    def codes(self) -> dict[str, np.ndarray]:
        """Return the features' cells as numbers."""
        return {column.name: self.features.codes[column.name] for column in self.features.columns}


def doubts(
    features: Features, targets: Mapping[str, np.ndarray], path: Path, *, classes: bool, split: bool
) -> list[str]:
    """Return the doubts about a table.

    Args:
        targets: target -> its values, or labels, [n].
        classes: whether targets are labels.
        split: whether the user names a column of dates or groups; then these are not searched for.
    """
    values = np.stack(list(targets.values()))
    labels = np.unique(values)[: 2 * _SLOTS] if classes else ()
    answers = np.stack([values[0] == label for label in labels]) if classes else np.stack([*map(_ranks, values)])
    table = Inspected(features, answers.astype(float), path, tuple(targets), classes)
    lines = [line for name, answer in targets.items() for line in _tellers(table, name, answer)]
    lines += _equals(table, values)
    return lines if split else [*lines, *_groups(table), *_drifts(table)]


def _ranks(values: np.ndarray) -> np.ndarray:
    """Return ranks in (0, 1]; NaN for gaps."""
    from scipy.stats import rankdata

    return rankdata(values, nan_policy="omit") / len(values)


def tells(values: np.ndarray, answer: np.ndarray, *, classes: bool) -> float:
    """Return how nearly a column determines the answer: 1 for a function without jumps, about 0 for chance.

    Rows are sorted by the column, equal ones at random, and neighbours are compared: by the mean difference of their
    ranks (the coefficient of Chatterjee 2021, scaled to 1 also for few rows), or by the share with unequal classes.
    """
    there = np.flatnonzero(~np.isnan(values))
    if 2 * len(there) < len(values) or len(there) < _FEWEST:
        return 0.0
    shuffled = Seed(0).fold("ties").numpy().permutation(there)
    ordered = answer[shuffled[np.argsort(values[shuffled], kind="stable")]]
    if classes:
        shares = np.unique(ordered, return_counts=True)[1] / len(ordered)
        return float(1 - (ordered[1:] != ordered[:-1]).mean() / max(1 - (shares**2).sum(), 1e-12))
    ranks = _ranks(ordered)
    places, count = np.sort(ranks), len(ranks)
    chance = 2 * ((2 * np.arange(1, count + 1) - count - 1) * places).sum() / (count * (count - 1))
    least = np.ptp(ranks) / (count - 1)
    return float((chance - np.abs(np.diff(ranks)).mean()) / max(chance - least, 1e-12))


def _tellers(table: Inspected, target: str, answer: np.ndarray) -> Iterator[str]:
    if len(table.codes) < 2:  # a function of one column is no leak
        return
    least = _TELLS["classification" if table.classes else "regression"]
    for name, values in table.codes.items():
        if tells(values, answer, classes=table.classes) >= least:
            yield f"{name} alone nearly determines {target}: if unknown when you predict, use --leave-out {name}"


def _equals(table: Inspected, targets: np.ndarray) -> Iterator[str]:
    """Remark on rows with equal features, unless coarse columns make them equal by chance.

    Chance: the number of equal rows after the column with the most values is shuffled. With a single feature, which
    shuffles to the same values, copies are counted with their targets.
    """
    codes, count = [np.nan_to_num(values, nan=-1.5e149) for values in table.codes.values()], len(targets[0])
    sizes = [len(np.unique(values)) for values in codes]
    finest, single = int(np.argmax(sizes)), len(codes) == 1
    keys, whole = _keys(codes, count), _keys([*codes, *targets], count)
    codes[finest] = Seed(0).fold("equal").numpy().permutation(codes[finest])
    repeated, copies = (count - len(np.unique(of)) for of in (keys, whole))
    by_chance = count - len(np.unique(_keys([*codes, *targets] if single else codes, count)))
    if repeated < _EQUAL * count or (copies if single else repeated) < _CHANCE * by_chance:
        return
    reader, writer = ("parquet", "parquet") if table.path.suffix.lower() in (".parquet", ".pq") else ("csv", "csv")
    command = "python -c \"import pandas; f = pandas.read_{0}('{1}'); {2}.to_{3}('{1}', index=False)\""
    if copies >= _EQUAL * count:
        several = f"{copies:,} rows are copies of others; training and test rows may share them"
        one = "1 row is a copy of another; training and test rows may share it"
        cure = command.format(reader, table.path, "f.drop_duplicates()", writer)
        yield f"{several if copies > 1 else one}; to take each once: {cure}"
    others = repeated - copies
    _, same, often = np.unique(keys, return_inverse=True, return_counts=True)
    shared = np.flatnonzero(often[same] > 1)[: 10 * _MODELLED]
    if single or others < _EQUAL * count or len(np.unique(same[shared])) < 2:
        return
    correlation, log_p = alike(same[shared], _residuals(table, "", shared))
    if correlation >= _MEASURED and log_p <= _SIGNIFICANCE:  # unrelated targets of equal rows leak nothing
        drop = [*table.targets, *table.features.left_out]
        group = f"f.assign(same=f.groupby([*f.columns.drop({drop})], dropna=False).ngroup())"
        cure = f"{command.format(reader, table.path, group, writer)}, and --split-by group:same"
        rule = "have the features of another row and another target; training and test rows may share features"
        yield f"{others:,} rows {rule}; to keep them together: {cure}"


def _keys(columns: Sequence[np.ndarray], rows: int) -> np.ndarray:
    """Return a 64-bit hash of each row."""
    keys = np.zeros(rows, np.uint64)
    for values in columns:
        keys = (keys ^ (values.astype(np.float64) + 0.0).view(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        keys ^= keys >> np.uint64(29)
    return keys


def alike(groups: np.ndarray, answers: np.ndarray) -> tuple[float, float]:
    """Return the intraclass correlation of the rows of a group, and log p of its F test.

    Of several answers [column, n] the largest correlation and the smallest p, times their number (Bonferroni), count.
    The correlation is that of Fisher's analysis of variance for groups of several sizes (Donner 1986, eq. 2).
    """
    from scipy.stats import f as distribution

    _, of_row, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    count, rows = len(sizes), len(of_row)
    means = np.stack([np.bincount(of_row, answer) for answer in answers]) / sizes
    within = ((answers - means[:, of_row]) ** 2).sum(1) / max(rows - count, 1)
    between = (sizes * (means - answers.mean(1)[:, None]) ** 2).sum(1) / max(count - 1, 1)
    usual = (rows - (sizes**2).sum() / rows) / max(count - 1, 1)
    correlation = (between - within) / np.maximum(between + (usual - 1) * within, 1e-300)
    log_p = distribution.logsf(between / np.maximum(within, 1e-300), count - 1, rows - count)
    return float(correlation.max()), float(log_p.min() + np.log(len(answers)))


def _groups(table: Inspected) -> Iterator[str]:
    """Remark on the column with the most values that seems to name what several rows are of, such as patients.

    Its rows must have similar targets. Two other columns must be constant within its values, or its name must be that
    of an identifier, or, for a category, a row's nearest row must mostly be of its value.
    """
    found = []
    for column in table.features.columns:
        values = table.codes[column.name]
        there = ~np.isnan(values)
        if column.kind == "date" or _TIMES.search(column.name) or (values[there] != np.floor(values[there])).any():
            continue
        different, of_row, sizes = np.unique(values[there], return_inverse=True, return_counts=True)
        few, most = len(different) < _GROUPS, 2 * len(different) > len(of_row)
        if few or most or sizes.max() > _LARGEST * len(of_row):
            continue
        correlation, log_p = alike(of_row, table.answers[:, there])
        if correlation < _ALIKE or log_p > _SIGNIFICANCE:
            continue
        others = (codes[there] for name, codes in table.codes.items() if name != column.name)
        constant = sum(_is_constant(codes, of_row) for codes in others)
        named = bool(_NAMES.search(column.name))
        if not named and constant < 2:  # equal numbers may be near as quantities
            category = column.kind == "category"
            if not category or _nearest(table, column.name, there, of_row) < _NEAREST:
                continue
        found.append((len(different), column.name, correlation))
    if found:
        count, name, correlation = max(found)
        rule = f"has {count:,} values, whose rows have similar targets (intraclass correlation {correlation:.2f})"
        yield f"{name} {rule}: if you predict rows of other values, use --split-by group:{name}"


def _is_constant(values: np.ndarray, groups: np.ndarray) -> bool:
    """Return True if two random rows often differ in a column, but nearly no rows of one group do."""
    values = np.nan_to_num(values, nan=-1.5e149)
    shares = np.unique(values, return_counts=True)[1] / len(values)
    low, high = np.full(groups.max() + 1, np.inf), np.full(groups.max() + 1, -np.inf)
    np.minimum.at(low, groups, values)
    np.maximum.at(high, groups, values)
    return bool((shares**2).sum() < 0.9 and (low == high)[np.bincount(groups) > 1].mean() > 0.98)


def _nearest(table: Inspected, name: str, there: np.ndarray, groups: np.ndarray) -> float:
    """Return the share of rows whose nearest row by the other columns is of their group.

    The distance is Gower's: the sum over columns of unequal categories and of differences of ranks. Some rows of
    groups that are drawn at random are compared.
    """
    random, rows = Seed(0).fold("nearest", name).numpy(), np.flatnonzero(there)
    place = np.empty(groups.max() + 1, int)
    place[random.permutation(len(place))] = np.arange(len(place))
    order = np.lexsort((random.random(len(rows)), place[groups]))
    of_group = place[groups][order]
    order = order[np.arange(len(order)) - np.searchsorted(of_group, of_group) < _OF_GROUP][:_COMPARED]
    chosen, own = rows[order], groups[order]
    several = np.flatnonzero(np.bincount(own)[own] > 1)
    probes = random.permutation(several)[:_PROBES]
    distance = 1e-6 * random.random((len(probes), len(chosen)))  # ties are broken at random
    others = [column for column in table.features.columns if column.name != name]
    for column in (others[place] for place in random.permutation(len(others))[:_COLUMNS]):
        values = table.codes[column.name]
        if column.kind == "category":
            part = np.nan_to_num(values[chosen], nan=-1)
            distance += part[probes][:, None] != part[None]
        else:
            part = np.nan_to_num(_ranks(values)[chosen], nan=-0.5)
            distance += np.abs(part[probes][:, None] - part[None])
    distance[np.arange(len(probes)), probes] = np.inf
    return float((own[distance.argmin(1)] == own[probes]).mean()) if len(probes) else 0.0


def _drifts(table: Inspected) -> Iterator[str]:
    """Remark on a column of dates or years along which the residuals of a linear model of the other columns drift."""
    for column in table.features.columns:
        if column.kind != "date" and not (column.kind == "number" and _TIMES.search(column.name)):
            continue
        values = table.codes[column.name]
        rows = np.flatnonzero(~np.isnan(values))
        rows = rows[np.unique(np.linspace(0, len(rows) - 1, _MODELLED).astype(int))]
        _, of_row, sizes = np.unique(values[rows], return_inverse=True, return_counts=True)
        periods = ((np.cumsum(sizes) - sizes / 2) * _PERIODS // len(rows))[of_row]
        if len(np.unique(periods)) < 5:
            continue
        correlation, log_p = alike(periods, _residuals(table, column.name, rows))
        if correlation >= _DRIFT and log_p <= _SIGNIFICANCE:
            share = f"tenths of the rows explain {100 * correlation:.0f} % of a linear model's errors"
            rule = f"targets drift along {column.name} ({share})"
            yield f"{rule}: if you predict later rows, use --split-by date:{column.name}"


def _residuals(table: Inspected, name: str, rows: np.ndarray) -> np.ndarray:
    """Return the residuals of least squares on the other columns [answer, row]."""
    parts = [np.ones((len(rows), 1))]
    for column in table.features.columns[: 2 * _COLUMNS]:
        values = table.codes[column.name]
        if column.name == name:
            continue
        part = values[rows]
        if column.kind == "category":
            often, counts = np.unique(part[~np.isnan(part)], return_counts=True)
            parts.append((part[:, None] == often[np.argsort(-counts, kind="stable")[:_SLOTS]]).astype(float))
        else:
            gaps = np.isnan(part)
            parts.append(np.stack([np.nan_to_num(_ranks(part), nan=0.5), gaps], axis=1))
    answers = table.answers[:, rows].T
    inputs = np.concatenate(parts, axis=1)
    return (answers - inputs @ np.linalg.lstsq(inputs, answers, rcond=None)[0]).T
