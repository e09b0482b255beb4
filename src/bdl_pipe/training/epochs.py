"""The training run of several models over epochs: the objective of the training loop for :mod:`.fit`."""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, final

import torch
from torch import Tensor

from .. import distributed
from ..artifacts import stack, under, unstack
from ..data.fitdata import FitData, epoch_order
from ..errors import require
from ..predictive import Predictive
from ..seeds import Seed
from .learner import ROW_WEIGHTS, TOTAL_WEIGHT, Learner, NoisyLearner, TrainingConfig, WeightedLearner, nll
from .loop import Objective
from .snapshots import RunningMoments, SnapshotPolicy
from .vmapped import SingleModel, VmappedModels

_SCORED: Final = 1000  # rows in one forward pass of a score
_NOISE_ROWS: Final = 5000  # training rows for an estimate of the noise
_UNWEIGHTED: Final = "must be None: the method's loss, or its group of processes, does not weigh rows"

Build = Callable[[FitData, Seed], Learner]
Model = tuple[Build, FitData, Seed]  # its learner, its data, and the address of its random numbers


@final
class EpochRun(Objective):
    """The sum of all models' losses, with snapshots and scores at the ends of epochs."""

    def __init__(
        self,
        models: Sequence[Model],
        config: TrainingConfig,
        epochs: Sequence[int],
        *,
        keep: SnapshotPolicy,
        scored: bool,
    ) -> None:
        data, rngs = [of_model for _, of_model, _ in models], [rng for _, _, rng in models]
        self._data, self._config, self._rngs, self._epochs, self._keep = data, config, rngs, epochs, keep
        device = data[0].device
        learners = [build(of_model, rng.fold("weights")).to(device) for build, of_model, rng in models]
        rows = [d.rows("train", device) for d in data]
        count = len(rows[0])
        assert all(len(part) == count for part in rows), "models of one run have equally many rows"
        self._batch, self._count, self._device = min(config.batch, count), count, device
        self._steps_per_epoch = count // self._batch
        self.steps = max(epochs) * self._steps_per_epoch
        self._parts = keep.ends(self._steps_per_epoch)
        self.probe = copy.deepcopy(learners[0]).eval()
        self._held = [d.rows("validation", device) for d in data] if scored else []
        self._row_weights, self._totals = _weights_of(data, "train", device)
        self._held_weights = _weights_of(data, "validation", device)[0] if scored else None
        weighs = self._row_weights is None or isinstance(learners[0], WeightedLearner)
        require(weighs and (self._row_weights is None or distributed.world()[1] == 1), "weights", _UNWEIGHTED)
        one = len(data) == 1
        self._members = (
            SingleModel(learners[0], rows[0], config.augmentation, rngs[0]) if one else VmappedModels(learners, rows)
        )
        self.snapshots = [[self._members.get(m)] if keep.start else [] for m in range(len(data))]
        self.moments = [RunningMoments() for _ in data]
        stopping = config.early_stopping
        self._averaged = scored and stopping is not None and stopping.averaged
        self._means = [RunningMoments() for _ in data]  # each model's mean over this epoch's iterates, if it is scored
        self.losses = [0.0] * len(data)
        self._sum = torch.zeros(len(data), dtype=torch.float64)  # each model's sum of losses over this epoch
        self._best = torch.full((len(data),), torch.inf, dtype=torch.float64)
        self._best_epoch = torch.full((len(data),), max(epochs), dtype=torch.int64)
        self.held: list[dict[str, Tensor]] = [{} for _ in data]  # Learner.estimated's estimates at the best epoch
        self._latest = torch.zeros(len(data))  # each model's loss at this step
        self._going = torch.ones(len(data), dtype=torch.bool)  # whether each model is still trained, [model]
        self._epoch, self._done = -1, 0  # the current epoch; the number of finished epochs
        self._asked, self._finished = -1, False  # the finished epochs at the last call of ``finished``, and its answer
        self._orders, self._block = torch.zeros(0), -1  # the epoch's row orders; the block of steps with noise
        self._noise, self._scheduled = dict[str, Tensor](), dict[str, Tensor]()
        self._score: float | None = None  # the mean score of the models, once there is one

    def parameters(self) -> list[Tensor]:
        return list(self._members.named.values())

    def undecayed(self) -> list[Tensor]:
        return [self._members.named[name] for name in sorted(self.probe.undecayed())]

    def clip(self, largest: float) -> None:
        self._members.clip(largest)

    def loss(self, step: int) -> Tensor:
        epoch, position = divmod(step, self._steps_per_epoch)
        if self._epoch != epoch:
            self._epoch, self._going = epoch, self._wanted(epoch).to(self._device)
            orders = [epoch_order(self._count, epoch, r) for r in self._rngs]  # each from its model's seed address
            self._orders, self._block = torch.stack(orders).to(self._device), -1
            done = epoch + torch.arange(self._steps_per_epoch) / self._steps_per_epoch
            scheduled = self.probe.scheduled(done) if isinstance(self.probe, NoisyLearner) else {}
            self._scheduled = {name: values.to(self._device) for name, values in scheduled.items()}
        rows = self._orders[:, position * self._batch : (position + 1) * self._batch]  # [model, batch]
        numbers = self._noise_at(position)
        if self._row_weights is not None:
            numbers |= {ROW_WEIGHTS: self._row_weights.gather(1, rows), TOTAL_WEIGHT: self._totals}
        losses = self._members.losses(rows, numbers, step)
        self._latest = losses.detach()
        if len(losses) == 1:
            return losses[0]  # the loss of a single fit is not computed after its end
        return losses.where(self._going, losses.new_zeros(())).sum()  # a model whose fit has ended is not updated

    def after(self, step: int, loss: Tensor) -> dict[str, float]:
        epoch, position = divmod(step, self._steps_per_epoch)
        latest = loss[None] if len(self._latest) == 1 else self._latest  # a single model's loss is the mean over ranks
        self._sum = (self._sum if position else torch.zeros_like(self._sum)) + latest.double().cpu()
        if part := self._parts.get(position + 1):  # parts of the epoch are finished
            self._members.agree()
            for m, stop in enumerate(self._epochs):
                if self._averaged:
                    self._means[m] = RunningMoments() if part == 1 else self._means[m]
                    self._means[m].update(self._weights(m))
                if self._keep.snapshot((stop - epoch) * self._keep.parts_per_epoch - part):
                    self.snapshots[m].append(self._members.get(m))
        if position + 1 == self._steps_per_epoch:
            self._close(epoch + 1)
        metrics = {"loss": float(self._sum.mean() / (position + 1)), "epoch": (step + 1) / self._steps_per_epoch}
        return metrics | ({} if self._score is None else {"validation_nll": self._score})

    def finished(self) -> bool:
        if self._asked != self._done:  # the answer changes only at an epoch's end
            self._asked, self._finished = self._done, not self._wanted(self._done).any()
        return self._finished

    def best(self, member: int) -> tuple[float, dict[str, Tensor]]:
        """Return a model's best validation score, infinite if none was finite, and its held-out estimates there."""
        return float(self._best[member]), self.held[member]

    def best_epochs(self) -> list[int]:
        """Return each model's number of epochs with the best validation score; all epochs if no score was finite."""
        return self._best_epoch.tolist()

    @torch.no_grad()
    def training_noise(self, member: int) -> dict[str, Tensor]:
        """Return the noise of a fitted model, estimated on its first training rows."""
        self.probe.load_state_dict(self.snapshots[member][-1])
        rng, rows = self._rngs[member].fold("noise"), self._data[member].rows("train", self._device)
        starts = range(0, min(len(rows), _NOISE_ROWS), _SCORED)
        parts = (rows.slice(start, min(start + _SCORED, _NOISE_ROWS)) for start in starts)
        predicted = [(self.probe.predict(x, rng=rng), y) for x, y in parts]
        of_rows = None if self._row_weights is None else self._row_weights[member][:_NOISE_ROWS]
        return self._estimated(predicted, of_rows)[1]

    def state(self) -> dict[str, Tensor]:
        tensors = {f"live.{m}.{k}": v for m in range(len(self._data)) for k, v in self._members.get(m).items()}
        for m, past in enumerate(self.snapshots):
            tensors |= {f"snapshots.{m}.{k}": v for k, v in (stack(past) if past else {}).items()}
            for name, kept in (("moments", self.moments[m]), ("means", self._means[m])):
                if kept.count:
                    tensors |= {f"{name}.{m}.{k}": v for k, v in kept.state().items()}
        if self._score is not None:
            tensors["score"] = torch.tensor(self._score, dtype=torch.float64)
        return tensors | {
            **named("held", self.held),
            "sum": self._sum,
            "best": self._best,
            "best_epoch": self._best_epoch,
            "losses": torch.tensor(self.losses, dtype=torch.float64),
            "done": torch.tensor(self._done),
        }

    def restore(self, state: Mapping[str, Tensor]) -> None:
        for m in range(len(self._data)):
            self._members.put(m, under(f"live.{m}.", state))
            past = under(f"snapshots.{m}.", state)
            self.snapshots[m] = unstack(past) if past else []
            for name, kept in (("moments", self.moments[m]), ("means", self._means[m])):
                if sums := under(f"{name}.{m}.", state):
                    kept.restore(sums)
        self.held = [under(f"held.{m}.", state) for m in range(len(self._data))]
        self._sum, self._best = state["sum"].clone(), state["best"].clone()
        self._best_epoch, self.losses = state["best_epoch"].clone(), state["losses"].tolist()
        self._score = float(state["score"]) if "score" in state else None
        self._done = int(state["done"])

    def _wanted(self, epoch: int) -> Tensor:
        """Return which models train in ``epoch`` [model]: before their last epoch and the end of their patience."""
        stopping, wanted = self._config.early_stopping, torch.tensor(self._epochs) > epoch
        if self._held and stopping is not None and stopping.patience is not None:
            wanted &= epoch - self._best_epoch < stopping.patience
        return wanted

    def _noise_at(self, position: int) -> dict[str, Tensor]:
        """Return the noise of one step of the current epoch, [model, ...] each. It is drawn for a block of steps."""
        at_once = self.probe.noise_steps(self._batch) if isinstance(self.probe, NoisyLearner) else None
        at_once = at_once or self._steps_per_epoch
        block, within = divmod(position, at_once)
        if block != self._block:
            steps = min(at_once, self._steps_per_epoch - block * at_once)
            places = [r.fold("epoch", self._epoch).fold("noise") for r in self._rngs]
            places = [p.fold(block) for p in places] if block else places
            noises = stack([self.probe.noise(steps, self._batch, p.generator()) for p in places])
            self._noise, self._block = {k: v.to(self._device) for k, v in noises.items()}, block
        members = len(self._rngs)
        step_noise = {name: values[:, within] for name, values in self._noise.items()}
        return step_noise | {k: v[position].expand(members, *v.shape[1:]) for k, v in self._scheduled.items()}

    def _weights(self, member: int) -> dict[str, Tensor]:
        state = self._members.get(member)
        return {name: state[name] for name in self._members.named}

    def _close(self, done: int) -> None:
        """End epoch number ``done`` after its last snapshot: update the moments, and compute scores if due."""
        mean = (self._sum / self._steps_per_epoch).tolist()
        for m, stop in enumerate(self._epochs):
            if self._keep.counts(stop - done):
                self.moments[m].update(self._weights(m))
            if done == stop:
                self.losses[m] = mean[m]
        self._done, stopping = done, self._config.early_stopping
        constant = self._config.optimiser.schedule == "constant"  # with a schedule, only its end is scored
        if self._held and stopping and (done % stopping.every == 0 if constant else done == max(self._epochs)):
            validated = [self._validate(m) for m in range(len(self._data))]
            scores = torch.tensor([score for score, _ in validated], dtype=torch.float64)
            scores = distributed.mean(scores.to(self._device)).cpu()  # otherwise ranks could stop at different epochs
            # neither NaN nor a score after the model's own patience has ended counts as better
            better = (scores < self._best) & self._going.cpu()
            self._best = torch.where(better, scores, self._best)
            self._best_epoch = torch.where(better, done, self._best_epoch)
            self.held = [validated[m][1] if better[m] else kept for m, kept in enumerate(self.held)]
            self._score = float(scores.mean())

    @torch.no_grad()
    def _validate(self, member: int) -> tuple[float, dict[str, Tensor]]:
        """Return the model's validation score and its estimates, see ``Learner.estimated``."""
        weights = self._members.get(member)
        if self._averaged:
            weights |= {name: mean.to(weights[name].dtype) for name, mean in self._means[member].mean.items()}
        self.probe.load_state_dict(weights)
        rng = self._rngs[member].fold("validate")  # the same draws at every epoch, so that scores are comparable
        parts = self._held[member].batches(_SCORED)
        predicted = [(self.probe.validate(x, rng=rng), y) for x, y in parts]
        of_rows = None if self._held_weights is None else self._held_weights[member]
        if self._config.noise != "validation":
            return nll(predicted, of_rows), {}
        return self._estimated(predicted, of_rows)

    def _estimated(
        self, predicted: Sequence[tuple[Predictive, Tensor]], weights: Tensor | None
    ) -> tuple[float, dict[str, Tensor]]:
        if weights is None:
            return self.probe.estimated(predicted)
        assert isinstance(self.probe, WeightedLearner)
        return self.probe.estimated(predicted, weights)


def _weights_of(
    data: Sequence[FitData], part: Literal["train", "validation"], device: str
) -> tuple[Tensor | None, Tensor]:
    """Return the weights of each model's rows, 1 in the mean, float32 [model, row], and their sums before [model].

    Without weights they are None and empty.
    """
    every = [(d.train if part == "train" else d.validation).weights for d in data]
    given = [torch.from_numpy(weights) for weights in every if weights is not None and len(weights)]
    if len(given) < len(every):
        return None, torch.zeros(0)
    rows = torch.stack(given)
    return (rows / rows.mean(1, keepdim=True)).float().to(device), rows.sum(1).float().to(device)


def named(name: str, of_models: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the tensors of all models in one mapping; the names begin with ``name`` and the model's number."""
    return {f"{name}.{m}.{key}": value for m, of_one in enumerate(of_models) for key, value in of_one.items()}
