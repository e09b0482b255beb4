"""Approximate posteriors of the inducing-weight paper on its 1-D regression: figure 2, and a number for it.

Ritter, Kukla, Zhang & Li 2021 (section 4.1, appendix J.1): 20,000 updates of Adam at 1e-3, a tenth of it after 10,000
for FCG-U and Ensemble-U; U of 25 × 2 for the input layer (the bias is an input) and 1 × 25 for the output layer; 8
members. The paper averages 32 draws an update, we average 8: a quarter of the work. Where J.1 states nothing, we take
the same U for FFG-U; the library's starting values without caps; a constant rate for FCG-W; draws of weights, not of
outputs, for FFG-W. "ensemble_w", which figure 2 does not have, is 8 networks fitted by maximum likelihood, each from
its own starting weights.

    python -m benchmarks.inducing_methods --keep FOLDER --figure results/inducing/regression.png

All seeds of a method are fitted as one batched model. ``--keep`` stores each method's draws, and reads draws that are
already stored.
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast, final

import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from torch import Tensor, nn
from torch.distributions import Normal
from torch.func import functional_call, grad_and_value, stack_module_state, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from bdl_pipe import networks
from bdl_pipe.errors import Diverged
from bdl_pipe.inducing import Bayesian, bayesianize, outputs
from bdl_pipe.inducing.config import Kind
from bdl_pipe.networks import MlpConfig
from bdl_pipe.seeds import Seed
from benchmarks import inducing_regression as regression
from benchmarks.inducing_regression import HIDDEN, NOISE_VARIANCE, PRIOR_SCALE, Method, Predictive

STEPS, RATE, DECAYED, DRAWS, MEMBERS = 20_000, 1e-3, 10_000, 8, 8
SHOWN: Final = 1000  # number of functions in a prediction; the paper takes as many from NUTS
SIZES: Final = {"trunk.*": (25, 2, 1), "head": (1, 25, HIDDEN)}  # rows and cols of U; the layer's inputs
DECAYING: Final = ("fcg_u", "ensemble_u")
_AT_ONCE: Final = 100  # the noise of this many updates is drawn together

Noises = Iterator[dict[str, Tensor]]  # the noise of each update, tensors [member, ...]


def network(rng: Seed) -> networks.Network:
    """One hidden layer of tanh units."""
    return networks.build(MlpConfig("mlp", (HIDDEN,), "tanh"), (1,), 1, rng=rng.fold("network"))


def bayesian(kind: Kind, rng: Seed, prior_scale: float = PRIOR_SCALE) -> Bayesian:
    """The network with random weights, each layer's prior deviation ``prior_scale``/√d_in."""
    layers = {
        name: {"kind": kind, "rows": rows, "cols": cols, "prior_sd": prior_scale / math.sqrt(reads)}
        for name, (rows, cols, reads) in SIZES.items()
    }
    options = {"members": MEMBERS, "lambda_max": None, "sd_max": None}
    return bayesianize(network(rng), layers, rng=rng.fold("weights"), **options)


@final
class Bound(nn.Module):
    """Minus the evidence lower bound per row, with its expectation averaged over draws."""

    def __init__(self, net: Bayesian) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor, y: Tensor, noise: Mapping[str, Tensor]) -> Tensor:
        """Return the loss for ``x``, ``y`` [row] and ``noise``, tensors [draw, ...]."""
        factors = self.net.factors()
        weights = vmap(lambda n: self.net.weights(n, factors))(dict(noise))
        found = vmap(self.net.run, (None, 0))(x[:, None], weights)[..., 0]  # [draw, row]
        return (self.net.kl() - log_likelihood(found, y).mean()) / len(y)


@final
class Point(nn.Module):
    """Minus the log-likelihood per row of a deterministic network."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor, y: Tensor, noise: Mapping[str, Tensor]) -> Tensor:
        return -log_likelihood(self.net(x[:, None])[:, 0], y) / len(y)


def log_likelihood(found: Tensor, y: Tensor) -> Tensor:
    """log p(y | f), f = ``found`` [..., row] -> [...]."""
    return Normal(found, math.sqrt(NOISE_VARIANCE), validate_args=False).log_prob(y).sum(-1)


def run_steps(
    losses: Sequence[nn.Module], x: Tensor, y: Tensor, noises: Noises, steps: int, rate: float, decayed: int | None
) -> None:
    """Fit the parameters of ``losses`` in place as one batched model; at step ``decayed`` the rate falls to a tenth."""
    parameters, _ = stack_module_state(list(losses))
    optimiser = torch.optim.Adam(parameters.values(), lr=rate, fused=True)
    slope = None
    for step, noise in zip(range(steps), noises, strict=False):
        if step == decayed:
            optimiser.param_groups[0]["lr"] = rate / 10
        with torch.no_grad():
            plain = {name: p.detach() for name, p in parameters.items()}
            slope = slope or traced(losses[0], x, y, plain, noise)
            gradients, loss = slope(plain, noise)
        if not torch.isfinite(loss).all():
            raise Diverged(f"the loss became {loss.tolist()} at step {step}")
        for name, parameter in parameters.items():
            parameter.grad = gradients[name]
        optimiser.step()
    with torch.no_grad():
        for member, module in enumerate(losses):
            for name, parameter in module.named_parameters():
                parameter.copy_(parameters[name][member])


def traced(loss: nn.Module, x: Tensor, y: Tensor, parameters: dict[str, Tensor], noise: dict[str, Tensor]) -> Any:
    """Parameters and noise, [member, ...] each -> gradients and losses [member]: the operations without their calls.

    A step of so small a network is overhead; the traced one takes half the time and gives the same bits.
    """

    def total(p: dict[str, Tensor], z: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        each = vmap(lambda p, z: functional_call(loss, p, (x, y, z)))(p, z)
        return each.sum(), each

    def slope(p: dict[str, Tensor], z: dict[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        gradients, (_, each) = grad_and_value(total, has_aux=True)(p, z)
        return gradients, each

    return make_fx(slope)(parameters, noise)


def noises(nets: Sequence[Bayesian], rngs: Sequence[Seed], draws: int) -> Noises:
    """Yield noise without end; the members of Ensemble-U take turns through the draws of an update."""
    block = 0
    while True:
        places = [rng.fold("noise", block).generator() for rng in rngs]
        parts = [net.draw(_AT_ONCE * draws, place) for net, place in zip(nets, places, strict=True)]
        together = {k: torch.stack([p[k] for p in parts]).unflatten(1, (_AT_ONCE, draws)) for k in parts[0]}
        for step in range(_AT_ONCE):
            yield {k: v[:, step] for k, v in together.items()}
        block += 1


def fit(
    kind: Kind,
    x: Tensor,
    y: Tensor,
    rngs: Sequence[Seed],
    *,
    steps: int,
    rate: float,
    draws: int,
    falls: bool | None = None,
) -> list[Bayesian]:
    """Fit one network per seed; ``falls``: whether the rate falls to a tenth midway, None for the paper's choice."""
    nets = [bayesian(kind, rng) for rng in rngs]
    decayed = steps * DECAYED // STEPS if (kind in DECAYING if falls is None else falls) else None
    run_steps([Bound(n) for n in nets], x.float(), y.float(), noises(nets, rngs, draws), steps, rate, decayed)
    return nets


def fit_points(x: Tensor, y: Tensor, rngs: Sequence[Seed], *, steps: int, rate: float) -> list[list[nn.Module]]:
    """Fit :data:`MEMBERS` networks for each seed."""
    ensembles: list[list[nn.Module]] = [[network(rng.fold("member", m)) for m in range(MEMBERS)] for rng in rngs]
    every = [Point(net) for nets in ensembles for net in nets]
    nothing: Noises = iter(dict, None)
    run_steps(every, x.float(), y.float(), nothing, steps, rate, None)
    return ensembles


def functions(net: Bayesian, rng: Seed, count: int = SHOWN) -> Predictive:
    return lambda grid: outputs(net, grid.float()[:, None], count, rng.fold("predict"))[..., 0]


def method(kind: Kind, steps: int) -> Method:
    def fitted(x: Tensor, y: Tensor, rngs: Sequence[Seed]) -> list[Predictive]:
        nets = fit(kind, x, y, rngs, steps=steps, rate=RATE * STEPS / steps, draws=DRAWS)
        return [functions(net, rng) for net, rng in zip(nets, rngs, strict=True)]

    return fitted


def ensemble_w(steps: int) -> Method:
    def fitted(x: Tensor, y: Tensor, rngs: Sequence[Seed]) -> list[Predictive]:
        return [of_points(nets) for nets in fit_points(x, y, rngs, steps=steps, rate=RATE * STEPS / steps)]

    return fitted


def of_points(nets: Sequence[nn.Module]) -> Predictive:
    return lambda grid: torch.stack([net(grid.float()[:, None])[:, 0] for net in nets])


TITLES: Final = {
    "ffg_w": "FFG-W",
    "fcg_w": "FCG-W",
    "ensemble_w": "Ensemble-W",
    "ffg_u": "FFG-U",
    "fcg_u": "FCG-U",
    "ensemble_u": "Ensemble-U",
}
METHODS: Final = (*TITLES, "prior")


def named(name: str, steps: int) -> Method:
    """A method, fitted in ``steps`` updates; fewer updates have a larger rate."""
    if name == "prior":
        return regression.prior
    return ensemble_w(steps) if name == "ensemble_w" else method(cast(Kind, name), steps)


def kept(path: Path | None, run: Callable[[], list[np.ndarray]]) -> tuple[list[np.ndarray], float]:
    """The draws [draw, x] of each seed and the processor seconds of one seed: from the file, or from ``run``."""
    if path is not None and path.exists():
        stored = load_file(path)
        return list(stored["draws"]), float(stored["seconds"])
    start = time.process_time()
    draws = run()
    seconds = (time.process_time() - start) / len(draws)
    if path is not None:
        save_file({"draws": np.stack(draws), "seconds": np.array(seconds)}, path)
    return draws, seconds


def summary(found: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Mean and standard error over the seeds, of each part of the grid."""
    table = {name: np.array([f[name] for f in found]) for name in found[0]}
    error = {k: float(v.std(ddof=1) / math.sqrt(len(v))) if len(v) > 1 else None for k, v in table.items()}
    return {k: [float(v.mean()), error[k]] for k, v in table.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", choices=METHODS, nargs="+", default=METHODS)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--keep", type=Path, help="a folder")
    parser.add_argument("--figure", type=Path, help="write the figure of the first seed here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    reference, shown = regression.read_reference(), {}
    print(json.dumps({"reference": reference.about, "torch": torch.__version__}))
    print(json.dumps({"method": "NUTS, one half against the other", "wasserstein": regression.halves(reference)}))
    rngs = [Seed(seed) for seed in range(options.seeds)]
    for name in options.only:
        path = options.keep and options.keep / f"{name}.safetensors"
        chosen = named(name, options.steps)
        draws, seconds = kept(path, lambda chosen=chosen: regression.predict(reference, chosen, rngs))
        near = summary([regression.distances(reference.grid, reference.draws, d) for d in draws])
        wide = summary([regression.spreads(reference.grid, reference.draws, d) for d in draws])
        print(json.dumps({"method": name, "wasserstein": near, "spread": wide, "seconds": seconds}), flush=True)
        shown[TITLES.get(name, name)] = draws[0]
    if options.figure:
        shown.pop("prior", None)
        regression.draw(reference, {"NUTS": reference.draws} | shown, options.figure)


if __name__ == "__main__":
    main()
