"""NUTS from a library on the toy regression of Bayesian dark knowledge: it checks our Hamiltonian Monte Carlo.

    pip install -e ".[nuts]"
    JAX_PLATFORMS=cpu python -m benchmarks.references.sgmcmc_nuts

``benchmarks/toys/problems.py`` defines the posterior. The sampler is NumPyro's (Hoffman & Gelman 2014; Phan, Pradhan &
Jankowiak 2019), with our log joint written a second time, in JAX and float64. Our own chains are sampled again, as
``benchmarks/references/hmc.py`` does, to have all draws; they must have the stored mean and deviation
(``results/dark_knowledge/regression.safetensors``). We compare the mean and the standard deviation of f at each point
of the grid. A difference is divided by its Monte Carlo error, which follows from the effective draws of both samplers
at that point (ArviZ, for the mean and for the deviation). If both sample the same law, each z is about N(0, 1); nearby
points of the grid are correlated. One of 242 such numbers is beyond 4.5 in at most one of 600 runs.
"""

import argparse
import json
import time
from importlib.metadata import version
from typing import Any

import numpy as np

from bdl_pipe import artifacts
from bdl_pipe.seeds import Seed
from benchmarks.references import hmc
from benchmarks.toys.problems import Problem, regression

UNITS = 10


def log_joint(weights: Any, x: Any, y: Any, prior_precision: float, noise_precision: float, xp: Any) -> Any:
    """log p(θ)p(y | x, θ) + const for θ [31] and data [row], in numpy or jax.numpy."""
    fit = y - function(weights, x, xp)
    return -prior_precision / 2 * (weights**2).sum() - noise_precision / 2 * (fit**2).sum()


def function(weights: Any, x: Any, xp: Any) -> Any:
    """f(x) [row] of a network 1-10-1 with ReLU units; its weights [31] in the order of our networks' parameters."""
    first, bias, last, shift = xp.split(weights, [UNITS, 2 * UNITS, 3 * UNITS])
    return xp.maximum(x[:, None] * first + bias, 0) @ last + shift[0]


def sample(problem: Problem, rng: Seed, options: argparse.Namespace) -> tuple[np.ndarray, dict[str, Any]]:
    """f on the grid [chain, draw, point] after burn-in, and the sampler's own statistics."""
    import jax
    import jax.numpy as jnp
    from numpyro.infer import MCMC, NUTS

    jax.config.update("jax_enable_x64", True)
    inputs, targets = (part.double().numpy()[:, 0] for part in problem.data.tensors("train"))
    x, y, grid = jnp.asarray(inputs), jnp.asarray(targets), jnp.asarray(problem.inputs.double().numpy()[:, 0])
    precisions = problem.target.prior_precision, problem.target.precision(problem.data)
    kernel = NUTS(
        potential_fn=lambda w: -log_joint(w, x, y, *precisions, jnp),
        max_tree_depth=options.depth,
        target_accept_prob=options.acceptance,
    )
    mcmc = MCMC(
        kernel,
        num_warmup=options.burn_in,
        num_samples=options.draws,
        num_chains=options.chains,
        chain_method="vectorized",
        progress_bar=False,
    )
    starts = rng.fold("start").numpy().standard_normal((options.chains, 3 * UNITS + 1))
    key = jax.random.key(rng.fold("nuts").integer() % 2**32)
    mcmc.run(key, init_params=jnp.asarray(starts), extra_fields=("diverging", "num_steps", "accept_prob"))
    extra = {name: np.asarray(value) for name, value in mcmc.get_extra_fields().items()}
    about = {
        "leapfrogs_per_draw": round(float(extra["num_steps"].mean()), 1),
        "divergences": int(extra["diverging"].sum()),
        "acceptance": round(float(extra["accept_prob"].mean()), 3),
    }
    of_draws = jax.jit(jax.vmap(lambda w: function(w, grid, jnp)))
    return np.stack([np.asarray(of_draws(chain)) for chain in mcmc.get_samples(group_by_chain=True)]), about


def summarise(draws: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Mean, log deviation and the variances of their Monte Carlo errors at each point; draws [chain, draw, point].

    The variance of a log deviation is (κ − 1)/(4n) of n independent draws of kurtosis κ.
    """
    import arviz

    found = arviz.convert_to_dataset({"f": draws})
    of_mean, of_sd = (arviz.ess(found, method=method)["f"].to_numpy() for method in ("mean", "sd"))
    flat = draws.reshape(-1, draws.shape[-1])
    kurtosis = (((flat - flat.mean(0)) / flat.std(0)) ** 4).mean(0)
    return flat.mean(0), np.log(flat.std(0)), flat.var(0) / of_mean, (kurtosis - 1) / 4 / of_sd


def compare(theirs: np.ndarray, ours: np.ndarray) -> dict[str, float]:
    """The z-scores of f's mean and deviation, over the grid; draws [chain, draw, point]."""
    (mean, log_sd, error, error_of_sd), (mean_of_ours, log_sd_of_ours, *errors) = summarise(theirs), summarise(ours)
    z_mean = (mean - mean_of_ours) / np.sqrt(error + errors[0])
    z_sd = (log_sd - log_sd_of_ours) / np.sqrt(error_of_sd + errors[1])
    figures = {
        "mean_z_largest": np.abs(z_mean).max(),
        "mean_z_rms": np.sqrt((z_mean**2).mean()),
        "mean_off_in_sd": np.abs((mean - mean_of_ours) / np.exp(log_sd_of_ours)).max(),
        "sd_z_largest": np.abs(z_sd).max(),
        "sd_z_rms": np.sqrt((z_sd**2).mean()),
        "sd_ratio_least": np.exp((log_sd - log_sd_of_ours).min()),
        "sd_ratio_largest": np.exp((log_sd - log_sd_of_ours).max()),
    }
    return {name: round(float(value), 3) for name, value in figures.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chains", type=int, default=16)
    parser.add_argument("--burn-in", type=int, default=400, help="of a chain")
    parser.add_argument("--draws", type=int, default=600, help="of a chain, after burn-in")
    parser.add_argument("--depth", type=int, default=8, help="the largest depth of a tree")
    parser.add_argument("--acceptance", type=float, default=0.9)
    options = parser.parse_args()
    problem, began = regression(), time.process_time()
    theirs, about = sample(problem, Seed(0), options)
    about |= {"cpu_s": round(time.process_time() - began)} | vars(options)
    about |= {"sampler": f"NumPyro {version('numpyro')} NUTS, jax {version('jax')}", **hmc.diagnose(theirs)}
    outputs, facts = hmc.sample(
        problem.data, problem.target, problem.inputs, hmc.TOY, Seed(0).fold("toy", problem.name)
    )
    ours, stored = outputs[..., 0].double(), artifacts.from_bytes(problem.stored.read_bytes()).tensors
    off = (ours.flatten(0, 1).mean(0) - stored["mean"]).abs() / stored["sd"]
    about |= {"ours_from_the_stored_in_sd": round(float(off.max()), 6)}
    print(json.dumps(about | {"ours": facts["sampler"]} | compare(theirs, ours.numpy())), flush=True)


if __name__ == "__main__":
    main()
