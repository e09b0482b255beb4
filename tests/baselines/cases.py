"""Data and trajectories that the tests of trained baselines share."""

import dataclasses

import numpy as np

from bdl_pipe.artifacts import State, stack
from bdl_pipe.config import to_mapping
from bdl_pipe.data.fitdata import FitData, Split
from bdl_pipe.networks import NetworkConfig
from bdl_pipe.posterior import NetworkSpec
from bdl_pipe.seeds import Seed
from tests.conftest import make_tiny_table


def table(member: int) -> FitData:
    """The tiny table with its inputs shaken a little, another way for each member."""
    whole = make_tiny_table()
    shaken = whole.train.inputs + np.random.default_rng(member).normal(0, 0.1, whole.train.inputs.shape)
    return dataclasses.replace(whole, train=Split(shaken, whole.train.targets))


def trajectory(network: NetworkConfig, data: FitData, seed: int = 3) -> State:
    """Two snapshots of random networks; for regression with a head of means and log-variances."""
    likelihood = "categorical" if data.task == "classification" else "gaussian_head"
    spec = NetworkSpec(network, data.input_shape, data.outputs, likelihood)
    snapshots = [spec.build(Seed(seed).fold(epoch)).state_dict() for epoch in range(2)]
    return State(stack(snapshots), {"spec": to_mapping(spec)})
