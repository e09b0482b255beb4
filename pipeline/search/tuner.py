"""Ray Tune: sample hyperparameters, stop trials early, and show trials to the user.

Tune's storage holds the whole state of the trials. Import this module after ``work.cluster.connected``, which sets the
variables that Ray reads on import.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from ray import tune
from ray.air.integrations.mlflow import MLflowLoggerCallback
from ray.tune.experiment import Trial
from ray.tune.logger import TBXLoggerCallback
from ray.tune.result import TIME_TOTAL_S, TRAINING_ITERATION
from ray.tune.schedulers import (
    ASHAScheduler,
    FIFOScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
    TrialScheduler,
)
from ray.tune.search.basic_variant import BasicVariantGenerator

from bdl_pipe.errors import UserError
from bdl_pipe.metrics.table import metric_of
from bdl_pipe.search import Sampled, rounded, same

from .. import tracking
from ..core import provenance
from ..work.hub import with_plugins
from . import Session
from .trial import MILESTONES, TIME, Ended, trial

_REDUCTION: Final = 2  # ASHA keeps the better half at each milestone.
_RETRIES: Final = 2  # retries of a trial that lost its worker, from its last milestone
Space = Mapping[str, tuple[float, float, str]]  # dotted key -> (low, high, scale)


@dataclass(frozen=True)
class Lines(tune.Callback):
    """A callback that prints a line when one of ``count`` trials ends; ``metrics`` are the reported scores to print."""

    count: int
    metrics: tuple[str, ...]

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: object) -> None:
        ended, last = 1 + sum(other.is_finished() for other in trials if other is not trial), trial.last_result
        tried = [f"{k} {f'{rounded(v):g}' if isinstance(v, float) else v}" for k, v in trial.config.items()]
        at = "" if last.get(TIME) == MILESTONES else f", stopped at {last.get(TIME)}/{MILESTONES}"
        scores = ", ".join(f"{name} {last[name]:.5g}" for name in self.metrics if name in last) or "diverged"
        print(f"{ended} of {self.count}: {scores}{at} ({', '.join(tried)})", flush=True)


def run(
    session: Session, space: Mapping[str, Any], settings: tune.TuneConfig, part: str = "", tensorboard: bool = False
) -> list[Ended]:
    """Run the unfinished trials, and return all trials.

    Args:
        space, how: Tune's ``param_space`` and ``TuneConfig``; a resumed search keeps its own.
        part: the name of the part, if a search has several parts.
        tensorboard: also write each trial's scores as event files, beside its checkpoints.

    Raises:
        UserError: trials failed; the message has the reason of the first failure.
        KeyboardInterrupt: the search was stopped before all trials ended.
    """
    os.environ.setdefault(
        "TUNE_FORCE_TRIAL_CLEANUP_S", "2"
    )  # so that Ctrl-C does not wait for a trial's next milestone
    os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")  # no CSV, JSON and TensorBoard files
    name = f"{session.name}-{part}" if part else session.name
    folder = f"{session.folder.address}/{part}" if part else session.folder.address
    parts = {**session.parts, "branch": with_plugins(session.parts["branch"])}
    resources = tune.PlacementGroupFactory([session.settings.needs.counted])
    trainable = tune.with_resources(tune.with_parameters(trial, **parts), resources)
    if tune.Tuner.can_restore(f"{folder}/trials"):
        # A failed trial keeps its name, so that it tries the same hyperparameters again.
        tuner = tune.Tuner.restore(f"{folder}/trials", trainable, resume_unfinished=True, resume_errored=True)
    else:
        # A population's hyperparameters are known only at a trial's end.
        at_end = isinstance(settings.scheduler, PopulationBasedTraining)
        tags = {**session.tags, "search": name}
        tracked: list[tune.Callback] = [TrialRuns(session.metrics, tags, at_end)] if tags.get(tracking.NEST) else []
        if tensorboard:
            tracked.append(TBXLoggerCallback())
            print(f"tensorboard --logdir {folder}/trials", flush=True)
        config = tune.RunConfig(
            name="trials",
            storage_path=folder,
            stop={TIME: MILESTONES},  # otherwise PBT would change a finished trial
            callbacks=[Lines(settings.num_samples, session.metrics), *tracked],
            failure_config=tune.FailureConfig(max_failures=_RETRIES),
            verbose=0,
        )
        settings = replace(settings, trial_name_creator=lambda trial: f"{name}-{trial.trial_id}")
        tuner = tune.Tuner(trainable, param_space=dict(space), tune_config=settings, run_config=config)
    results = tuner.fit()
    if results.num_errors:
        reason = str(results.errors[0]).strip().rpartition("\n")[2].strip()
        raise UserError(f"{name}: {results.num_errors} trials failed (continue with --resume): {reason}")
    ended = [r for r in map(results.__getitem__, range(len(results))) if r.metrics and TIME in r.metrics]
    if sum(r.metrics.get("done", False) for r in ended) < settings.num_samples:  # Tune returns normally after Ctrl-C.
        raise KeyboardInterrupt
    return [
        Ended(dict(r.config), chosen(session.metrics, r.metrics), r.metrics[TIME], r.metrics[TIME_TOTAL_S])
        for r in ended
    ]


def chosen(names: Sequence[str], result: Mapping[str, Any]) -> dict[str, float]:
    """Select the scores of these names from a trial's report."""
    return {name: float(result[name]) for name in names if name in result}


def points(tried: Sequence[Sampled], at_once: int | None) -> tuple[dict[str, Any], tune.TuneConfig]:
    """Return the configuration that fits each of these samples once, from start to end."""
    space = {key: tune.choice(list(dict.fromkeys(sample[key] for sample in tried))) for key in tried[0]}
    chosen = BasicVariantGenerator(points_to_evaluate=[dict(sample) for sample in tried], max_concurrent=at_once or 0)
    return space, tune.TuneConfig(num_samples=len(tried), search_alg=chosen, reuse_actors=True)


def constant(
    space: Space,
    first: list[dict[str, Any]],
    samples: int,
    seed: int,
    metric: str,
    at_once: int | None,
    scheduler: str = "asha",
    algorithm: str = "optuna",
) -> tuple[dict[str, Any], tune.TuneConfig]:
    """Return the configuration of trials with constant hyperparameters.

    The samples ``first`` come first and are never stopped, if the algorithm accepts given samples.

    Args:
        scheduler, algorithm: names of Ray Tune.
    """
    about: dict[str, Any] = {"metric": metric, "mode": "max" if metric_of(metric).better > 0 else "min"}
    if algorithm == "random":
        search_alg: Any = BasicVariantGenerator(points_to_evaluate=first or None, random_state=seed)
    else:
        seeds = {"seed": seed, "random_state_seed": seed, "random_state": seed}  # each algorithm has its own name
        search_alg = tune.create_searcher(algorithm, points_to_evaluate=first or None, **seeds)
    stops: dict[str, Any] = {
        "asha": lambda: Halving(first, time_attr=TIME, max_t=MILESTONES, grace_period=1, reduction_factor=_REDUCTION),
        "medianstopping": lambda: Median(first, time_attr=TIME, grace_period=1),
        "fifo": FIFOScheduler,
    }
    return _domains(space), tune.TuneConfig(
        **about,
        num_samples=samples,
        max_concurrent_trials=at_once,
        search_alg=search_alg,
        scheduler=stops[scheduler](),
    )


def population(
    space: Space, first: list[dict[str, Any]], samples: int, seed: int, metric: str
) -> tuple[dict[str, Any], tune.TuneConfig]:
    """Return the configuration for Ray's PopulationBasedTraining (Jaderberg et al. 2017).

    At each milestone a trial of the worst quarter continues from a checkpoint of one of the best trials, with changed
    hyperparameters; integers are not changed, because they may be shapes.
    """
    continuous = {key: scale for key, scale in space.items() if scale[2] != "integer"}
    scheduler = PopulationBasedTraining(
        time_attr=TIME, perturbation_interval=1, hyperparam_mutations=_domains(continuous), log_config=False
    )
    return _domains(space), tune.TuneConfig(
        metric=metric,
        mode="max" if metric_of(metric).better > 0 else "min",
        num_samples=samples,
        search_alg=BasicVariantGenerator(points_to_evaluate=first or None, random_state=seed),
        scheduler=scheduler,
        reuse_actors=False,  # Ray 2.60 can hang on a paused trial whose actor was reused
    )


def _domains(space: Space) -> dict[str, Any]:
    integers = lambda low, high: tune.lograndint(low, high + 1)  # noqa: E731
    scales = {"log": tune.loguniform, "linear": tune.uniform, "integer": integers}
    return {key: scales[scale](low, high) for key, (low, high, scale) in space.items()}


class KeepsFirst(TrialScheduler):
    """A scheduler that never stops the present hyperparameters, since the winner is compared with their final score."""

    def __init__(self, never: Sequence[Sampled], **options: Any) -> None:
        super().__init__(**options)
        self._never = never

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        decision = super().on_trial_result(tune_controller, trial, result)
        return self.CONTINUE if any(same(trial.config, sample) for sample in self._never) else decision


class Halving(KeepsFirst, ASHAScheduler):
    """ASHA."""


class Median(KeepsFirst, MedianStoppingRule):
    """Stops a trial below the median of the others' means so far (Golovin et al. 2017)."""


class TrialRuns(MLflowLoggerCallback):
    """Ray's MLflow callback, with each trial as a child run of the search. A tracking error stops no trial."""

    def __init__(self, metrics: tuple[str, ...], tags: Mapping[str, object], params_at_end: bool) -> None:
        super().__init__(experiment_name=tracking.STAGES, tags=dict(tags), log_params_on_trial_end=params_at_end)
        self._metrics, self._has_failed = metrics, False

    def _try(self, action: Callable[[], object]) -> None:
        """Call ``action`` unless an earlier call has failed; the first failure is a warning."""
        if not self._has_failed:
            self._has_failed = tracking.tolerate(lambda: (action(), True)) is None

    def setup(self, *args: Any, **options: Any) -> None:
        """Set the store of the present process, since Tune stores this callback with the search."""
        self.tracking_uri = tracking.store_uri()
        self.tags["process"] = provenance.process()
        self._try(lambda: super(TrialRuns, self).setup(*args, **options))

    def log_trial_start(self, trial: Trial) -> None:
        self._try(lambda: super(TrialRuns, self).log_trial_start(trial))

    def log_trial_result(self, iteration: int, trial: Trial, result: dict[str, Any]) -> None:
        scores = {f"validation/{name}": score for name, score in chosen(self._metrics, result).items()}
        scores[TRAINING_ITERATION] = result[TRAINING_ITERATION]  # Ray's callback reads the step there.
        self._try(lambda: super(TrialRuns, self).log_trial_result(iteration, trial, scores))

    def log_trial_end(self, trial: Trial, failed: bool = False) -> None:
        self._try(lambda: super(TrialRuns, self).log_trial_end(trial, failed))
