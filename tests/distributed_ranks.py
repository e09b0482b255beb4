"""The work of each of the two processes in test_distributed, in a module that spawned processes can import."""

import importlib
import multiprocessing
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from bdl_pipe import distributed
from bdl_pipe.artifacts import State
from bdl_pipe.config import read
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.progress import Report
from bdl_pipe.registry import METHODS
from bdl_pipe.seeds import Seed
from bdl_pipe.trajectory.sgd import SGD, SgdConfig

from .cases import CONFIGS
from .conftest import make_tiny_images
from .resuming import Killed, Saving

SECTION = {
    "network": {"name": "mlp", "hidden": [16, 8]},
    "epochs": 3,
    "snapshots": 3,
    "batch": 32,
    "optimiser": {"name": "sgd", "lr": 0.1, "momentum": 0.9, "grad_clip_norm": 0.5, "schedule": "cosine"},
    "augmentation": {"choose": "all", "operations": {"flip": 0.5, "noise": 0.1}},
}
SHARED = [  # the posteriors of classes that several processes can fit
    name
    for name, method in METHODS.items()
    if "student" in method.stages and method.stages["student"].data_parallel and "classification" in method.tasks
]
LEARN = {
    "epochs": 3,
    "batch": 32,
    "optimiser": {"name": "sgd", "lr": 0.01, "momentum": 0.9, "grad_clip_norm": 0.5, "schedule": "cosine"},
}
STOP = 7  # the step at which the first attempt of the interrupted run is killed


def trajectory(data: FitData, report: Report, **changes: object) -> State:
    config = read(SgdConfig, SECTION | changes, "methods.sgd")
    return SGD.stages["trajectory"].fit_one(data, {}, config, rng=Seed(0).fold("member", 0), report=report)


def student(name: str, data: FitData) -> State:
    """Fit the method ``name`` by plain SGD, since Adam amplifies the rounding error of a gradient that is almost 0."""
    section = CONFIGS[name, "classification"]
    norm = {"norm": "instance"} if section["network"]["name"] == "convnet" else {}  # batch norm differs on shares
    section = section | {"training": LEARN, "network": section["network"] | norm}
    config = read(METHODS[name].config, section, f"methods.{name}")
    return METHODS[name].stages["student"].fit_one(data, {}, config, rng=Seed(0).fold("member", 0), report=Saving())


def interrupted(data: FitData) -> Report:
    """Return the report of a run in one process that was stopped at step ``STOP``."""
    report = Saving(stop=STOP)
    with pytest.raises(Killed):
        trajectory(data, report)
    return report


def run_all(size: int, port: int, folder: str, work: str) -> None:
    """Do the work of all ranks, each in a fork of this process, whose imports they share."""
    for name in SHARED:
        METHODS[name]  # imports its modules
    importlib.import_module("torch._dynamo")  # torch's own optimisers import it
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=run, args=(rank, size, port, folder, work)) for rank in range(size)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()


def run(rank: int, size: int, port: int, folder: str, work: str) -> None:
    """Do the work of one rank, a function of this module, and save its findings to ``folder/<rank>.pt``."""
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=size, timeout=timedelta(seconds=60))
    try:
        torch.save(globals()[work](rank), Path(folder) / f"{rank}.pt")
    finally:
        dist.destroy_process_group()


def continued(rank: int) -> list[dict[str, Tensor]]:
    """Fit a trajectory in one piece, and in two."""
    data, report, changes = make_tiny_images(), Saving(stop=3), {"epochs": 1, "snapshots": 1, "batch": 12}
    with pytest.raises(Killed):
        trajectory(data, report, **changes)
    last = report.load() if rank == 0 else None
    return [trajectory(data, Saving(begun), **changes).tensors for begun in (None, last)]


def findings(rank: int) -> dict[str, Any]:
    data, report = make_tiny_images(), Saving()
    results: dict[str, Any] = {"world": distributed.world(), "shard": distributed.shard(torch.arange(6))}
    results["tensors"] = trajectory(data, report).tensors
    results |= {"told": report.told, "saved": report.saved}
    last = interrupted_alone(data) if rank == 0 else None  # only rank 0 has the checkpoint
    results["resumed"] = trajectory(data, Saving(last)).tensors
    results["buffers"] = _buffers(rank)
    results["refused"] = _refusal(data)
    results["students"] = {name: student(name, data).tensors for name in SHARED}
    kept, distributed.averaging = distributed.averaging, lambda module: module
    results["apart"] = trajectory(data, Saving()).tensors
    distributed.averaging = kept
    return results


def interrupted_alone(data: FitData) -> State | None:
    """Return the checkpoint of an interrupted run that is made as if no other rank existed."""
    kept, distributed.world = distributed.world, lambda: (0, 1)
    try:
        return interrupted(data).load()
    finally:
        distributed.world = kept


def _buffers(rank: int) -> dict[str, Tensor]:
    norm = nn.BatchNorm2d(3)
    norm.running_mean.fill_(rank + 1.5)
    norm.num_batches_tracked.fill_(rank + 4)
    distributed.broadcast_buffers(norm)
    return dict(norm.named_buffers())


def _refusal(data: FitData) -> str:
    try:
        trajectory(data, Saving(), batch=33)
    except ValueError as error:
        return str(error)
    return ""
