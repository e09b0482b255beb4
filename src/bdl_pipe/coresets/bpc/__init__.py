"""Bayesian pseudo-coresets by divergences: a coreset whose posterior over weights is close to the data's posterior.

Kim et al. 2022 (reverse KL, forward KL, Wasserstein), Kim et al. 2023 (function space), Tiwary et al. 2024 (contrastive
divergence). All use expert trajectories: the weights of networks trained on the data, at the start and after every
epoch.
"""
