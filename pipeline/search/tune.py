"""``python -m pipeline tune METHOD --dataset D --samples N``: search a method's hyperparameters by Ray Tune.

The space is the method's ``search``, and the score is a metric of *validation* rows, by default the negative
log-likelihood. The present hyperparameters are the first sample, so the winner is never worse on these rows. With
``--scheduler pbt`` the samples are a population, and their hyperparameters change during training; then the search fits
the best member's last hyperparameters and the present ones from the start. The winner is written as an overlay for the
searched runs, ``params/tuned/<method>-<dataset>.yaml``; ``--apply`` merges it into params.yaml. ``tune all`` searches
all methods of a data set that have a space, one after another.
"""

import csv
import datetime
import io
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from importlib.util import find_spec
from operator import getitem
from pathlib import Path
from typing import Any, Final

from bdl_pipe import config
from bdl_pipe.config import nearest
from bdl_pipe.errors import ConfigError, UserError, require
from bdl_pipe.files import write_bytes
from bdl_pipe.metrics.table import metric_of
from bdl_pipe.search import DIVERGED, hyperparameters, nested, rounded, same

from ..core import overlays, provenance
from ..core.load import load
from ..core.model import SECTIONS, Params
from ..core.settings import Settings
from . import Session, branch_of, folder_of, opened, scores_of
from .trial import METRIC, MILESTONES, Branch, Ended

OVERLAYS: Final = Path("params/tuned")
ALL: Final = "all"
ASHA, PBT = "asha", "pbt"
OPTUNA: Final = "optuna"
_PACKAGES: Final = {  # algorithm -> the package that it needs
    **{name: name for name in (OPTUNA, "hyperopt", "hebo", "nevergrad")},
    "bayesopt": "bayes_opt",
}
Space = Mapping[str, tuple[float, float, Any]]
LEAST: Final = 4  # the smallest population, since PBT replaces the worst quarter


@dataclass(frozen=True)
class Search:
    """A search of one method.

    Attributes:
        scheduler: a name of Ray Tune; asha is its asynchyperband.
        first: the present hyperparameters, the first sample; empty if one of them is outside the space.
        algorithm: a name of Ray Tune; a population draws at random.
        tensorboard: whether the trials also write event files.
        options: further options of the command, which the winner's overlay names.
    """

    branch: Branch
    samples: int
    scheduler: str
    first: list[dict[str, Any]]
    algorithm: str = OPTUNA
    tensorboard: bool = False
    options: tuple[str, ...] = ()


def tune(
    method: str,
    *,
    dataset: str,
    samples: int,
    scheduler: str = ASHA,
    algorithm: str = OPTUNA,
    metric: Sequence[str] = (METRIC,),
    space: Sequence[str] = (),
    run: str | None = None,
    max_concurrent: int | None = None,
    tensorboard: bool = False,
    resume: bool = False,
    apply: bool = False,
) -> int:
    """Search a method, or all methods of a data set; write the winners and, with ``apply``, merge them.

    Args:
        samples: the number of trials.
        scheduler, algorithm: names of Ray Tune; asha is its asynchyperband.
        metric: scores of validation rows. The search improves the first, and the table of trials has all.
        space: ``key=low:high:scale``, in place of the method's own space.
        run: the run to search, with its upstream runs; None means the first run that uses the method.
        max_concurrent: the largest number of trials at once.
        tensorboard: also write event files for TensorBoard.
        resume: continue a search that was stopped.

    Raises:
        UserError: the arguments, params.yaml or the state of a stopped search is wrong.
    """
    if scheduler == PBT and max_concurrent:
        raise UserError(
            "--max-concurrent: leave it out with pbt, for which Ray Tune decides how many samples run at once"
        )
    if method == ALL and (run is not None or space):
        raise UserError(f"--{'space' if space else 'run'}: leave it out in a search of all methods")
    if scheduler == PBT and algorithm != OPTUNA:
        raise UserError("--algorithm: leave it out with pbt, whose samples change by its own rule")
    package = _PACKAGES.get(algorithm) if scheduler != PBT else None
    if package and find_spec(package) is None:  # before the search begins, so that it is not one to continue
        raise UserError(f"--algorithm {algorithm}: its package {package} is not installed")
    options = [word for text in space for word in ("--space", text)]
    options += ["--run", run] if run is not None else []
    options += ["--max-concurrent", str(max_concurrent)] if max_concurrent else []
    settings, methods = Settings.read(), searched(load(), dataset) if method == ALL else [method]
    if method == ALL:
        folders = {name: folder_of("tune", f"{name}-{dataset}", settings) for name in methods}
        stopped = {name: folder.address for name, folder in folders.items() if folder.is_unfinished()}
        finished = [name for name, folder in folders.items() if folder.read() and name not in stopped]
        if resume and not stopped and not finished:
            raise UserError("--resume: there is no stopped search of all methods; leave it out")
        if stopped and not resume:
            raise UserError(f"{next(iter(stopped.values()))}: has an unfinished search; continue it with --resume")
        for folder in () if resume else folders.values():
            folder.clear()  # without --resume, finished searches are repeated
        methods = [name for name in methods if not (resume and name in finished)]
    for number, name in enumerate(methods, start=1):
        params = load()
        asked = plan(params, name, dataset, samples, run, settings, scheduler, metric, space)
        asked = replace(asked, algorithm=algorithm, tensorboard=tensorboard, options=tuple(options))
        if method == ALL:
            print(f"{name}: {number} of {len(methods)} searches on {dataset}")
            resume = name in stopped
        path = search_one(asked, params, settings, max_concurrent, resume)
        if not apply:
            print(f"python -m pipeline apply {path}   # to use it")
            continue
        for line in overlays.apply(path):
            print(f"params.yaml: {line}")
    return 0


def searched(params: Params, dataset: str) -> list[str]:
    """List the methods of a data set's runs that declare a space; methods of inputs come first.

    Raises:
        UserError: the data set does not exist, or no method declares a space.
    """
    if dataset not in params.datasets:
        raise UserError(f"{dataset}: is not a data set{nearest(dataset, params.datasets)}")
    lineages = [params.lineage(run) for run in params.of("student") if run.spec.dataset == dataset]
    wanted = {(run.kind, run.key) for lineage in lineages for run in lineage}
    runs = [run for name, run in params.runs.items() if name in wanted]  # inputs come first in params.yaml
    methods = list(dict.fromkeys(run.method.name for run in runs if run.method.search))
    if not methods:
        raise UserError(f"{dataset}: no method of its runs declares a space to search")
    return methods


def search_one(search: Search, params: Params, settings: Settings, at_once: int | None, resume: bool) -> Path:
    """Search one method, and return the winner's overlay.

    Raises:
        UserError: the search cannot be opened, trials failed, or no sample gave a finite score.
    """
    branch = search.branch
    facts = [dict(branch.method.search), search.samples, search.scheduler]
    facts += [search.algorithm] if search.algorithm != OPTUNA else []
    with opened(branch.name, branch, facts, params, settings, resume) as session:
        path = conclude(search, *_run(search, session, at_once))
    if path is None:  # the search is finished as well, since resuming it would change nothing
        raise UserError(f"{branch.name}: none of {search.samples} samples gave a finite score")
    return path


def _run(search: Search, session: Session, at_once: int | None) -> tuple[Sequence[Ended], Sequence[Ended]]:
    """Run the trials; return the trials with constant hyperparameters, and the population's trials, if any."""
    from . import tuner

    asked = (search.branch.method.search, search.first, search.samples, search.branch.seed, search.branch.metrics[0])
    if search.scheduler != PBT:
        how = tuner.constant(*asked, at_once, search.scheduler, search.algorithm)
        return tuner.run(session, *how, tensorboard=search.tensorboard), ()
    population = tuner.run(session, *tuner.population(*asked))
    best = sorted(filter(_is_finished, population), key=_loss)[:1]
    finals = [*(trial.sampled for trial in best), *search.first]
    return tuner.run(session, *tuner.points(finals, at_once), "finals") if best else (), population


def plan(
    params: Params,
    method: str,
    dataset: str,
    samples: int,
    key: str | None,
    settings: Settings,
    scheduler: str = ASHA,
    metric: Sequence[str] = (METRIC,),
    space: Sequence[str] = (),
) -> Search:
    """Plan the search of ``method`` on ``dataset``, in the run ``key`` or the first run that uses the method.

    Raises:
        UserError: the method, data set or run does not exist, or has no space, or the scheduler cannot search it.
    """
    metric = tuple(dict.fromkeys(metric))
    evaluation = params.evaluate if metric != (METRIC,) else None  # the NLL needs no evaluation settings
    branch = branch_of(params, method, dataset, key, settings, evaluation, metric)
    names = scores_of(params.datasets[dataset].task)
    for number, name in enumerate(metric):
        right = [other for other in names if number or metric_of(other).better]
        rule = "must be a score" if number else "must be a score of which higher or lower is better"
        require(name in right, "--metric", f"{rule}{nearest(name, right)}", name)
    if space:
        searched = replace(branch.method, search=bounds(space, config.to_mapping(branch.runs[0].config)))
        runs = (replace(one, method=searched) if one.method.name == method else one for one in branch.runs)
        branch = replace(branch, runs=tuple(runs))
    first = branch.runs[0]
    if not branch.method.search:
        with_space = sorted({run.method.name for run in params.runs.values() if run.method.search})
        raise UserError(f"{method}: declares no space to search (methods that do: {', '.join(with_space) or 'none'})")
    if scheduler == PBT and first.stage.from_checkpoint is None:
        raise UserError(f"{method}: reports no scores during a fit, which pbt needs; use --scheduler asha")
    if scheduler == PBT and samples < LEAST:
        raise UserError(f"--samples: must be >= {LEAST} for pbt, which replaces the worst quarter, got {samples}")
    present = hyperparameters(branch.method, first.config)
    return Search(branch, samples, scheduler, [] if present is None else [present])


def bounds(texts: Sequence[str], present: Mapping[str, Any]) -> Space:
    """Read a space such as ``training.optimiser.lr=1e-4:1e-1:log``.

    Args:
        present: the config of the searched run, which must have a number at each key.

    Raises:
        ConfigError: a key has no number, or the bounds break a rule.
    """
    space = {}
    for text in texts:
        key, _, rest = text.partition("=")
        rule = (
            "must be KEY=LOW:HIGH:SCALE, a key of the method's section that has a number; scales: log, linear, integer"
        )
        low, _, rest = rest.partition(":")
        high, _, scale = rest.partition(":")
        try:
            value = reduce(getitem, key.split("."), present)
            ends = (int(low), int(high)) if scale == "integer" else (float(low), float(high))
        except (KeyError, TypeError, ValueError):
            raise ConfigError("--space", rule, text) from None
        number = isinstance(value, int | float) and not isinstance(value, bool)
        require(number and scale in ("log", "linear", "integer"), "--space", rule, text)
        require(scale != "integer" or isinstance(value, int), "--space", "must have a whole number at the key", text)
        good = -math.inf < ends[0] < ends[1] < math.inf and (scale == "linear" or ends[0] > 0)
        require(good, "--space", "must have LOW < HIGH, and LOW > 0 for log and integer", text)
        space[key] = (*ends, scale)
    return space


def conclude(search: Search, trials: Sequence[Ended], population: Sequence[Ended] = ()) -> Path | None:
    """Write the winner's overlay and print a comparison with the present hyperparameters; None if no trial finished.

    Args:
        trials: trials with constant hyperparameters.
        population: trials with changing hyperparameters; the first of ``trials`` has the best member's last values.
    """
    branch, finished = search.branch, [trial for trial in trials if _is_finished(trial)]
    path = OVERLAYS / f"{branch.name}.yaml"
    _write_trials(search, [*trials, *population], path.with_suffix(".csv"))
    if not finished:
        return None
    best, metric = min(finished, key=_loss), branch.metrics[0]
    winner = {key: rounded(value) for key, value in best.sampled.items()}
    present = [trial.scores[metric] for trial in finished if any(same(trial.sampled, first) for first in search.first)]
    against = f" (in force: {present[0]:.5g})" if present else ""
    today = datetime.datetime.now(datetime.UTC).date()
    by = f" --scheduler {search.scheduler}" if search.scheduler != ASHA else ""
    by += "".join(f" --metric {name}" for name in branch.metrics) if branch.metrics != (METRIC,) else ""
    by += f" --algorithm {search.algorithm}" if search.algorithm != OPTUNA else ""
    by += f" {shlex.join(search.options)}" if search.options else ""
    comments = [
        f"python -m pipeline tune {branch.method.name} --dataset {branch.dataset} --samples {search.samples}{by}",
        f"validation {metric} {best.scores[metric]:.5g}{against}; {len(finished)} of {len(trials)} samples finished",
        f"run {branch.runs[-1].key}, split 0, one seed a sample; commit {provenance.commit()}, {today}",
    ]
    if population:
        reached = min(filter(_is_finished, population), key=_loss).scores[metric]
        comments.append(f"a population of {len(population)} with changing hyperparameters reached {reached:.5g}")
    overlay = dict[str, Any]()  # only for the searched runs
    for run in branch.runs:
        if run.method.name == branch.method.name:
            overlay.setdefault(SECTIONS[run.kind], {})[run.key] = {"override": nested(winner)}
    overlays.write(path, overlay, comments)
    print(
        f"{path}, and {path.with_suffix('.csv')} with all trials:",
        *comments[1:],
        *(f"{k} = {v:g}" for k, v in winner.items()),
        sep="\n  ",
    )
    return path


def _write_trials(search: Search, trials: Sequence[Ended], path: Path) -> None:
    """Write a CSV file with a row for each trial, the best first."""
    keys, metrics = list(search.branch.method.search), search.branch.metrics
    rows = list[list[object]]()
    for trial in sorted(trials, key=lambda trial: (-trial.milestone, _loss(trial))):
        values = *(trial.sampled[key] for key in keys), *(trial.scores.get(name, "") for name in metrics)
        rows.append([*values, f"{trial.milestone}/{MILESTONES}", round(trial.seconds, 2)])
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([[*keys, *metrics, "trained", "seconds"], *rows])
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, text.getvalue().encode())


def _is_finished(trial: Ended) -> bool:
    return trial.milestone == MILESTONES and _loss(trial) < DIVERGED


def _loss(trial: Ended) -> float:
    metric, value = next(iter(trial.scores.items()))
    return -metric_of(metric).better * value
