"""Collapsed inference: some weights are integrated out exactly, the others sampled."""
