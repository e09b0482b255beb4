"""A trajectory whose batches two Ray Train workers share, against the same trajectory in one process."""

import json
from pathlib import Path

import pytest
import torch

from bdl_pipe.config import read
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.errors import ConfigError
from bdl_pipe.fitting import Fits, SeedFit
from bdl_pipe.seeds import Seed
from bdl_pipe.trajectory.sgd import SGD, SgdConfig
from pipeline.core.settings import Settings
from pipeline.work import choose
from pipeline.work.executor import Done, Executor, Inline, Task
from pipeline.work.store import Store
from tests.distributed_ranks import SECTION
from tests.pipeline import fake_work
from tests.pipeline.fake_work import run


def trajectory(executor: Executor, data: FitData, folder: Path, fuse: str = "", **changes: object) -> Done:
    """Fit one member with a checkpoint at every step; if ``fuse`` names a file, the first attempt dies at step 7."""
    store = Store(folder, "a")
    store.open()
    config = read(SgdConfig, SECTION | changes, "methods.sgd")
    member = Fits(SGD.stages["trajectory"].fit_one, config, (SeedFit("data", {}, Seed(0).fold("member", 0)),))
    task = Task("0-0", member, ("data", "fuse"), data_parallel=True)
    (done,) = run(executor, fake_work.fused_member, task, shared={"data": data, "fuse": fuse}, store=store)
    assert store.finished("0-0") is not None and store.load("0-0") is None
    return done


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize("kills", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_two_workers_reach_the_weights_of_one_process(
    ray_head: str, tiny_images: FitData, tmp_path: Path, kills: bool
) -> None:
    """The weights agree to 1e-6, the rounding of 15 steps, also if a worker kills itself at step 7.

    Ray Train has the metrics of the last checkpoints and of the end, and the place of our checkpoint.
    """
    from ray.train import Result

    alone = trajectory(Inline(Settings("inline", checkpoint_seconds=0.0)), tiny_images, tmp_path / "alone")
    fuse, network = tmp_path / "fuse", tmp_path / "network"
    network.mkdir()
    every = 0.0 if kills else 3600.0  # with a kill, each of the 15 steps has a checkpoint
    settings = Settings("ray", checkpoint_seconds=every, workers=2, checkpoints=str(network))
    executor = choose(settings, lambda: ray_head)
    try:
        shared = trajectory(executor, tiny_images, tmp_path / "shared", str(fuse) if kills else "")
    finally:
        executor.close()
    if kills:
        assert [int(step) for step in fuse.read_text().split()] == [1, 8], "it did not go on from its checkpoint"
    result, expected = shared.result, alone.result
    assert result.config["spec"] == expected.config["spec"]
    assert result.config["loss"] == pytest.approx(expected.config["loss"], abs=1e-6)
    for name, value in expected.tensors.items():
        torch.testing.assert_close(result.tensors[name], value, atol=1e-6, rtol=1e-6)
    assert not torch.equal(result.tensors["head.weight"], expected.tensors["head.weight"]), "no batch was shared"
    (stage,) = network.iterdir()
    told = Result.from_path(str(stage / "0-0"))
    assert told.metrics["step"] == told.metrics["total"] == 15
    assert told.metrics["loss"] == pytest.approx(result.config["loss"], abs=1e-3)
    places = [json.loads(Path(at.path, "checkpoint.json").read_text()) for at, _ in told.best_checkpoints]
    assert [at["done"] for at in places] == [False] * (len(places) - 1) + [True]
    assert len(places) in ((14, 15, 16) if kills else (1,)), "Ray Train may not have seen the last ones before the kill"
    assert {(at["folder"], at["file"]) for at in places[:-1]} <= {(str(stage), "0-0.part")}


@pytest.mark.ray
@pytest.mark.soak
def test_an_error_in_every_worker_is_raised_unchanged(ray_head: str, tiny_images: FitData, tmp_path: Path) -> None:
    executor = choose(Settings("ray", checkpoint_seconds=0.0, workers=2), lambda: ray_head)
    try:
        with pytest.raises(ConfigError, match=r"^batch must be a multiple of the 2 workers of a task, got 33$"):
            trajectory(executor, tiny_images, tmp_path / "refused", batch=33)
    finally:
        executor.close()
