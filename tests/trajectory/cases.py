"""Trajectories, one of them with a subspace posterior that is a known Gaussian, and z-tests against a Gaussian."""

import arviz
import numpy as np
import torch

from bdl_pipe.artifacts import State, stack
from bdl_pipe.config import to_mapping
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.networks import MlpConfig
from bdl_pipe.posterior import NetworkSpec
from bdl_pipe.seeds import Seed
from bdl_pipe.trajectory.curvature import LayerPosterior

NOISE, TEMPERATURE, PRIOR_VARIANCE = 0.5, 4.0, 1.5
SPEC = NetworkSpec(MlpConfig("mlp", (6,), "tanh"), (4,), 1, "gaussian", NOISE)
HEAD = 7  # weights of the head, which are the last: outputs are linear in them
SIGMAS = 5.5  # two-sided: 4e-8 a test, below 4e-7 for the nine of three dimensions


def linear_trajectory(epochs: int = 6) -> State:
    """Snapshots that differ in the head alone."""
    base, past = SPEC.build(Seed(1)).state_dict(), []
    for epoch in range(epochs):
        generator = Seed(2).fold(epoch).generator()
        moved = {k: v + 0.3 * torch.randn(v.shape, generator=generator) for k, v in base.items() if k[:4] == "head"}
        past.append(base | moved)
    return State(stack(past), {"spec": to_mapping(SPEC)})


def walk(spec: NetworkSpec, epochs: int = 4, spread: float = 0.1) -> State:
    """Snapshots around one network, with batch-norm buffers of their own."""
    base, past = spec.build(Seed(1)).state_dict(), []
    for epoch in range(epochs):
        generator = Seed(2).fold(epoch).generator()
        floating = {k: v for k, v in base.items() if v.is_floating_point()}
        noisy = {k: v + spread * torch.rand(v.shape, generator=generator) for k, v in floating.items()}
        past.append({k: v + 7 for k, v in base.items()} | noisy)
    return State(stack(past), {"spec": to_mapping(spec)})


def covariance(layer: LayerPosterior, precision: float, temperature: float = 1.0) -> np.ndarray:
    """BBᵀ of the linear map z ↦ W − M, its columns found by unit vectors."""
    size = layer.mean.numel()
    units = torch.eye(size, dtype=torch.float64).reshape(size, *layer.mean.shape)
    b = torch.stack([(layer.draw(z, precision, temperature) - layer.mean).flatten() for z in units], 1).numpy()
    return b @ b.T


def flat(tensors: dict[str, torch.Tensor]) -> np.ndarray:
    """Stack networks as vectors in float64 [network, weight]."""
    names = [name for name, _ in SPEC.build(Seed(0)).named_parameters()]
    return torch.cat([tensors[name].flatten(1) for name in names], 1).double().numpy()


def plane(past: State, dimension: int) -> tuple[np.ndarray, np.ndarray]:
    """numpy's mean and scaled principal components of a trajectory, up to signs."""
    w = flat(past.tensors)
    _, s, right = np.linalg.svd(w - w.mean(0), full_matrices=False)
    return w.mean(0), s[:dimension, None] * right[:dimension] / np.sqrt(len(w) - 1)


def coordinates(state: State, past: State, dimension: int) -> np.ndarray:
    """z of each network of a posterior, in numpy's components [draw, dimension]."""
    mean, components = plane(past, dimension)
    return (flat(state.tensors) - mean) @ np.linalg.pinv(components)


def exact(past: State, data: FitData, dimension: int, power: float) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of z under likelihood^power and the prior, by Bayesian linear regression."""
    mean, components = plane(past, dimension)
    inputs, targets = (t.double() for t in data.tensors("train"))
    trunk = SPEC.build(Seed(1)).double().trunk
    with torch.no_grad():
        features = np.c_[trunk(inputs).numpy(), np.ones(len(inputs))]  # head: weights, then bias
    design = features @ components[:, -HEAD:].T
    residual = targets.numpy()[:, 0] - features @ mean[-HEAD:]
    covariance = np.linalg.inv(power / NOISE * design.T @ design + np.eye(dimension) / PRIOR_VARIANCE)
    return power / NOISE * covariance @ design.T @ residual, covariance


def rejects(z: np.ndarray, mean: np.ndarray, covariance: np.ndarray) -> bool:
    """z-tests of the means and of all second moments about the exact mean, with standard errors from the chain's
    effective sample sizes; below 4e-7 false alarms a call for three dimensions, if the errors are normal."""
    first, second = np.tril_indices(len(mean))
    centred = z - mean
    moments = np.c_[centred, centred[:, first] * centred[:, second] - covariance[first, second]]
    effective = np.array([float(arviz.ess(column[None], method="mean")) for column in moments.T])
    return bool((np.abs(moments.mean(0)) > SIGMAS * moments.std(0) / np.sqrt(effective)).any())
