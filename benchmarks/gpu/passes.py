"""The cost of full float32 and of equal bits in a step of a ConvNet on a GPU, and the error of TF32.

    python -m benchmarks.gpu.passes OUT.json

A step is a forward and a backward pass of cross entropy, for the default network of Fashion-MNIST at its batch size and
for the VBPC paper's network (three blocks, width 128, 32×32×3, batch 256). Figures are medians of 30 steps; the modes
take turns. The error is the distance of the gradient of all weights from the CPU's gradient in float64, over the norm
of the CPU's gradient.
"""

import json
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F

from bdl_pipe import networks
from bdl_pipe.networks import ConvNetConfig
from bdl_pipe.seeds import Seed

CASES = {
    "width 16, 28×28×1, batch 64": (ConvNetConfig("convnet", 16, norm="instance", pool="average"), (1, 28, 28), 64),
    "width 128, 32×32×3, batch 256": (ConvNetConfig("convnet", 128, norm="instance", pool="average"), (3, 32, 32), 256),
}
MODES = {"torch by itself": (True, False), "float32 in full": (False, False), "and equal bits": (False, True)}


def main() -> None:
    found = {}
    for name, (config, shape, batch) in CASES.items():
        network = networks.build(config, shape, 10, rng=Seed(0))
        images = torch.randn(batch, *shape, generator=Seed(1).generator())
        exact = gradient(network.double(), images.double())
        network = network.float().cuda()
        images, times = images.cuda(), {mode: list[float]() for mode in MODES}
        row = {}
        for mode in MODES:
            use(mode)
            made = gradient(network, images).double().cpu()
            row[f"{mode}: error"] = float((made - exact).norm() / exact.norm())
        for _ in range(35):
            for mode, taken in times.items():
                use(mode)
                torch.cuda.synchronize()
                start = time.perf_counter()
                gradient(network, images)
                torch.cuda.synchronize()
                taken.append(time.perf_counter() - start)
        found[name] = row | {f"{mode}: ms": 1e3 * statistics.median(taken[5:]) for mode, taken in times.items()}
    Path(sys.argv[1]).write_text(json.dumps(found, indent=1))


def use(mode: str) -> None:
    tf32, equal = MODES[mode]
    torch.backends.cudnn.allow_tf32 = tf32
    torch.use_deterministic_algorithms(equal, warn_only=True)
    setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # noqa: B010 - its stubs lack it


def gradient(network: torch.nn.Module, images: torch.Tensor) -> torch.Tensor:
    classes = torch.arange(len(images), device=images.device) % 10
    parts = torch.autograd.grad(F.cross_entropy(network(images), classes), list(network.parameters()))
    return torch.cat([part.flatten() for part in parts])


if __name__ == "__main__":
    main()
