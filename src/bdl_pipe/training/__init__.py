"""Training: the loop of steps, what is trained in it, epochs with early stopping, and what a fit leaves."""
