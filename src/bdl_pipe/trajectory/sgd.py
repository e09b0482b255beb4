"""One member of a training trajectory: a network trained by stochastic gradient descent, snapshot by epoch.

Minimises −(1/B) Σ_{i ∈ batch} log p(y_i | f(x_i; w)): softmax cross-entropy for classes, the Gaussian
negative log-likelihood with a predicted mean and log-variance for regression (Nix & Weigend 1994, eq. 4;
in standardised units). Every epoch visits the rows in a fresh order; a last partial batch is dropped where
there are others, so that all steps weigh the same. In a process group each rank takes its share of every
batch, with its own dropout masks; ``parallel`` says what is averaged.

State: every entry of the network's ``state_dict`` (batch-norm buffers too), stacked [epoch, ...]; config
``spec`` (a ``posterior.NetworkSpec``), ``epochs`` and ``loss`` (the last epoch's mean training loss).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, final

import torch
from torch import Tensor

from .. import parallel
from ..artifacts import State, stack, unstack
from ..config import to_mapping
from ..data.augment import AugmentConfig, augment
from ..data.fitdata import FitData
from ..errors import require
from ..method import Inputs, Method, Room
from ..networks import NetworkConfig, dropout_masks
from ..posterior import Likelihood, NetworkSpec
from ..progress import Report
from ..seeds import Seed
from ..training import Descent, OptimiserConfig, descend

_FAST: Final = torch.channels_last  # 1.4 to 2 times as fast as the plain memory order for small ConvNets on a CPU


@dataclass(frozen=True)
class SgdConfig:
    """``methods.sgd``.

    Attributes:
        network: the architecture.
        epochs: passes over the training rows, each of which leaves one snapshot.
        batch: rows a step.
        optimiser: the update rule and its schedule over all steps.
        augment: what is done to each batch of images; nothing by default.
    """

    network: NetworkConfig
    epochs: int
    batch: int
    optimiser: OptimiserConfig
    augment: AugmentConfig = field(default_factory=lambda: AugmentConfig("all"))

    def __post_init__(self) -> None:
        require(self.epochs > 0, "epochs", "must be > 0", self.epochs)
        require(self.batch > 0, "batch", "must be > 0", self.batch)


@final
class _Trajectory(Descent):
    """The mean negative log-likelihood of the step's batch; one snapshot at the end of each epoch."""

    def __init__(self, spec: NetworkSpec, data: FitData, config: SgdConfig, rng: Seed) -> None:
        self._inputs, self._targets = data.tensors("train", data.device)
        self._spec, self._rng, self._batch = spec, rng, min(config.batch, len(self._inputs))
        self._augment = config.augment
        self.network = spec.build(rng.fold("weights")).train()
        self.network.to(memory_format=_FAST).to(data.device)  # type: ignore[call-overload]
        self.steps_per_epoch = len(self._inputs) // self._batch
        self.snapshots: list[dict[str, Tensor]] = []
        self._sum = torch.zeros((), dtype=torch.float64)  # of this epoch's losses
        self._order: tuple[int, Tensor] | None = None

    def parameters(self) -> list[Tensor]:
        return list(self.network.parameters())

    def loss(self, step: int) -> Tensor:
        rows = self._rows(step)
        inputs = self._inputs.index_select(0, rows)
        if inputs.ndim == 4:  # the whole batch, then the share: a row is augmented alike on any number of ranks
            inputs = augment(inputs, self._augment, self._rng.fold("augment", step))
        inputs, targets = parallel.shard(inputs), parallel.shard(self._targets.index_select(0, rows))
        with dropout_masks(self.network, self._rng.fold("dropout", step, parallel.world()[0])):
            outputs = self.network(inputs.contiguous(memory_format=_FAST) if inputs.ndim == 4 else inputs)
        return -self._spec.predictive(outputs[None]).log_prob(targets).mean()

    def after(self, step: int, loss: Tensor) -> dict[str, float]:
        epoch, position = divmod(step, self.steps_per_epoch)
        self._sum = (self._sum if position else torch.zeros_like(self._sum)) + loss.cpu()
        if position + 1 == self.steps_per_epoch:
            parallel.broadcast_buffers(self.network)
            self.snapshots.append({k: _plain(v) for k, v in self.network.state_dict().items()})
        return {"loss": self.mean_loss(position + 1), "epoch": epoch + (position + 1) / self.steps_per_epoch}

    def mean_loss(self, steps: int) -> float:
        """The mean over the first ``steps`` steps of the present epoch."""
        return float(self._sum / steps)

    def state(self) -> dict[str, Tensor]:
        now = {f"network.{k}": _plain(v) for k, v in self.network.state_dict().items()} | {"sum": self._sum}
        past = stack(self.snapshots) if self.snapshots else {}
        return now | {f"snapshots.{k}": v for k, v in past.items()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.network.load_state_dict(_under("network.", state))
        past = _under("snapshots.", state)
        self.snapshots = unstack(past) if past else []
        self._sum = state["sum"].clone()

    def _rows(self, step: int) -> Tensor:
        epoch, position = divmod(step, self.steps_per_epoch)
        if self._order is None or self._order[0] != epoch:
            order = torch.randperm(len(self._inputs), generator=self._rng.fold("epoch", epoch).generator())
            self._order = epoch, order.to(self._inputs.device)
        return self._order[1][position * self._batch : (position + 1) * self._batch]


def fit(data: FitData, inputs: Inputs, config: SgdConfig, *, rng: Seed, report: Report) -> State:
    """One trajectory on ``data.train``, from random weights; ``inputs`` is not used.

    Raises:
        ConfigError: augmentation of rows that are not images.
        FloatingPointError: the loss became NaN or infinite.
    """
    images = len(data.input_shape) == 3
    require(images or not config.augment.operations, "augment.operations", "must be empty: the rows are not images")
    likelihood: Likelihood = "categorical" if data.task == "classification" else "gaussian_head"
    spec = NetworkSpec(config.network, data.input_shape, data.outputs, likelihood)
    task = _Trajectory(spec, data, config, rng)
    descend(task, config.optimiser, config.epochs * task.steps_per_epoch, report)
    loss = task.mean_loss(task.steps_per_epoch)
    return State(stack(task.snapshots), {"spec": to_mapping(spec), "epochs": config.epochs, "loss": loss})


def _plain(tensor: Tensor) -> Tensor:
    """A copy that later updates leave alone, on the CPU, in the plain memory order that a file gives back."""
    return tensor.detach().to("cpu", memory_format=torch.contiguous_format, copy=True)


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


SGD = Method(
    name="sgd",
    config=SgdConfig,
    tasks=("classification", "regression"),
    rooms={"trajectory": Room(fit, takes="each", shares=True)},
    search={
        "optimiser.rate": (1e-4, 3e-2, "log"),
        "optimiser.weight_decay": (1e-6, 1e-2, "log"),
    },
)
