"""Bayesian dark knowledge: a student network of the posterior predictive (Korattikara et al. 2015)."""

from .functions import StudentFunctions, classification_loss, embed, regression_loss

__all__ = ["StudentFunctions", "classification_loss", "embed", "regression_loss"]
