"""NUTS on the 1-D regression of the inducing-weight paper: the reference of ``benchmarks/inducing_regression.py``.

    pip install -e ".[nuts]"
    python -m benchmarks.references.inducing_nuts

The sampler is NumPyro's (Hoffman & Gelman 2014; Phan, Pradhan & Jankowiak 2019); the paper used Pyro's, by the same
authors, which takes ten times as long (0.5 s against 0.05 s a draw of one chain, both compiled, on one core). As in J.1
it takes 25,000 draws, 5,000 of them burn-in, but in four chains, so that R-hat can be computed. The chains run side by
side, in float32 (both libraries' default) over the weights divided by their prior deviations, to a tree depth of 10
(both libraries' default), and start from the prior. Weights are not kept: they have 50!·2⁵⁰ symmetries, so only
functions can be compared. R-hat and effective sample sizes are computed for f(x) at each x of the grid (ArviZ:
rank-normalised split R-hat, bulk ESS). On a small machine set JAX_PLATFORMS=cpu.
"""

import argparse
import json
import math
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from bdl_pipe.seeds import Seed
from benchmarks.inducing_regression import GRID, HIDDEN, NOISE_VARIANCE, STORED, WEIGHTS, data, functions, prior_sd

CHAINS, DRAWS, BURN_IN = 4, 25_000, 5_000  # all chains together
KEPT = 2_000  # the largest number of stored functions: every tenth draw


def log_joint(whitened: Any, x: Any, y: Any, sd: Any, xp: ModuleType) -> Any:
    """log p(θ)p(y | x, θ) + const for θ = ``sd`` · ``whitened`` [151] and data [row], in numpy, jax.numpy or torch."""
    weights = whitened * sd
    hidden = xp.tanh(x[:, None] * weights[:HIDDEN] + weights[HIDDEN : 2 * HIDDEN])  # [row, unit]
    outputs = hidden @ weights[2 * HIDDEN : 3 * HIDDEN] + weights[3 * HIDDEN]
    return -(whitened**2).sum() / 2 - ((y - outputs) ** 2).sum() / (2 * NOISE_VARIANCE)


def chains(x: np.ndarray, y: np.ndarray, rng: Seed, block: int) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
    """Yield blocks of the chains without end, burn-in first: whitened weights [chain, draw, 151] and statistics."""
    import jax
    import jax.numpy as jnp
    from numpyro.infer import NUTS

    inputs, targets, sd = (jnp.asarray(a, jnp.float32) for a in (x, y, prior_sd()))
    kernel = NUTS(potential_fn=lambda w: -log_joint(w, inputs, targets, sd, jnp), max_tree_depth=10)
    starts = jnp.asarray(rng.fold("start").numpy().standard_normal((CHAINS, WEIGHTS)), jnp.float32)
    keys = jax.random.split(jax.random.key(rng.fold("nuts").integer() % 2**32), CHAINS)
    state = kernel.init(keys, BURN_IN // CHAINS, starts, model_args=(), model_kwargs={})

    def step(state: Any, _: None) -> tuple[Any, tuple[Any, ...]]:
        state = kernel.sample(state, (), {})
        return state, (state.z, state.num_steps, state.diverging, state.accept_prob, state.adapt_state.step_size)

    advance = jax.jit(lambda state: jax.lax.scan(step, state, None, length=block))
    names = ("leapfrogs", "diverging", "accept", "step_size")
    while True:
        state, (weights, *rest) = advance(state)
        yield np.asarray(weights).swapaxes(0, 1), {n: np.asarray(r) for n, r in zip(names, rest, strict=True)}


def diagnose(draws: np.ndarray) -> dict[str, np.ndarray]:
    """R-hat and effective sample size of f at each x, [x]; draws [chain, draw, x]."""
    import arviz

    found = arviz.convert_to_dataset({"f": draws})
    return {"r_hat": arviz.rhat(found)["f"].to_numpy(), "ess": arviz.ess(found)["f"].to_numpy()}


def summarise(parts: list[dict[str, np.ndarray]]) -> dict[str, float]:
    """The sampler's own statistics after burn-in."""
    every = {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}
    return {
        "leapfrogs_per_draw": float(every["leapfrogs"].mean()),
        "share_at_largest_tree": float((every["leapfrogs"] == 2**10 - 1).mean()),
        "divergences": int(every["diverging"].sum()),
        "acceptance": float(every["accept"].mean()),
        "step_size": float(every["step_size"].mean()),
    }


def store(path: Path, x: np.ndarray, y: np.ndarray, draws: np.ndarray, about: dict[str, Any]) -> None:
    """Write the thinned functions, chain by chain, and the diagnostics of all draws; draws [chain, draw, x]."""
    found = diagnose(draws)
    about |= {"r_hat_max": float(found["r_hat"].max()), "ess_min": float(found["ess"].min())}
    thinned = draws[:, :: math.ceil(draws[..., 0].size / KEPT)].reshape(-1, len(GRID))
    tensors = {"x": x, "y": y, "grid": GRID, "draws": thinned.astype(np.float32)}
    tensors |= {name: values.astype(np.float32) for name, values in found.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path, {"about": json.dumps(about)})
    print(json.dumps(about), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--draws", type=int, default=DRAWS, help="of all chains, the burn-in of 5,000 among them")
    parser.add_argument("--block", type=int, default=250, help="draws of a chain between two writes of the file")
    parser.add_argument("--to", type=Path, default=STORED)
    options = parser.parse_args()
    x, y = data(Seed(options.seed))
    sampler, block = chains(x, y, Seed(options.seed), options.block), options.block
    seen, parts, wall, cpu = [], [], time.perf_counter(), time.process_time()
    for done in range(block, options.draws // CHAINS + 1, block):
        weights, statistics = next(sampler)
        print(json.dumps({"draws": done * CHAINS, "cpu_s": round(time.process_time() - cpu)}), flush=True)
        if done <= BURN_IN // CHAINS:
            continue
        seen.append(np.stack([functions(w * prior_sd(), GRID) for w in weights]))
        parts.append(statistics)
        about = {"sampler": f"NumPyro {version('numpyro')} NUTS, jax {version('jax')}", "chains": CHAINS}
        about |= {"draws": done * CHAINS, "burn_in": BURN_IN, "seed": options.seed} | summarise(parts)
        about |= {"wall_s": round(time.perf_counter() - wall), "cpu_s": round(time.process_time() - cpu)}
        store(options.to, x, y, np.concatenate(seen, axis=1), about)


if __name__ == "__main__":
    main()
