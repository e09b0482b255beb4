"""Fits and scores of rivals on tables that ``add`` prepared, with the splits and scores of all other methods."""

import contextlib
import importlib.metadata
import importlib.util
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from bdl_pipe import config, evaluation, plugins, recalibration, registry
from bdl_pipe.artifacts import State
from bdl_pipe.data.examples import Examples
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.errors import Diverged, UserError
from bdl_pipe.method import Method
from bdl_pipe.posterior import Predictor, prediction_address
from bdl_pipe.progress import Silent
from bdl_pipe.registry import posterior_of
from bdl_pipe.scores import Quantity
from bdl_pipe.seeds import Seed, own_settings
from benchmarks.your_data import fetch, project
from benchmarks.your_data.tables import Table
from pipeline.core import places, provenance
from pipeline.core.load import load
from pipeline.core.model import Params
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


def prepare(folder: Path, table: Table) -> Params:
    """Add a table with the rules of ``add``, make its ``prepare`` artifact, and return the folder's params.

    Raises:
        UserError: the table is missing, or a stage failed.
    """
    project.make(folder)
    path = fetch.write(table, folder / "data").relative_to(folder)
    if not (folder / "params" / "data" / f"{table.name}.yaml").is_file():
        words = [str(path), "--target", table.target, "--name", table.name, "--methods", "constant"]
        project.verb(folder, "add", *words, *(["--leave-out", *table.leave_out] if table.leave_out else []))
    if not (folder / "work" / "prepare" / table.name).is_dir():
        command = [sys.executable, "-m", "pipeline", "repro", "-j", "1", f"prepare@{table.name}"]
        if subprocess.run(command, cwd=folder, env=project.environment(), check=False).returncode:
            raise UserError(f"{' '.join(command[1:])} failed, in {folder}")
    with contextlib.chdir(folder):
        return load()


def facts() -> dict[str, Any]:
    """Return the commit, the device and the packages' versions of the rows of the last run."""
    packages = ("torch", "scikit-learn", *_PACKAGES)
    found = {
        name: importlib.metadata.version(name) for name in packages if importlib.util.find_spec(_MODULE.get(name, name))
    }
    with contextlib.chdir(project.ROOT):
        commit = provenance.commit()
    return {"commit": commit, "device": processor(), "threads of a fit": _THREADS, "packages": found}


def processor() -> str:
    """Return the processor's name, as Linux has it."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


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


def trials(method: Method, first: Mapping[str, Any], data: FitData, seconds: float, seed: int) -> list[Trial]:
    """Search at random: the defaults, then a list of configs that is the same for all tables, until the time is over.

    Each is fitted to the training rows of ``data.search`` and scored on its validation rows, which choose. The number
    of trials depends on the machine; the configs do not.
    """
    own, found, start = data.search or data, list[Trial](), time.perf_counter()
    inputs, targets = own.tensors("validation")
    for number, drawn in enumerate(listed(method, first, seed)):
        try:
            state = fitted(method, drawn, own, Seed(seed).fold("rivals", method.name, "trial", number))
            predictive = posterior_of(state).predict(inputs, rng=Seed(seed).fold("rivals", "predict"))
            nll = -float(predictive.log_prob(targets).double().mean())
        except Diverged:
            nll = np.inf
        found.append(Trial(drawn, nll if np.isfinite(nll) else np.inf))
        if time.perf_counter() - start > seconds:
            return found
    return found


def listed(method: Method, first: Mapping[str, Any], seed: int) -> Iterator[dict[str, Any]]:
    """Yield the configs of a search: the first, then draws of the method's declared space, each by its address."""
    yield dict(first)
    for number in range(1, 1_000):
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
    drawn: Mapping[str, Any],
    rows: tuple[FitData, Examples, Examples | None],
    params: Params,
) -> dict[str, float]:
    """Fit, recalibrate and score as the pipeline's stages do; return the scores of test rows and the seconds.

    Args:
        key: the key that the run would have in params.yaml, from which its addresses follow.
        number: the split.
        drawn: the hyperparameters.
    """
    data, test, calibration = rows
    start = time.perf_counter()
    state = fitted(method, drawn, data, Seed(params.seed).fold("student", key).fold(number, 0))
    seconds, rng = time.perf_counter() - start, prediction_address(params.seed, key, number, 0)
    with own_settings(_THREADS):
        learnt, predictor = None, Predictor(posterior_of(state), data.transform)
        if calibration is not None:
            batches = predictor.transformed_batches(calibration.inputs, rng=rng, device="cpu")
            learnt = recalibration.fit(batches, calibration, data.transform)
        predictor = Predictor(posterior_of(state), data.transform, recalibration=learnt)
        figures, _ = evaluation.score_all(predictor, test, params.evaluate, rng, "cpu", ood={}, transfer={})
    found = {of: value for of, (value, _) in figures.items()}
    scores = {score: found[Quantity(score)] for score in project.TEST if Quantity(score) in found}
    per_row = found.get(Quantity("seconds_per_1000", "cost"), np.nan)
    return {"rows": len(test), **scores, "fit_seconds": seconds, "seconds_per_1000": per_row}
