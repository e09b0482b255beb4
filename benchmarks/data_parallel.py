"""The exchange of gradients between two processes: during the backward pass, as our fits do, and after it.

    python -m benchmarks.data_parallel                        # three networks, some minutes on two cores
    python -m benchmarks.data_parallel --cases convnet --rounds 40

Two gloo processes of one thread each share every batch of images. Three forms of a step (forward, backward, exchange)
run in turn on the same images: ``none`` exchanges nothing, ``after`` is one all-reduce of all gradients after the
backward pass, and ``during`` is ``bdl_pipe.distributed.averaging`` (DistributedDataParallel with its default buckets);
``exchange`` is the all-reduce alone, the most that an overlap can save. Every process starts at a barrier; the slower
one's time counts. A line has the median and the least time over rounds; ``ratio`` has the quartiles of ``during`` over
``after`` in the same round. ``equal`` says whether both forms have equal gradients, ``whole`` is their largest
difference from one process with the whole batch, over the largest gradient.

Measured on two cores of an AMD EPYC that other programs shared (load 6 to 8), torch 2.13.0, 12 rounds, DDP's defaults
in place of ``find_unused_parameters``; quartiles of the ratio: convnet .835, .951, 1.334; wide (64 images) .918, .986,
1.046; wrn-16-8 .861, .902, .938. Gradients were equal in each case, and within 4e-6 of one process with all images.
"""

import argparse
import json
import multiprocessing
import os
import socket
import statistics
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from bdl_pipe import distributed, networks
from bdl_pipe.networks import ConvNetConfig, WideResNetConfig
from bdl_pipe.networks.normalisation import BatchNorm
from bdl_pipe.seeds import Seed

WORKERS: Final = 2
CASES: Final[dict[str, tuple[networks.NetworkConfig, int]]] = {  # name -> network, images of a batch
    "convnet": (ConvNetConfig("convnet", width=16, norm="instance"), 256),
    "wide": (ConvNetConfig("convnet", width=128, norm="instance"), 32),
    "wrn-16-8": (WideResNetConfig("wide_resnet", depth=16, widen=8), 8),
}


class Loss(nn.Module):
    """A network and its mean cross-entropy, one module as a learner is."""

    def __init__(self, config: networks.NetworkConfig) -> None:
        super().__init__()
        self.network = networks.build(config, (3, 32, 32), 10, rng=Seed(0))

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.network(images), labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--rounds", type=int, default=20)
    asked = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=rank, args=(r, port, asked.cases, asked.rounds)) for r in range(WORKERS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    if any(process.exitcode for process in processes):
        raise SystemExit("a process failed")


def rank(number: int, port: int, cases: list[str], rounds: int) -> None:
    """Measure the cases as one process of the group; the first one prints."""
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=number, world_size=WORKERS, timeout=timedelta(seconds=120))
    try:
        for name in cases:
            line = {"case": name, **measure(*CASES[name], rounds)}
            if number == 0:
                print(json.dumps(line), flush=True)
    finally:
        dist.destroy_process_group()


def measure(config: networks.NetworkConfig, batch: int, rounds: int) -> dict[str, Any]:
    """Return the facts of one case."""
    generator = Seed(0).fold("images").generator()
    images, labels = torch.randn(batch, 3, 32, 32, generator=generator), torch.arange(batch) % 10
    share = distributed.shard(images), distributed.shard(labels)
    modules = [Loss(config).train() for _ in range(3)]
    for module in modules:  # layers of batch norm differ on shares by definition
        for layer in module.modules():
            if isinstance(layer, BatchNorm):
                layer.eval()
    wrapped = distributed.averaging(modules[2])
    forms: dict[str, Callable[[], None]] = {
        "none": lambda: step(modules[0], modules[0], share),
        "after": lambda: step(modules[1], modules[1], share, exchange=True),
        "during": lambda: step(wrapped, modules[2], share),
        "exchange": lambda: average(modules[0]),
    }
    times: dict[str, list[float]] = {form: [] for form in forms}
    for number in range(rounds + 2):  # DDP rebuilds its buckets after the first step
        for form, run in forms.items():
            dist.barrier()
            start = time.perf_counter()
            run()
            taken = torch.tensor(time.perf_counter() - start)
            dist.all_reduce(taken, dist.ReduceOp.MAX)
            if number >= 2:
                times[form].append(float(taken))
    after, during = ([p.grad for p in module.parameters()] for module in modules[1:])
    step(modules[0], modules[0], (images, labels))
    largest = max(float(p.grad.abs().max()) for p in modules[0].parameters())
    pairs = [(p.grad, g) for grads in (after, during) for p, g in zip(modules[0].parameters(), grads, strict=True)]
    whole = max(float((expected - gradient).abs().max()) for expected, gradient in pairs)
    ratios = [b / a for a, b in zip(times["after"], times["during"], strict=True)]
    return {
        "parameters": sum(p.numel() for p in modules[0].parameters()),
        "batch": batch,
        **{f"{k} ms": [round(1e3 * f(v), 2) for f in (statistics.median, min)] for k, v in times.items()},
        "ratio": [round(value, 3) for value in statistics.quantiles(ratios, n=4)],
        "equal": all(torch.equal(a, b) for a, b in zip(after, during, strict=True)),
        "whole": whole / largest,
    }


@torch.no_grad()
def average(module: nn.Module) -> None:
    """Replace every gradient by its mean over ranks, with one all-reduce."""
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    dist.all_reduce(flat)
    for gradient, part in zip(gradients, (flat / WORKERS).split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(part.view(gradient.shape))


def step(called: nn.Module, module: nn.Module, rows: tuple[Tensor, Tensor], exchange: bool = False) -> None:
    """Compute the gradients of ``module`` as the training loop does."""
    module.zero_grad()
    called(*rows).backward(inputs=list(module.parameters()))
    if exchange:
        average(module)


if __name__ == "__main__":
    main()
