"""Variational Bayesian pseudo-coresets (Lee et al. 2025)."""
