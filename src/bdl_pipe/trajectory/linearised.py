"""Draws of weights around a network's own, read through the network's linearisation there.

f(x; w*) + J(x)(w − w*), with J the Jacobian of the outputs by the weights at w*. A Gauss–Newton curvature is that of
this linear model, not of the network, whose draws far from w* underfit (Immer, Korzepa & Bauer 2021). One product of
the Jacobian and a vector for each draw; for weights of the head alone it is the network itself.
"""

from typing import final

import torch
from torch import Tensor
from torch.func import functional_call, jvp

from ..artifacts import State
from ..config import read, to_mapping
from ..posterior import NetworkDraws, NetworkSpec
from ..predictive import Predictive
from ..seeds import Seed


@final
class LinearisedDraws:
    """A posterior of S draws of the weights, equally weighted, and the weights that the network is linearised at."""

    key = "linearised_draws"

    def __init__(self, spec: NetworkSpec, weights: dict[str, Tensor]) -> None:
        """Take every entry of the network's ``state_dict`` as ``weights``, stacked [1 + draw, ...], w* first.

        Entries that are not parameters (running statistics) are those of w*.
        """
        self.spec, self.weights = spec, weights
        self._skeleton = spec.build(Seed(0)).eval().to(next(iter(weights.values())).device)
        names = [name for name, _ in self._skeleton.named_parameters()]
        self._drawn = [name for name in names if (weights[name] != weights[name][:1]).any()]

    @classmethod
    def of(cls, draws: NetworkDraws, center: dict[str, Tensor]) -> "LinearisedDraws":
        """Linearise ``draws`` at ``center``, w*."""
        return cls(draws.spec, {name: torch.cat([center[name][None], drawn]) for name, drawn in draws.weights.items()})

    @torch.no_grad()
    def predict(self, inputs: Tensor, *, rng: Seed = Seed(0)) -> Predictive:
        """Predict without ``rng``: the draws are fixed."""
        center = {name: value[0] for name, value in self.weights.items()}
        at = {name: center[name] for name in self._drawn}

        def outputs(drawn: dict[str, Tensor]) -> Tensor:
            found: Tensor = functional_call(self._skeleton, center | drawn, (inputs,))
            return found

        linear = []
        for draw in range(1, len(next(iter(self.weights.values())))):
            found = jvp(outputs, (at,), ({name: self.weights[name][draw] - at[name] for name in at},))
            linear.append(found[0] + found[1])
        return self.spec.predictive(torch.stack(linear))

    def state(self) -> State:
        return State(dict(self.weights), {"posterior": self.key, "spec": to_mapping(self.spec)})

    @classmethod
    def from_state(cls, state: State, device: torch.device | str = "cpu") -> "LinearisedDraws":
        spec = read(NetworkSpec, state.config["spec"], "spec")
        return cls(spec, {name: value.to(device) for name, value in state.tensors.items()})
