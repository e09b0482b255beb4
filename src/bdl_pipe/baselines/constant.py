"""The method ``constant``: the distribution of the training targets, which ignores the inputs.

Regression: N(mean, (1 + 1/n) variance) of each transformed target, the variance with divisor n − 1. Classes: Laplace's
rule (n_k + 1)/(n + K). With weights, n and n_k are sums of weights. The state: ``mean`` and ``variance`` [output], or
``log_probs`` [class].
"""

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from ..artifacts import State
from ..data.fitdata import FitData
from ..method import Default, Inputs, Method, StageSpec
from ..predictive import Categorical, Gaussian, Predictive
from ..progress import Report
from ..seeds import Seed
from .stored import StoredPosterior


@dataclass(frozen=True)
class ConstantConfig:
    """The section ``methods.constant`` of params.yaml, which has no keys."""


@final
class ConstantPosterior(StoredPosterior):
    """One predictive distribution for every input."""

    key = "constant"

    def predict(self, inputs: Tensor, *, rng: Seed = Seed(0)) -> Predictive:
        """Predict; only the number of inputs matters, and ``rng`` is not used."""
        same = {name: values.expand(1, len(inputs), -1) for name, values in self.tensors.items()}
        return Categorical(same["log_probs"]) if "log_probs" in same else Gaussian(same["mean"], same["variance"])


def fit(data: FitData, inputs: Inputs, config: ConstantConfig, *, rng: Seed, report: Report) -> State:
    """Return the distribution of the training targets; ``inputs`` and ``rng`` are not used."""
    _, targets = data.tensors("train")
    report(1, 1)
    about = {"posterior": ConstantPosterior.key}
    given = data.train.weights
    weights = None if given is None else torch.from_numpy(given)
    if data.task == "classification":
        counts = torch.bincount(targets, weights, minlength=data.outputs).double() + 1
        return State({"log_probs": (counts / counts.sum()).log().float()}, about)
    targets = targets.double()
    if weights is None:
        mean, variance, count = targets.mean(0), targets.var(0), float(len(targets))
    else:
        count = float(weights.sum())
        mean = weights @ targets / count
        variance = weights @ (targets - mean).square() / max(count - 1, count / 2)  # > 0 for a sum of weights below 1
    return State({"mean": mean.float(), "variance": (variance * (1 + 1 / count)).float()}, about)


CONSTANT = Method(
    name="constant",
    config=ConstantConfig,
    tasks=("regression", "classification"),
    stages={"student": StageSpec(fit, random=False, in_driver=True)},
    rival=True,
    weighs_rows=True,
    ignores_inputs=True,
    optimal=True,
    default=Default(0.0, suits=lambda size: size.image is None),
)
