"""Training: the loop of steps, the learners, epochs with early stopping, and the snapshots of a fit."""
