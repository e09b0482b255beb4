"""The student data generator D′: where the student is asked to agree with its teacher.

Training inputs plus Gaussian noise, or uniform on a box (Korattikara et al. 2015, section on the
student data generator). All in *transformed* units: what the networks see, standardised inputs.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from ..data.rows import Rows
from ..errors import require
from ..seeds import Seed


@dataclass(frozen=True)
class NoisyConfig:
    """The rule that draws noisy inputs.

    Each is a training input, drawn with replacement, + N(0, noise²) in every coordinate, standardised units.
    """

    name: Literal["noisy_training"]
    noise: float

    def __post_init__(self) -> None:
        require(self.noise >= 0, "noise", "must be >= 0", self.noise)


@dataclass(frozen=True)
class UniformConfig:
    """The rule that draws inputs uniformly on a box.

    It is the smallest box around the training inputs, wider by ``margin`` of its width on each side.
    """

    name: Literal["uniform_box"]
    margin: float

    def __post_init__(self) -> None:
        require(self.margin >= 0, "margin", "must be >= 0", self.margin)


InputsConfig = NoisyConfig | UniformConfig


def draw(config: InputsConfig, training: Rows, count: int, rng: Seed) -> Float[Tensor, "batch ..."]:
    """Draw ``count`` student inputs, all from the generator of ``rng``."""
    generator = rng.generator(training.device)
    if isinstance(config, UniformConfig):
        low, high = training.box
        margin = config.margin * (high - low)
        unit = torch.rand((count, *training.shape), generator=generator, device=training.device)
        return low - margin + unit * (high - low + 2 * margin)
    index = torch.randint(len(training), (count,), generator=generator, device=training.device)
    clean, _ = training.take(index)
    if config.noise == 0:
        return clean
    return torch.randn(clean.shape, generator=generator, device=training.device).mul_(config.noise).add_(clean)
