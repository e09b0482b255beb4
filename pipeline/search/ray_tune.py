"""Ray Tune: trials, each an MLflow child run, that an interrupted search goes on with; Optuna, ASHA, populations.

Tune's storage holds all that is known of the trials, and their checkpoints; see :mod:`.storage`.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bdl_pipe.data.fitdata import FitData
from bdl_pipe.errors import UserError

from ..core.settings import Settings
from ..core.storage import Place
from ..work import cluster
from ..work.sending import with_plugins
from .storage import of_driver
from .telling import Ended, Trials, settle, told
from .trial import METRIC, MILESTONES, SECONDS, TIME, Upstream, rounded, trial

if TYPE_CHECKING:
    from .tune import Search

_REDUCTION: Final = 2  # ASHA keeps the better half at each milestone
ASHA, PBT = "asha", "pbt"
SCHEDULERS: Final = (ASHA, PBT)
LEAST: Final = 4  # samples of a population
_RETRIES: Final = 2  # of a trial whose worker was lost, from its last milestone


Points = Sequence[Mapping[str, float]]


@dataclass(frozen=True)
class Score:
    """A sample and the last score that it reported."""

    sampled: Mapping[str, float]
    nll: float
    milestone: int


@dataclass(frozen=True)
class Kept:
    """Where trials are kept, and how they are run.

    Attributes:
        folder: of the search, on this machine.
        away: its place in storage that machines share, where there is one.
    """

    folder: Path
    settings: Settings
    away: Place | None = None

    def below(self, name: str) -> "Kept":
        """Return a place within this one."""
        return Kept(self.folder / name, self.settings, self.away and self.away.below(name))

    @contextmanager
    def place(self, spread: bool) -> Iterator[Place]:
        """Yield the place that Tune writes; ``spread``: from other machines, too."""
        if self.away is not None:
            yield self.away
        elif spread:
            with of_driver(self.folder) as place:
                yield place
        else:
            yield Place(None, str(self.folder.absolute()))


@contextmanager
def ray_of(settings: Settings) -> Iterator[None]:
    """Connect to Ray inside this process, or to the cluster that RAY_ADDRESS names, and leave it as it was found."""
    os.environ.setdefault("TUNE_FORCE_TRIAL_CLEANUP_S", "2")  # Ctrl-C does not wait for a trial's next milestone
    os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")  # no CSV, JSON and TensorBoard files
    with cluster.connected(settings):
        yield


def search(
    search: "Search", data: FitData, upstream: Upstream, kept: Kept, at_once: int | None, points: Points | None = None
) -> list[Score]:
    """Run the samples that are not yet finished, and return every sample's last score.

    Args:
        points: the numbers to try, each from the start to the end, in place of the search's own samples.

    Raises:
        UserError: samples failed, with the first one's reason.
        KeyboardInterrupt: it was stopped before all samples had ended.
    """
    parts = {"chain": search.chain, "data": data, "upstream": upstream}
    count = search.samples if points is None else len(points)
    name = search.name if points is None else f"{search.name}-finals"
    trials = Trials(name, count, search.tags, (METRIC,))
    results = run(trials, trial, parts, *_space(search, at_once, points), kept)
    return [Score(dict(r.config), float(r.metrics[METRIC]), int(r.metrics[TIME])) for r in results]


def run(
    trials: Trials, work: Callable[..., None], parts: Mapping[str, Any], space: Mapping[str, Any], how: Any, kept: Kept
) -> list[Ended]:
    """Run the trials that are not yet finished, and return all of them.

    Args:
        work: the trainable; it reports ``TIME`` and some of ``trials.metrics``.
        parts: its parameters beside the trial's numbers.
        space, how: Ray Tune's ``param_space`` and ``TuneConfig``, of a new search.
        kept: where the trials are kept.

    Raises:
        UserError: trials failed, with the first one's reason.
        KeyboardInterrupt: it was stopped before all trials had ended.
    """
    with kept.place(spread=bool(kept.settings.address)) as place:
        ended = tuned(trials, work, parts, space, how, place, kept.settings, told(trials))
    settle(trials, ended)
    return ended


def tuned(
    trials: Trials,
    work: Callable[..., None],
    parts: Mapping[str, Any],
    space: Mapping[str, Any],
    how: Any,
    place: Place,
    settings: Settings,
    callback: Any,
) -> list[Ended]:
    """Run the trials on the cluster that this process has joined, as :func:`run` does; ``callback`` is Ray Tune's."""
    from ray import tune

    sent = {name: with_plugins(value) if name == "chain" else value for name, value in parts.items()}
    work = tune.with_parameters(work, **sent)
    work = tune.with_resources(work, tune.PlacementGroupFactory([settings.needs.counted]))
    at, files = f"{place.path}/trials", place.files
    if tune.Tuner.can_restore(at, storage_filesystem=files):
        # a trial that failed keeps its name, by which its sample is known
        again = {"resume_unfinished": True, "resume_errored": True, "storage_filesystem": files}
        tuner = tune.Tuner.restore(at, trainable=work, **again)
    else:
        place.below("trials").clear()
        config = tune.RunConfig(
            name="trials",
            storage_path=place.path,
            storage_filesystem=files,
            stop={TIME: MILESTONES},  # or a population changes once more
            callbacks=[callback],
            failure_config=tune.FailureConfig(max_failures=_RETRIES),
            verbose=0,
        )
        tuner = tune.Tuner(work, param_space=dict(space), tune_config=how, run_config=config)
    results = tuner.fit()
    if results.num_errors:
        said = _reason(results.errors[0])
        raise UserError(f"{trials.name}: {results.num_errors} trials failed (go on with --resume): {said}")
    found = [r for r in map(results.__getitem__, range(len(results))) if r.metrics and TIME in r.metrics]
    if sum(r.metrics.get("done", False) for r in found) < trials.count:  # Ctrl-C ends trials, and calls them terminated
        raise KeyboardInterrupt
    wanted = {*trials.metrics, TIME, SECONDS}
    return [
        Ended(r.metrics["trial_id"], dict(r.config), {k: v for k, v in r.metrics.items() if k in wanted}) for r in found
    ]


def same(sampled: Mapping[str, float], present: Mapping[str, float]) -> bool:
    """Say whether a sample has the numbers ``present``, as far as they are rounded."""
    return all(rounded(sampled[key]) == rounded(value) for key, value in present.items())


def is_inside(search: "Search") -> bool:
    """Say whether the numbers in force are of the space that is searched."""
    return all(low <= search.present[key] <= high for key, (low, high, _) in search.space.items())


def _space(search: "Search", at_once: int | None, points: Points | None = None) -> tuple[dict[str, Any], Any]:
    """Return what is tried, and how."""
    from ray import tune
    from ray.tune.search.basic_variant import BasicVariantGenerator
    from ray.tune.search.optuna import OptunaSearch

    integers = lambda low, high: tune.lograndint(low, high + 1)  # noqa: E731
    scales = {"log": tune.loguniform, "linear": tune.uniform, "integer": integers}
    space = {key: scales[scale](low, high) for key, (low, high, scale) in search.space.items()}
    if points is not None:
        chosen = BasicVariantGenerator(points_to_evaluate=[dict(p) for p in points], max_concurrent=at_once or 0)
        return space, tune.TuneConfig(metric=METRIC, mode="min", num_samples=len(points), search_alg=chosen)
    first = [dict(search.present)] if is_inside(search) else None
    if search.scheduler == PBT:
        # all are alive until the end, and take turns
        sampler = BasicVariantGenerator(points_to_evaluate=first, random_state=search.chain.seed)
        how = {"search_alg": sampler, "scheduler": _population(search)}
        return space, tune.TuneConfig(metric=METRIC, mode="min", num_samples=search.samples, **how)
    optuna = OptunaSearch(points_to_evaluate=first, seed=search.chain.seed)
    return space, tune.TuneConfig(
        metric=METRIC,
        mode="min",
        num_samples=search.samples,
        max_concurrent_trials=at_once,
        search_alg=optuna,
        scheduler=_halving(search.present),
    )


def _halving(present: Mapping[str, float]) -> Any:
    """Make ASHA, which gives up any sample but the numbers in force: a winner is better than those are at their end."""
    from ray.tune.schedulers import ASHAScheduler

    class Halving(ASHAScheduler):
        def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
            decision = super().on_trial_result(tune_controller, trial, result)
            return self.CONTINUE if same(trial.config, present) else decision

    return Halving(time_attr=TIME, max_t=MILESTONES, grace_period=1, reduction_factor=_REDUCTION)


def _population(search: "Search") -> Any:
    """Make the scheduler of Jaderberg et al. 2017: at each milestone the worst quarter goes on as the best one does.

    With the checkpoint of one of those, and its numbers, each a fifth larger or smaller or drawn anew; a whole number,
    which may be a shape, stays. All wait for all, so that what is decided depends on no order.
    """
    from ray import tune

    from .population import Rounds

    drawn = {"log": tune.loguniform, "linear": tune.uniform}
    moved = {key: drawn[scale](low, high) for key, (low, high, scale) in search.space.items() if scale in drawn}
    how = {"time_attr": TIME, "perturbation_interval": 1, "hyperparam_mutations": moved, "log_config": False}
    return Rounds(search.chain.seed, **how)


def _reason(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
