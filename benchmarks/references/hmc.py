"""References for the posteriors of networks: full-batch Hamiltonian Monte Carlo, several chains, stored.

    python -m pipeline repro prepare@boston
    python -m benchmarks.references.hmc boston                      # or boston:2 for one split
    python -m benchmarks.references.hmc regression classification   # the toy problems

*boston*: the posterior of the teacher ``boston-sghmc`` of params.yaml, given all training rows of each of its five
splits. Draws of f at the test rows are stored in ``src/bdl_pipe/evaluation/references``, where evaluation finds them.
``benchmarks/toys/problems.py`` has the toy problems; their references are stored in ``results/dark_knowledge``. An
existing file is not changed; to make a reference again, delete its file.

The kernel is ``bdl_pipe.sgmcmc.Hmc`` in float32; its acceptance is checked against its goal. Chains start from fresh
networks. The output layer's weights are sampled in units of ``OUTPUT_UNIT``, as their curvature is the largest: steps
may then be twice as long. In burn-in each chain adapts its step. R-hat and effective sample sizes are computed for f
(for classes, a probability) at each row, by ArviZ: rank-normalised split R-hat, bulk and tail ESS.
"""

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from bdl_pipe import artifacts
from bdl_pipe.config import to_mapping
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.evaluation import references
from bdl_pipe.evaluation.references import Reference
from bdl_pipe.predictive import Gaussian
from bdl_pipe.seeds import Seed
from bdl_pipe.sgmcmc import Chains, ConstantStep, Hmc
from bdl_pipe.sgmcmc.kernel import Density, Positions
from bdl_pipe.sgmcmc.sampling import run
from bdl_pipe.sgmcmc.target import NetworkTarget, TargetConfig
from benchmarks.toys.problems import PROBLEMS, Problem
from pipeline.core import places, provenance, records
from pipeline.core.load import load
from pipeline.prepared import folders

TEACHER: Final = "boston-sghmc"
KEPT: Final = 400  # draws of all chains that are stored
OUTPUT_UNIT: Final = 0.3
FIRST_STEP: Final = 0.003


@dataclass(frozen=True)
class Settings:
    """The settings of the sampler: chains, leapfrogs per proposal, and proposals per chain in burn-in and after."""

    chains: int
    leapfrogs: int
    burn_in: int
    draws: int
    acceptance: float = 0.75
    jitter: float = 0.2


BOSTON: Final = Settings(chains=4, leapfrogs=600, burn_in=40, draws=300)
TOY: Final = Settings(chains=32, leapfrogs=50, burn_in=100, draws=250)


def sample(
    data: FitData, config: TargetConfig, inputs: Tensor, settings: Settings, rng: Seed
) -> tuple[Tensor, dict[str, Any]]:
    """Sample a posterior.

    Returns:
        The network's outputs at ``inputs`` [chain, draw, row, output], and the facts of the run.
    """
    spec, count, began = config.spec(data), settings.chains, time.process_time()
    target = NetworkTarget(spec, [data.rows("train", "cpu")] * count, config.prior_precision)
    whole = perceptron(target, *data.tensors("train")) if spec.likelihood == "gaussian" else target.whole()
    units = torch.ones(target.network.size)
    units[-(spec.build(Seed(0)).head.weight.shape[1] + 1) * spec.outputs :] = OUTPUT_UNIT

    def density(positions: Positions) -> tuple[Tensor, Tensor]:
        value, gradient = whole(units * positions)
        return value, units * gradient

    kernel = Hmc(settings.leapfrogs, jitter=settings.jitter, acceptance=settings.acceptance)
    chains, burn_in, steps = Chains.of(rng, count), settings.burn_in, settings.burn_in + settings.draws
    state = kernel.init(target.start([rng.fold("start", chain) for chain in range(count)]) / units, chains.at(0))
    outputs, before = [], torch.zeros(count)
    fixed = ConstantStep(FIRST_STEP)
    moves = run(kernel, lambda step: density, state, fixed, chains, first=0, steps=steps, burn_in=burn_in)
    for done, at in moves:
        if done == burn_in:
            before = at["accepted"]
        if done > burn_in:
            outputs.append(target.network.each(units * at["position"], inputs.expand(count, *inputs.shape)).detach())
        if done % max(1, steps // 20) == 0:
            print(f"{done} of {steps} proposals, {time.process_time() - began:.0f} s", flush=True)
    about = {
        "sampler": "bdl_pipe.sgmcmc.Hmc",
        **asdict(settings),
        "target": to_mapping(config),
        "accepted": round(float((at["accepted"] - before).mean()) / settings.draws, 3),
        "step_sizes": [round(FIRST_STEP * factor, 5) for factor in at["mean_factor"].exp().tolist()],
        "seconds": round(time.process_time() - began, 1),
        "device": f"{records.device_name('cpu')}, {torch.get_num_threads()} thread",
        "commit": provenance.commit(),
    }
    return torch.stack(outputs, 1), about


def perceptron(target: NetworkTarget, inputs: Tensor, targets: Tensor) -> Density:
    """Return ``target.whole()`` for a regression with one hidden layer of ReLU units, in a third of the time."""
    wide, columns = torch.cat([inputs, torch.ones(len(inputs), 1)], 1).T.contiguous(), inputs.shape[1]
    units, noise_precision = (target.network.size - 1) // (columns + 2), 1 / target.spec.noise_variance

    @torch.no_grad()
    def density(positions: Positions) -> tuple[Tensor, Tensor]:
        weight, bias, last, shift = positions.split([columns * units, units, units, 1], 1)
        first = torch.cat([weight.view(-1, units, columns), bias[..., None]], 2)  # [chain, unit, column]
        hidden = (first.flatten(0, 1) @ wide).relu_().view(len(positions), units, -1)  # [chain, unit, row]
        residual = targets.T - shift - torch.bmm(last[:, None], hidden)[:, 0]  # [chain, row]
        value = (
            residual.square().sum(1).mul(noise_precision).add(positions.square().sum(1), alpha=target.prior_precision)
        )
        slope = noise_precision * residual
        of_last = torch.bmm(hidden, slope[..., None])[..., 0]
        active = hidden.sign_().mul_(last[..., None]).mul_(slope[:, None])
        of_first = (active.flatten(0, 1) @ wide.T).view(len(positions), units, -1)
        parts = [of_first[..., :columns].flatten(1), of_first[..., columns], of_last, slope.sum(1, keepdim=True)]
        return -value / 2, torch.cat(parts, 1).sub_(positions, alpha=target.prior_precision)

    return density


def diagnose(functions: np.ndarray) -> dict[str, float]:
    """Return the worst R-hat, bulk and tail ESS over the rows; functions [chain, draw, row]."""
    import arviz

    found = arviz.convert_to_dataset({"f": functions})
    r_hat, bulk = arviz.rhat(found)["f"].to_numpy(), arviz.ess(found)["f"].to_numpy()
    tail = arviz.ess(found, method="tail")["f"].to_numpy()
    figures = {"r_hat": r_hat.max(), "ess_bulk": bulk.min(), "ess_bulk_median": np.median(bulk), "ess_tail": tail.min()}
    return {name: round(float(value), 3) for name, value in figures.items()}


def thinned(functions: Tensor) -> Tensor:
    """Return at most ``KEPT`` draws of all chains, evenly spaced, chain by chain [draw, ...]."""
    each = max(1, -(-functions.shape[0] * functions.shape[1] // KEPT))
    return functions[:, each - 1 :: each].flatten(0, 1)


def split(number: int, settings: Settings) -> None:
    """Make the reference of one split of boston."""
    place = references.HERE / f"boston-{number}{references.SUFFIX}"
    if place.exists():
        return
    teacher = load().run("teacher", TEACHER)
    data = folders.load_fit(places.artifact("prepare", teacher.spec.dataset), number, final=True)
    test = folders.load_holdout(places.artifact("holdout", teacher.spec.dataset), number).test
    inputs, config = data.transform.inputs(test.inputs), teacher.config.target
    outputs, about = sample(data, config, inputs, settings, Seed(0).fold("reference", "boston", number))
    functions, variance = outputs[..., 0], 1 / config.precision(data)
    about |= {"dataset": "boston", "split": number, "rows_fitted": len(data.train), **diagnose(functions.numpy())}
    draws = functions.flatten(0, 1)[..., None]
    assert data.transform.shift is not None and data.transform.scale is not None
    whole = Gaussian(draws, torch.full_like(draws, variance)).rescale(data.transform.shift, data.transform.scale)
    targets = torch.tensor(test.targets)
    about["nll"] = round(-float(whole.log_prob(targets).mean()), 4)
    about["rmse"] = round(float((whole.mean - targets).square().mean().sqrt()), 4)
    state = Reference(thinned(functions), variance, about).state(test, data.transform)
    place.write_bytes(artifacts.to_bytes(state))
    print(json.dumps(about), flush=True)


def toy(problem: Problem, settings: Settings) -> None:
    """Make the reference of a toy problem: draws of f on its grid, or the mean and sd of the second class's p."""
    if problem.stored.exists():
        return
    outputs, about = sample(problem.data, problem.target, problem.inputs, settings, Seed(0).fold("toy", problem.name))
    functions = outputs[..., 0] if problem.name == "regression" else outputs.softmax(-1)[..., 1]
    about |= {"rows": references.digest(problem.data.train), **diagnose(functions.numpy())}
    whole = functions.double().flatten(0, 1)
    tensors = {"mean": whole.mean(0).float(), "sd": whole.std(0).float()}
    if problem.name == "regression":
        tensors["draws"] = thinned(functions).half()
    problem.stored.parent.mkdir(parents=True, exist_ok=True)
    problem.stored.write_bytes(artifacts.to_bytes(artifacts.State(tensors, about)))
    print(json.dumps(about), flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", help=f"boston, boston:SPLIT, {', '.join(PROBLEMS)}")
    torch.set_num_threads(1)
    for name in parser.parse_args(arguments).names:
        if name in PROBLEMS:
            toy(PROBLEMS[name](), TOY)
            continue
        dataset, _, number = name.partition(":")
        if dataset != "boston" or not (number.isdigit() or name == dataset):
            parser.error(f"names must be boston, boston:SPLIT or {', '.join(PROBLEMS)}, got {name}")
        for one in [int(number)] if number else range(load().datasets["boston"].splits):
            split(one, BOSTON)


if __name__ == "__main__":
    main()
