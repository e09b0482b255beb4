"""Collapsed inference: some weights are integrated out exactly, and the others are samples."""
