"""Scores of familiar inputs, by fits of the half moons, against the distance from the training rows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from scipy.spatial import cKDTree
from scipy.stats import spearmanr
from torch import Tensor

from bdl_pipe.artifacts import State
from bdl_pipe.config import read
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.last_layer.methods import LastLayerPosterior
from bdl_pipe.posterior import NetworkDraws, NetworkSpec
from bdl_pipe.predictive import Categorical
from bdl_pipe.registry import posterior_of
from bdl_pipe.seeds import Seed
from bdl_pipe.training.snapshots import snapshot

NEAR: Final = 0.5  # a grid point nearer than this to a training row is "near"
SIDE: Final = (np.linspace(-3, 4, 71), np.linspace(-2.5, 3, 56))
GRID: Final = np.stack(np.meshgrid(*SIDE), -1).reshape(-1, 2)


@dataclass(frozen=True)
class Moons:
    """The scores of one seed's fits on the grid.

    Attributes:
        distance: the distance from the nearest training row [point].
        scores: name -> a score that is high if an input looks familiar [point].
        at_rows: the same scores at the training rows [row].
        classes: log p(φ | y) of both classes [point, class].
        accuracy: the accuracy on the training rows, of G-VBLL and of the plain network.
    """

    distance: np.ndarray
    scores: Mapping[str, np.ndarray]
    at_rows: Mapping[str, np.ndarray]
    classes: np.ndarray
    accuracy: tuple[float, float]


def plain(state: State) -> NetworkDraws:
    """Return the network at the end of a trajectory."""
    return NetworkDraws.of(read(NetworkSpec, state.config["spec"], "spec"), [snapshot(state, -1)])


def moons(data: FitData, vbll: State, network: State) -> Moons:
    """Score the grid and the training rows by both fits of a seed."""
    ours, theirs = posterior_of(vbll), plain(network)
    assert isinstance(ours, LastLayerPosterior)
    (rows, labels), learner = data.tensors("train"), ours.learner
    grid = torch.tensor(GRID, dtype=torch.float32)
    with torch.no_grad():
        classes = learner.layer(learner.features(grid, 0, Seed(0))) - learner.layer.class_log_probs
        right = [
            float((p.predict(rows, rng=Seed(0)).mean.argmax(-1) == labels).double().mean()) for p in (ours, theirs)
        ]
    scores, at_rows = scored(ours, theirs, grid), scored(ours, theirs, rows)
    distance = nearest(data.train.inputs, GRID)
    return Moons(distance, scores, at_rows, classes.double().numpy(), (right[0], right[1]))


def scored(ours: LastLayerPosterior, theirs: NetworkDraws, inputs: Tensor) -> dict[str, np.ndarray]:
    """Return every score of familiar inputs [input], G-VBLL's and the plain network's."""
    with torch.no_grad():
        joint = ours.learner.layer(ours.learner.features(inputs, 0, Seed(0)))
        found, simple = (posterior.predict(inputs, rng=Seed(0)) for posterior in (ours, theirs))
    assert isinstance(found, Categorical) and isinstance(simple, Categorical)
    scores = {
        "G-VBLL: log p(φ)": joint.logsumexp(-1),
        "G-VBLL: less the prior's": found.scores["feature_density"],
        "G-VBLL-MAP: refitted": found.scores["refit_density"],
        "G-VBLL: largest probability": found.log_probs.amax(-1),
        "plain network: largest probability": simple.log_probs.amax(-1),
    }
    return {name: score.double().numpy() for name, score in scores.items()}


def nearest(rows: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Return the Euclidean distance of each point from the nearest row."""
    return cKDTree(rows).query(points)[0]


def sensitivity(score: np.ndarray, distance: np.ndarray, beyond: float = 0.0) -> float:
    """Return the rank correlation of minus the score with the distance, at points at least ``beyond`` away."""
    far = distance >= beyond
    return float(spearmanr(-score[far], distance[far]).statistic)


def familiar(score: np.ndarray, at_rows: np.ndarray, distance: np.ndarray) -> float:
    """Return the share of points further than ``NEAR`` away with a score of at least the training rows' median."""
    return float((score[distance >= NEAR] >= np.median(at_rows)).mean())
