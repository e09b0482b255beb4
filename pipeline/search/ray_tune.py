"""Ray Tune: trials, each an MLflow child run, that an interrupted search goes on with; samples by Optuna and ASHA.

Tune's storage holds what the driver writes of the trials, on the driver's disk. Tune would have every node write its
trials' checkpoints there, too, so they are kept as those of stages are: they come to the driver's node through a hub.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bdl_pipe.data.fitdata import FitData
from bdl_pipe.errors import UserError

from ..core.executors import cluster, preflight
from ..core.executors.hub import ActorChannel, make_hub
from ..core.executors.sealed import sealed
from ..core.executors.store import Store
from ..core.settings import Settings
from ..tracking import experiments
from .trial import METRIC, MILESTONES, SECONDS, TIME, Upstream, rounded, trial

if TYPE_CHECKING:
    from .tune import Search

_REDUCTION: Final = 2  # ASHA keeps the better half at each milestone
_RETRIES: Final = 2  # of a trial whose worker was lost, from its last milestone


@dataclass(frozen=True)
class Score:
    """A sample and the last score that it reported."""

    sampled: Mapping[str, float]
    nll: float
    milestone: int


@dataclass(frozen=True)
class Trials:
    """Facts about trials that MLflow and the terminal are told.

    Attributes:
        count: how many there are.
        metrics: of what a trial reports, the scores.
        numbers: a trial's place in the space -> the numbers that it tries; picklable.
        called: a trial's place in the space -> what the terminal calls it; picklable.
    """

    name: str
    count: int
    tags: Mapping[str, Any]
    metrics: tuple[str, ...]
    numbers: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict
    called: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict


@contextmanager
def ray_of(settings: Settings) -> Iterator[None]:
    """Connect to Ray inside this process, or to the cluster that RAY_ADDRESS names, and leave it as it was found."""
    if settings.jobs:  # Tune's own process is there, too
        preflight(settings)
        yield
        return
    os.environ.setdefault("TUNE_FORCE_TRIAL_CLEANUP_S", "2")  # Ctrl-C does not wait for a trial's next milestone
    os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")  # no CSV, JSON and TensorBoard files
    with cluster.connected(settings):
        yield


@dataclass(frozen=True)
class Ended:
    """A trial that has ended: its place in the space, and what it reported last."""

    config: Mapping[str, Any]
    metrics: Mapping[str, Any]


def search(
    search: "Search", data: FitData, upstream: Upstream, folder: Path, settings: Settings, at_once: int | None
) -> list[Score]:
    """Run the samples that are not yet finished, and return every sample's last score.

    Raises:
        UserError: samples failed, with the first one's reason.
        KeyboardInterrupt: it was stopped before all samples had ended.
    """
    shared = {"chain": search.chain, "data": data, "upstream": upstream}
    trials = Trials(search.name, search.samples, search.tags, (METRIC,))
    results = run(trials, trial, shared, *_space(search, at_once), folder, settings)
    return [Score(dict(r.config), float(r.metrics[METRIC]), int(r.metrics[TIME])) for r in results]


def run(
    trials: Trials,
    work: Callable[..., None],
    shared: Mapping[str, Any],
    space: Mapping[str, Any],
    how: Any,
    folder: Path,
    settings: Settings,
) -> list[Ended]:
    """Run the trials that are not yet finished, and return all of them.

    Args:
        work: the trainable; it reports ``TIME`` and some of ``trials.metrics``.
        shared: its parameters beside the trial's numbers and ``channel``, the way to its checkpoint.
        space, how: Ray Tune's ``param_space`` and ``TuneConfig``, of a new search.
        folder: where the trials are kept.

    Raises:
        UserError: trials failed, with the first one's reason.
        KeyboardInterrupt: it was stopped before all trials had ended.
    """
    if settings.jobs:
        from . import far

        return far.run(trials, work, shared, space, how, folder, settings)
    return tuned(trials, work, shared, space, how, folder, settings, told(trials))


def tuned(
    trials: Trials,
    work: Callable[..., None],
    shared: Mapping[str, Any],
    space: Mapping[str, Any],
    how: Any,
    folder: Path,
    settings: Settings,
    callback: Any,
) -> list[Ended]:
    """Run the trials on the cluster that this process has joined, as :func:`run` does; ``callback`` is Ray Tune's."""
    import ray
    from ray import tune

    store = Store(folder / "checkpoints", "trials")
    store.open()
    hub = make_hub(store)
    sent = {name: sealed(value) if name == "chain" else value for name, value in shared.items()}
    work = tune.with_parameters(work, **sent, channel=ActorChannel(hub))
    work = tune.with_resources(work, tune.PlacementGroupFactory([settings.needs.counted]))
    place = str(folder.absolute() / "trials")
    if tune.Tuner.can_restore(place):
        # a trial that failed keeps its name, by which its sample is known
        tuner = tune.Tuner.restore(place, trainable=work, resume_unfinished=True, resume_errored=True)
    else:
        shutil.rmtree(place, ignore_errors=True)
        kept = tune.RunConfig(
            name="trials",
            storage_path=str(folder.absolute()),
            callbacks=[callback],
            failure_config=tune.FailureConfig(max_failures=_RETRIES),
            verbose=0,
        )
        tuner = tune.Tuner(work, param_space=dict(space), tune_config=how, run_config=kept)
    try:
        results = tuner.fit()
    finally:
        ray.kill(hub)
    if results.num_errors:
        said = _reason(results.errors[0])
        raise UserError(f"{trials.name}: {results.num_errors} trials failed (go on with --resume): {said}")
    found = [r for r in map(results.__getitem__, range(len(results))) if r.metrics and TIME in r.metrics]
    if len(found) < trials.count or results.num_terminated < trials.count:
        raise KeyboardInterrupt
    wanted = {*trials.metrics, TIME, SECONDS}
    return [Ended(dict(r.config), {k: v for k, v in r.metrics.items() if k in wanted}) for r in found]


def same(sampled: Mapping[str, float], present: Mapping[str, float]) -> bool:
    """Say whether a sample has the numbers ``present``, as far as they are rounded."""
    return all(rounded(sampled[key]) == rounded(value) for key, value in present.items())


def _space(search: "Search", at_once: int | None) -> tuple[dict[str, Any], Any]:
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler
    from ray.tune.search.optuna import OptunaSearch

    integers = lambda low, high: tune.lograndint(low, high + 1)  # noqa: E731
    scales = {"log": tune.loguniform, "linear": tune.uniform, "integer": integers}
    space = {key: scales[scale](low, high) for key, (low, high, scale) in search.space.items()}
    inside = all(low <= search.present[key] <= high for key, (low, high, _) in search.space.items())
    first = [dict(search.present)] if inside else None
    how = tune.TuneConfig(
        metric=METRIC,
        mode="min",
        num_samples=search.samples,
        max_concurrent_trials=at_once,
        search_alg=OptunaSearch(points_to_evaluate=first, seed=search.chain.seed),
        scheduler=ASHAScheduler(time_attr=TIME, max_t=MILESTONES, grace_period=1, reduction_factor=_REDUCTION),
    )
    return space, how


def told(trials: Trials) -> Any:
    """Make the callback that tells MLflow and the terminal of every trial.

    It is stored with the search, so it holds no connection.
    """
    from ray.tune import Callback

    class Told(Callback):
        def __init__(self, about: Trials) -> None:
            self.about = about
            self.runs: dict[str, experiments.StageRun] = {}
            self.ended = 0

        def __getstate__(self) -> dict[str, Any]:
            return {**self.__dict__, "runs": {}}

        def run(self, trial: Any) -> experiments.StageRun:
            if trial.trial_id not in self.runs:
                tags = {**self.about.tags, "stage": "trial", "trial": trial.trial_id}
                numbers = {key: _plain(value) for key, value in self.about.numbers(trial.config).items()}
                parent, name = os.environ.get(experiments.PARENT), f"{self.about.name} {trial.trial_id}"
                self.runs[trial.trial_id] = experiments.child(name, parent, tags, numbers)
            return self.runs[trial.trial_id]

        def scores(self, result: Mapping[str, Any]) -> dict[str, float]:
            return {name: result[name] for name in self.about.metrics if name in result}

        def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            self.run(trial)

        def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: Any, **info: Any) -> None:
            self.run(trial).metrics({f"validation/{k}": v for k, v in self.scores(result).items()}, result[TIME])

        def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            experiments.end(self.run(trial))
            self.ended += 1
            called = self.about.called(trial.config)
            last, values = trial.last_result, ", ".join(f"{k} {_plain(v)}" for k, v in called.items())
            at = "" if last.get(TIME) == MILESTONES else f", stopped at {last.get(TIME)}/{MILESTONES}"
            scores = ", ".join(f"{k} {v:.5g}" for k, v in self.scores(last).items()) or "diverged"
            print(f"{self.ended} of {self.about.count}: {scores}{at} ({values})", flush=True)

        def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            experiments.end(self.run(trial), "FAILED")

    return Told(trials)


def _plain(value: Any) -> Any:
    return f"{rounded(value):g}" if isinstance(value, float) else value


def _reason(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
