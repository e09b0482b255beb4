"""The price of pseudo-coresets: an outer step of each method, the batched draws and chains, and the unrolled gradient.

(a) seconds of an outer step of each method, and the share of each part, by the cumulative seconds of its functions in
    a profile of a second run; parts do not overlap. A random coreset has no outer step: its drawing is timed.
(b) ours over plain loops of the same formulas. ``draws``: the gradient in the coreset's images of forward KL's
    surrogate with M draws of each posterior; in the loop one stateless call and one backward pass for each draw.
    ``chains``: a step of SGHMC on the coreset; in the loop one chain after another. ``prediction``: log-probabilities
    of 100 rows under 50 draws of each chain, in the loop one stateless call for each. ``vmap``: all draws in one call;
    ``unfold``: convolutions as batched matrix products; ``channels_last``: the loop on filters and images in that order
    of memory. ``of_peak``: a form's operations per second over the operations per second in a product of 1024×1024
    matrices.
(c) the most bytes that bpc_w's gradient holds: unrolled over 30 steps and over one, and through a graph of all 30.

    OMP_NUM_THREADS=1 python -m benchmarks.coresets --device cpu --threads 1

The images have Fashion-MNIST's size and are noise; the network is a ConvNet of ``--width`` with instance norm. The
forms of a case run in turn in one process and must agree in float64 before they are timed; times are medians, ratios
are of medians. On a GPU shares need CUDA_LAUNCH_BLOCKING=1. The script prints JSON lines, then a table. Goals: M = 30
draws and 4 chains × 50 draws 3 times as fast as the loop; 30 steps within twice the bytes of one.
"""

import argparse
import cProfile
import json
import platform
import pstats
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from bdl_pipe import config
from bdl_pipe.artifacts import State
from bdl_pipe.coresets.bpc import surrogates
from bdl_pipe.coresets.bpc.inner import unrolled
from bdl_pipe.coresets.shared.init import mean_log_likelihood
from bdl_pipe.data.examples import Examples
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.data.transform import Transform
from bdl_pipe.networks import ConvNetConfig, Network
from bdl_pipe.networks.flat import FlatNetwork
from bdl_pipe.posterior import NetworkDraws, NetworkSpec
from bdl_pipe.progress import Report, Silent
from bdl_pipe.registry import METHODS
from bdl_pipe.seeds import Seed
from bdl_pipe.sgmcmc import Chains, Sghmc
from bdl_pipe.sgmcmc.sampling import density_of

Form = Callable[[], Tensor]
Outputs = Callable[[Tensor, Tensor], Tensor]  # weights [draw, weight], images -> logits [draw, row, class]
Part = tuple[tuple[str, ...], tuple[str, ...]]  # functions with added seconds; functions with subtracted seconds
CLASSES, SIDE, PREDICTED = 10, 28, 100

_INNER = ("inner.py:descended", "inner.py:langevin")
_SOLVER = ("linearised.py:solution", "linearised.py:adjoint")
_BACKWARD: Part = (("loop.py:run_steps>_tensor.py:backward",), ())  # a pool's networks have their own backward pass
_EXPERTS: dict[str, Part] = {
    "inner run": (_INNER, ()),
    "unrolled gradient": (("inner.py:backward",), ()),
    "draws' likelihood": (("methods.py:surrogate",), _INNER),
    "draws' gradient": (("loop.py:run_steps>_tensor.py:backward",), ("inner.py:backward",)),
}
_POOL: dict[str, Part] = {
    "pool step": (("pool.py:advance",), ()),
    "batch": (("pool_surrogate.py:_batch",), ()),
    "features": (("trunk.py:features",), ()),
    "ridge core": ((":outer_loss",), ("trunk.py:features",)),
    "gradient": _BACKWARD,
}
_IMPLICIT: dict[str, Part] = {
    "pool step": (("pool.py:advance",), ()),
    "batch": (("pool_surrogate.py:_batch",), ()),
    "solver": (_SOLVER, ()),
    "linearised model and its gradients": ((":outer_loss",), _SOLVER),
    "gradient": _BACKWARD,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--ipc", type=int, nargs="+", default=[1, 10])
    parser.add_argument("--steps", type=int, default=4, help="outer steps, of which the first is not counted")
    parser.add_argument("--inner", type=int, default=None, help="steps on the coreset; 50 at ipc 1, else 30")
    parser.add_argument("--draws", type=int, default=30)
    parser.add_argument("--chains", type=int, default=4)
    parser.add_argument("--kept", type=int, default=50, help="draws of each chain that predict")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=5)
    choices = ["steps", "loops", "memory"]
    parser.add_argument("--only", choices=choices, nargs="+", default=choices)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = torch.cuda.get_device_name() if options.device != "cpu" else platform.machine()
    print(json.dumps({"torch": torch.__version__, "device": device, "threads": options.threads}), flush=True)
    found: list[dict[str, Any]] = []
    if "steps" in options.only:
        data = noise(1000, (1, SIDE, SIDE), options.device)
        experts = trajectories(data, options.width)
        for ipc in options.ipc:
            inner = options.inner or (50 if ipc == 1 else 30)
            for name, (section, parts) in methods(ipc, inner, options).items():
                tell(found, {"case": name, "ipc": ipc} | outer_step(name, section, parts, data, experts))
    for ipc in options.ipc if "loops" in options.only else []:
        for case, forms in (("draws", draws), ("chains", chains), ("prediction", prediction)):
            for row in compare(case, forms, ipc, options):
                tell(found, row)
    for ipc in options.ipc if "memory" in options.only else []:
        tell(found, {"case": "memory of bpc_w", "ipc": ipc} | memory(ipc, options))
    print()
    for row in found:
        print("| " + " | ".join(f"{k} {v:.3g}" if isinstance(v, float) else str(v) for k, v in row.items()) + " |")


def tell(found: list[dict[str, Any]], row: dict[str, Any]) -> None:
    found.append(row)
    print(json.dumps({k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in row.items()}), flush=True)


# (a) an outer step of each method


def noise(rows: int, shape: Sequence[int], device: str = "cpu") -> FitData:
    """Return images of noise, of ten classes."""
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (rows, *shape)).astype(np.uint8)
    split = Examples(images, np.arange(rows) % CLASSES)
    transform = Transform("image", torch.full((shape[0],), 0.5), torch.full((shape[0],), 0.3))
    return FitData("classification", split, split, transform, tuple("abcdefghij"), device=device)


def network(width: int) -> dict[str, Any]:
    return {"name": "convnet", "width": width, "blocks": 3, "norm": "instance", "pool": "average"}


def trajectories(data: FitData, width: int) -> list[State]:
    """One expert of two epochs."""
    optimiser = {"name": "sgd", "lr": 0.01}
    section = {"network": network(width), "epochs": 2, "snapshots": 2, "keep_start": True, "batch": 256}
    method = METHODS["sgd"]
    read = config.read(method.config, section | {"optimiser": optimiser}, "methods.sgd")
    return [method.stages["trajectory"].fit_one(data, {}, read, rng=Seed(0), report=Silent())]


def methods(ipc: int, inner: int, options: argparse.Namespace) -> dict[str, tuple[dict[str, Any], dict[str, Part]]]:
    """Each method's section, with the draws and steps of the options, and the parts of its outer step."""
    augmentation = {"choose": "one", "operations": {"crop": 1.25, "rotate": 15.0, "translate": 0.125, "cutout": 0.25}}
    optimiser = {"name": "adam", "lr": 0.01}
    outer = {"steps": options.steps, "optimiser": optimiser, "augmentation": augmentation, "average": None}
    common = {"ipc": ipc, "start_epochs": 1, "outer": outer}
    matched = common | {"inner": {"steps": inner, "lr": 0.01, "ahead": 1}}
    gaussian = {"draws": options.draws, "sd": 0.01}
    langevin = {"chains": 10, "sd": 0.01, "steps": 10, "step_size": 0.01, "temperature": 1.0}
    functions = {"draws": options.draws, "noise": 0.01, "inner": {"steps": inner, "lr": 0.01, "ahead": 2}}
    coreset = {"steps": options.steps, "batch": options.batch, "lr": 0.01, "label_lr": 0.1, "label_scale": 1.0}
    coreset |= {"pool": {"networks": 3, "steps": 100, "lr": 3.0e-4}, "augmentation": augmentation}
    pool = {"ipc": ipc, "network": network(options.width), "coreset": coreset}
    solver = {"name": "cg", "iterations": 10, "tolerance": 1.0e-4}
    implicit = {"ridge": 5.0e-4, "softplus": 60.0, "solver": solver, "scale_lr": 0.03, "network_steps": 1}
    head = {"rho": 10.0, "gamma": 100.0, "feature_scale": 1.0}
    student = {"student": {"steps": 1, "lr": 3.0e-4, "augmentation": augmentation}}
    random = {"ipc": ipc, "network": network(options.width), "label_scale": 1.0} | head | student
    return {
        "bpc_fkl": (matched | gaussian | {"shared_noise": True}, _EXPERTS),
        "bpc_rkl": (matched | gaussian | {"batch": options.batch, "weight": 1.0}, _EXPERTS),
        "bpc_w": (matched | {"lr_step": 0.01}, _EXPERTS),
        "bpc_cd": (common | langevin | {"weight": 1.0, "prior_precision": 1.0}, _EXPERTS),
        "fbpc": (matched | functions, _EXPERTS),
        "frepo": (pool | {"ridge": 1.0e-6}, _POOL),
        "rcig": (pool | implicit, _IMPLICIT),
        "vbpc": (pool | head | student | {"beta_dataset": 1.0e-8}, _POOL),
        "random_coreset": (random, {}),
    }


@final
class Clock(Report):
    """A report that keeps the time at which each step was done."""

    def __init__(self) -> None:
        self.times = [time.perf_counter()]

    def __call__(self, step: int, total: int, metrics: Mapping[str, float] | None = None) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.times.append(time.perf_counter())

    def seconds(self) -> float:
        """Return the median seconds of a step, without the first step if there are several."""
        taken = [after - before for before, after in pairwise(self.times)]
        return statistics.median(taken[1:] or taken)


def outer_step(
    name: str, section: dict[str, Any], parts: dict[str, Part], data: FitData, experts: list[State]
) -> dict[str, Any]:
    """Return the median seconds of an outer step, and the parts' shares, the largest first."""
    method, clock, profile = METHODS[name], Clock(), cProfile.Profile()
    read, inputs = config.read(method.config, section, f"methods.{name}"), {"trajectory": experts}
    stage = method.stages["coreset"]
    stage.fit_one(data, inputs, read, rng=Seed(1), report=clock)
    profile.runcall(stage.fit_one, data, inputs, read, rng=Seed(1), report=Silent())
    seconds: dict[str, float] = {}  # cumulative seconds of a function, and of a function within its caller
    for called, (_, _, _, cumulative, callers) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        seconds[_place(called)] = seconds.get(_place(called), 0.0) + cumulative
        for caller, entry in callers.items():
            seconds[f"{_place(caller)}>{_place(called)}"] = entry[3]

    def of(functions: tuple[str, ...]) -> float:
        return sum(
            value
            for key, value in seconds.items()
            for wanted in functions
            if key.endswith(wanted) and (">" in key) == (">" in wanted)
        )

    whole = seconds.get("loop.py:run_steps", 0.0)
    shares = {part: (of(added) - of(taken_off)) / whole for part, (added, taken_off) in parts.items()}
    shares = {part: share for part, share in sorted(shares.items(), key=lambda item: -item[1]) if share > 0.005}
    return {"seconds": clock.seconds()} | shares


def _place(function: tuple[str, int, str]) -> str:
    return f"{Path(function[0]).name}:{function[2]}"


# (b) ours over loops


def spec(options: argparse.Namespace) -> NetworkSpec:
    """The network of all rows of the table."""
    return NetworkSpec(ConvNetConfig(**network(options.width)), (1, SIDE, SIDE), CLASSES, "categorical")


def problem(ipc: int, options: argparse.Namespace) -> tuple[FlatNetwork, Tensor, Tensor]:
    """A network as a function of its weights, and a coreset's images and classes."""
    images = torch.randn(CLASSES * ipc, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    classes = torch.arange(CLASSES).repeat_interleave(ipc)
    return (
        FlatNetwork(spec(options).build(Seed(0)).to(options.device)),
        images.to(options.device),
        classes.to(options.device),
    )


def weights_near(flat: FlatNetwork, count: int) -> Tensor:
    """Fresh weights with noise of standard deviation .01, [count, weight], on the CPU."""
    fresh = flat.flat(flat.network.state_dict()).cpu()
    return fresh + 0.01 * torch.randn(count, flat.size, generator=torch.Generator().manual_seed(1))


def looped(flat: FlatNetwork, skeleton: Network, order: torch.memory_format = torch.contiguous_format) -> Outputs:
    """One stateless call for each draw."""

    def outputs(weights: Tensor, images: Tensor) -> Tensor:
        named, ordered = flat.named(weights), images.contiguous(memory_format=order)
        calls = []
        for draw in range(len(weights)):
            one = {k: v[draw] for k, v in named.items()}
            one = {k: v.contiguous(memory_format=order) if v.ndim == 4 else v for k, v in one.items()}
            calls.append(functional_call(skeleton, one, (ordered,)))
        return torch.stack(calls)

    return outputs


def unfolded(flat: FlatNetwork, skeleton: Network) -> Outputs:
    """All draws in one call, with convolutions as batched products of filters and patches."""
    assert isinstance(skeleton.trunk, nn.Sequential)
    layers = dict(skeleton.trunk.named_children())

    def outputs(weights: Tensor, images: Tensor) -> Tensor:
        named, sizes = flat.named(weights), (len(weights), len(images))
        hidden = images.expand(sizes[0], *images.shape)
        for name, layer in layers.items():
            if isinstance(layer, nn.Conv2d):
                filters, bias = named[f"trunk.{name}.weight"].flatten(2), named[f"trunk.{name}.bias"]
                patches = F.unfold(hidden.flatten(0, 1), layer.kernel_size, padding=1).unflatten(0, sizes)
                hidden = (filters[:, None] @ patches + bias[:, None, :, None]).unflatten(-1, hidden.shape[-2:])
            elif isinstance(layer, nn.GroupNorm):
                plain = F.group_norm(hidden.flatten(0, 1), layer.num_groups, eps=layer.eps).unflatten(0, sizes)
                scale, shift = (named[f"trunk.{name}.{which}"][:, None, :, None, None] for which in ("weight", "bias"))
                hidden = plain * scale + shift
            else:
                hidden = layer(hidden.flatten(0, 1)).unflatten(0, sizes)
        return torch.baddbmm(named["head.bias"][:, None], hidden, named["head.weight"].transpose(1, 2))

    return outputs


def draws(ipc: int, options: argparse.Namespace, dtype: torch.dtype) -> dict[str, Form]:
    """The gradient [row, ...] of forward KL's surrogate in the coreset's images."""
    flat, images, classes = problem(ipc, options)
    skeleton = spec(options).build(Seed(0)).to(options.device)
    weights = weights_near(flat, 2 * options.draws).to(options.device, dtype)
    pixels, count = images.to(dtype).requires_grad_(), options.draws

    def at_once(outputs: Outputs) -> Tensor:
        both = mean_log_likelihood(outputs(weights, pixels), classes)
        return torch.autograd.grad(surrogates.contrast(both[:count], both[count:]), pixels)[0]

    def plain(order: torch.memory_format) -> Tensor:
        one, total = looped(flat, skeleton, order), torch.zeros_like(images, dtype=dtype)
        for draw in range(2 * count):
            likelihood = mean_log_likelihood(one(weights[draw : draw + 1], pixels), classes)[0]
            (gradient,) = torch.autograd.grad(likelihood, pixels)
            total += (-gradient if draw < count else gradient) / count
        return total

    return {
        "loop": lambda: plain(torch.contiguous_format),
        "ours": lambda: at_once(flat.outputs),
        "unfold": lambda: at_once(unfolded(flat, skeleton)),
        "channels_last": lambda: plain(torch.channels_last),
    }


def chains(ipc: int, options: argparse.Namespace, dtype: torch.dtype) -> dict[str, Form]:
    """The weights of all chains after a step of SGHMC; without noise, so that the forms can agree."""
    flat, images, classes = problem(ipc, options)
    skeleton = spec(options).build(Seed(0)).to(options.device)
    start, pixels = weights_near(flat, options.chains).to(options.device, dtype), images.to(dtype)

    def run(outputs: Outputs, weights: Tensor) -> Tensor:
        def log_joint(at: Tensor) -> Tensor:
            return len(pixels) * mean_log_likelihood(outputs(at, pixels), classes) - 0.5 * at.square().sum(1)

        kernel, rng = Sghmc(friction=0.1), Chains.of(Seed(0), len(weights))
        state = kernel.init(weights, rng.at(0), 0.0)
        return kernel.step(state, density_of(log_joint), rng.at(1), 1.0e-3, 0.0)["velocity"]

    def plain(order: torch.memory_format) -> Tensor:
        return torch.cat([run(looped(flat, skeleton, order), one[None]) for one in start])

    return {
        "loop": lambda: plain(torch.contiguous_format),
        "ours": lambda: run(flat.outputs, start),
        "unfold": lambda: run(unfolded(flat, skeleton), start),
        "channels_last": lambda: plain(torch.channels_last),
    }


def prediction(ipc: int, options: argparse.Namespace, dtype: torch.dtype) -> dict[str, Form]:
    """The log-probabilities [draw, row, class] of 100 rows under the draws of all chains; no coreset is needed."""
    flat, _, _ = problem(ipc, options)
    skeleton = spec(options).build(Seed(0)).to(options.device)
    weights = weights_near(flat, options.chains * options.kept).to(options.device, dtype)
    generator = torch.Generator().manual_seed(2)
    rows = torch.randn(PREDICTED, 1, SIDE, SIDE, generator=generator).to(options.device, dtype)
    posterior = NetworkDraws(spec(options), flat.named(weights))

    def log_probs(outputs: Outputs) -> Tensor:
        with torch.no_grad():
            return F.log_softmax(outputs(weights, rows), -1)

    return {
        "loop": lambda: log_probs(looped(flat, skeleton)),
        "ours": lambda: posterior.predict(rows).draw_log_probs,  # type: ignore[attr-defined]
        "vmap": lambda: log_probs(flat.outputs),
        "channels_last": lambda: log_probs(looped(flat, skeleton, torch.channels_last)),
    }


def compare(
    case: str,
    make: Callable[[int, argparse.Namespace, torch.dtype], dict[str, Form]],
    ipc: int,
    options: argparse.Namespace,
) -> list[dict[str, Any]]:
    """Check that the forms agree in float64, and time them in turn; a ratio is the loop's median over a form's."""
    exact = {name: form() for name, form in make(ipc, options, torch.float64).items()}
    for name, value in exact.items():
        assert (value - exact["loop"]).norm() < 1e-9 * exact["loop"].norm(), f"{case}: {name} disagrees with the loop"
    forms = make(ipc, options, torch.float32)
    times: dict[str, list[float]] = {name: [] for name in forms}
    peak = operations_a_second(options.device)
    for _ in range(options.repeats):
        for name, form in forms.items():
            times[name].append(seconds_of(form, options.device))
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    about = {"case": case, "ipc": ipc}
    # passes over networks × rows; a gradient in the images costs one more forward pass, a gradient in the weights two
    passes, rows = {
        "draws": (2, 2 * options.draws * CLASSES * ipc),
        "chains": (3, options.chains * CLASSES * ipc),
        "prediction": (1, options.chains * options.kept * PREDICTED),
    }[case]
    return [
        about
        | {"form": name, "ms": 1e3 * taken, "ratio": medians["loop"] / taken}
        | {"of_peak": passes * forward_operations(rows, options) / taken / peak}
        for name, taken in medians.items()
    ]


def seconds_of(form: Form, device: str) -> float:
    if device != "cpu":
        torch.cuda.synchronize()
    start = time.perf_counter()
    form()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - start


@torch.no_grad()
def forward_operations(rows: int, options: argparse.Namespace) -> int:
    """Return the floating-point operations of convolutions and head for ``rows`` pairs of a network and a row."""
    _, images, _ = problem(1, options)
    skeleton = spec(options).build(Seed(0)).to(options.device)
    with FlopCounterMode(display=False) as counter:
        skeleton(images[:1])
    return rows * int(counter.get_total_flops())


def operations_a_second(device: str, side: int = 1024) -> float:
    matrix = torch.ones(side, side, device=device)
    return 2 * side**3 / min(seconds_of(lambda: matrix @ matrix, device) for _ in range(10))


# (c) memory of the unrolled gradient


def memory(ipc: int, options: argparse.Namespace) -> dict[str, float]:
    """Return MiB of the gradient of ‖θ_S‖² in the images, and the ratios of 30 steps and a dense graph to one step."""
    flat, images, classes = problem(ipc, options)
    start, pixels = weights_near(flat, 1).to(options.device), images.requires_grad_()
    rate, steps = torch.tensor(0.01, device=options.device), options.inner or 30

    def loss(step: int, weights: Tensor, at: Tensor) -> Tensor:
        return -mean_log_likelihood(flat.outputs(weights, at), classes)

    def ours(count: int) -> Tensor:
        return torch.autograd.grad(unrolled(loss, start, pixels, count, rate).square().sum(), pixels)[0]

    def dense() -> Tensor:
        weights = start.clone().requires_grad_()
        for step in range(steps):
            (slope,) = torch.autograd.grad(loss(step, weights, pixels).sum(), weights, create_graph=True)
            weights = weights - rate * slope
        return torch.autograd.grad(weights.square().sum(), pixels)[0]

    # in float32 some ReLU lies at its kink; tests compare the two gradients in float64 to 1e-9
    assert (ours(steps) - dense()).norm() < 0.05 * dense().norm(), "the unrolled gradient disagrees with the dense one"
    forms = {"one step": lambda: ours(1), f"{steps} steps": lambda: ours(steps), f"dense, {steps} steps": dense}
    mib = {name: peak_bytes(form, options.device) / 2**20 for name, form in forms.items()}
    one, many, whole = mib.values()
    return {f"{name}, MiB": value for name, value in mib.items()} | {"over one": many / one, "dense over": whole / many}


def peak_bytes(form: Form, device: str) -> int:
    """The peak of the bytes that a form holds beside its inputs, by torch's profiler."""
    if device != "cpu":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        form()
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        form()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]  # type: ignore[union-attr]
    return int(np.cumsum([e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())]).max())


if __name__ == "__main__":
    main()
