"""Bayesian pseudo-coresets by divergences: a coreset whose posterior over weights is close to the data's posterior.

Kim et al. 2022 (reverse KL, forward KL, Wasserstein), Kim et al. 2023 (function space), Tiwary et al. 2024 (contrastive
divergence). All start from expert trajectories: networks trained on the data, with their start and every epoch.
"""
