"""VBPC's loss and gradient: the efficient form against the naive one, in one process.

The naive form builds V (h×h) for the variance of the batch's logits, its log-determinant and trace;
the efficient one (bdl_pipe.coresets.vbpc.closed_form) holds one Cholesky factor of n̂×n̂. Both compute the
loss of eq. 27 and its gradient with respect to the coreset's features and labels (Lee et al. 2025,
table 5). The two must agree in float64 before anything is timed; each form's error in float32 is printed.

    python benchmarks/vbpc_step.py --rows 10 100 500 --widths 1152 2304 --device cpu

With ``--whole`` both forms are part of an outer step with images of CIFAR-10's size and a trunk of three blocks:
coreset and batch through the trunk, the loss, and the gradient in images and labels. The paper has .18 of the naive
form's time and .50 of its memory at ten images a class and width 128.

    python benchmarks/vbpc_step.py --whole 1 10 --network-width 128 --batch 256

With ``--against COMMIT`` the script measures the whole outer step of this tree and of the commit: two processes, each
with its own ``bdl_pipe``, take blocks of five steps in turn (outer_step.py), on the same rows and settings.
``--compiled`` and ``--bfloat16`` are settings of this tree's networks only.

    python benchmarks/vbpc_step.py --against 1330bff --threads 1 --compiled

Prints one JSON line for each case, then a table. Memory: on a GPU torch's peak; on the CPU the peak of
bytes allocated by torch's operators, from its profiler. Times are medians over repeats, forms in turn.
"""

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from bdl_pipe import networks
from bdl_pipe.coresets.vbpc import closed_form
from bdl_pipe.seeds import Seed

Loss = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
RHO, GAMMA, NUM_TRAIN, BETA_DATASET = 1.0, 100.0, 60_000, 1e-8


def efficient(features: Tensor, labels: Tensor, batch: Tensor, classes: Tensor) -> Tensor:
    return closed_form.dataset_loss(
        closed_form.solve(features, labels, RHO, GAMMA), batch, classes, NUM_TRAIN, BETA_DATASET
    )


def naive(features: Tensor, labels: Tensor, batch: Tensor, classes: Tensor) -> Tensor:
    """V = (ρI + (γ/β)ΦᵀΦ)⁻¹, and every formula of the paper written with it."""
    (n, h), k = features.shape, labels.shape[1]
    identity = torch.eye(h, dtype=features.dtype, device=features.device)
    covariance = torch.linalg.inv(RHO * identity + GAMMA / n * features.T @ features)
    mean = GAMMA / n * covariance @ features.T @ labels
    logit_variance = ((batch @ covariance) * batch).sum(1)
    logits = batch @ mean / torch.sqrt(1 + math.pi / 8 * logit_variance)[:, None]
    trace = k * RHO * covariance.trace() + RHO * mean.square().sum()
    kl = 0.5 * (trace - k * torch.linalg.slogdet(covariance)[1] - k * h * math.log(RHO) - k * h)
    return NUM_TRAIN * F.cross_entropy(logits, classes) + BETA_DATASET * kl


def problem(rows: int, width: int, batch: int, classes: int, device: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    features, test = (torch.rand(n, width, generator=generator).to(device) for n in (rows, batch))
    labels = F.one_hot(torch.arange(rows) % classes, classes).float().to(device) - 1 / classes
    return features.requires_grad_(), labels.requires_grad_(), test, (torch.arange(batch) % classes).to(device)


def gradients(loss: Loss, case: tuple[Tensor, Tensor, Tensor, Tensor]) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss(*case), case[:2])


def seconds(loss: Loss, case: tuple[Tensor, Tensor, Tensor, Tensor]) -> float:
    cuda = case[0].is_cuda
    if cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    gradients(loss, case)
    if cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def peak_bytes(loss: Loss, case: tuple[Tensor, Tensor, Tensor, Tensor]) -> int:
    """The peak of the bytes that the loss and its gradient hold beside the inputs."""
    if case[0].is_cuda:
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        gradients(loss, case)
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        gradients(loss, case)
    held = peak = 0
    events = profile.profiler.kineto_results.events()  # type: ignore[union-attr]
    memory = [(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"]  # allocations (+), releases (−)
    for _, size in sorted(memory, key=lambda event: event[0]):
        held += size
        peak = max(peak, held)
    return peak


def gradient_errors(case: tuple[Tensor, Tensor, Tensor, Tensor]) -> dict[str, float]:
    """Each form's relative error in the features' gradient, against the naive form in float64."""
    exact = tuple(t.detach().double().requires_grad_(t.requires_grad) if t.is_floating_point() else t for t in case)
    oracle, check = gradients(naive, exact)[0], gradients(efficient, exact)[0]  # type: ignore[arg-type]
    assert (check - oracle).norm() < 1e-6 * oracle.norm(), "the two forms disagree in float64"
    forms = {"naive": naive, "efficient": efficient}
    return {
        f"{name}_error": float((gradients(form, case)[0] - oracle).norm() / oracle.norm())
        for name, form in forms.items()
    }


def step_problem(ipc: int, width: int, batch: int, device: str) -> tuple[networks.Network, tuple[Tensor, ...]]:
    """Return a trunk and (images, labels, a batch's images, its classes) of CIFAR-10's size, which are noise."""
    generator = torch.Generator().manual_seed(0)
    network = networks.build(
        networks.ConvNetConfig("convnet", width=width, blocks=3, norm="batch", pool="average"),
        (3, 32, 32),
        10,
        rng=Seed(0),
    ).to(device)
    images, rows = (torch.randn(n, 3, 32, 32, generator=generator).to(device) for n in (10 * ipc, batch))
    classes = torch.arange(10, device=device).repeat_interleave(ipc)
    labels = F.one_hot(classes, 10).float() - 0.1
    leaves = images.requires_grad_(), labels.requires_grad_()
    return network.eval(), (*leaves, rows, torch.arange(batch, device=device) % 10)


def whole_step(network: networks.Network, form: Loss) -> Loss:
    """Return the loss of an outer step as a function of images, labels and the batch."""
    network.requires_grad_(False)  # the outer step changes only images and labels

    def loss(images: Tensor, labels: Tensor, rows: Tensor, classes: Tensor) -> Tensor:
        with torch.no_grad():
            batch = network.trunk(rows)
        return form(network.trunk(images), labels, batch, classes)

    return loss


def measure_whole(ipc: int, width: int, batch: int, device: str, repeats: int) -> dict[str, float]:
    network, case = step_problem(ipc, width, batch, device)
    steps = [whole_step(network, form) for form in (naive, efficient)]
    found = [gradients(step, case)[0] for step in steps]  # type: ignore[arg-type]
    times = [[seconds(step, case) for step in steps] for _ in range(repeats)]  # type: ignore[arg-type]
    slow, fast = (statistics.median(column) for column in zip(*times, strict=True))
    large, small = (peak_bytes(step, case) for step in steps)  # type: ignore[arg-type]
    return {
        "ipc": ipc,
        "batch": batch,
        "naive_s": slow,
        "efficient_s": fast,
        "time_share": fast / slow,
        "naive_mib": large / 2**20,
        "efficient_mib": small / 2**20,
        "memory_share": small / large,
        "difference": float((found[0] - found[1]).norm() / found[1].norm()),
    }


def measure(rows: int, width: int, batch: int, classes: int, device: str, repeats: int) -> dict[str, float]:
    case = problem(rows, width, batch, classes, device)
    errors = gradient_errors(case)
    times: dict[str, list[float]] = {"naive": [], "efficient": []}
    for _ in range(repeats):
        times["naive"].append(seconds(naive, case))
        times["efficient"].append(seconds(efficient, case))
    slow, fast = statistics.median(times["naive"]), statistics.median(times["efficient"])
    large, small = peak_bytes(naive, case), peak_bytes(efficient, case)
    return {
        "rows": rows,
        "width": width,
        "naive_ms": 1e3 * slow,
        "efficient_ms": 1e3 * fast,
        "time_ratio": slow / fast,
        "naive_mib": large / 2**20,
        "efficient_mib": small / 2**20,
        "memory_ratio": large / small,
        **errors,
    }


_REPOSITORY, _BLOCK = Path(__file__).parents[1], 5


def against(commit: str, options: dict[str, object], pool: dict[str, object], rounds: int) -> dict[str, object]:
    """Return the median milliseconds of an outer step of ``commit`` and of this tree with ``pool``, and their ratio."""
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(
            ["git", "archive", commit, "src"], cwd=_REPOSITORY, capture_output=True, check=True
        ).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
        there, here = Path(folder) / "src", _REPOSITORY / "src"
        sides = [_outer_steps(there, options), _outer_steps(here, options | {"pool": pool})]
        try:
            times = [[_block(side) for side in sides] for _ in range(rounds + 1)][1:]  # the first makes networks
        finally:
            for side in sides:
                side.kill()
                side.wait()
    then, now = (1e3 * statistics.median(column) for column in zip(*times, strict=True))
    return options | pool | {"then_ms": then, "now_ms": now, "ratio": statistics.median(a / b for a, b in times)}


def _outer_steps(src: Path, options: dict[str, object]) -> subprocess.Popen[str]:
    command = [sys.executable, str(_REPOSITORY / "benchmarks/outer_step.py"), json.dumps(options)]
    env = os.environ | {"PYTHONPATH": str(src), "OMP_NUM_THREADS": str(options["threads"])}
    return subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _block(side: subprocess.Popen[str]) -> float:
    assert side.stdin is not None and side.stdout is not None
    side.stdin.write(f"{_BLOCK}\n")
    side.stdin.flush()
    return float(side.stdout.readline())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[10, 100, 500], help="coreset rows")
    parser.add_argument("--widths", type=int, nargs="+", default=[576, 1152, 2304], help="features h")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--whole", type=int, nargs="*", metavar="IPC", help="a whole step with each form: images a class"
    )
    parser.add_argument("--against", metavar="COMMIT", help="measure the whole outer step, there and here")
    parser.add_argument("--compiled", action="store_true", help="with --against: by torch.compile")
    parser.add_argument("--bfloat16", action="store_true", help="with --against: products of bfloat16")
    parser.add_argument("--network-width", type=int, default=16, help="of the outer step")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    device = torch.cuda.get_device_name() if args.device != "cpu" else f"{platform.machine()}, {args.threads} threads"
    print(json.dumps({"torch": torch.__version__, "device": device}))
    if args.whole is not None:
        for ipc in args.whole or [10]:
            row = measure_whole(ipc, args.network_width, args.batch, args.device, args.repeats)
            print(json.dumps({name: float(f"{value:.4g}") for name, value in row.items()}), flush=True)
        return
    if args.against:
        for ipc in (1, 10):
            for malloc in (False, True):
                options = {"threads": args.threads, "width": args.network_width, "ipc": ipc, "batch": args.batch}
                pool = {"compiled": True} if args.compiled else {}
                pool |= {"precision": "bfloat16"} if args.bfloat16 else {}
                row = against(args.against, options | {"malloc": malloc}, pool, 2 * args.repeats)
                print(
                    json.dumps({k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in row.items()}),
                    flush=True,
                )
        return
    found = []
    for width in args.widths:
        for rows in args.rows:
            found.append(measure(rows, width, args.batch, args.classes, args.device, args.repeats))
            print(json.dumps({k: float(f"{v:.4g}") for k, v in found[-1].items()}), flush=True)
    print("\n" + " ".join(f"{name:>15}" for name in found[0]))
    for row in found:
        print(" ".join(f"{value:15.4g}" for value in row.values()))


if __name__ == "__main__":
    main()
