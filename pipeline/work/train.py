"""Data-parallel tasks: a group of Ray Train workers that run the same work and share each batch.

Each worker calls the work under an initialised ``torch.distributed`` group (gloo on CPUs, nccl on GPUs);
``bdl_pipe.distributed`` shares the batches. Only rank 0 sends progress and checkpoints to the hub. Ray Train
restarts a group that loses a worker, and the task continues from its last checkpoint.
"""

import os
import tempfile
from collections.abc import Sequence
from typing import Any, Final

from bdl_pipe.errors import UserError

from ..core.settings import Settings
from .executor import Done, Task, Work, attempt
from .hub import RETRIES, HubStore, Progress, with_plugins
from .store import Store

_TIMEOUT_SECONDS: Final = 600  # a collective operation that takes longer is an error: a peer hangs


def group(work: Work, task: Task, hub: Any, store: Store | None, settings: Settings, parts: Sequence[Any]) -> Done:
    """Run one task in a group of workers. This function runs as a Ray task, which only waits for the group.

    Args:
        hub: the driver's actor, which receives progress and checkpoints from rank 0.
        parts: references to the shared data that the task needs.
    """
    os.environ["RAY_CHDIR_TO_TRIAL_DIR"] = "0"
    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    sent = with_plugins(task)

    def rank() -> Done | Exception | None:
        """Run the task in one worker of the group, and return the outcome of rank 0."""
        from bdl_pipe import distributed

        first = distributed.world()[0] == 0
        shared = dict(zip(sent.needs, ray.get(list(parts)), strict=True))
        kept = HubStore(hub, store) if first and store else None
        try:
            done = attempt(work, sent, shared, Progress(hub) if first else _send_nothing, kept, settings)
        except UserError as error:  # every rank has the same error, and a retry would fail again
            return error
        return done if first else None

    with tempfile.TemporaryDirectory(prefix="bdl-train-") as folder:  # for the group's controller, which runs here
        trainer = TorchTrainer(
            rank,
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
        outcome: Done | Exception = trainer.fit().return_value
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def _send_nothing(*progress: object) -> None:
    """Drop the progress of ranks other than 0."""
