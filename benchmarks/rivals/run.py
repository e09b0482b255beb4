"""Fits and scores of rivals on tables that ``add`` prepared, with the splits and scores of all other methods."""

import contextlib
import importlib.metadata
import importlib.util
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from bdl_pipe import config, evaluation, fitting, plugins, recalibration, registry
from bdl_pipe.artifacts import State
from bdl_pipe.data.examples import Examples
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.data.size import Size
from bdl_pipe.errors import Diverged, UserError
from bdl_pipe.evaluation import CleanResult
from bdl_pipe.method import Method
from bdl_pipe.metrics import pit, stored
from bdl_pipe.posterior import Predictor, prediction_address
from bdl_pipe.progress import Silent
from bdl_pipe.registry import posterior_of
from bdl_pipe.scores import Quantity
from bdl_pipe.seeds import Seed, own_settings
from benchmarks.your_data import fetch, project
from benchmarks.your_data.tables import Table
from pipeline.core import places, provenance
from pipeline.core.load import load
from pipeline.core.model import Params, Run
from pipeline.core.records import device_name
from pipeline.prepared import folders

from .settings import INSTALL, Rival, file_of

_THREADS: Final = 1
_PACKAGES: Final = ("lightgbm", "catboost", "ngboost", "pytabkit")
_MODULE: Final = {"scikit-learn": "sklearn"}


@dataclass(frozen=True)
class Trial:
    """A search's trial: its hyperparameters and its NLL on validation rows, in transformed units."""

    config: Mapping[str, Any]
    nll: float


def prepare(folder: Path, tables: Sequence[Table]) -> Params:
    """Add tables with the rules of ``add`` for the headline (rule.md), prepare them, and return the params.

    ``add`` has ten minutes for each split.

    Raises:
        UserError: a table is missing, or a stage failed.
    """
    project.make(folder)
    for table in tables:
        path = fetch.write(table, folder / "data")
        if (folder / "params" / "data" / f"{table.name}.yaml").is_file():
            continue
        minutes = project.MINUTES * Size(table.task, len(pd.read_csv(path)), 1).splits
        words = [str(path.relative_to(folder)), "--target", table.target, "--name", table.name]
        words += ["--minutes", str(minutes)]
        words += ["--leave-out", *table.leave_out] if table.leave_out else []
        project.verb(folder, "add", *words, "--methods", "stacked")
    missing = [table.name for table in tables if not (folder / "work" / "prepare" / table.name).is_dir()]
    command = [sys.executable, "-m", "pipeline", "repro", "-j", "1", *(f"prepare@{name}" for name in missing)]
    if missing and subprocess.run(command, cwd=folder, env=project.environment(), check=False).returncode:
        raise UserError(f"{' '.join(command[1:])} failed, in {folder}")
    with contextlib.chdir(folder):
        return load()


def headline_of(params: Params, table: str) -> Run:
    """Return the run of a table's headline, with the hyperparameters that ``add`` has written."""
    return next(run for run in params.of("student") if run.spec.dataset == table)


def states_of(params: Params, run: Run, data: FitData, number: int) -> list[State]:
    """Fit a run, and the runs that it needs, to one split's rows, with the pipeline's addresses and one thread."""
    above = {kind: states_of(params, params.run(kind, key), data, number) for kind, key in run.sources.items()}
    root = Seed(params.seed).fold(run.kind, run.key)
    seeds = fitting.seeds_of(run.stage, data, above, root, number, run.spec.seeds)
    with own_settings(_THREADS):
        calls = fitting.grouped(run.stage, run.config, seeds, [data])
        return [state for call in calls for state in call.states(Silent())]


def facts() -> dict[str, Any]:
    """Return the commit, the device and the packages' versions of the rows of the last run."""
    packages = ("torch", "scikit-learn", *_PACKAGES)
    found = {
        name: importlib.metadata.version(name) for name in packages if importlib.util.find_spec(_MODULE.get(name, name))
    }
    with contextlib.chdir(project.ROOT):
        commit = provenance.commit()
    return {"commit": commit, "device": device_name("cpu"), "threads of a fit": _THREADS, "packages": found}


def method_of(rival: Rival, folder: Path) -> Method:
    """Load a rival's plugin, and return its method.

    Raises:
        UserError: its package or its weights are missing; the message has the command that installs the package.
    """
    if not rival.plugin:
        return registry.METHODS[rival.method]
    if importlib.util.find_spec(rival.package) is None:
        how = "pip install 'bdl-pipe[tabpfn]'" if rival.package == "tabpfn" else INSTALL
        raise UserError(f"{rival.method}: needs the package {rival.package}, which is missing: {how}")
    weights = rival.config.get("weights")
    if weights and not Path(weights).is_file():
        raise UserError(f"{rival.method}: needs a file of weights, and {weights} is none; give its path by --weights")
    if rival.method not in registry.METHODS:
        plugins.load([str(file_of(rival, folder))])
    return registry.METHODS[rival.method]


def split(folder: Path, table: str, number: int) -> tuple[FitData, Examples, Examples | None]:
    """Return one split's training data, its test rows and its calibration rows."""
    with contextlib.chdir(folder):
        data = folders.load_fit(places.artifact("prepare", table), number, final=True)
        test = folders.load_holdout(places.artifact("holdout", table), number).test
        return data, test, folders.load_calibration(places.artifact("prepare", table), number)


def trials(
    method: Method, first: Mapping[str, Any], data: FitData, seconds: float, seed: int, most: int = 1_000
) -> list[Trial]:
    """Search at random: the defaults, then a list of configs that is the same for all tables, until the time is over.

    Each is fitted to the training rows of ``data.search`` and scored on its validation rows, which choose. The time is
    the processor's, which other programs do not shorten. The number of trials depends on the machine; the configs do
    not.
    """
    own, found, start = data.search or data, list[Trial](), time.process_time()
    inputs, targets = own.tensors("validation")
    for number, drawn in enumerate(islice(listed(method, first, seed), most)):
        try:
            state = fitted(method, drawn, own, Seed(seed).fold("rivals", method.name, "trial", number))
            predictive = posterior_of(state).predict(inputs, rng=Seed(seed).fold("rivals", "predict"))
            nll = -float(predictive.log_prob(targets).double().mean())
        except Diverged:
            nll = np.inf
        found.append(Trial(drawn, nll if np.isfinite(nll) else np.inf))
        if time.process_time() - start > seconds:
            return found
    return found


def listed(method: Method, first: Mapping[str, Any], seed: int) -> Iterator[dict[str, Any]]:
    """Yield the configs of a search: the first, then draws of the method's declared space, each by its address."""
    yield dict(first)
    for number in count(1):
        drawn = dict(first)
        for key, (low, high, scale) in method.search.items():
            generator = Seed(seed).fold("rivals", method.name, key, number)
            share = generator.integer() % 2**32 / 2**32
            value = low * (high / low) ** share if scale == "log" else low + share * (high - low)
            drawn[key] = int(low + share * (high - low + 1)) if scale == "integer" else float(value)
        yield drawn


def fitted(method: Method, drawn: Mapping[str, Any], data: FitData, rng: Seed) -> State:
    """Fit a method once, with one thread."""
    typed = config.read(method.config, dict(drawn), f"methods.{method.name}")
    fit = method.stages["student"].fit_one
    with own_settings(_THREADS):
        return fit(data, {}, typed, rng=rng, report=Silent())


def scored(
    key: str,
    number: int,
    method: Method,
    drawn: Mapping[str, Any] | Run,
    rows: tuple[FitData, Examples, Examples | None],
    params: Params,
) -> tuple[dict[str, float], CleanResult]:
    """Fit, recalibrate and score as the pipeline's stages do; return the scores and the predictions of test rows.

    The seconds of the fit are the processor's. Beside the scores stands the coverage of 90 % intervals in each third of
    the rows by width.

    Args:
        key: the key that the run would have in params.yaml, from which its addresses follow.
        number: the split.
        drawn: the hyperparameters, or a run that has them and the runs that it needs.
    """
    data, test, calibration = rows
    start = time.process_time()
    if isinstance(drawn, Run):
        state = states_of(params, drawn, data, number)[0]
    else:
        state = fitted(method, drawn, data, Seed(params.seed).fold("student", key).fold(number, 0))
    seconds, rng = time.process_time() - start, prediction_address(params.seed, key, number, 0)
    with own_settings(_THREADS):
        learnt, predictor = None, Predictor(posterior_of(state), data.transform)
        if calibration is not None:
            batches = predictor.transformed_batches(calibration.inputs, rng=rng, device="cpu")
            learnt = recalibration.fit(batches, calibration, data.transform)
        predictor = Predictor(posterior_of(state), data.transform, recalibration=learnt)
        figures, clean = evaluation.score_all(predictor, test, params.evaluate, rng, "cpu", ood={}, transfer={})
    found = {of: value for of, (value, _) in figures.items()}
    given = {score: found[Quantity(score)] for score in project.TEST if Quantity(score) in found}
    rows_of = stored.of_table(clean.predictions)
    if isinstance(rows_of, stored.StoredValues):
        own = {metric.name: metric.function(rows_of) for metric in pit.METRICS if metric.name in pit.THIRDS}
        given |= {name: share for name, share in own.items() if share is not None}
    per_row = found.get(Quantity("seconds_per_1000", "cost"), np.nan)
    return {"rows": len(test), **given, "fit_seconds": seconds, "seconds_per_1000": per_row}, clean
