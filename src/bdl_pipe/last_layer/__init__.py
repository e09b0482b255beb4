"""Variational Bayesian last layers: a Bayesian head in place of ``nn.Linear``, trained without sampling.

Source: Harrison, Willes and Snoek 2023, "Variational Bayesian Last Layers".
"""

from .discriminative import Discriminative
from .generative import Generative
from .regression import Regression
from .student import StudentRegression

__all__ = ["Discriminative", "Generative", "Regression", "StudentRegression"]
