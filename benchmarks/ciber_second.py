"""CIBER before the last layer and in the last two layers, by validation rows of a table of CIBER's paper.

    python -m benchmarks.ciber_second boston
    python -m benchmarks.ciber_second concrete

The tables, the trajectories and the methods are configured as in params/paper/ciber-table1.yaml. Each split's
trajectory is fitted on the training rows alone; the number of its epochs is chosen by the validation rows, for all
methods at once. The program prints the negative log-likelihood of the validation rows in the target's unit, as mean
and standard error over splits, also as a paired difference to SWAG's and to that of ``choice: input``; with --timed
the seconds to predict 1,000 rows with their log-likelihood (the least of three, of the first split, one thread); and
the number of units with the weights that vary most.
"""

import argparse
import math
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import torch

from bdl_pipe import artifacts
from bdl_pipe.artifacts import State
from bdl_pipe.collapsed.second_to_last import CiberSecondPosterior
from bdl_pipe.config import merge, read
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.predictive import Continuous
from bdl_pipe.progress import Silent
from bdl_pipe.registry import METHODS, posterior_of
from bdl_pipe.seeds import Seed
from pipeline.core.load import typed
from pipeline.core.params_files import read_params
from pipeline.prepared import folders, preparation

ROWS: Final = 1000
PARAMS: Final = Path("params/paper/ciber-table1.yaml")
INPUT: Final = "ciber_second, choice: input"
VARIANTS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    INPUT: ("ciber_second", {"choice": "input"}),
    "ciber_second, choice: variance": ("ciber_second", {"choice": "variance"}),
    "ciber_last, one weight": ("ciber_last", {"weights": 1}),
    "ciber_last, all weights": ("ciber_last", {}),
    "swag": ("swag", {}),
}


def fitted(data: FitData, trajectory: State, name: str, seed: Seed) -> State:
    """One method on the trajectory."""
    method, override = VARIANTS[name]
    made = METHODS[method]
    section = merge(read_params(PARAMS)["methods"][method], override)
    config: Any = read(made.config, section, f"methods.{method}")
    stage = made.stages["student"]
    return stage.fit_one(data, {"trajectory": [trajectory]}, config, rng=seed, report=Silent())


def nll(state: State, data: FitData) -> float:
    """The mean negative log-likelihood over validation rows, in the target's unit."""
    transform, rows = data.transform, data.validation
    assert transform.shift is not None and transform.scale is not None
    predictive = posterior_of(state).predict(transform.inputs(rows.inputs), rng=Seed(1))
    assert isinstance(predictive, Continuous)
    own = predictive.rescale(transform.shift, transform.scale)
    return -float(own.log_prob(torch.tensor(rows.targets)).mean())


def seconds(state: State, data: FitData) -> float:
    """The seconds of the fastest of three predictions of ROWS rows with their log-likelihoods."""
    rows, posterior, least = data.validation, posterior_of(state), float("inf")
    at = torch.arange(ROWS) % len(rows)
    inputs, targets = data.transform.inputs(rows.inputs)[at], data.transform.targets(rows.targets)[at]
    for _ in range(3):
        start = time.perf_counter()
        predictive = posterior.predict(inputs, rng=Seed(1))
        assert isinstance(predictive, Continuous)
        predictive.log_prob(targets)
        least = min(least, time.perf_counter() - start)
    return least


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", help="a key of datasets of the paper's params file")
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--timed", action="store_true", help="measure the seconds of a prediction, too")
    args = parser.parse_args()
    torch.set_num_threads(1)
    params = typed(read_params(PARAMS))
    config = params.run("trajectory", f"{args.dataset}-sgd").config
    scores, cost, units = {name: list[float]() for name in VARIANTS}, dict[str, float](), list[int]()
    with tempfile.TemporaryDirectory() as place:
        prepared, rng = Path(place) / "fit", Seed(params.seed).fold("prepare", args.dataset)
        with (
            artifacts.publish(prepared, folders.FIT_KIND, about={}) as fit,
            artifacts.publish(Path(place) / "held", folders.HOLDOUT_KIND, about={}) as held,
        ):
            preparation.prepare(args.dataset, params.datasets, fit, held, rng=rng)
        for split in range(args.splits):
            data, seed = folders.load_fit(prepared, split, final=False), Seed(0).fold(split)
            trajectory = (
                METHODS["sgd"]
                .stages["trajectory"]
                .fit_one(data, {}, config, rng=seed.fold("trajectory"), report=Silent())
            )
            for name, found in scores.items():
                state = fitted(data, trajectory, name, seed.fold(VARIANTS[name][0]))
                found.append(nll(state, data))
                if args.timed and split == 0:
                    cost[name] = seconds(state, data)
                if name.endswith("variance"):
                    chosen = CiberSecondPosterior.from_state(state).chosen
                    assert chosen is not None
                    units.append(len(chosen))
    print(f"{'':32} NLL of validation rows   less SWAG's            less choice: input's   s per 1,000")
    for name, found in scores.items():
        less = [[one - other for one, other in zip(found, scores[of], strict=True)] for of in ("swag", INPUT)]
        told = " ".join(
            f"{statistics.mean(values):+.4f} ± {statistics.stdev(values) / len(values) ** 0.5:.4f}      "
            for values in (found, *less)
        )
        print(f"{name:32} {told} {cost.get(name, math.nan):.4f}")
    print(f"units of the three weights that vary most, by split: {units}")


if __name__ == "__main__":
    main()
