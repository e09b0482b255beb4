"""Markov chains over network weights, by stochastic gradients or exact: kernels, chains, diagnostics."""

from .kernel import Chains, Density, Kernel
from .kernels import Hmc, Psgld, Sghmc, Sgld, Sgnht, register_kernel
from .sampling import Noisy, minibatch_density, sample
from .schedules import ConstantStep, CyclicalSteps, PolynomialDecay

__all__ = [
    "Chains",
    "ConstantStep",
    "CyclicalSteps",
    "Density",
    "Hmc",
    "Kernel",
    "Noisy",
    "PolynomialDecay",
    "Psgld",
    "Sghmc",
    "Sgld",
    "Sgnht",
    "minibatch_density",
    "register_kernel",
    "sample",
]
