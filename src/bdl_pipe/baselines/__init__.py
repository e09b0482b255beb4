"""Baselines: one network, ensembles, simple posteriors over weights, Gaussian processes, trees."""
