"""Training trajectories: the snapshots that a network leaves on its way down, and what they say of its weights."""
