"""A task whose batches several processes share: a group of Ray Train workers that run the same work.

Each worker calls the work under an initialised ``torch.distributed`` group (gloo on CPUs, nccl on GPUs);
``bdl_pipe.distributed`` shares the batches. Only rank 0 sends progress, checkpoints and the result to the hub. Ray
Train restarts a group that loses a worker, and the task continues from its last checkpoint.
"""

import os
import tempfile
from collections.abc import Callable, Sequence
from typing import Any, Final

from bdl_pipe.errors import UserError

from ..core.settings import Settings
from .base import Done, Task, Work
from .hub import RETRIES
from .sending import with_plugins

_TIMEOUT_SECONDS: Final = 600  # of a collective operation, after which a hung peer is an error


def group(
    work: Work, task: Task, hub: Any, channels: tuple[Any, Any], settings: Settings, keeps: bool, parts: Sequence[Any]
) -> Done:
    """Run one task in a group of workers. This function is itself a Ray task, which only waits for them.

    Args:
        hub: the driver's actor, which receives the outcome from rank 0.
        channels: the channel of rank 0, and the channel of every other rank.
        parts: references to the shared data that the task needs.
    """
    os.environ["RAY_CHDIR_TO_TRIAL_DIR"] = "0"
    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    with tempfile.TemporaryDirectory(prefix="bdl-train-") as folder:  # the controller of the group runs here
        trainer = TorchTrainer(
            _loop(work, with_plugins(task), hub, channels, settings, keeps, parts),
            scaling_config=ScalingConfig(
                num_workers=settings.workers,
                use_gpu=settings.needs.gpus > 0,
                resources_per_worker=settings.needs.counted,
            ),
            run_config=RunConfig(
                name=task.name, storage_path=folder, failure_config=FailureConfig(max_failures=RETRIES)
            ),
            torch_config=TorchConfig("nccl" if settings.device == "cuda" else "gloo", timeout_s=_TIMEOUT_SECONDS),
        )
        trainer.fit()
    outcome: Done | Exception = ray.get(hub.get_result.remote(task.name))
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def _loop(
    work: Work, task: Task, hub: Any, channels: tuple[Any, Any], settings: Settings, keeps: bool, parts: Sequence[Any]
) -> Callable[[], None]:
    """Run the task in one worker of a group."""

    def run() -> None:
        import ray

        from bdl_pipe import distributed

        from .worker import attempt

        first = distributed.world()[0] == 0
        shared = dict(zip(task.needs, ray.get(list(parts)), strict=True))
        try:
            done = attempt(work, task, shared, channels[0 if first else 1], settings, keeps and first)
        except UserError as error:  # every rank raises it, and a retry would raise it again
            ray.get(hub.put_result.remote(task.name, error))
            return
        if first:
            ray.get(hub.put_result.remote(task.name, done))

    return run
