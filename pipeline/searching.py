"""Ray Tune: samples by Optuna, bad ones stopped early by ASHA, each an MLflow child run."""

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bdl_pipe.artifacts import State
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.errors import UserError

from . import tracking
from .executors import cluster
from .settings import Settings
from .trial import METRIC, MILESTONES, TIME, rounded, trial

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


@contextmanager
def ray_of(settings: Settings) -> Iterator[None]:
    """Ray inside this process, or the cluster that RAY_ADDRESS names; left as it was found."""
    cluster.prepare_environment()
    os.environ.setdefault("TUNE_FORCE_TRIAL_CLEANUP_S", "2")  # Ctrl-C does not wait for a trial's next milestone
    os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")  # no CSV, JSON and TensorBoard files
    cluster.preflight(settings.address)
    import ray

    folder = tempfile.mkdtemp(prefix="bdl-ray-")
    local = {"address": "local", "include_dashboard": False, "_temp_dir": folder}
    options: dict[str, Any] = {"address": settings.address} if settings.address else local
    already = ray.is_initialized()
    try:
        if not already:
            ray.init(**options, log_to_driver=False, logging_level=logging.ERROR)
        cluster.check_resources(ray.nodes(), 1.0, settings.gpus)
        yield
    finally:
        if not already:
            ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def search(
    search: "Search", data: FitData, upstream: Sequence[State], folder: Path, settings: Settings, at_once: int | None
) -> list[Score]:
    """Run the samples that are not yet finished; every sample's last score.

    Raises:
        UserError: samples failed, with the first one's reason.
        KeyboardInterrupt: it was stopped before all samples had ended.
    """
    from ray import tune

    work = tune.with_parameters(trial, chain=search.chain, data=data, upstream=list(upstream))
    work = tune.with_resources(work, {"cpu": 1, "gpu": settings.gpus})
    place = str(folder.absolute() / "trials")
    if tune.Tuner.can_restore(place):
        tuner = tune.Tuner.restore(place, trainable=work, resume_unfinished=True, restart_errored=True)
    else:
        shutil.rmtree(place, ignore_errors=True)
        tuner = _tuner(search, work, folder, at_once)
    results = tuner.fit()
    if results.num_errors:
        raise UserError(f"{search.name}: {results.num_errors} samples failed: {_reason(results.errors[0])}")
    scores = [
        Score(dict(r.config or {}), float(r.metrics[METRIC]), int(r.metrics[TIME]))
        for r in map(results.__getitem__, range(len(results)))
        if r.metrics and METRIC in r.metrics
    ]
    if len(scores) < search.samples or results.num_terminated < search.samples:
        raise KeyboardInterrupt
    return scores


def same(sampled: Mapping[str, float], present: Mapping[str, float]) -> bool:
    return all(rounded(sampled[key]) == rounded(value) for key, value in present.items())


def _tuner(search: "Search", work: Any, folder: Path, at_once: int | None) -> Any:
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler
    from ray.tune.search.optuna import OptunaSearch

    scales = {"log": tune.loguniform, "linear": tune.uniform}
    space = {key: scales[scale](low, high) for key, (low, high, scale) in search.space.items()}
    inside = all(low <= search.present[key] <= high for key, (low, high, _) in search.space.items())
    first = [dict(search.present)] if inside else None
    return tune.Tuner(
        work,
        param_space=space,
        tune_config=tune.TuneConfig(
            metric=METRIC,
            mode="min",
            num_samples=search.samples,
            max_concurrent_trials=at_once,
            search_alg=OptunaSearch(points_to_evaluate=first, seed=search.chain.seed),
            scheduler=ASHAScheduler(time_attr=TIME, max_t=MILESTONES, grace_period=1, reduction_factor=_REDUCTION),
        ),
        run_config=tune.RunConfig(
            name="trials",
            storage_path=str(folder.absolute()),
            callbacks=[_callback(search)],
            checkpoint_config=tune.CheckpointConfig(num_to_keep=1),
            failure_config=tune.FailureConfig(max_failures=_RETRIES),
            verbose=0,
        ),
    )


def _callback(search: "Search") -> Any:
    """Tells MLflow and the terminal of every trial. It is stored with the search, so it holds no connection."""
    from ray.tune import Callback

    class Told(Callback):
        def __init__(self, name: str, samples: int, tags: Mapping[str, Any]) -> None:
            self.name, self.samples, self.tags = name, samples, dict(tags)
            self.runs: dict[str, tracking.StageRun] = {}
            self.ended = 0

        def __getstate__(self) -> dict[str, Any]:
            return {**self.__dict__, "runs": {}}

        def run(self, trial: Any) -> tracking.StageRun:
            if trial.trial_id not in self.runs:
                tags = {**self.tags, "stage": "trial", "trial": trial.trial_id}
                sampled = {key: rounded(value) for key, value in trial.config.items()}
                parent = os.environ.get(tracking.PARENT)
                self.runs[trial.trial_id] = tracking.child(f"{self.name} {trial.trial_id}", parent, tags, sampled)
            return self.runs[trial.trial_id]

        def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            self.run(trial)

        def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: Any, **info: Any) -> None:
            self.run(trial).metrics({f"validation/{METRIC}": result[METRIC]}, result[TIME])

        def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            tracking.end(self.run(trial))
            self.ended += 1
            last, values = trial.last_result, ", ".join(f"{k} {rounded(v):g}" for k, v in trial.config.items())
            at = "" if last.get(TIME) == MILESTONES else f", stopped at {last.get(TIME)}/{MILESTONES}"
            print(f"{self.ended} of {self.samples}: {METRIC} {last.get(METRIC):.5g}{at} ({values})", flush=True)

        def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            tracking.end(self.run(trial), "FAILED")

    return Told(search.name, search.samples, {"method": search.method.name, "dataset": search.dataset})


def _reason(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
