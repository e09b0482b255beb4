"""A check of NUTS on the 1-D regression by another sampler: elliptical slices over the first layer alone.

    python -m benchmarks.references.inducing_slice

Given the first layer, the regression is linear in the output layer with a Gaussian prior, so that its weights
integrate out in closed form and, afterwards, are drawn exactly. The remaining 100 weights, under a Gaussian prior, are
sampled by elliptical slices (Murray, Adams & MacKay 2010), which have no step size and reject nothing. The code shares
only R-hat and the effective sample size with ``inducing_nuts.py``; chains start from the prior.
"""

import argparse
import json
import math
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bdl_pipe.seeds import Seed
from benchmarks import inducing_regression as regression
from benchmarks.inducing_regression import HIDDEN, NOISE_VARIANCE, PRIOR_SCALE
from benchmarks.references.inducing_nuts import diagnose

OUTPUT_VARIANCE = PRIOR_SCALE**2 / HIDDEN  # prior variance of an output weight and the bias


class Conditional(NamedTuple):
    """log p(y | first layer) [chain], and N(mean, (RRᵀ)⁻¹) of the output layer: mean [chain, 51], R lower."""

    log_evidence: Tensor
    mean: Tensor
    root: Tensor


def features(whitened: Tensor, x: Tensor) -> Tensor:
    """Hidden units and a one: [chain, x, 51] of first layers divided by their prior's deviation, [chain, 100]."""
    weight, bias = (PRIOR_SCALE * whitened).split(HIDDEN, -1)
    hidden = torch.tanh(x[:, None] * weight[:, None] + bias[:, None])
    return torch.cat([hidden, torch.ones_like(hidden[..., :1])], -1)


def conditional(whitened: Tensor, x: Tensor, y: Tensor) -> Conditional:
    """Bayesian linear regression on the features, in float64."""
    phi = features(whitened, x)
    identity = torch.eye(phi.shape[-1], dtype=phi.dtype)
    root = torch.linalg.cholesky(phi.mT @ phi / NOISE_VARIANCE + identity / OUTPUT_VARIANCE)  # precision's factor
    shift = (phi.mT @ y / NOISE_VARIANCE)[..., None]
    mean = torch.cholesky_solve(shift, root)
    quadratic = y @ y / NOISE_VARIANCE - (shift * mean).sum((-2, -1))
    log_det = 2 * root.diagonal(dim1=-2, dim2=-1).log().sum(-1) + len(identity) * math.log(OUTPUT_VARIANCE)
    constant = len(y) * math.log(2 * math.pi * NOISE_VARIANCE)
    return Conditional(-0.5 * (quadratic + log_det + constant), mean[..., 0], root)


def draw_functions(whitened: Tensor, x: Tensor, y: Tensor, grid: Tensor, generator: torch.Generator) -> Tensor:
    """f on the grid [chain, x], the output layer drawn given the first."""
    _, mean, root = conditional(whitened, x, y)
    noise = torch.randn(mean.shape, dtype=mean.dtype, generator=generator)
    last = mean + torch.linalg.solve_triangular(root.mT, noise[..., None], upper=True)[..., 0]
    return (features(whitened, grid) @ last[..., None])[..., 0]


def slice_step(
    log_density: Callable[[Tensor], Tensor], state: Tensor, value: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Update each chain under N(0, I) times exp(log_density): new states [chain, size], and log_density [chain]."""
    other = torch.randn(state.shape, dtype=state.dtype, generator=generator)
    least = value + torch.rand(len(state), dtype=state.dtype, generator=generator).log()
    angle = 2 * math.pi * torch.rand(len(state), dtype=state.dtype, generator=generator)
    low, high = angle - 2 * math.pi, angle.clone()
    found, density = state.clone(), value.clone()
    left = torch.arange(len(state))  # chains that have accepted no point yet
    while len(left):
        at = angle[left, None]
        proposed = state[left] * at.cos() + other[left] * at.sin()
        there = log_density(proposed)
        good = there > least[left]
        found[left[good]], density[left[good]] = proposed[good], there[good]
        left = left[~good]
        high[left] = torch.where(angle[left] > 0, angle[left], high[left])
        low[left] = torch.where(angle[left] > 0, low[left], angle[left])
        share = torch.rand(len(left), dtype=state.dtype, generator=generator)
        angle[left] = low[left] + (high[left] - low[left]) * share
    return found, density


def sample(x: Tensor, y: Tensor, grid: Tensor, rng: Seed, chains: int, steps: int, burn_in: int, every: int) -> Tensor:
    """f on the grid, [chain, draw, x]: every ``every``-th step after the burn-in."""
    generator = rng.fold("slice").generator()
    state = torch.randn(chains, 2 * HIDDEN, dtype=torch.float64, generator=generator)
    value, drawn = conditional(state, x, y).log_evidence, []
    for step in range(steps):
        state, value = slice_step(lambda w: conditional(w, x, y).log_evidence, state, value, generator)
        if step >= burn_in and (step - burn_in) % every == 0:
            drawn.append(draw_functions(state, x, y, grid, generator))
    return torch.stack(drawn, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--chains", type=int, default=16)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--burn-in", type=int, default=1000)
    parser.add_argument("--every", type=int, default=10)
    options = parser.parse_args()
    torch.set_num_threads(1)
    reference, start = regression.read_reference(), time.process_time()
    x, y, grid = (torch.from_numpy(a) for a in (reference.x, reference.y, reference.grid))
    found = sample(x, y, grid, Seed(options.seed), options.chains, options.steps, options.burn_in, options.every)
    seen = diagnose(found.numpy())
    flat = found.flatten(0, 1).numpy()
    about = {"chains": options.chains, "steps": options.steps, "kept": len(flat)}
    about |= {"r_hat_max": float(np.max(seen["r_hat"])), "ess_min": float(np.min(seen["ess"]))}
    print(json.dumps(about | {"cpu_s": round(time.process_time() - start)}))
    print(json.dumps({"wasserstein": regression.distances(reference.grid, reference.draws, flat)}))
    print(json.dumps({"spread": regression.spreads(reference.grid, reference.draws, flat)}))
    print(json.dumps({"NUTS, halves": regression.halves(reference)}))


if __name__ == "__main__":
    main()
