"""The prepare stage: two artifacts of a data set, one that fits read and one that only the evaluate stage reads."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bdl_pipe import artifacts, config
from bdl_pipe.progress import Report
from bdl_pipe.seeds import Seed

from ..core import places
from ..core.model import Params
from ..core.settings import Settings
from ..plan.plan import Stage
from ..prepared import folders, preparation
from ..prepared.folders import Job
from ..work.display import Display
from ..work.executor import Executor, Task


def run(stage: Stage, params: Params, executor: Executor, settings: Settings) -> None:
    """Make ``work/prepare/<key>`` and ``work/holdout/<key>``.

    Raises:
        UserError: the data cannot be obtained, or are wrong; neither artifact is changed.
    """
    key = stage.key
    fit, holdout = places.artifact("prepare", key), places.artifact("holdout", key)
    dataset = params.datasets[key]
    about: dict[str, object] = {"dataset": key, "seed": params.seed, "config": config.to_mapping(dataset)}
    # all steps of an increment hold out the same validation rows, independent of their keys
    rng = Seed(params.seed).fold("prepare", key if dataset.increment is None else dataset.source.name)
    held, seen = {**about}, {**about}
    with (
        Display(f"prepare {key}") as display,
        artifacts.publish(fit, folders.FIT_KIND, about=seen) as fit_folder,
        artifacts.publish(holdout, folders.HOLDOUT_KIND, about=held) as held_folder,
    ):
        fan = _fan_out(executor, display)
        facts = preparation.prepare(key, params.datasets, fit_folder, held_folder, rng=rng, fan_out=fan)
        seen["facts"], held["facts"] = facts.fit, facts.holdout


def corrupt(job: Job, shared: Mapping[str, Any], report: Report) -> np.ndarray:
    """Do the work of a task: corrupt the images of one job."""
    return shared["corrupt"](job)


def _fan_out(executor: Executor, display: Display) -> preparation.FanOut:
    def fan_out(function: Callable[[Job], np.ndarray], jobs: Sequence[Job]) -> Iterable[np.ndarray]:
        tasks = [Task(job.key, job, ("corrupt",)) for job in jobs]
        answers = executor.map(corrupt, tasks, shared={"corrupt": function}, display=display, where="try")
        return [done.result for done in answers]

    return fan_out
