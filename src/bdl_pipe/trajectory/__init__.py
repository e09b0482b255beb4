"""Training trajectories: the snapshots of a network's training, and the posteriors that are made from them."""
