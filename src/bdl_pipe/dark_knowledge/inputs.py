"""The student data generator D′: the inputs at which the student imitates its teacher.

The inputs are training inputs plus Gaussian noise, or uniform on a box (Korattikara et al. 2015, section on the student
data generator), or augmented training images, or inputs without labels from a file. All are in *transformed* units, the
standardised inputs of networks.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from ..data.augment import AugmentConfig, augment
from ..data.examples import Examples
from ..data.fitdata import FitData, Rows, rows_of
from ..data.new_inputs import new_inputs
from ..errors import require
from ..seeds import Seed


@dataclass(frozen=True)
class NoisyConfig:
    """The rule that draws noisy inputs.

    Each input is a training input, drawn with replacement, plus N(0, noise²) in every coordinate.

    Attributes:
        noise: the standard deviation of the noise, in standardised units.
    """

    name: Literal["noisy_training"]
    noise: float

    def __post_init__(self) -> None:
        require(self.noise >= 0, "noise", "must be >= 0", self.noise)


@dataclass(frozen=True)
class UniformConfig:
    """The rule that draws inputs uniformly on a box.

    The box is the smallest box around the training inputs, made wider by ``margin``.

    Attributes:
        margin: the share of the box's width that is added on each side.
    """

    name: Literal["uniform_box"]
    margin: float

    def __post_init__(self) -> None:
        require(self.margin >= 0, "margin", "must be >= 0", self.margin)


@dataclass(frozen=True)
class AugmentedConfig:
    """The rule that draws training images with replacement and augments each of them once.

    Attributes:
        augmentation: the operations and their strengths (``bdl_pipe.data.augment``).
    """

    name: Literal["augmented"]
    augmentation: AugmentConfig


@dataclass(frozen=True)
class UnlabelledConfig:
    """The rule that draws training inputs and inputs of a file, with replacement, and adds Gaussian noise to all.

    Attributes:
        path: an ``.npz`` file whose array ``x`` holds raw inputs of the data set: [row, column] in the order of the
            columns, or uint8 [row, channel, height, width]. Every machine that runs a fit must be able to read it.
        share: the probability that an input comes from the file.
        noise: the standard deviation of the noise, in standardised units.
    """

    name: Literal["unlabelled"]
    path: str
    share: float
    noise: float

    def __post_init__(self) -> None:
        require(self.path.endswith(".npz"), "path", "must be an .npz file", self.path)
        require(0 < self.share <= 1, "share", "must be in (0, 1]", self.share)
        require(self.noise >= 0, "noise", "must be >= 0", self.noise)

    def files(self) -> list[Path]:
        """Return the file that the inputs are read from."""
        return [Path(self.path)]


InputsConfig = NoisyConfig | UniformConfig | AugmentedConfig | UnlabelledConfig


class Generator:
    """The generator D′ of one fit, which holds the fit's rows and rule."""

    def __init__(self, config: InputsConfig, data: FitData) -> None:
        """Create the generator from the training rows of ``data``, and the rows of the user's file if the rule has one.

        Raises:
            ConfigError: the rule cannot draw rows of this data set.
            DataError: the file cannot be read, or its rows have another shape than the data set's.
        """
        self._config, self._training = config, data.rows("train", data.device)
        self._more: Rows | None = None
        if isinstance(config, AugmentedConfig):
            rule = "must not be augmented for rows of a table"
            require(data.transform.kind == "image", "inputs.name", rule, config.name)
        if isinstance(config, UnlabelledConfig):
            plain = data.transform.encoding is None
            require(plain, "inputs.name", "must not be unlabelled for a table with categories", config.name)
            shape = list(data.train.inputs.shape[1:])
            schema = {"kind": data.transform.kind, "input_shape": shape, "features": [str(i) for i in range(shape[0])]}
            raw = new_inputs(Path(config.path), schema)
            examples = Examples(raw, data.train.targets[:1].repeat(len(raw), 0))
            self._more = rows_of(examples, data.transform, data.device)

    def draw(self, count: int, rng: Seed) -> Float[Tensor, "batch ..."]:
        """Draw ``count`` inputs, all from the address ``rng``."""
        return draw(self._config, self._training, count, rng, self._more)

    def draw_rows(self, count: int, rng: Seed) -> Float[Tensor, "batch ..."]:
        """Draw ``count`` training inputs without noise, each at most once; all of them if there are fewer."""
        index = torch.randperm(len(self._training), generator=rng.generator())[:count]
        return self._training.take(index.to(self._training.device))[0]


def draw(
    config: InputsConfig, training: Rows, count: int, rng: Seed, more: Rows | None = None
) -> Float[Tensor, "batch ..."]:
    """Draw ``count`` inputs by the rule ``config``, all from the address ``rng``.

    Args:
        more: the rows of the file that the rule ``unlabelled`` names.
    """
    generator, device = rng.generator(training.device), training.device
    if isinstance(config, UniformConfig):
        low, high = training.box
        margin = config.margin * (high - low)
        unit = torch.rand((count, *training.shape), generator=generator, device=device)
        return low - margin + unit * (high - low + 2 * margin)
    index = torch.randint(len(training), (count,), generator=generator, device=device)
    clean, _ = training.take(index)
    if isinstance(config, AugmentedConfig):
        return augment(clean, config.augmentation, rng.fold("augmentation"))
    if isinstance(config, UnlabelledConfig):
        assert more is not None
        chosen = torch.rand(count, generator=generator, device=device) < config.share
        others, _ = more.take(torch.randint(len(more), (count,), generator=generator, device=device))
        clean = torch.where(chosen.reshape(-1, *[1] * len(training.shape)), others, clean)
    if config.noise == 0:
        return clean
    return torch.randn(clean.shape, generator=generator, device=device).mul_(config.noise).add_(clean)
