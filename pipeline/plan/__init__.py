"""The plan: all stages, their inputs, and whether their results are up to date."""
