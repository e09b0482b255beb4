"""The sections ``methods.bpc_fkl``, ``bpc_rkl``, ``bpc_w``, ``bpc_cd`` and ``fbpc`` of params.yaml."""

from dataclasses import dataclass

from ...data.augment import AugmentConfig
from ...errors import require, require_positive
from ...training import loop
from ..shared.descent import Descent, check_average


@dataclass(frozen=True)
class OuterConfig:
    """The settings of the optimisation of a coreset's images.

    Labels are the classes of the coreset's initial rows and are not learned, as in the code of Kim et al. 2022.

    Attributes:
        steps: the number of outer steps.
        optimiser: the update rule and its schedule (published: sgd, rate 1000, momentum .5).
        augmentation: the augmentation of the coreset's images, drawn for each step (published: ``choose: one``).
        average: the decay of an unbiased exponential average of the images; the average is the result. With null, the
            last images are the result.
    """

    steps: int
    optimiser: loop.OptimiserConfig
    augmentation: AugmentConfig
    average: float | None

    def __post_init__(self) -> None:
        require(self.steps > 0, "steps", "must be > 0", self.steps)
        check_average(self.average)

    @property
    def descent(self) -> Descent:
        """Return the outer loop, in which labels are not learned."""
        return Descent(self.steps, self.optimiser, self.average)


@dataclass(frozen=True)
class BpcConfig:
    """The settings of all five methods.

    Attributes:
        ipc: the number of coreset rows per class.
        start_epochs: an outer step starts from an expert's weights after 0 … start_epochs − 1 epochs (or parts of
            epochs), with equal probability (published for CIFAR-10: 2 at ipc 1, 20 at ipc 10).
        outer: the settings of the optimisation of the images.
    """

    ipc: int
    start_epochs: int
    outer: OuterConfig

    def __post_init__(self) -> None:
        require_positive(self, "ipc", "start_epochs")

    @property
    def last_epoch(self) -> int:
        """Return the last epoch of an expert that the method uses."""
        return self.start_epochs - 1


@dataclass(frozen=True)
class InnerConfig:
    """The settings of the steps on the coreset from the start to θ_S.

    Attributes:
        steps: the number of gradient-descent steps on the mean cross-entropy (published: 50 at ipc 1, 30 at ipc 10).
        lr: the learning rate of these steps (published: .01 at ipc 1, .03 at ipc 10).
        ahead: the number of epochs, or parts of epochs, from the start to θ_D (published: 1, and 2 for ``bpc_w`` at ipc
            1).
    """

    steps: int
    lr: float
    ahead: int

    def __post_init__(self) -> None:
        require_positive(self, "steps", "lr", "ahead")


@dataclass(frozen=True)
class MatchedConfig(BpcConfig):
    """The settings of a method with steps on the coreset.

    Attributes:
        inner: the settings of the steps on the coreset.
    """

    inner: InnerConfig

    @property
    def last_epoch(self) -> int:
        return self.start_epochs - 1 + self.inner.ahead


@dataclass(frozen=True)
class ForwardKlConfig(MatchedConfig):
    """The section ``methods.bpc_fkl``.

    Attributes:
        draws: the number of draws of each posterior (published: 30).
        sd: σ of the posteriors (published: .01).
        shared_noise: whether both posteriors use the same noise, which lowers the variance (published: independent
            noise).
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
    """The section ``methods.bpc_rkl``.

    Attributes:
        draws: the number of draws of the coreset's posterior, at least 2 (published: 30 at ipc 10, else 10).
        sd: σ of the posteriors (published: .01).
        batch: the number of training rows that estimate the data's log-likelihood (published: 1000).
        weight: the weight of the coreset's likelihood, in units of N/n̂; with 1 the coreset has the data's weight.
    """

    draws: int
    sd: float
    batch: int
    weight: float

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.draws > 1, "draws", "must be > 1", self.draws)
        require_positive(self, "sd", "batch", "weight")


@dataclass(frozen=True)
class WassersteinConfig(MatchedConfig):
    """The section ``methods.bpc_w``. The inner learning rate is learned; ``inner.lr`` is its initial value.

    Attributes:
        lr_step: the largest change of the inner learning rate's logarithm in one outer step of Adam; with sgd, the
            logarithm's learning rate (published: sgd on the inner rate itself, 1e-5).
    """

    lr_step: float

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.lr_step >= 0, "lr_step", "must be >= 0", self.lr_step)


@dataclass(frozen=True)
class ContrastiveConfig(BpcConfig):
    """The section ``methods.bpc_cd``.

    Attributes:
        chains: the number of draws θ⁺ ~ N(θ_D, sd²I), each of which starts a chain; θ_D is the expert's weights at the
            start of an outer step.
        sd: the standard deviation of θ⁺ (.01).
        steps: K, the number of steps of Langevin dynamics (published script: 10, without noise).
        step_size: α of Langevin dynamics (published script: .01).
        temperature: T of e^{−U/T}; 0 gives steps without noise, as in the published script.
        weight: the weight of the coreset's negative log-likelihood in U; 1 gives the sum over the coreset's rows.
        prior_precision: λ of the term ½λ‖θ‖² in U.
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
        require_positive(self, "chains", "steps", "step_size", "weight")
        for name in ("sd", "temperature", "prior_precision"):
            require(getattr(self, name) >= 0, name, "must be >= 0", getattr(self, name))


@dataclass(frozen=True)
class FunctionConfig(MatchedConfig):
    """The section ``methods.fbpc``; ``inner.ahead`` is τ, the number of iterates of each posterior, at least 2.

    Attributes:
        draws: the number of draws of functions.
        noise: σ, the standard deviation of the functions' noise.
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
