"""VBPC's closed-form posterior on any coreset: ``coreset_vi`` on one trunk, ``coreset_bma`` on several.

Lee et al. 2025, algorithm 2 and table 2. The paper's Bayesian model average is over the head's weights, and the closed
form computes it exactly; ``coreset_bma`` also averages over trunks (ours).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import final

import torch
from torch import Tensor

from ... import networks
from ...artifacts import State, pack, under, unpack
from ...config import LATER
from ...data.fitdata import FitData
from ...data.size import CONVNET, Section
from ...errors import require
from ...joint_predictive import GaussianFunctions
from ...method import Fit, Inputs, Method, StageSpec
from ...networks.last_layer import LastLayer
from ...predictive import Categorical, mixture
from ...progress import Phase, Report
from ...seeds import Seed
from ..vbpc.closed_form import class_log_probs
from ..vbpc.posterior import PRECISIONS, SETTINGS, STUDENT_LR, HeadConfig, StudentConfig, VbpcPosterior, fit_student
from .scale import LogitScale, check_scale, noted, resolved


@dataclass(frozen=True)
class ClosedFormConfig(HeadConfig):
    """The section ``methods.coreset_vi``.

    Attributes:
        network: the architecture of the trunk.
        student: the settings of the trunk's training.
        logit_scale: the factor of the posterior's mean, equivalent to a factor of the coreset's labels in the head's
            fit; ``validation`` chooses it on validation rows (:mod:`.scale`). The variance does not depend on it.
    """

    network: networks.NetworkConfig
    student: StudentConfig
    logit_scale: LogitScale = field(default=1.0, metadata=LATER)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_scale(self.logit_scale)


@dataclass(frozen=True, kw_only=True)
class MixtureConfig(ClosedFormConfig):
    """The section ``methods.coreset_bma``.

    Attributes:
        trunks: the number of trunks, each with its own posterior of the head.
    """

    trunks: int

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.trunks > 0, "trunks", "must be > 0", self.trunks)


@final
class TrunkMixture:
    """A mixture of several trunks, each with its own q(W); the draws are the trunks' predictives, equally weighted."""

    key = "vbpc_bma"

    def __init__(self, parts: list[VbpcPosterior]) -> None:
        self.parts = parts

    def predict(self, inputs: Tensor, *, rng: Seed = Seed(0)) -> Categorical:
        """Return class probabilities of transformed inputs; ``rng`` is not used."""
        return Categorical(torch.stack([part.predict(inputs).log_probs for part in self.parts]))

    def last_layer(self, inputs: Tensor, *, rng: Seed = Seed(0)) -> LastLayer:
        """Return the trunks' mean last layer at transformed inputs. No part has a bias: the origin is 0 in each."""
        parts = [part.last_layer(inputs) for part in self.parts]
        logits = torch.stack([part.logits for part in parts if part.logits is not None])
        return LastLayer(torch.stack([part.features for part in parts]).mean(0), logits.mean(0), parts[0].origin)

    def functions(self, inputs: Tensor, *, rng: Seed = Seed(0)) -> GaussianFunctions:
        """Return the mixture over trunks of Gaussians over logits, at the rows of each group [group, row, ...]."""
        return GaussianFunctions.mixed([part.functions(inputs) for part in self.parts])

    def state(self) -> State:
        packed = pack([part.state() for part in self.parts])
        return State(packed.tensors, packed.config | {"posterior": self.key})

    @classmethod
    def from_state(cls, state: State, device: torch.device | str = "cpu") -> "TrunkMixture":
        return cls([VbpcPosterior.from_state(part, device) for part in unpack(state)])


def fit_mixture(data: FitData, inputs: Inputs, config: MixtureConfig, *, rng: Seed, report: Report) -> State:
    """Fit one trunk after another like ``coreset_vi``; a fit resumed from ``report.load()`` has the same bits."""
    last, steps = report.load(), config.student.steps
    number = int(last.config["phase"]) if last is not None else 0
    fitted: list[Mapping[str, Tensor]] = [under(f"{trunk}.", last.tensors) for trunk in range(number)] if last else []
    while number < config.trunks:
        carried = {f"{trunk}.{name}": tensor for trunk, part in enumerate(fitted) for name, tensor in part.items()}
        phase = Phase(report, str(number), number * steps, config.trunks * steps, carried)
        state = fit_student(data, inputs, config, rng=rng.fold("trunk", number), report=phase)
        number, fitted = number + 1, [*fitted, state.tensors]
    states = [State(part, state.config) for part in fitted]  # all have one config
    parts, factor = scaled(states, data, config.logit_scale)
    return noted(TrunkMixture(parts).state(), config.logit_scale, factor)


def fit_one(data: FitData, inputs: Inputs, config: ClosedFormConfig, *, rng: Seed, report: Report) -> State:
    """Fit one trunk and its head, like VBPC's student, and scale its logits."""
    fitted = fit_student(data, inputs, config, rng=rng, report=report)
    (posterior,), factor = scaled([fitted], data, config.logit_scale)
    return noted(posterior.state(), config.logit_scale, factor)


def scaled(states: Sequence[State], data: FitData, scale: LogitScale) -> tuple[list[VbpcPosterior], float]:
    """Return the posteriors with their heads' means multiplied by one factor, and the factor.

    A factor chosen on validation rows minimises the NLL of the mixture.
    """
    parts = [VbpcPosterior.from_state(state, data.device) for state in states]

    def predictive(inputs: Tensor) -> Callable[[float], Tensor]:
        moments = [part.head.logit_moments(part.features(inputs)) for part in parts]
        return lambda scale: mixture(torch.stack([class_log_probs(scale * mean, spread) for mean, spread in moments]))

    factor = resolved(scale, data, predictive)
    for part in parts:
        part.head = replace(part.head, mean=factor * part.head.mean)
    return parts, factor


def _method(name: str, config: type[ClosedFormConfig], fit: Fit, network: Section, **more: int) -> Method:
    return Method(
        name=name,
        family="coresets",
        bayesian=True,
        config=config,
        tasks=("classification",),
        stages={"student": StageSpec(fit, needs={"coreset": "cyclic"})},
        search={**PRECISIONS, **STUDENT_LR},
        settings={**SETTINGS, "network": network, **more, "logit_scale": "validation"},
    )


CORESET_BMA = _method("coreset_bma", MixtureConfig, fit_mixture, {**CONVNET, "width": 32, "blocks": 2}, trunks=5)
CORESET_VI = _method("coreset_vi", ClosedFormConfig, fit_one, CONVNET)
