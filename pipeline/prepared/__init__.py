"""Prepared data: the folders that the stage ``prepare`` fills, and their reading by fits and evaluations."""
