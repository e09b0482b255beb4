"""Data-parallel tasks: a group of Ray Train workers that run the same work and share each batch.

Each worker calls the work under an initialised ``torch.distributed`` group (gloo on CPUs, nccl on GPUs);
``bdl_pipe.distributed`` shares the batches. Only rank 0 sends progress and checkpoints to the hub. Ray Train
restarts a group that loses a worker, and the task continues from its last checkpoint.

Ray Train knows each of these checkpoints by ``ray.train.report``. Its own copy holds only the place of ours, since only
ours resumes with the same bits. ``storage_path`` is the stage's folder in BDL_CHECKPOINTS and the run has the task's
name: ``ray.train.Result.from_path(f"{storage_path}/{task}")`` has the metrics at the last checkpoints and at the end.
"""

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bdl_pipe.errors import UserError

from ..core.settings import Settings
from .executor import Done, Task, Work, attempt
from .hub import RETRIES, HubStore, Progress, with_plugins
from .store import Store

_TIMEOUT_SECONDS: Final = 600  # a collective operation that takes longer is an error: a peer hangs
_PLACES: Final = 20  # the places of checkpoints, with their metrics, that Ray Train keeps
_PLACE: Final = "checkpoint.json"


def group(work: Work, task: Task, hub: Any, store: Store | None, settings: Settings, parts: Sequence[Any]) -> Done:
    """Run one task in a group of workers. This function runs as a Ray task, which only waits for the group.

    Args:
        hub: the driver's actor, which receives progress and checkpoints from rank 0.
        parts: references to the shared data that the task needs.
    """
    os.environ["RAY_CHDIR_TO_TRIAL_DIR"] = "0"
    os.environ["RAY_TRAIN_COLLECTIVE_TIMEOUT_S"] = str(_TIMEOUT_SECONDS)
    import ray
    from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    sent = with_plugins(task)

    def rank() -> Done | Exception | None:
        """Run the task in one worker of the group, and return the outcome of rank 0."""
        from bdl_pipe import distributed

        first = distributed.world()[0] == 0
        shared = dict(zip(sent.needs, ray.get(list(parts)), strict=True))
        member = _Member(hub, store, first)
        try:
            done = attempt(work, sent, shared, member.send, member if store else None, settings)
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
                name=task.name,
                storage_path=store.shared.place if store and store.shared else folder,
                failure_config=FailureConfig(max_failures=RETRIES),
                checkpoint_config=CheckpointConfig(num_to_keep=_PLACES),
            ),
            torch_config=TorchConfig("nccl" if settings.device == "cuda" else "gloo", timeout_s=_TIMEOUT_SECONDS),
        )
        outcome: Done | Exception = trainer.fit().return_value
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


class _Member:
    """The progress and checkpoints of one worker of a group.

    Rank 0 sends them to the hub. All ranks call ``ray.train.report`` at each checkpoint and at the end, since this
    call returns when all ranks have called it.
    """

    def __init__(self, hub: Any, store: Store | None, first: bool) -> None:
        self._progress = Progress(hub) if first else None
        self._kept = HubStore(hub, store) if first and store else None
        self._store, self._metrics = store, dict[str, float]()

    def send(self, task: str, step: int, total: int, metrics: Mapping[str, float]) -> None:
        if self._progress:
            self._progress(task, step, total, metrics)
        self._metrics |= {**metrics, "step": step, "total": total}

    def save(self, task: str, blob: bytes) -> None:
        if self._kept:
            self._kept.save(task, blob)
        self._report(task, done=False)

    def load(self, task: str) -> bytes | None:
        return self._kept.load(task) if self._kept else None

    def finish(self, task: str, blob: bytes) -> None:
        if self._kept:
            self._kept.finish(task, blob)
        self._report(task, done=True)

    def _report(self, task: str, done: bool) -> None:
        import ray.train

        shared = self._store.shared if self._kept and self._store else None
        with tempfile.TemporaryDirectory(prefix="bdl-place-") as folder:
            if shared:
                place = {"folder": shared.place, "file": None if done else f"{task}.part", "done": done}
                Path(folder, _PLACE).write_text(json.dumps(place), encoding="utf-8")
            checkpoint = ray.train.Checkpoint.from_directory(folder) if shared else None
            ray.train.report(self._metrics, checkpoint=checkpoint)
