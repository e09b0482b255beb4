"""Ray Tune: which hyperparameters are tried, which trials are stopped early, and what the user sees of the trials.

Tune's storage holds all that is known of the trials. Import this module after ``work.cluster.connected``, which sets
the variables that Ray reads when it is imported.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from ray import tune
from ray.air.integrations.mlflow import MLflowLoggerCallback
from ray.tune.result import TIME_TOTAL_S, TRAINING_ITERATION
from ray.tune.schedulers import ASHAScheduler, PopulationBasedTraining
from ray.tune.search.basic_variant import BasicVariantGenerator
from ray.tune.search.optuna import OptunaSearch

from bdl_pipe.errors import UserError

from .. import tracking
from ..core import provenance
from ..core.settings import Settings
from ..work.hub import with_plugins
from .session import Folder
from .trial import METRIC, MILESTONES, TIME, Ended, Sampled, rounded, trial

_REDUCTION: Final = 2  # ASHA keeps the better half at each milestone.
_RETRIES: Final = 2  # A trial whose worker was lost is retried, from its last milestone.
Space = Mapping[str, tuple[float, float, str]]  # dotted key -> (low, high, scale)


@dataclass(frozen=True)
class Trials(tune.Callback):
    """The trials of a search, as users see them: a line is printed when a trial ends.

    Attributes:
        tags: of their tracked runs; without a parent they are not tracked.
        metrics: the scores among what a trial reports.
    """

    name: str
    count: int
    tags: Mapping[str, Any]
    metrics: tuple[str, ...]

    def scores(self, result: Mapping[str, Any]) -> dict[str, float]:
        """Select the scores of what a trial reported."""
        return {name: float(result[name]) for name in self.metrics if name in result}

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        ended, last = 1 + sum(other.is_finished() for other in trials if other is not trial), trial.last_result
        tried = [f"{k} {f'{rounded(v):g}' if isinstance(v, float) else v}" for k, v in trial.config.items()]
        at = "" if last.get(TIME) == MILESTONES else f", stopped at {last.get(TIME)}/{MILESTONES}"
        scores = ", ".join(f"{name} {score:.5g}" for name, score in self.scores(last).items()) or "diverged"
        print(f"{ended} of {self.count}: {scores}{at} ({', '.join(tried)})", flush=True)


def run(
    trials: Trials,
    parts: Mapping[str, Any],
    space: Mapping[str, Any],
    how: tune.TuneConfig,
    folder: Folder,
    settings: Settings,
) -> list[Ended]:
    """Run the trials that are not yet finished, and return all of them.

    Args:
        parts: the parameters of :func:`.trial.trial` besides the hyperparameters.
        space, how: Tune's ``param_space`` and ``TuneConfig``; a resumed search keeps its own.

    Raises:
        UserError: trials failed; the message has the reason of the first failure.
        KeyboardInterrupt: the search was stopped before all trials had ended.
    """
    os.environ.setdefault("TUNE_FORCE_TRIAL_CLEANUP_S", "2")  # Ctrl-C does not wait for a trial's next milestone.
    os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")  # Tune writes no CSV, JSON and TensorBoard files.
    sent = {name: with_plugins(value) if name == "chain" else value for name, value in parts.items()}
    trainable = tune.with_resources(
        tune.with_parameters(trial, **sent), tune.PlacementGroupFactory([settings.needs.counted])
    )
    place = f"{folder.address}/trials"
    if tune.Tuner.can_restore(place):
        # A failed trial keeps its name, so that it tries the same hyperparameters again.
        tuner = tune.Tuner.restore(place, trainable=trainable, resume_unfinished=True, resume_errored=True)
    else:
        # The hyperparameters of a population are known at a trial's end alone.
        at_end = isinstance(how.scheduler, PopulationBasedTraining)
        tracked = [TrialRuns(trials, log_params_on_trial_end=at_end)] if trials.tags.get(tracking.NEST) else []
        config = tune.RunConfig(
            name="trials",
            storage_path=folder.address,
            stop={TIME: MILESTONES},  # Otherwise a population changes a finished trial once more.
            callbacks=[trials, *tracked],
            failure_config=tune.FailureConfig(max_failures=_RETRIES),
            verbose=0,
        )
        how = replace(how, trial_name_creator=lambda trial: f"{trials.name}-{trial.trial_id}")
        tuner = tune.Tuner(trainable, param_space=dict(space), tune_config=how, run_config=config)
    results = tuner.fit()
    if results.num_errors:
        reason = str(results.errors[0]).strip().rpartition("\n")[2].strip()
        raise UserError(f"{trials.name}: {results.num_errors} trials failed (continue with --resume): {reason}")
    ended = [r for r in map(results.__getitem__, range(len(results))) if r.metrics and TIME in r.metrics]
    if sum(r.metrics.get("done", False) for r in ended) < trials.count:  # Tune returns normally after Ctrl-C.
        raise KeyboardInterrupt
    return [Ended(dict(r.config), trials.scores(r.metrics), r.metrics[TIME], r.metrics[TIME_TOTAL_S]) for r in ended]


def points(tried: Sequence[Sampled], at_once: int | None) -> tuple[dict[str, Any], tune.TuneConfig]:
    """Try each of these samples once, from its start to its end."""
    space = {key: tune.choice(list(dict.fromkeys(sample[key] for sample in tried))) for key in tried[0]}
    chosen = BasicVariantGenerator(points_to_evaluate=[dict(sample) for sample in tried], max_concurrent=at_once or 0)
    return space, tune.TuneConfig(num_samples=len(tried), search_alg=chosen, reuse_actors=True)


def halving(
    space: Space, first: list[dict[str, Any]], samples: int, seed: int, at_once: int | None
) -> tuple[dict[str, Any], tune.TuneConfig]:
    """Sample by Optuna, and stop weak trials by ASHA; ``first`` are the first samples, which are never stopped."""
    return _domains(space), tune.TuneConfig(
        metric=METRIC,
        mode="min",
        num_samples=samples,
        max_concurrent_trials=at_once,
        search_alg=OptunaSearch(points_to_evaluate=first or None, seed=seed),
        scheduler=Halving(first, time_attr=TIME, max_t=MILESTONES, grace_period=1, reduction_factor=_REDUCTION),
    )


def population(
    space: Space, first: list[dict[str, Any]], samples: int, seed: int
) -> tuple[dict[str, Any], tune.TuneConfig]:
    """Train a population by Ray's PopulationBasedTraining (Jaderberg et al. 2017).

    At each milestone a trial of the worst quarter continues from a checkpoint of one of the best, with changed
    hyperparameters; whole numbers stay, because they may be shapes.
    """
    continuous = {key: scale for key, scale in space.items() if scale[2] != "integer"}
    scheduler = PopulationBasedTraining(
        time_attr=TIME, perturbation_interval=1, hyperparam_mutations=_domains(continuous), log_config=False
    )
    return _domains(space), tune.TuneConfig(
        metric=METRIC,
        mode="min",
        num_samples=samples,
        search_alg=BasicVariantGenerator(points_to_evaluate=first or None, random_state=seed),
        scheduler=scheduler,
        reuse_actors=False,  # Ray 2.60 can wait for ever for a paused trial whose actor was given to another trial.
    )


def same(sampled: Sampled, present: Sampled) -> bool:
    """Return whether a sample has the hyperparameters ``present``, up to rounding."""
    return all(rounded(sampled[key]) == rounded(value) for key, value in present.items())


def _domains(space: Space) -> dict[str, Any]:
    integers = lambda low, high: tune.lograndint(low, high + 1)  # noqa: E731
    scales = {"log": tune.loguniform, "linear": tune.uniform, "integer": integers}
    return {key: scales[scale](low, high) for key, (low, high, scale) in space.items()}


class Halving(ASHAScheduler):
    """ASHA that never stops the hyperparameters in force: the winner is compared with their finished score."""

    def __init__(self, never: Sequence[Sampled], **options: Any) -> None:
        super().__init__(**options)
        self._never = never

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        decision = super().on_trial_result(tune_controller, trial, result)
        return self.CONTINUE if any(same(trial.config, sample) for sample in self._never) else decision


class TrialRuns(MLflowLoggerCallback):
    """Ray's own MLflow callback; each trial is a child run of the search. Tracking that fails stops no trial."""

    def __init__(self, trials: Trials, **options: Any) -> None:
        tags = {**trials.tags, "search": trials.name}
        super().__init__(experiment_name=tracking.STAGES, tags=tags, **options)
        self._trials, self._has_failed = trials, False

    def _try(self, action: Callable[[], Any]) -> None:
        """Call ``action`` unless an earlier call has failed, which was one warning."""
        if not self._has_failed:
            self._has_failed = tracking.tolerate(lambda: (action(), True)) is None

    def setup(self, *args: Any, **options: Any) -> None:
        """Take the store from the process that runs the trials now; Tune stores this callback with the search."""
        self.tracking_uri = tracking.store_uri()
        self.tags["process"] = provenance.process()
        self._try(lambda: super(TrialRuns, self).setup(*args, **options))

    def log_trial_start(self, trial: Any) -> None:
        self._try(lambda: super(TrialRuns, self).log_trial_start(trial))

    def log_trial_result(self, iteration: int, trial: Any, result: dict[str, Any]) -> None:
        scores = {f"validation/{name}": score for name, score in self._trials.scores(result).items()}
        scores[TRAINING_ITERATION] = result[TRAINING_ITERATION]  # Ray's callback reads the step there.
        self._try(lambda: super(TrialRuns, self).log_trial_result(iteration, trial, scores))

    def log_trial_end(self, trial: Any, failed: bool = False) -> None:
        self._try(lambda: super(TrialRuns, self).log_trial_end(trial, failed))
