"""Shared parts of coreset methods: initial rows, networks trained on a coreset, and pools of networks."""
