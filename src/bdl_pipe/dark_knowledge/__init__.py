"""Bayesian dark knowledge: a student network of the posterior predictive (Korattikara et al. 2015)."""

from .losses import classification_loss, regression_loss

__all__ = ["classification_loss", "regression_loss"]
