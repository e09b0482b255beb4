"""The cost of predicting from a coreset: seconds per 1,000 predictions, and bytes of the stored posterior.

VBPC's posterior of one trunk (``coreset_vi``) and the average of five (``coreset_bma``) against an ensemble of five
networks and the draws of ``coreset_sgmcmc`` (4 chains of 50), all of one architecture and on one coreset. The paper
(Lee et al. 2025, table 12) has 165 s for the chains' methods and 20 s for VBPC, with the fits of their networks.

    OMP_NUM_THREADS=1 python benchmarks/coreset_predict.py --threads 1

Images are noise of Fashion-MNIST's size; weights are a network's initial weights, since their values do not change the
cost. The forms run in turn in one process; times are medians, ratios are of medians. Prints one JSON line for each
posterior, then a table.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bdl_pipe import config
from bdl_pipe.artifacts import State
from bdl_pipe.coresets.shared.init import balanced
from bdl_pipe.data.examples import Examples
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.data.transform import Transform
from bdl_pipe.networks import ConvNetConfig
from bdl_pipe.posterior import NetworkDraws, NetworkSpec
from bdl_pipe.progress import Silent
from bdl_pipe.registry import METHODS, posterior_of
from bdl_pipe.seeds import Seed

CLASSES, SIDE, CHUNK = 10, 28, 250


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--ipc", type=int, default=10)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--draws", type=int, default=200, help="of all chains")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = torch.cuda.get_device_name() if options.device != "cpu" else platform.machine()
    print(json.dumps({"torch": torch.__version__, "device": device, "threads": options.threads}), flush=True)
    states = posteriors(options)
    inputs = torch.randn((options.rows, 1, SIDE, SIDE), generator=Seed(5).generator()).to(options.device)
    forms = {name: predictor(state, options.device) for name, state in states.items()}
    times: dict[str, list[float]] = {name: [] for name in forms}
    for _ in range(options.repeats + 1):  # the first repeat is not counted
        for name, form in forms.items():
            times[name].append(seconds(form, inputs))
    medians = {name: 1000 / options.rows * statistics.median(found[1:]) for name, found in times.items()}
    sizes = {name: sum(t.numel() * t.element_size() for t in s.tensors.values()) for name, s in states.items()}
    rows = [
        {
            "posterior": name,
            "s per 1,000": medians[name],
            "over vi": medians[name] / medians["vi"],
            "bytes": sizes[name],
            "bytes over vi": sizes[name] / sizes["vi"],
        }
        for name in states
    ]
    for row in rows:
        print(json.dumps({k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in row.items()}))
    print()
    for row in rows:
        print("| " + " | ".join(f"{v:.3g}" if isinstance(v, float) else f"{v}" for v in row.values()) + " |")


def posteriors(options: argparse.Namespace) -> dict[str, State]:
    """Return the stored posteriors by their names."""
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (1000, 1, SIDE, SIDE)).astype(np.uint8)
    part = Examples(images, np.arange(1000) % CLASSES)
    transform = Transform("image", torch.full((1,), 0.5), torch.full((1,), 0.3))
    data = FitData("classification", part, part, transform, tuple("abcdefghij"), device=options.device)
    coreset = balanced(data, options.ipc, 1.0, rng=Seed(0)).state(data, {})
    network = {"name": "convnet", "width": options.width, "blocks": options.blocks, "norm": "instance"}
    student = {"steps": 1, "lr": 3e-4, "augmentation": {"choose": "all", "operations": {}}}
    head = {"network": network, "rho": 10.0, "gamma": 100.0, "feature_scale": 1.0, "student": student}

    def fitted(name: str, section: dict[str, Any]) -> State:
        method = METHODS[name]
        read = config.read(method.config, section, f"methods.{name}")
        fit = method.stages["student"].fit_one
        return fit(data, {"coreset": [coreset]}, read, rng=Seed(1), report=Silent())

    spec = NetworkSpec(ConvNetConfig(**network), data.input_shape, CLASSES, "categorical")

    def drawn(count: int) -> State:
        return NetworkDraws.of(spec, [dict(spec.build(Seed(2).fold(i)).state_dict()) for i in range(count)]).state()

    return {
        "vi": fitted("coreset_vi", head),
        "bma of 5": fitted("coreset_bma", head | {"trunks": 5}),
        "ensemble of 5": drawn(5),
        f"{options.draws} draws of chains": drawn(options.draws),
    }


def predictor(state: State, device: str) -> Callable[[Tensor], Tensor]:
    posterior = posterior_of(state, device)
    return lambda inputs: torch.cat([posterior.predict(part).mean for part in inputs.split(CHUNK)])


def seconds(form: Callable[[Tensor], Tensor], inputs: Tensor) -> float:
    if inputs.is_cuda:
        torch.cuda.synchronize()
    began = time.perf_counter()
    form(inputs)
    if inputs.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
