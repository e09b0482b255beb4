"""The price of a variational last layer: its training step beside a linear head's, and beside the ``vbll`` package's.

(a) trunk + last layer over trunk + linear head, forward and backward: WRN-28-10 at 32×32 and the 2×50 MLP.
(b) our layer over the package's (``pip install --no-deps vbll==0.4.9``; left out, with a message, if it is not
    installed): batch 128, 640 features, forward and backward of the loss, gradients of features and parameters.

    python benchmarks/vbll_step.py --device cpu --threads 1 2 --cases "diagonal, 640"

The forms of a case run in turn, one step each, in one process with the same threads and allocator, so that a busy
machine slows all of them; the caches are in the state in which the form before left them. Figures are medians, with the
least beside; ratios are of medians. Goals: (a) ≤ 1.05 on WRN-28-10; (b) ≥ 10 for diagonal forms, ≥ 100 for the dense
discriminative form.

``MALLOC_MMAP_THRESHOLD_=1073741824 MALLOC_TRIM_THRESHOLD_=1073741824`` in the environment lets glibc keep what a step
frees, as the workers of ``pipeline`` do; without them the package's 33 MB tensors go back to the kernel at each step.
"""

import argparse
import functools
import importlib.util
import json
import os
import statistics
import time
import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bdl_pipe import networks
from bdl_pipe.last_layer import Discriminative, Generative, Regression
from bdl_pipe.networks import MlpConfig, WideResNetConfig
from bdl_pipe.seeds import Seed

Step = Callable[[], None]
TRAIN = 50_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, nargs="+", default=[2], help="each case once for each number")
    parser.add_argument("--wide-batch", type=int, default=16, help="images a step of WRN-28-10")
    parser.add_argument("--repeats", type=int, default=7, help="of WRN-28-10 and the dense layers")
    parser.add_argument("--small-repeats", type=int, default=100, help="of the diagonal layers and, thrice, the MLP")
    parser.add_argument("--cases", default="", help="only cases whose names have this in them")
    options = parser.parse_args()
    kept = os.environ.get("MALLOC_TRIM_THRESHOLD_", "glibc's own")
    print(json.dumps({"torch": torch.__version__, "device": options.device, "trim threshold": kept}))
    for threads in options.threads:
        torch.set_num_threads(threads)
        for name, (make, repeats) in cases(options).items():
            if options.cases in name:
                compare(name, make(), repeats, options.device)


def cases(options: argparse.Namespace) -> dict[str, tuple[Callable[[], dict[str, Step]], int]]:
    """Return, for each case, the function that makes its forms and the number of repeats."""
    found: dict[str, tuple[Callable[[], dict[str, Step]], int]] = {
        "WRN-28-10, 10 classes": (lambda: wide(options.wide_batch, options.device), options.repeats),
        "2x50 MLP, regression": (lambda: small(options.device), 3 * options.small_repeats),
    }
    for kind, form, classes in (
        ("discriminative", "diagonal", 100),
        ("generative", "diagonal", 100),
        ("discriminative", "dense", 10),
    ):
        make = functools.partial(layers, kind, form, classes, options.device)
        repeats = options.repeats if form == "dense" else options.small_repeats
        found[f"{kind} {form}, 640 x {classes}, batch 128"] = make, repeats
    return found


def compare(name: str, forms: dict[str, Step], repeats: int, device: str) -> None:
    """Time the forms in turn and print a line for each; the first form is the baseline."""
    times: dict[str, list[float]] = {form: [] for form in forms}
    for step in forms.values():
        step()
    for _ in range(repeats):
        for form, step in forms.items():
            start = time.perf_counter()
            step()
            if device != "cpu":
                torch.cuda.synchronize()
            times[form].append(time.perf_counter() - start)
    base = statistics.median(next(iter(times.values())))
    for form, taken in times.items():
        middle = statistics.median(taken)
        line = {"case": name, "threads": torch.get_num_threads(), "form": form, "ms": round(1e3 * middle, 3)}
        print(json.dumps(line | {"least": round(1e3 * min(taken), 3), "ratio": round(middle / base, 4)}))


def wide(batch: int, device: str) -> dict[str, Step]:
    """The same trunk under a linear head and under each last layer for classes."""
    config = WideResNetConfig("wide_resnet", depth=28, widen=10)
    trunk = networks.build(config, (3, 32, 32), 0, rng=Seed(0)).to(device).train()
    trunk.to(memory_format=torch.channels_last)
    images = torch.randn(batch, 3, 32, 32, device=device).contiguous(memory_format=torch.channels_last)
    labels = torch.arange(batch, device=device) % 10
    head = nn.Linear(640, 10).to(device)
    forms: dict[str, Step] = {"linear head": step(trunk, images, lambda f: F.cross_entropy(head(f), labels), head)}
    for form in ("diagonal", "dense"):
        layer = Discriminative(640, 10, covariance=form).to(device)
        forms[f"discriminative {form}"] = step(trunk, images, loss_of(layer, labels), layer)
    generative = Generative(640, 10, class_counts=torch.full((10,), 5000.0)).to(device)
    forms["generative"] = step(trunk, images, loss_of(generative, labels), generative)
    return forms


def small(device: str) -> dict[str, Step]:
    trunk = networks.build(MlpConfig("mlp", (50, 50)), (13,), 0, rng=Seed(0)).to(device)
    inputs, targets = torch.randn(32, 13, device=device), torch.randn(32, 1, device=device)
    head, layer = nn.Linear(50, 1).to(device), Regression(50, 1).to(device)
    return {
        "linear head": step(trunk, inputs, lambda f: F.mse_loss(head(f), targets), head),
        "regression dense": step(trunk, inputs, loss_of(layer, targets), layer),
    }


def layers(kind: str, form: str, classes: int, device: str) -> dict[str, Step]:
    """Our layer, the package's layer and a linear head, on fixed features that require a gradient."""
    features = torch.randn(128, 640, device=device, requires_grad=True)
    labels = torch.arange(128, device=device) % classes
    ours, head = _ours(kind, form, classes).to(device), nn.Linear(640, classes).to(device)
    forms = {"ours": step(nn.Identity(), features, loss_of(ours, labels), ours)}
    if importlib.util.find_spec("vbll"):
        theirs = _theirs(kind, form, classes).to(device)
        forms["vbll package"] = step(nn.Identity(), features, package_loss(theirs, labels), theirs)
    else:
        print("the package vbll is not installed: pip install --no-deps vbll==0.4.9")
    forms["linear head"] = step(nn.Identity(), features, lambda f: F.cross_entropy(head(f), labels), head)
    return forms


def _ours(kind: str, form: str, classes: int) -> nn.Module:
    if kind == "generative":
        return Generative(640, classes, class_counts=torch.full((classes,), 500.0))
    return Discriminative(640, classes, covariance=form)  # type: ignore[arg-type]


def _theirs(kind: str, form: str, classes: int) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import vbll
    make = vbll.GenClassification if kind == "generative" else vbll.DiscClassification
    return make(640, classes, regularization_weight=1 / TRAIN, parameterization=form)


def loss_of(layer: nn.Module, targets: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda features: layer.loss(features, targets, num_train=TRAIN)  # type: ignore[operator]


def package_loss(layer: nn.Module, targets: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda features: layer(features).train_loss_fn(targets)


def step(trunk: nn.Module, inputs: Tensor, loss: Callable[[Tensor], Tensor], layer: nn.Module) -> Step:
    """Forward and backward, gradients dropped first."""

    def run() -> None:
        for module in (trunk, layer):
            module.zero_grad(set_to_none=True)
        inputs.grad = None
        loss(trunk(inputs)).backward()

    return run


if __name__ == "__main__":
    main()
