"""Bayesian networks with small matrices of inducing weights.

Source: Ritter, Kukla, Zhang and Li 2021, "Sparse Uncertainty Representation in Deep Learning with Inducing Weights".

    net = bayesianize(network, kind="ffg_u", rows=64, cols=64, lambda_max=0.03, sd_max=0.1)
    loss = F.cross_entropy(net(x), y) + weight * kl(net) / num_train
    log_probs = draws(net, x, num_draws=20, rng=Seed(1))  # [draw, batch, class]
    small = prune(net, 0.5)  # without half of the entries of Z; train it further with a new optimiser
"""

from .config import WeightConfig
from .convert import bayesianize
from .draws import draws, outputs, stored
from .network import Bayesian, kl
from .pruning import prune

__all__ = ["Bayesian", "WeightConfig", "bayesianize", "draws", "kl", "outputs", "prune", "stored"]
