"""Data and trajectories that the tests of trained baselines share."""

import dataclasses
from typing import Any

import numpy as np
import torch

from bdl_pipe.artifacts import State, stack
from bdl_pipe.config import to_mapping
from bdl_pipe.data.examples import Examples
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.data.transform import Transform
from bdl_pipe.method import FitMany
from bdl_pipe.networks import NetworkConfig
from bdl_pipe.posterior import NetworkSpec
from bdl_pipe.progress import Silent
from bdl_pipe.seeds import Seed
from bdl_pipe.training.learner import TrainingConfig
from bdl_pipe.training.loop import OptimiserConfig
from tests.conftest import make_tiny_table

LEARN = TrainingConfig(4, 32, OptimiserConfig("adamw", 1e-2, weight_decay=0.1, grad_clip_norm=1.0))
STILL = dataclasses.replace(LEARN, epochs=1, optimiser=OptimiserConfig("sgd", 1e-20))
DECAYED = dataclasses.replace(STILL, optimiser=OptimiserConfig("adamw", 1e-9, weight_decay=1e7))  # moves by decay alone


def table(member: int) -> FitData:
    """The tiny table with a little noise in its training inputs, different for each member."""
    whole = make_tiny_table()
    shaken = whole.train.inputs + np.random.default_rng(member).normal(0, 0.1, whole.train.inputs.shape)
    return dataclasses.replace(whole, train=Examples(shaken, whole.train.targets))


def unscaled(inputs: np.ndarray, targets: np.ndarray) -> FitData:
    """Training rows that are their own transforms, and no validation rows."""
    one = torch.ones(inputs.shape[1], dtype=torch.float64)
    transform = Transform("table", 0 * one, one, shift=torch.zeros(1).double(), scale=torch.ones(1).double())
    return FitData("regression", Examples(inputs, targets), Examples(inputs[:0], targets[:0]), transform)


def trajectory(network: NetworkConfig, data: FitData, seed: int = 3) -> State:
    """Two snapshots of random networks; for regression with a head of means and log-variances."""
    likelihood = "categorical" if data.task == "classification" else "gaussian_head"
    spec = NetworkSpec(network, data.input_shape, data.outputs, likelihood)
    snapshots = [spec.build(Seed(seed).fold(epoch)).state_dict() for epoch in range(2)]
    return State(stack(snapshots), {"spec": to_mapping(spec)})


def fitted(fit: FitMany, config: Any) -> State:
    """A fit of ``table(0)`` from fresh weights."""
    (state,) = fit([table(0)], [{}], config, rngs=[Seed(1).fold(0)], report=Silent())
    return state
