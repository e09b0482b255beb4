"""One member of a training trajectory: a network trained by stochastic gradient descent, snapshot by epoch.

Minimises −(1/B) Σ_{i ∈ batch} log p(y_i | f(x_i; w)): softmax cross-entropy for classes, the Gaussian
negative log-likelihood with a predicted mean and log-variance for regression (Nix & Weigend 1994, eq. 4;
in the units of the transformed targets). Every epoch visits the rows in a fresh order; a last partial batch
is dropped where there are others, so that all steps weigh the same. In a process group each rank takes its
share of every batch, with its own dropout masks; ``parallel`` says what is averaged.

State: every entry of the network's ``state_dict`` (batch-norm buffers too), stacked [epoch, ...], the last
``keep`` epochs; config ``spec`` (a ``posterior.NetworkSpec``), ``epochs`` (how many were run) and ``loss``
(the last epoch's mean training loss).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from torch import Tensor

from ..artifacts import State, stack
from ..config import to_mapping
from ..data.augment import AugmentConfig
from ..data.fitdata import FitData
from ..errors import require
from ..learner import ChooseConfig, LearnConfig, Learner, require_constant_rate
from ..learning import learn
from ..method import Inputs, Method, Room, alone
from ..networks import NetworkConfig
from ..posterior import Likelihood, NetworkSpec
from ..predictive import Predictive
from ..progress import Report
from ..seeds import Seed
from ..training import OptimiserConfig


@dataclass(frozen=True)
class SgdConfig:
    """``methods.sgd``.

    Attributes:
        network: the architecture.
        epochs: passes over the training rows; with ``choose`` the most there may be.
        keep: how many of the last epochs leave a snapshot.
        batch: rows a step.
        optimiser: the update rule and its schedule over all steps.
        augmentation: of each batch of images; null: none.
        choose: how the number of epochs is chosen on validation rows; null: all of them.
    """

    network: NetworkConfig
    epochs: int
    keep: int
    batch: int
    optimiser: OptimiserConfig
    augmentation: AugmentConfig | None = None
    choose: ChooseConfig | None = None

    def __post_init__(self) -> None:
        require(self.epochs > 0, "epochs", "must be > 0", self.epochs)
        require(self.keep > 0, "keep", "must be > 0", self.keep)
        require(self.batch > 0, "batch", "must be > 0", self.batch)
        require_constant_rate(self.choose, self.optimiser)


@final
class _Network(Learner):
    """The mean negative log-likelihood of a network's outputs."""

    def __init__(self, spec: NetworkSpec, rng: Seed) -> None:
        super().__init__()
        self.spec, self.network = spec, spec.build(rng)

    def forward(self, inputs: Tensor, targets: Tensor, num_train: int, noise: dict[str, Tensor]) -> Tensor:
        return -self.spec.predictive(self.network(inputs)[None]).log_prob(targets).mean()

    def predict(self, inputs: Tensor, *, rng: Seed) -> Predictive:
        return self.spec.predictive(self.network(inputs)[None])


def fit(
    data: Sequence[FitData], inputs: Sequence[Inputs], config: SgdConfig, *, rngs: Sequence[Seed], report: Report
) -> list[State]:
    """A trajectory on each of ``data``, from random weights; ``inputs`` are not used.

    Raises:
        ConfigError: augmentation of rows that are not images.
        FloatingPointError: a loss became NaN or infinite.
    """
    images = len(data[0].input_shape) == 3
    require(
        images or config.augmentation is None,
        "augmentation",
        "must be null: the rows are not images",
        config.augmentation,
    )
    likelihood: Likelihood = "categorical" if data[0].task == "classification" else "gaussian_head"
    spec = NetworkSpec(config.network, data[0].input_shape, data[0].outputs, likelihood)
    how = LearnConfig(config.epochs, config.batch, config.optimiser, config.choose, config.augmentation)
    fitted = learn(lambda _, rng: _Network(spec, rng), data, how, rngs=rngs, report=report, keep=config.keep)
    states = []
    for member in fitted:
        snapshots = [{k.removeprefix("network."): v for k, v in s.items()} for s in member.snapshots]
        states.append(State(stack(snapshots), {"spec": to_mapping(spec), "epochs": member.epochs, "loss": member.loss}))
    return states


SGD = Method(
    name="sgd",
    config=SgdConfig,
    tasks=("classification", "regression"),
    rooms={"trajectory": Room(alone(fit), takes="each", together=fit, shares=True)},
    search={
        "optimiser.rate": (1e-4, 3e-2, "log"),
        "optimiser.weight_decay": (1e-6, 1e-2, "log"),
    },
)
