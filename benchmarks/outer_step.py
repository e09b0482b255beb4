"""One process of ``vbpc_step.py --against``: outer steps of VBPC, one block for each line on standard input.

It runs the ``bdl_pipe`` that is first on its path, at any commit since 1330bff: it tries the old and the new form of
names that have changed since then. The images have Fashion-MNIST's size and are noise. A line of input is the number of
steps of a block; the answer is the seconds per step, of CPU time with one thread, which other work changes little.

    PYTHONPATH=SRC python benchmarks/outer_step.py OPTIONS   # as JSON: threads, width, ipc, batch, malloc, pool
"""

import ctypes
import importlib
import json
import sys
import time
from typing import Any

import numpy as np
import torch

from bdl_pipe import config
from bdl_pipe.data import fitdata
from bdl_pipe.data.transform import Transform
from bdl_pipe.progress import Report
from bdl_pipe.seeds import Seed

CLASSES, SIDE, TRAIN_ROWS = 10, 28, 1000
FOREVER = 1_000_000  # steps; the process ends long before


class Ended(Exception):
    """Standard input has ended."""


class Blocks(Report):
    """A report that waits for a line of standard input before each block of steps."""

    def __init__(self) -> None:
        self._left, self._taken, self._began = 0, 0, 0.0
        self._clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter

    def __call__(self, step: int, total: int, metrics: Any = None) -> None:
        if self._left:
            self._left -= 1
        if self._left == 0:
            if self._taken:
                print((self._clock() - self._began) / self._taken, flush=True)
            line = sys.stdin.readline()
            if not line:
                raise Ended
            self._left = self._taken = int(line)
            self._began = self._clock()


def method() -> Any:
    """Return VBPC, and whether it has its present names."""
    try:
        return importlib.import_module("bdl_pipe.registry").METHODS["vbpc"], True
    except (ImportError, AttributeError):
        return importlib.import_module("bdl_pipe.methods").METHODS["vbpc"], False


def section(lr: str, label_lr: str, options: dict[str, Any]) -> dict[str, Any]:
    augmentation = {"choose": "all", "operations": {"noise": 0.1}}
    network = {"name": "convnet", "width": options["width"], "blocks": 3, "norm": "instance", "pool": "average"}
    pool = {"networks": 10, "steps": 100, lr: 3.0e-4}
    coreset = {"steps": FOREVER, "batch": options["batch"], lr: 0.02, label_lr: 0.3, "label_scale": 1.0}
    return {
        "ipc": options["ipc"],
        "network": network,
        "rho": 10.0,
        "gamma": 100.0,
        "feature_scale": 1.0,
        "beta_dataset": 1e-8,
        "coreset": coreset | {"pool": pool | options.get("pool", {}), "augmentation": augmentation},
        "student": {"steps": 1, lr: 3.0e-4, "augmentation": augmentation},
    }


def noise() -> fitdata.FitData:
    rows = getattr(fitdata, "Examples", None) or fitdata.Split  # type: ignore[attr-defined]
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (TRAIN_ROWS, 1, SIDE, SIDE)).astype(np.uint8)
    part = rows(images, np.arange(TRAIN_ROWS) % CLASSES)
    transform = Transform("image", torch.full((1,), 0.5), torch.full((1,), 0.3))
    return fitdata.FitData("classification", part, part, transform, tuple("abcdefghij"))


def main() -> None:
    options = json.loads(sys.argv[1])
    torch.set_num_threads(options["threads"])
    if options["malloc"]:  # the pipeline's workers do this at both commits
        for setting in (-3, -1):
            ctypes.CDLL(None).mallopt(setting, 2**30)
    vbpc, today = method()
    names = ("lr", "label_lr") if today else ("rate", "label_rate")
    read = config.read(vbpc.config, section(*names, options), "methods.vbpc")
    fit = vbpc.stages["coreset"].fit_one if today else vbpc.rooms["coreset"].make
    report = Blocks()
    report(0, FOREVER)
    try:
        fit(noise(), {}, read, rng=Seed(0), report=report)
    except Ended:
        return


if __name__ == "__main__":
    main()
