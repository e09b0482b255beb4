"""Coresets by the implicit gradients of a network's linearisation (Loo et al. 2023)."""
