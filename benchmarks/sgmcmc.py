"""A step of a chain over networks, beside the packages ``posteriors`` and ``blackjax``; effective draws a second.

(a) One step of SGLD of a perceptron 784-200-200-10 (batch 200), of a ConvNet with group norm (batch 64) and of a small
    perceptron 13-50-10 (batch 91): ours, the step of ``posteriors`` and the step of ``blackjax`` (under jit) on the
    same network. The baseline is a step of plain stochastic gradient descent. Several of our chains run as a batch, and
    one after another. Goals: faster than both packages; at most 1.1 times plain descent; a batch at least 1.5 times as
    fast on the small perceptron, where one chain leaves the processor idle.
(b) ``--draws boston``, ``--draws convnet``: instead of (a), effective draws of each kernel per second of CPU, measured
    on the predictions at 50 validation rows. Posterior and rate are a teacher's in params.yaml, ``boston-sghmc`` or
    ``fashion_mnist-sghmc``; all kernels use this rate, as ``scaled`` step sizes. HMC needs all rows and finds its step
    in burn-in; it is left out for the ConvNet.

A package that is not installed is left out, with a message: ``pip install posteriors blackjax jax``.

    python -m benchmarks.sgmcmc
    python -m pipeline repro prepare@boston && python -m benchmarks.sgmcmc --draws boston
    python -m pipeline repro prepare@fashion_mnist && python -m benchmarks.sgmcmc --draws convnet --steps 500

The forms of a case run in turn, one step each, in one process with the same threads, so that a busy machine slows all
of them; each form has its rows at hand. With one thread the times are of the CPU, and the process stays on one core, as
JAX has threads that no flag of XLA stops. Figures are medians, with the least beside; ``ratio`` is a form's median over
plain descent's, and ``over_ours`` the median of a form's time over ours of the same turn.
"""

import argparse
import importlib.util
import json
import operator
import os
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from bdl_pipe.config import read
from bdl_pipe.data.fitdata import FitData, HeldRows
from bdl_pipe.networks import ConvNetConfig, MlpConfig, NetworkConfig
from bdl_pipe.posterior import NetworkDraws, NetworkSpec
from bdl_pipe.seeds import Seed
from bdl_pipe.sgmcmc import Chains, Sgld
from bdl_pipe.sgmcmc.diagnostics import DiagnosticsConfig, of_split
from bdl_pipe.sgmcmc.sampler import NetworkChains, SamplerConfig
from bdl_pipe.sgmcmc.target import NetworkTarget, TargetConfig
from pipeline.core import places
from pipeline.core.load import load
from pipeline.prepared import folders

Step = Callable[[], None]
ROWS, STEP_SIZE = 60_000, 4e-6
CONVNET = ConvNetConfig("convnet", 16, 3, "group", "max")
CASES: dict[str, tuple[NetworkConfig, tuple[int, ...], int]] = {
    "perceptron 784-200-200-10, batch 200": (MlpConfig("mlp", (200, 200)), (784,), 200),
    "convnet 16, group norm, batch 64": (CONVNET, (1, 28, 28), 64),
    "perceptron 13-50-10, batch 91": (MlpConfig("mlp", (50,)), (13,), 91),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--chains", type=int, default=4, help="of the batch")
    parser.add_argument("--draws", choices=[*DRAWS], help="effective draws a second, not times of a step")
    parser.add_argument("--steps", type=int, default=12_000, help="of a chain, half of them burn-in; of HMC a 60th")
    parser.add_argument("--prepared", type=Path, help="the artifact of prepare; by default the pipeline's")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.threads == 1 and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    print(json.dumps({"torch": torch.__version__, "threads": options.threads}))
    if options.draws:
        effective_draws(options.draws, options.steps, options.chains, options.prepared)
        return
    for name, (network, shape, batch) in CASES.items():
        compare(name, forms(network, shape, batch, options.chains), options.repeats, options.chains)


def compare(name: str, steps: dict[str, Step], repeats: int, chains: int) -> None:
    """Time the forms in turn and print a line for each, with the time per chain; the first form is the baseline."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    times: dict[str, list[float]] = {form: [] for form in steps}
    for step in steps.values():
        step()
    for _ in range(repeats):
        for form, step in steps.items():
            start = clock()
            step()
            times[form].append((clock() - start) / (chains if form.endswith("each") else 1))
    base = statistics.median(next(iter(times.values())))
    for form, taken in times.items():
        middle, over = statistics.median(taken), statistics.median(map(operator.truediv, taken, times["ours"]))
        line = {"case": name, "form": form, "ms": round(1e3 * middle, 3), "least": round(1e3 * min(taken), 3)}
        print(json.dumps(line | {"ratio": round(middle / base, 3), "over_ours": round(over, 3)}), flush=True)


def forms(network: NetworkConfig, shape: tuple[int, ...], batch: int, chains: int) -> dict[str, Step]:
    """A step of each form on the same rows."""
    spec = NetworkSpec(network, shape, 10, "categorical")
    inputs, labels = torch.randn(batch, *shape), torch.arange(batch) % 10
    found = {"plain gradient descent": descent(spec, inputs, labels), "ours": ours(spec, inputs, labels, 1)}
    found[f"ours, {chains} chains as a batch, each"] = ours(spec, inputs, labels, chains)
    singles = [ours(spec, inputs, labels, 1) for _ in range(chains)]
    found[f"ours, {chains} chains one after another, each"] = lambda: [single() for single in singles] and None
    for package, make in (("posteriors", of_posteriors), ("blackjax", of_blackjax)):
        if importlib.util.find_spec(package):
            found[package] = make(spec, inputs, labels)
        else:
            print(f"the package {package} is not installed: pip install {package}")
    return found


def descent(spec: NetworkSpec, inputs: Tensor, labels: Tensor) -> Step:
    network = spec.build(Seed(0))
    optimiser = torch.optim.SGD(network.parameters(), lr=1e-4)

    def step() -> None:
        optimiser.zero_grad()
        F.cross_entropy(network(inputs), labels).backward()
        optimiser.step()

    return step


def ours(spec: NetworkSpec, inputs: Tensor, labels: Tensor, chains: int) -> Step:
    rows, index = HeldRows(inputs, labels), torch.arange(len(inputs))
    target = NetworkTarget(spec, [rows] * chains, 1.0)
    addresses = Chains([Seed(c) for c in range(chains)])
    state, done = Sgld().init(target.start([Seed(c) for c in range(chains)]), addresses.at(0)), 0
    density = target.density([index] * chains)

    @torch.no_grad()
    def step() -> None:
        nonlocal state, done
        state = Sgld().step(state, density, addresses.at(done), STEP_SIZE)
        done += 1

    return step


def of_posteriors(spec: NetworkSpec, inputs: Tensor, labels: Tensor) -> Step:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import posteriors
    network = spec.build(Seed(0))

    def log_posterior(params: Any, batch: Any) -> tuple[Tensor, Tensor]:
        logits = functional_call(network, params, (batch[0],))
        prior = sum(p.square().sum() for p in params.values())
        return -F.cross_entropy(logits, batch[1]) * ROWS - 0.5 * prior, logits

    transform = posteriors.sgmcmc.sgld.build(log_posterior, lr=STEP_SIZE / 2)
    state = transform.init({name: p.detach().clone() for name, p in network.named_parameters()})

    def step() -> None:
        nonlocal state
        state, _ = transform.update(state, (inputs, labels), inplace=True)

    return step


def of_blackjax(spec: NetworkSpec, inputs: Tensor, labels: Tensor) -> Step:
    import blackjax
    import jax
    import jax.numpy as jnp

    apply = _jax_mlp if isinstance(spec.network, MlpConfig) else _jax_convnet
    params = {name: jnp.asarray(p.detach().numpy()) for name, p in spec.build(Seed(0)).named_parameters()}
    batch = jnp.asarray(inputs.numpy()), jnp.asarray(labels.numpy())

    def log_prior(params: Any) -> Any:
        return -0.5 * sum(jnp.square(p).sum() for p in params.values())

    def log_likelihood(params: Any, row: Any) -> Any:
        return jax.nn.log_softmax(apply(params, row[0][None])[0])[row[1]]

    estimator = blackjax.sgmcmc.gradients.grad_estimator(log_prior, log_likelihood, ROWS)
    kernel = blackjax.sgld(estimator)
    move = jax.jit(kernel.step)
    state, key = kernel.init(params), jax.random.key(0)

    def step() -> None:
        nonlocal state, key
        key, now = jax.random.split(key)
        state = jax.block_until_ready(move(now, state, batch, STEP_SIZE))

    return step


def _jax_mlp(params: Any, x: Any) -> Any:
    import jax.numpy as jnp

    for name in sorted({name.rsplit(".", 1)[0] for name in params if name.startswith("trunk")}):
        x = jnp.maximum(x @ params[f"{name}.weight"].T + params[f"{name}.bias"], 0)
    return x @ params["head.weight"].T + params["head.bias"]


def _jax_convnet(params: Any, x: Any) -> Any:
    import jax
    import jax.numpy as jnp

    names = sorted({name.rsplit(".", 1)[0] for name in params if name.startswith("trunk")}, key=lambda n: int(n[6:]))
    for convolution, norm in zip(names[::2], names[1::2], strict=True):
        x = jax.lax.conv(x, params[f"{convolution}.weight"], (1, 1), "SAME")
        x = x + params[f"{convolution}.bias"][:, None, None]
        groups = x.reshape(len(x), 8, -1)
        groups = (groups - groups.mean(-1, keepdims=True)) / jnp.sqrt(groups.var(-1, keepdims=True) + 1e-5)
        x = groups.reshape(x.shape) * params[f"{norm}.weight"][:, None, None] + params[f"{norm}.bias"][:, None, None]
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
        x = jnp.maximum(x, 0)
    return x.reshape(len(x), -1) @ params["head.weight"].T + params["head.bias"]


def effective_draws(name: str, steps: int, chains: int, place: Path | None) -> None:
    """Print a line for each kernel: the least effective draws of a prediction (bulk, of all chains) and their rate."""
    run, batch, kernels = DRAWS[name]
    teacher = load().run("teacher", run)
    data = folders.load_fit(place or places.artifact("prepare", teacher.spec.dataset), 0, final=False)
    target = teacher.config.target
    rate = teacher.config.sampler.step_size.rate
    for kernel in kernels:
        whole = kernel["name"] == "hmc"
        section = {"kernel": kernel, "step_size": {"name": "scaled", "rate": rate}, "batch": None if whole else batch}
        count = steps // 60 if whole else steps
        figures = effective(data, target, read(SamplerConfig, section, "sampler"), count, chains)
        about = {"case": name, "kernel": kernel["name"], "rate": float(f"{rate:.3g}"), "steps": count}
        print(json.dumps(about | figures), flush=True)


def effective(data: FitData, target: TargetConfig, sampler: SamplerConfig, steps: int, chains: int) -> dict[str, float]:
    """Run chains as a batch; the CPU time covers the steps after burn-in and the kept positions."""
    burn_in, every, kept = steps // 2, max(1, steps // 2 // 300), []
    many = NetworkChains([data] * chains, target, sampler, [Seed(c) for c in range(chains)], burn_in)
    began = time.process_time()
    for done, state in many.steps(many.begin(), 0, steps):
        if done == burn_in:
            began = time.process_time()
        if done > burn_in and done % every == 0:
            kept.append(state["position"])
    seconds, spec = time.process_time() - began, many.target.spec
    draws = [NetworkDraws(spec, many.target.network.named(chain)) for chain in torch.stack(kept, 1)]
    found = of_split(draws, data, DiagnosticsConfig(rows=50, max_rhat=1.05, min_ess=100)).metrics
    return {
        "rhat": round(found["rhat_prediction"], 3),
        "ess": round(found["ess_prediction"], 1),
        "cpu_s": round(seconds, 1),
        "ess_a_second": round(found["ess_prediction"] / seconds, 3),
    }


PLAIN: list[dict[str, Any]] = [
    {"name": "sgld"},
    {"name": "psgld"},
    {"name": "sghmc", "friction": 0.05},
    {"name": "sgnht", "friction": 0.05},
]
HMC = {"name": "hmc", "leapfrogs": 200, "jitter": 0.2, "acceptance": 0.8}
DRAWS: dict[str, tuple[str, int, list[dict[str, Any]]]] = {  # teacher, batch, kernels
    "boston": ("boston-sghmc", 91, [*PLAIN, HMC]),
    "convnet": ("fashion_mnist-sghmc", 64, PLAIN),
}


if __name__ == "__main__":
    main()
