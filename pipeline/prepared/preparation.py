"""The stage ``prepare``: it turns raw rows into two folders.

``folder_fit`` holds the data of fits. For each split s it has the training and validation rows ``<s>/train.arrow``
(training rows first, so that both parts and their union are views of one memory map) and ``<s>/transform``, fitted to
all rows of a final fit; if the transform fitted only to the training rows differs, it is in ``<s>/transform-search``.
``folder_fit`` also has ``schema.json`` and optionally ``<s>/calibration.arrow``, rows for the recalibration of
posteriors, which no fit uses. ``folder_holdout`` holds the rest: ``<s>/test.arrow``, ``ood/<set>.arrow``,
``transfer/<set>.arrow``, ``corrupted/<name>-<severity>.arrow``. No row and no constant of ``folder_fit`` depends on a
row of ``folder_holdout``, with two exceptions for tables without own test rows: ``targets: auto`` takes no logarithms
if any target of the file is <= 0, and ``schema.json`` describes the columns of the whole file, for users.

A data set with an ``increment`` is one step of class-incremental learning. Validation rows are drawn and transforms are
fitted as if there were no ``increment``; then ``folder_fit`` keeps only the rows of the new classes, and
``folder_holdout`` drops the rows of later steps' classes. So all steps have the same transform, fitted to the training
rows of all classes (a deviation from a learner that sees no pixel of a class before its step).
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from bdl_pipe import artifacts
from bdl_pipe.data import sources
from bdl_pipe.data.catalog import HELD_OUT, Noise
from bdl_pipe.data.config import DatasetConfig, ood_source, transfer_source
from bdl_pipe.data.examples import Examples
from bdl_pipe.data.normalise import target_constants
from bdl_pipe.data.raw import Raw, Source
from bdl_pipe.data.split_rows import drawn, fit_rows, of_classes, outer_splits, schema, take
from bdl_pipe.errors import ConfigError, DataError
from bdl_pipe.files import write_bytes
from bdl_pipe.seeds import Seed

from . import arrow_rows
from .corrupted_sets import corrupt_one, corruption_jobs
from .folders import CALIBRATION_FILE, SCHEMA_FILE, Job
from .other_sets import noise, shared_rows, test_rows, to_shape, without_classes

FanOut = Callable[[Callable[[Job], np.ndarray], Sequence[Job]], Iterable[np.ndarray]]


@dataclass(frozen=True)
class Facts:
    """The facts of the two folders, for their manifests: row counts and hashes of the raw rows."""

    fit: dict[str, object]
    holdout: dict[str, object]


def prepare(
    name: str,
    datasets: Mapping[str, DatasetConfig],
    folder_fit: Path,
    folder_holdout: Path,
    *,
    rng: Seed,
    fan_out: FanOut = map,
) -> Facts:
    """Fill both folders with the data set ``name``; call it while ``artifacts.publish`` holds both folders open.

    Args:
        datasets: the sections of ``datasets`` for ``name`` and for the sets that its ``ood`` and ``transfer`` name.
        rng: the data set's seed address, for validation rows and corruptions.
        fan_out: maps a picklable function over corruption jobs, in order, like the builtin ``map``.

    Raises:
        UserError: the rows are not on this machine and cannot be downloaded.
        DataError: the rows are wrong.
        ConfigError: a key of ``datasets.<name>`` does not fit the rows.
    """
    config, path, by_name = datasets[name], f"datasets.{name}", dict(datasets)
    ood = [ood_source(o, by_name, f"{path}.ood[{i}]") for i, o in enumerate(config.ood)]
    transfer = [transfer_source(t, name, by_name, f"{path}.transfer[{i}]") for i, t in enumerate(config.transfer)]
    raw, held_out = sources.load(config.source), None
    _check_fit(config, raw, path)
    if config.held_out:
        raw, held_out = without_classes(raw, config.held_out, f"{path}.held_out")
    seen, fit, held, first = _seen(raw, config, path), [], [], None
    for s, (train, every) in _parts(raw, config.splits, rng):  # one split at a time, because large splits are copies
        test = of_classes(every, seen, raw, "test rows")
        fit.append(_write_fit(folder_fit / str(s), raw, train, config, rng.fold("validation", s)))
        arrow_rows.write(folder_holdout / str(s) / "test.arrow", test, features=raw.features, targets=raw.targets)
        held.append({"rows": len(test), "sha256": rows_sha256(test)})
        first = test if first is None else first
    assert first is not None
    write_bytes(folder_fit / SCHEMA_FILE, json.dumps(schema(raw, config), sort_keys=True, indent=1).encode())
    for key, source in zip(config.ood, ood, strict=True):
        _write_ood(folder_holdout / "ood" / f"{key}.arrow", source, raw, rng)
    _write_transfer(folder_holdout / "transfer", transfer, raw, config, path, seen)
    if held_out is not None:
        arrow_rows.write(folder_holdout / "ood" / f"{HELD_OUT}.arrow", held_out)
    _write_corrupted(folder_holdout / "corrupted", config, first, rng, fan_out)
    return Facts({"splits": fit}, {"splits": held})


def check_splits(raw: Raw, config: DatasetConfig, path: str, rng: Seed) -> None:
    """Draw and check the rows of every split like :func:`prepare`, without writing files.

    Args:
        rng: the data set's seed address, as in :func:`prepare`.

    Raises:
        DataError: ``prepare`` would refuse the rows.
        ConfigError: ``prepare`` would refuse a key.
    """
    _check_fit(config, raw, path)
    bare = replace(raw, train=replace(raw.train, inputs=raw.train.inputs[:, :0]))
    for s, (train, _) in _parts(bare, config.splits, rng):
        _, ordered, count = drawn(bare, train, config, rng.fold("validation", s))
        if raw.task == "regression":
            for rows in (ordered.cut(count)[0], ordered):
                scaling = "standardise" if config.targets == "auto" else config.targets
                target_constants(rows.targets, scaling, raw.origin)


def rows_sha256(examples: Examples) -> str:
    """Hash raw rows: their shape, type and values."""
    digest = hashlib.sha256()
    for array in (examples.inputs, examples.targets):
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _check_fit(config: DatasetConfig, raw: Raw, path: str) -> None:
    if raw.test is not None and config.splits > 1:
        raise ConfigError(f"{path}.splits", "must be 1 for a set with its own test rows", config.splits)
    if config.corrupted_images and config.splits > 1:
        raise ConfigError(f"{path}.corrupted_images", "must be 0 if splits > 1", config.corrupted_images)
    if raw.kind == "table" and config.normalise == "published":
        raise ConfigError(f"{path}.normalise", "must be train, robust or none for a table", config.normalise)


def _parts(raw: Raw, splits: int, rng: Seed) -> Iterator[tuple[int, tuple[Examples, Examples]]]:
    """Yield (split, (training rows, test rows)): with the set's own test rows, or as ``outer_splits`` draws them."""
    if raw.test is not None:
        yield 0, (raw.train, raw.test)
        return
    for split, (train, test) in enumerate(outer_splits(raw, splits, rng)):
        yield split, (take(raw.train, train), take(raw.train, test))


def _write_fit(folder: Path, raw: Raw, rows: Examples, config: DatasetConfig, rng: Seed) -> dict[str, object]:
    rows_of_fit = fit_rows(raw, rows, config, rng)
    if rows_of_fit.calibration is not None:
        arrow_rows.write(folder / CALIBRATION_FILE, rows_of_fit.calibration, features=raw.features, targets=raw.targets)
    about = {"train": rows_of_fit.train}
    arrow_rows.write(folder / "train.arrow", rows_of_fit.rows, features=raw.features, targets=raw.targets, about=about)
    search, final = rows_of_fit.search.state(), rows_of_fit.final.state() if rows_of_fit.final else None
    artifacts.write_state(folder / "transform", final or search)
    if final is not None:
        artifacts.write_state(folder / "transform-search", search)
    counts = {"train": rows_of_fit.train, "validation": len(rows_of_fit.rows) - rows_of_fit.train}
    return {**counts, "sha256": rows_sha256(rows_of_fit.rows)}


def _seen(raw: Raw, config: DatasetConfig, path: str) -> list[int] | None:
    """Return the classes with test rows; None for all classes.

    Raises:
        ConfigError: the step does not fit the number of classes.
    """
    if config.increment is None:
        return None
    try:
        config.increment.check(len(raw.classes))
    except ConfigError as error:
        raise ConfigError(f"{path}.increment.{error.path}", error.rule, error.value) from None
    return config.increment.seen(len(raw.classes))


def _write_ood(path: Path, source: Source | Noise, raw: Raw, rng: Seed) -> None:
    shape = raw.train.inputs.shape[1:]
    if isinstance(source, Noise):
        arrow_rows.write(path, noise(shape, rng.fold("noise")))
        return
    other = sources.load(source)
    if other.kind != "image" or raw.kind != "image":
        raise DataError(f"{other.origin}: an out-of-distribution set must be images, and so must its partner")
    rows = test_rows(other)
    arrow_rows.write(path, Examples(to_shape(rows.inputs, shape), rows.targets))


def _write_transfer(
    folder: Path, others: Sequence[Source], raw: Raw, config: DatasetConfig, path: str, seen: list[int] | None
) -> None:
    classes, names = set[str](), config.transfer_names or {}
    for i, (key, source) in enumerate(zip(config.transfer, others, strict=True)):
        other = sources.load(source)
        classes |= {*other.classes}
        rows = shared_rows(other, raw, names, f"{path}.transfer[{i}]")
        shared = None if seen is None else [label for label in seen if (rows.targets == label).any()]
        if shared == []:
            raise ConfigError(f"{path}.transfer[{i}]", "must have rows of a class up to this step", key)
        arrow_rows.write(folder / f"{key}.arrow", of_classes(rows, shared, raw, "transfer rows"))
    unknown = [name for name in names if name not in classes]
    if unknown:
        raise ConfigError(f"{path}.transfer_names", "must name classes of the transfer sets", unknown[0])


def _write_corrupted(folder: Path, config: DatasetConfig, test: Examples, rng: Seed, fan_out: FanOut) -> None:
    if not config.corrupted_images:
        return
    first, _ = test.cut(config.corrupted_images)
    jobs = corruption_jobs(config)
    work = partial(corrupt_one, config=config, images=first.inputs, rng=rng)
    for job, images in zip(jobs, fan_out(work, jobs), strict=True):
        assert images.shape == first.inputs.shape and images.dtype == np.uint8, job
        arrow_rows.write(folder / f"{job.key}.arrow", Examples(images, first.targets))
