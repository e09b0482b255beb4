"""NUTS on the toy regression of CIBER's figure 2: the reference of ``benchmarks/ciber_figure2.py``.

    pip install -e ".[nuts]"
    python -m benchmarks.references.ciber_nuts [--noise 0.5]

The sampler is NumPyro's (Hoffman & Gelman 2014; Phan, Pradhan & Jankowiak 2019), four chains from the prior, in
float32 over the weights divided by their prior deviations, to a tree depth of 10. The script stores three kinds of "ten
samples": 2,000 thinned draws of the weights; forty runs of ten successive draws; forty walks, each with the states
after ten steps of Hamiltonian Monte Carlo from one draw. The steps are so short that a walk stays near its draw, as the
iterates of SGD stay near each other. R-hat and effective sample sizes are computed for f(x) on a grid, from all draws
after burn-in (ArviZ: rank-normalised split R-hat, bulk ESS). For weights they would mean little, since the posterior
has the 10!² symmetries of its units. On a small machine set JAX_PLATFORMS=cpu.
"""

import argparse
import json
import time
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from bdl_pipe.seeds import Seed
from benchmarks.ciber_toy import HIDDEN, NOISES, SIZES, WEIGHTS, data, functions, prior_sd, stored

CHAINS, KEPT, RUNS, RUN = 4, 2_000, 40, 10
STEP, LENGTH = 0.01, 0.1  # a walk's, in prior deviations; ten lengths are about a seventh of the posterior's width
GRID = np.linspace(-1.5, 1.5, 61)


def log_joint(whitened: Any, x: Any, y: Any, sd: Any, noise: float, xp: ModuleType) -> Any:
    """log p(θ)p(y | x, θ) + const for θ = ``sd`` · ``whitened`` [140] and data [row], in numpy or jax.numpy."""
    first, bias, middle, shift, last = xp.split(whitened * sd, np.cumsum(SIZES)[:-1])
    hidden = xp.maximum(x[:, None] * first + bias, 0)  # [row, unit]
    hidden = xp.maximum(hidden @ middle.reshape(HIDDEN, HIDDEN).T + shift, 0)
    return -(whitened**2).sum() / 2 - ((y - hidden @ last) ** 2).sum() / (2 * noise**2)


def sample(x: np.ndarray, y: np.ndarray, rng: Seed, options: argparse.Namespace) -> tuple[np.ndarray, dict[str, Any]]:
    """Sample weights [chain, draw, 140] after burn-in, and return them with the sampler's own statistics."""
    import jax
    import jax.numpy as jnp
    from numpyro.infer import MCMC, NUTS

    inputs, targets, sd = (jnp.asarray(a, jnp.float32) for a in (x, y, prior_sd()))
    kernel = NUTS(potential_fn=lambda w: -log_joint(w, inputs, targets, sd, options.noise, jnp), max_tree_depth=10)
    mcmc = MCMC(
        kernel,
        num_warmup=options.burn_in,
        num_samples=options.draws,
        num_chains=CHAINS,
        chain_method="vectorized",
        progress_bar=False,
    )
    starts = jnp.asarray(rng.fold("start").numpy().standard_normal((CHAINS, WEIGHTS)), jnp.float32)
    key = jax.random.key(rng.fold("nuts").integer() % 2**32)
    mcmc.run(key, init_params=starts, extra_fields=("diverging", "num_steps", "accept_prob"))
    extra = {name: np.asarray(value) for name, value in mcmc.get_extra_fields().items()}
    about = {
        "leapfrogs_per_draw": float(extra["num_steps"].mean()),
        "share_at_largest_tree": float((extra["num_steps"] == 2**10 - 1).mean()),
        "divergences": int(extra["diverging"].sum()),
        "acceptance": float(extra["accept_prob"].mean()),
    }
    return np.asarray(mcmc.get_samples(group_by_chain=True), np.float64) * prior_sd(), about


def walks(x: np.ndarray, y: np.ndarray, starts: np.ndarray, rng: Seed, noise: float) -> np.ndarray:
    """From each start [run, 140], ten states [run, 10, 140] of Hamiltonian Monte Carlo with short trajectories."""
    import jax
    import jax.numpy as jnp
    from numpyro.infer import HMC, MCMC

    inputs, targets, sd = (jnp.asarray(a, jnp.float32) for a in (x, y, prior_sd()))
    kernel = HMC(
        potential_fn=lambda w: -log_joint(w, inputs, targets, sd, noise, jnp),
        step_size=STEP,
        trajectory_length=LENGTH,
        adapt_step_size=False,
        adapt_mass_matrix=False,
    )
    mcmc = MCMC(
        kernel, num_warmup=0, num_samples=RUN, num_chains=len(starts), chain_method="vectorized", progress_bar=False
    )
    key = jax.random.key(rng.fold("walks").integer() % 2**32)
    mcmc.run(key, init_params=jnp.asarray(starts / prior_sd(), jnp.float32))
    return np.asarray(mcmc.get_samples(group_by_chain=True), np.float64) * prior_sd()


def diagnose(weights: np.ndarray) -> dict[str, float]:
    """The worst R-hat and effective sample size of f(x) over the grid; weights [chain, draw, 140]."""
    import arviz

    found = arviz.convert_to_dataset({"f": np.stack([functions(chain, GRID) for chain in weights])})
    r_hat, ess = arviz.rhat(found)["f"].to_numpy(), arviz.ess(found)["f"].to_numpy()
    return {"r_hat_max": float(r_hat.max()), "ess_min": float(ess.min()), "ess_median": float(np.median(ess))}


def runs(weights: np.ndarray) -> np.ndarray:
    """Forty runs of ten successive draws, evenly spaced in the chains [run, 10, 140]."""
    starts = np.linspace(0, weights.shape[1] - RUN, RUNS // CHAINS).astype(int)
    return np.stack([chain[start : start + RUN] for chain in weights for start in starts])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--noise", type=float, choices=NOISES, default=NOISES[0])
    parser.add_argument("--burn-in", type=int, default=1_000, help="of a chain")
    parser.add_argument("--draws", type=int, default=4_000, help="of a chain, after burn-in")
    parser.add_argument("--to", type=Path, help="by default where the benchmark reads it")
    options = parser.parse_args()
    wall, cpu = time.perf_counter(), time.process_time()
    x, y = data(Seed(options.seed), options.noise)
    weights, about = sample(x, y, Seed(options.seed), options)
    about |= {"sampler": f"NumPyro {version('numpyro')} NUTS, jax {version('jax')}", "chains": CHAINS}
    about |= {"draws": options.draws * CHAINS, "burn_in": options.burn_in * CHAINS, "seed": options.seed}
    about |= {"noise": options.noise} | diagnose(weights)
    about |= {"wall_s": round(time.perf_counter() - wall), "cpu_s": round(time.process_time() - cpu)}
    thinned = weights[:, :: max(options.draws * CHAINS // KEPT, 1)].reshape(-1, WEIGHTS)
    together = runs(weights)
    around = walks(x, y, together[:, 0], Seed(options.seed), options.noise)
    tensors = {"x": x, "y": y, "weights": thinned.astype(np.float32), "runs": together.astype(np.float32)}
    tensors["walks"] = around.astype(np.float32)
    save_file(tensors, options.to or stored(options.noise), {"about": json.dumps(about)})
    print(json.dumps(about), flush=True)


if __name__ == "__main__":
    main()
