"""Variational Bayesian last layers: the last layer's posterior and the trunk, fitted together."""

from .generative import Generative

__all__ = ["Generative"]
