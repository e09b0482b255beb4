"""The estimated cost of an outer step of VBPC on a device that we do not have: operations, bytes, and steps a second.

The step runs on tensors without values (``meta``). Torch's own counter counts every operation's FLOP; an operation's
bytes are the bytes of the tensors that it reads and writes, as if nothing stayed in a cache. On a device a step takes
at least max(FLOP / peak, bytes / bandwidth); a real step takes this bound divided by an efficiency, which is given or
measured here: this processor's step against the same bound, with a product of 1024×1024 matrices and a copy of 256 MiB
as its peaks.

    python -m benchmarks.vbpc_dry_run --device h100 --width 128 --batch 1024 --image 3 32 32 --blocks 3
    python -m benchmarks.vbpc_dry_run --device here --measure

Peaks are the makers' figures for dense products of float32 (TF32 on GPUs) and for memory.
"""

import argparse
import json
import statistics
import time
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from bdl_pipe import config
from bdl_pipe.coresets.shared.descent import CoresetDescent
from bdl_pipe.coresets.shared.init import balanced
from bdl_pipe.coresets.vbpc.method import VBPC, DatasetLoss
from bdl_pipe.seeds import Seed
from bdl_pipe.training import loop
from benchmarks.coresets import noise

PEAKS = {  # FLOP a second, bytes a second
    "h100": (494e12, 3.35e12),  # SXM, TF32
    "h200": (494e12, 4.8e12),
    "a100": (156e12, 2.04e12),  # 80 GB
    "rtx3090": (35.6e12, 0.936e12),
}
GOAL = 500_000 / (20 * 60)  # steps a second: the paper's steps in 20 minutes
ROWS = 2000


class Traffic(TorchDispatchMode):
    """Counts the bytes that operations read and write; views move no bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if not func.is_view:
            tensors = [t for t in tree_leaves((args, kwargs, made)) if isinstance(t, Tensor)]
            self.bytes += sum(t.numel() * t.element_size() for t in tensors)
        return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=[*PEAKS, "here"], default="h100")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--norm", default="batch")
    parser.add_argument("--ipc", type=int, default=10)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--image", type=int, nargs=3, default=[3, 32, 32], metavar=("C", "H", "W"))
    parser.add_argument("--efficiency", type=float, default=0.4, help="share of the bound that real steps reach")
    parser.add_argument("--measure", action="store_true", help="measure that share here, at the same step")
    args = parser.parse_args()
    operations, moved = count(steps_of(args, "meta"))
    flop = sum(operations.values())
    found: dict[str, Any] = {"GFLOP a step": flop / 1e9, "MB a step": moved / 1e6}
    if args.measure or args.device == "here":
        peak, bandwidth = peaks_here()
        seconds = statistics.median(timed(steps_of(args, "cpu"), 5))
        found |= {"GFLOP/s here": peak / 1e9, "GB/s here": bandwidth / 1e9, "s a step here": seconds}
        args.efficiency = bound(flop, moved, peak, bandwidth) / seconds
    found["share of the bound"] = args.efficiency
    if args.device != "here":
        seconds = bound(flop, moved, *PEAKS[args.device]) / args.efficiency
        found |= {"device": args.device, "steps a second": 1 / seconds, "goal": GOAL}
        found["hours of 500,000 steps"] = 500_000 * seconds / 3600
    print(json.dumps({k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in found.items()}))


def bound(flop: float, moved: float, peak: float, bandwidth: float) -> float:
    """Return a lower bound of a step's seconds (Williams, Waterman & Patterson 2009, the roofline)."""
    return max(flop / peak, moved / bandwidth)


class Steps:
    """Outer steps of VBPC as the loop takes them, one step per call."""

    def __init__(self, task: CoresetDescent) -> None:
        self._task, self._step = task, 0
        self._optimiser = loop.make_optimiser(task.parameters(), loop.OptimiserConfig("adam", 0.003))

    def __call__(self) -> None:
        self._optimiser.zero_grad()
        loss = self._task.loss(self._step)
        loss.backward(inputs=self._task.parameters())
        self._optimiser.step()
        self._task.after(self._step, loss.detach())
        self._step += 1


def steps_of(args: argparse.Namespace, device: str) -> Steps:
    augmentation = {"choose": "all", "operations": {"noise": 0.1}}
    pool = {"networks": 2, "steps": 100, "lr": 3e-4}
    coreset = {"steps": 1000, "batch": args.batch, "lr": 0.003, "label_lr": 0.003, "label_scale": 1.0}
    section = {
        "ipc": args.ipc,
        "network": {"name": "convnet", "width": args.width, "blocks": args.blocks, "norm": args.norm},
        "rho": 1.0,
        "gamma": 100.0,
        "feature_scale": 1.0,
        "beta_dataset": 1e-8,
        "coreset": coreset | {"pool": pool, "augmentation": augmentation},
        "student": {"steps": 1, "lr": 3e-4, "augmentation": augmentation},
    }
    read = config.read(VBPC.config, section, "methods.vbpc")
    data = noise(ROWS, args.image).on(device)
    made = DatasetLoss(data, read, None, Seed(0))
    start = balanced(data, args.ipc, 1.0, rng=Seed(1)).to(device)
    return Steps(CoresetDescent(start, made, label_unit=1.0, average=None, rng=Seed(2)))


def count(steps: Steps) -> tuple[dict[str, int], int]:
    """Count the FLOP of each operation and the bytes of the second step, since the first step makes Adam's moments."""
    steps()
    with FlopCounterMode(display=False) as counter, Traffic() as traffic:
        steps()
    return {str(name): flop for name, flop in counter.get_flop_counts()["Global"].items()}, traffic.bytes


def timed(steps: Steps, repeats: int) -> list[float]:
    steps()
    found = []
    for _ in range(repeats):
        began = time.perf_counter()
        steps()
        found.append(time.perf_counter() - began)
    return found


def peaks_here() -> tuple[float, float]:
    """Measure FLOP a second of a product of 1024×1024 matrices, and bytes a second of a copy of 256 MiB."""
    one, large = torch.randn(1024, 1024), torch.empty(2**26)
    other = torch.empty_like(large)

    def best(work: Any) -> float:
        times = []
        for _ in range(5):
            began = time.perf_counter()
            work()
            times.append(time.perf_counter() - began)
        return min(times)

    return 2 * 1024**3 / best(lambda: one @ one), 2 * large.numel() * 4 / best(lambda: other.copy_(large))


if __name__ == "__main__":
    main()
