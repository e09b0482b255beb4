"""The method ``sgd``: a trajectory of snapshots of a network trained by stochastic gradient descent.

The loss is −(1/B) Σ_{i ∈ batch} log p(y_i | f(x_i; w)), each term times the row's weight, if rows have weights: softmax
cross-entropy for classes, the Gaussian negative log-likelihood with a predicted mean and log-variance for regression
(Nix & Weigend 1994, eq. 4; in the units of the transformed targets). Every epoch visits the rows in a new order. A
last, partial batch is dropped unless it is the only one, so that all steps have equal weight. In a process group each
rank trains on a share of every batch, with its own dropout masks (:mod:`bdl_pipe.distributed`).

State: every entry of the network's ``state_dict``, including batch-norm buffers, stacked [snapshot, ...], at the ends
of epochs or of parts of epochs; with ``moments``, also the running moments of the parameters. The config has ``spec``
(a ``posterior.NetworkSpec``), ``epochs`` (the number of epochs that were run) and ``loss`` (the mean training loss of
the last epoch); with ``moments``, ``iterates`` (the number of iterates); with ``keep_start``, ``snapshots_at`` (the
epoch of each snapshot). Methods that follow a trajectory use the start as a snapshot; methods that use snapshots as
samples omit the start.

Iterates after convergence, as in Zeng & Van den Broeck 2023 (CIBER): with ``early_stopping`` the number of epochs is
chosen by the validation score, and ``extra_epochs`` more epochs are run at the same rate on all rows; if ``snapshots``
equals ``extra_epochs``, the snapshots are the iterates of these epochs. The paper's protocol for images, epochs 165 to
300 every 5, is ``epochs`` 300, ``snapshots`` 28, ``every`` 5.

A trajectory may start from the last snapshot of another trajectory. With a constant learning rate this is SWAG's
protocol (Maddox et al. 2019, section 3: it starts from a pretrained network). The optimiser's state is not continued.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, final

from torch import Tensor

from ..artifacts import State, stack
from ..config import LATER, to_mapping
from ..data.augment import AugmentConfig
from ..data.fitdata import FitData
from ..data.size import Section, Size
from ..errors import require, require_positive
from ..method import Inputs, Method, StageSpec, Upstream
from ..networks import NetworkConfig
from ..posterior import NetworkSpec, Tails, head_of
from ..predictive import Predictive
from ..progress import Report
from ..seeds import Seed
from ..training.fit import fit_epochs, last_network
from ..training.learner import (
    ROW_WEIGHTS,
    EarlyStopping,
    NoiseRule,
    TrainingConfig,
    WeightedLearner,
    Weights,
    begin,
    nll,
    require_fits,
)
from ..training.likelihood import least_head, with_line
from ..training.loop import OptimiserConfig
from ..training.snapshots import MomentsConfig, SnapshotPolicy, with_moments

_PREFIX: Final = "network."  # prefix of the learner's names
_WEIGHT: Final = f"{_PREFIX}head.weight"
_BIAS: Final = f"{_PREFIX}head.bias"
_SNAPSHOTS: Final = 20  # number of snapshots of the default iterates
_EXTRA_EPOCHS: Final = 4  # few enough epochs after the chosen one that a network hardly memorises rows


@dataclass(frozen=True)
class SgdConfig:
    """The section ``methods.sgd`` of params.yaml.

    Attributes:
        network: the architecture.
        epochs: the number of passes over the training rows; with ``early_stopping`` the largest number.
        snapshots: the number of snapshots, the last at the end of the last epoch.
        batch: the number of rows of a step.
        optimiser: the update rule and its schedule over all steps.
        augmentation: the augmentation of each batch of images. null: no augmentation.
        early_stopping: how the number of epochs is chosen on validation rows. null: all epochs are run.
        every: the number of epochs, or parts of epochs, between snapshots.
        extra_epochs: the number of epochs to run beyond the chosen number; requires ``early_stopping``.
        moments: the running moments of the parameters. null: no moments.
        variance_floor: the least variance of regression, in standardised units; the variance is this floor plus
            softplus of an output. null: the variance is exp of the output, without a bound.
        snapshots_per_epoch: the number of parts of an epoch, with step counts as equal as possible. Snapshots are taken
            at the ends of parts, and ``snapshots`` and ``every`` count parts.
        keep_start: whether the weights before the first step are an additional snapshot.
        noise: the rule for the variances of regression, see ``training.learner.TrainingConfig``.
        tails: the distribution of the noise of regression: ``gaussian``, or a ``student`` t, whose degrees of freedom
            are outputs, too. Methods that need Gaussian noise refuse a trajectory with ``student``.
    """

    network: NetworkConfig
    epochs: int
    snapshots: int
    batch: int
    optimiser: OptimiserConfig
    augmentation: AugmentConfig | None = None
    early_stopping: EarlyStopping | None = None
    every: int = field(default=1, metadata=LATER)
    extra_epochs: int = field(default=0, metadata=LATER)
    moments: MomentsConfig | None = field(default=None, metadata=LATER)
    variance_floor: float | None = field(default=None, metadata=LATER)
    snapshots_per_epoch: int = field(default=1, metadata=LATER)
    keep_start: bool = field(default=False, metadata=LATER)
    noise: NoiseRule = field(default="learned", metadata=LATER)
    tails: Tails = field(default="gaussian", metadata=LATER)

    def __post_init__(self) -> None:
        require_positive(self, "epochs", "snapshots", "batch", "every", "snapshots_per_epoch")
        require_positive(self, or_null=("variance_floor",))
        require_fits(self.early_stopping, self.optimiser)
        require(self.extra_epochs >= 0, "extra_epochs", "must be >= 0", self.extra_epochs)
        allowed = self.extra_epochs == 0 or self.early_stopping is not None
        require(allowed, "extra_epochs", "must be 0 if early_stopping is null", self.extra_epochs)
        same = self.extra_epochs == 0 or self.optimiser.schedule == "constant"
        require(same, "extra_epochs", "must be 0 unless optimiser.schedule is constant", self.extra_epochs)
        learned = self.moments is None or self.noise == "learned"
        require(learned, "noise", "must be learned if moments of the weights are kept", self.noise)


@final
class _Network(WeightedLearner):
    """A learner whose loss is the mean negative log-likelihood of a network's outputs."""

    def __init__(self, spec: NetworkSpec, start: Weights | None, data: FitData, rng: Seed) -> None:
        super().__init__()
        self.spec, self.network = spec, begin(spec.build(rng), start)

    def forward(self, inputs: Tensor, targets: Tensor, num_train: int, noise: dict[str, Tensor]) -> Tensor:
        each = self.spec.predictive(self.network(inputs)[None]).log_prob(targets)
        return -(noise[ROW_WEIGHTS] * each if ROW_WEIGHTS in noise else each).mean()

    def predict(self, inputs: Tensor, *, rng: Seed) -> Predictive:
        return self.spec.predictive(self.network(inputs)[None])

    def estimated(
        self, predicted: Sequence[tuple[Predictive, Tensor]], weights: Tensor | None = None
    ) -> tuple[float, dict[str, Tensor]]:
        """Return the score, and the shift and slope of the head's variance outputs from :func:`least_head`.

        A network that memorises its training rows learns small variances for them, and predicts such variances for some
        new rows. A shift alone would increase all variances; the slope corrects the small ones more.
        """
        if self.spec.likelihood == "categorical" or _BIAS not in dict(self.named_parameters()):
            return nll(predicted, weights), {}
        return least_head(predicted, self.spec.variance_floor, weights)

    def with_estimated(self, weights: Mapping[str, Tensor], estimates: Mapping[str, Tensor]) -> Weights:
        if not estimates:
            return dict(weights)
        weight, bias = with_line(weights[_WEIGHT], weights[_BIAS], estimates)
        return {**weights, _WEIGHT: weight, _BIAS: bias}


def fit(
    data: Sequence[FitData], inputs: Sequence[Inputs], config: SgdConfig, *, rngs: Sequence[Seed], report: Report
) -> list[State]:
    """Fit a trajectory on each of ``data``, from new weights or the last snapshot of its trajectory in ``inputs``.

    Raises:
        ConfigError: augmentation is set for rows that are not images, ``variance_floor`` is set for classes, an epoch
            has more parts than steps, the input trajectory has another network, variance or tails, or early stopping is
            set with an input trajectory, which was trained on the validation rows.
    """
    images = len(data[0].input_shape) == 3
    fits = images or config.augmentation is None
    require(fits, "augmentation", "must be null: the rows are not images", config.augmentation)
    classes, floor = data[0].task == "classification", config.variance_floor
    require(floor is None or not classes, "variance_floor", "must be null: classes have no variance", floor)
    likelihood = head_of(data[0].task, config.tails)
    shape, outputs = data[0].input_shape, data[0].outputs
    spec = NetworkSpec(config.network, shape, outputs, likelihood, variance_floor=floor)
    c = config
    training = TrainingConfig(c.epochs, c.batch, c.optimiser, c.early_stopping, c.augmentation, c.noise)
    keep = SnapshotPolicy(c.snapshots, c.every, c.extra_epochs, c.moments, c.snapshots_per_epoch, c.keep_start)
    starts = list[Weights | None]()
    for rows, sources in zip(data, inputs, strict=True):
        trained = last_network(sources, spec.network, training, rows, "early_stopping")
        if trained is not None:
            theirs = trained[0].variance_floor
            require(theirs == floor, "variance_floor", f"must be the trajectory's ({theirs})", floor)
            same = trained[0].likelihood == likelihood
            require(same, "tails", f"must be the trajectory's, of a {trained[0].likelihood}", config.tails)
        starts.append(None if trained is None else trained[1])
    builds = [partial(_Network, spec, start) for start in starts]
    states = []
    for member in fit_epochs(builds, data, training, rngs=rngs, report=report, keep=keep):
        snapshots = stack([{k.removeprefix(_PREFIX): v for k, v in s.items()} for s in member.snapshots])
        about = {"spec": to_mapping(spec), "epochs": member.epochs, "loss": member.loss}
        about |= {"snapshots_at": keep.at(member.epochs)} if keep.start else {}
        states.append(with_moments(State(snapshots, about), member.moments, _PREFIX))
    return states


def default(size: Size) -> Section:
    """Return the hyperparameters of the trajectories of ``ensemble`` and ``deterministic``."""
    if (binned := size.binned) is None:
        return _usual(size)
    training = binned.pop("training")
    return {"snapshots": 1, "augmentation": None, **binned, **training, **size.floor}


def _usual(size: Size) -> Section:
    return {"network": size.network, "snapshots": 1, "augmentation": None, **size.training(), **size.floor}


def default_iterates(size: Size) -> Section:
    """Return the hyperparameters of up to twenty snapshots at a constant rate, after the chosen epoch, if any.

    The mean of an epoch's iterates is scored, not the last iterate. On diamonds (54,000 rows) scores of the last
    iterate chose 5 epochs, and scores of the mean 20 to 23: the NLL of ``swag`` fell from 6.76 to 6.64-6.67.
    """
    per_epoch = min(size.searched_steps_per_epoch, _SNAPSHOTS)  # a search's epochs must have enough steps, too
    extra = min(_EXTRA_EPOCHS, -(-_SNAPSHOTS // per_epoch))
    snapshots = min(_SNAPSHOTS, extra * per_epoch)
    training = size.training(constant=True)
    if (stopping := training["early_stopping"]) is not None:
        training |= {"early_stopping": {**stopping, "averaged": True}, "extra_epochs": extra}
    return {**_usual(size), **training, "snapshots": snapshots, "snapshots_per_epoch": per_epoch}


SGD = Method(
    name="sgd",
    family="trajectory",
    config=SgdConfig,
    tasks=("classification", "regression"),
    stages={
        "trajectory": StageSpec(
            fit_many=fit, needs={"trajectory": "one_to_one"}, input_optional=True, data_parallel=True
        )
    },
    search={
        "optimiser.lr": (1e-4, 3e-2, "log"),
        "optimiser.weight_decay": (1e-6, 1e-2, "log"),
    },
    upstream={
        "sgd": Upstream("trajectory", 3, 3.0, default),
        "iterates": Upstream("trajectory", 3, 3.0, default_iterates),
    },
)
