"""The sections ``methods.bpc_fkl``, ``bpc_rkl``, ``bpc_w``, ``bpc_cd`` and ``fbpc`` of params.yaml."""

from dataclasses import dataclass

from ...errors import require
from .descent import OuterConfig


@dataclass(frozen=True)
class BpcConfig:
    """The settings that all five methods have.

    Attributes:
        ipc: coreset rows per class.
        start_epochs: an outer step begins after 0 … start_epochs − 1 epochs of an expert, or parts of them, each as
            likely (published for CIFAR-10: 2 at ipc 1, 20 at ipc 10).
        outer: the descent of the images.
    """

    ipc: int
    start_epochs: int
    outer: OuterConfig

    def __post_init__(self) -> None:
        require(self.ipc > 0, "ipc", "must be > 0", self.ipc)
        require(self.start_epochs > 0, "start_epochs", "must be > 0", self.start_epochs)

    @property
    def last_epoch(self) -> int:
        """Return the last epoch of an expert that is read."""
        return self.start_epochs - 1


@dataclass(frozen=True)
class InnerConfig:
    """The steps on the coreset that lead to θ_S.

    Attributes:
        steps, lr: of plain gradient descent on the mean cross-entropy (published: 50 of .01 at ipc 1, 30 of .03 at 10).
        ahead: epochs, or parts of them, from the start to θ_D (published: 1, and 2 for ``bpc_w`` at ipc 1).
    """

    steps: int
    lr: float
    ahead: int

    def __post_init__(self) -> None:
        require(self.steps > 0, "steps", "must be > 0", self.steps)
        require(self.lr > 0, "lr", "must be > 0", self.lr)
        require(self.ahead > 0, "ahead", "must be > 0", self.ahead)


@dataclass(frozen=True)
class MatchedConfig(BpcConfig):
    """A method with steps on the coreset.

    Attributes:
        inner: those steps.
    """

    inner: InnerConfig

    @property
    def last_epoch(self) -> int:
        return self.start_epochs - 1 + self.inner.ahead


@dataclass(frozen=True)
class ForwardKlConfig(MatchedConfig):
    """``methods.bpc_fkl``.

    Attributes:
        draws: of each posterior (published: 30).
        sd: σ of the posteriors (published: .01).
        shared_noise: both have the same noise, which lowers the variance; published: each its own.
    """

    draws: int
    sd: float
    shared_noise: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.draws > 0, "draws", "must be > 0", self.draws)
        require(self.sd >= 0, "sd", "must be >= 0", self.sd)


@dataclass(frozen=True)
class ReverseKlConfig(MatchedConfig):
    """``methods.bpc_rkl``.

    Attributes:
        draws: of the coreset's posterior, at least 2 (published: 30 at ipc 10, else 10).
        sd: σ of the posteriors (published: .01).
        batch: training rows that estimate the data's log-likelihood (published: 1000).
        weight: of the coreset's likelihood, over N/n̂; 1: the coreset weighs as much as the data.
    """

    draws: int
    sd: float
    batch: int
    weight: float

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.draws > 1, "draws", "must be > 1", self.draws)
        require(self.sd > 0, "sd", "must be > 0", self.sd)
        require(self.batch > 0, "batch", "must be > 0", self.batch)
        require(self.weight > 0, "weight", "must be > 0", self.weight)


@dataclass(frozen=True)
class WassersteinConfig(MatchedConfig):
    """``methods.bpc_w``; its inner rate is learned, and ``inner.lr`` is where it starts.

    Attributes:
        lr_step: the largest step of the logarithm of that rate in one outer step of Adam, or the rate of sgd
            (published: sgd on the rate itself, 1e-5).
    """

    lr_step: float

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.lr_step >= 0, "lr_step", "must be >= 0", self.lr_step)


@dataclass(frozen=True)
class ContrastiveConfig(BpcConfig):
    """``methods.bpc_cd``.

    Attributes:
        chains: θ⁺ ~ N(θ_D, sd²I), θ_D an expert's weights where an outer step begins, and a chain from each.
        sd: of θ⁺ (.01).
        steps, step_size: K and α of Langevin's dynamics (published script: 10 noise-free steps of .01).
        temperature: T of e^{−U/T}; 0: no noise, as in the published script.
        weight: of the coreset's likelihood in U, over n̂: 1 is a sum over its rows.
        prior_precision: λ of U's ½λ‖θ‖².
    """

    chains: int
    sd: float
    steps: int
    step_size: float
    temperature: float
    weight: float
    prior_precision: float

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("chains", "steps", "step_size", "weight"):
            require(getattr(self, name) > 0, name, "must be > 0", getattr(self, name))
        for name in ("sd", "temperature", "prior_precision"):
            require(getattr(self, name) >= 0, name, "must be >= 0", getattr(self, name))


@dataclass(frozen=True)
class FunctionConfig(MatchedConfig):
    """``methods.fbpc``; ``inner.ahead`` is the number τ of iterates of either posterior, at least 2.

    Attributes:
        draws: of the functions.
        noise: σ of the functions' own noise.
    """

    draws: int
    noise: float

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.draws > 0, "draws", "must be > 0", self.draws)
        require(self.noise >= 0, "noise", "must be >= 0", self.noise)
        require(self.inner.ahead > 1, "inner.ahead", "must be > 1", self.inner.ahead)
        rule = f"must be >= inner.ahead ({self.inner.ahead})"
        require(self.inner.steps >= self.inner.ahead, "inner.steps", rule, self.inner.steps)
