"""How much of CIBER's score on a small table comes from the collapsing, and how much from the triangular likelihood.

    python -m pipeline paper ciber:table1 --dataset Boston
    python -m benchmarks.collapsed_uci boston

The script reads the trajectories that the first command left. On test rows, in the target's unit, it prints the mean
log-likelihood and its standard error over splits of four predictives of the same iterates: Gaussian or triangular
likelihoods (1 % of a Gaussian tail), at each iterate's weights or averaged over the box of all weights of the last
layer's mean; then the share of test rows that no triangle reaches, and the box's deviation over the noise's deviation.
These scores choose nothing.
"""

import argparse
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import torch

from bdl_pipe import artifacts
from bdl_pipe.artifacts import State, unstack
from bdl_pipe.collapsed.integrals.piecewise import radius
from bdl_pipe.collapsed.mixture import CollapsedMixture
from bdl_pipe.collapsed.output_distributions import Linear
from bdl_pipe.collapsed.regression import CiberLastConfig, CiberLastPosterior
from bdl_pipe.config import read
from bdl_pipe.data.examples import Examples
from bdl_pipe.data.transform import Transform
from bdl_pipe.posterior import NetworkDraws, NetworkSpec
from bdl_pipe.predictive import Continuous, Gaussian
from bdl_pipe.seeds import Seed
from bdl_pipe.training.snapshots import snapshots
from pipeline.prepared import folders

TREE: Final = Path("work/paper/ciber-table1")
CONFIG: Final = CiberLastConfig(radius="variance", tail=0.01, weights=None)
PAIRS: Final = (
    ("triangles", "Gaussians"),
    ("collapsed triangles", "triangles"),
    ("collapsed Gaussians", "Gaussians"),
    ("collapsed triangles", "Gaussians"),
)


def scores(trajectory: State, transform: Transform, test: Examples) -> dict[str, float]:
    """The scores of one split, by name."""
    spec, weights = read(NetworkSpec, trajectory.config["spec"], "spec"), snapshots(trajectory)
    inputs, targets = transform.inputs(test.inputs), torch.tensor(test.targets)
    iterates = NetworkDraws.of(spec, unstack(weights)).predict(inputs, rng=Seed(0))
    collapsed = CiberLastPosterior(spec, CONFIG, weights).predict(inputs)
    assert isinstance(iterates, Gaussian) and isinstance(collapsed.part, Linear)
    mean, sd = iterates.draw_mean.double(), iterates.draw_variance.double().sqrt()
    triangles = Linear(mean, torch.zeros_like(mean)[..., None], radius(sd, CONFIG.radius))
    # a Gaussian with the moments of box and noise: the box's effect without the triangle
    blurred = Gaussian(collapsed.part.mean, collapsed.part.variance)

    def log_probs(predictive: Continuous) -> torch.Tensor:
        assert transform.shift is not None and transform.scale is not None
        return predictive.rescale(transform.shift, transform.scale).log_prob(targets)

    spread = collapsed.part.half_widths.square().sum(-1).div(3).sqrt()
    return {
        "Gaussians": float(log_probs(iterates).mean()),
        "triangles": float(log_probs(CollapsedMixture(triangles, CONFIG.tail)).mean()),
        "collapsed Gaussians": float(log_probs(blurred).mean()),
        "collapsed triangles": float(log_probs(collapsed).mean()),
        "out of the triangles' reach": float(log_probs(CollapsedMixture(triangles, 0.0)).isinf().double().mean()),
        "out of the collapsed triangles' reach": float(
            log_probs(CollapsedMixture(collapsed.part, 0.0)).isinf().double().mean()
        ),
        "box over noise": float(spread.mean() / sd.mean()),
    }


def told(name: str, values: Sequence[float]) -> str:
    error = statistics.stdev(values) / len(values) ** 0.5
    return f"{name:45} {statistics.mean(values):+.4f} ± {error:.4f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", help="a key of datasets of params/paper/ciber-table1.yaml")
    key = parser.parse_args().dataset
    torch.set_num_threads(1)
    trajectories = artifacts.load(TREE / "trajectory" / f"{key}-sgd", "trajectory")
    data = artifacts.load(TREE / "prepare" / key, folders.FIT_KIND)
    splits: list[Mapping[str, float]] = []
    while f"{len(splits)}-0" in trajectories.names():
        split = len(splits)
        test = folders.load_holdout(TREE / "holdout" / key, split).test
        transform = Transform.from_state(data.state(f"{split}/transform"))
        splits.append(scores(trajectories.state(f"{split}-0"), transform, test))
    for name in splits[0]:
        print(told(name, [found[name] for found in splits]))
    for one, other in PAIRS:
        print(told(f"{one} - {other}", [found[one] - found[other] for found in splits]))


if __name__ == "__main__":
    main()
