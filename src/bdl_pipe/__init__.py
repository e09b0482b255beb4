"""Efficient Bayesian deep learning methods: the mathematics, with no knowledge of who runs it."""
