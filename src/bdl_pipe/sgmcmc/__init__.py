"""Stochastic-gradient Markov chains over network weights: kernels, chains, diagnostics."""

from . import sgld

__all__ = ["sgld"]
