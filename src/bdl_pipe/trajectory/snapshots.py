"""A stored trajectory as points in weight space, the network at any such point, and trajectories of one point.

A point is the vector of all parameters. Buffers are not part of it: at each point the running statistics of batch
normalisation are recomputed on training rows, and all other buffers come from the last snapshot.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..artifacts import State, stack, under, unstack
from ..config import read, to_mapping
from ..data.fitdata import FitData, StreamedRows
from ..data.size import Section
from ..errors import require
from ..method import ModelFit
from ..networks import Network
from ..networks.normalisation import has_batch_norm, refresh_batch_norm
from ..posterior import NetworkDraws, NetworkSpec
from ..progress import Report
from ..seeds import Seed
from ..training import snapshots
from ..training.learner import Weights

Units = Literal["own", "transformed"]
FloatName = Literal["float64", "float32"]
FLOATS: Final[Mapping[FloatName, torch.dtype]] = {"float64": torch.float64, "float32": torch.float32}
HEAD: Final = ("head.weight", "head.bias")
_ELEMENTS: Final = 2**20  # the most weights drawn at once: 8 MiB in float64
_FAR: Final = 3.0  # the ratio of errors to stated standard deviations that is doubted
_ROWS: Final = 1000  # rows in one forward pass

BATCH_NORM: Final[Section] = {"batch_norm_rows": 2048, "batch_norm_batch": 64}


def batch_norm(fit: ModelFit) -> Section:
    """Return the keys of :class:`BatchNormConfig` for a user's model, with the batches of its training."""
    return {**BATCH_NORM, "batch_norm_batch": max(2, fit.batch)}


@dataclass(frozen=True)
class BatchNormConfig:
    """The config that all methods that make networks from a trajectory share.

    Attributes:
        batch_norm_rows: the number of training rows for recomputing running statistics, if any. null: all rows.
        batch_norm_batch: the number of rows of a batch in this pass; best near the batch size of training.
    """

    batch_norm_rows: int | None
    batch_norm_batch: int

    def __post_init__(self) -> None:
        rows = self.batch_norm_rows is None or self.batch_norm_rows > 1
        require(rows, "batch_norm_rows", "must be > 1 or null", self.batch_norm_rows)
        require(self.batch_norm_batch > 1, "batch_norm_batch", "must be > 1", self.batch_norm_batch)


@final
class Snapshots:
    """The snapshots of one trajectory, and its network.

    Attributes:
        spec: the network's spec.
        network: the network, on the data's device; its weights are not defined.
        count: the number of snapshots.
        last: every entry of the last snapshot's ``state_dict``.
        moments: the mean and population variance of the iterates, in float64 [weight]. None: they were not kept.
    """

    def __init__(
        self, trajectory: State, data: FitData, config: BatchNormConfig, rng: Seed, refresh: bool = True
    ) -> None:
        """Read the snapshots of ``trajectory``.

        Args:
            config: the settings of running statistics; all points use the same training rows.
            rng: the seed address of the choice of these rows.
            refresh: whether running statistics are recomputed; otherwise the last snapshot's are used.
        """
        self.spec = read(NetworkSpec, trajectory.config["spec"], "spec")
        self._device = torch.device(data.device)
        self.network = self.spec.build(Seed(0)).to(self._device)
        self._stored, kept = snapshots.trained(trajectory), snapshots.moments(trajectory)
        self._names = [name for name, _ in self.network.named_parameters()]
        self.last = {name: past[-1] for name, past in self._stored.items()}
        self.count = len(next(iter(self._stored.values())))
        self.moments = None if kept is None else (self._point(kept[0]), self._point(kept[1]))
        refresh = refresh and has_batch_norm(self.network)
        self._rows = data.drawn(config.batch_norm_rows, rng.fold("rows"))[0] if refresh else None
        self._batch = config.batch_norm_batch

    def flat(self) -> Float[Tensor, "snapshot weight"]:
        """Return all snapshots on the CPU, in their stored type: a copy, which may be large."""
        return torch.cat([self._stored[name].reshape(self.count, -1) for name in self._names], dim=1)

    def named(self, point: Float[Tensor, "*draw weight"]) -> dict[str, Tensor]:
        """Return the parameters at a point by name, in their stored shapes and types; differentiable."""
        like = [self.last[name] for name in self._names]
        parts = point.split([stored.numel() for stored in like], -1)
        lead = point.shape[:-1]
        return {n: p.reshape((*lead, *s.shape)).to(s.dtype) for n, p, s in zip(self._names, parts, like, strict=True)}

    def state_at(self, point: Float[Tensor, " weight"]) -> dict[str, Tensor]:
        """Return the ``state_dict`` at a point, on the CPU, with recomputed running statistics."""
        return self.state_with(self.named(point))

    @torch.no_grad()
    def state_with(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the last snapshot's ``state_dict`` with some of its weights replaced, of any floating type.

        The result is on the CPU, with recomputed running statistics.
        """
        self.network.load_state_dict(self.last | {name: value.to(self.last[name]) for name, value in weights.items()})
        if self._rows is not None:
            refresh_batch_norm(self.network, self._rows, self._batch)
        return {name: value.detach().cpu().clone() for name, value in self.network.state_dict().items()}

    def draws(self, draw: Callable[[range], Mapping[str, Tensor]], count: int, *, report: Report) -> NetworkDraws:
        """Return ``count`` networks with drawn weights; weights that are not drawn come from the last snapshot.

        It can resume after any block of draws, with the same draws.

        Args:
            draw: draw numbers -> the drawn weights by name, stacked [draw, ...], of any floating type.
        """
        weights_of_one = sum(self.last[name].numel() for name in self._names)
        at_once = 1 if self._rows is not None else max(1, _ELEMENTS // weights_of_one)
        saved, drawn, done = report.load(), dict[str, Tensor](), 0
        if saved is not None:
            done = len(next(iter(saved.tensors.values())))
            drawn = {name: _filled(value, count) for name, value in saved.tensors.items()}
        while done < count:
            numbers = range(done, min(done + at_once, count))
            weights = dict(draw(numbers))
            if self._rows is not None:
                block = stack([self.state_with(one) for one in unstack(weights)])
            else:
                block = {name: value.to(self.last[name]) for name, value in weights.items()}
            drawn = drawn or {name: _filled(value[:0], count) for name, value in block.items()}
            for name, value in block.items():
                drawn[name][done : numbers.stop] = value
            done = numbers.stop
            for number in numbers:
                report(number + 1, count)
            if report.due():
                report.save(State({name: value[:done] for name, value in drawn.items()}))
        same = {name: value.expand(count, *value.shape) for name, value in self.last.items() if name not in drawn}
        every = {name: (same | drawn)[name] for name in self.network.state_dict()}
        at_hand = self.network if self._device.type == "cpu" else None
        return NetworkDraws(self.spec, every, at_hand)

    def _point(self, named: Mapping[str, Tensor]) -> Tensor:
        return torch.cat([named[name].flatten() for name in self._names])


def _filled(first: Tensor, count: int) -> Tensor:
    """Return room for ``count`` draws, [draw, ...], which begins with the ``first`` ones."""
    room = first.new_empty(count, *first.shape[1:])
    room[: len(first)] = first
    return room


@torch.no_grad()
def begun(network: Network, spec: NetworkSpec, weights: Weights, data: FitData, targets: Units, origin: str) -> State:
    """Return weights as a trajectory of one snapshot.

    If a regression network predicts only a mean, its variance is constant: the maximum-likelihood value, which is the
    mean squared error on the training rows.

    Args:
        network: a network of ``spec``, into which the weights are loaded.
        weights: every entry of the network's ``state_dict``. For regression the head's rows are means in the units
            ``targets``, or means and log-variances.
        origin: the name of the weights in errors.

    Raises:
        ConfigError: a weight has another shape, or the predictions of the training rows are not finite.
    """
    classes = spec.likelihood == "categorical"
    shapes = {name: list(value.shape) for name, value in network.state_dict().items()}
    for name, value in weights.items():
        fits = list(value.shape) == shapes[name] or (name in HEAD and not classes)
        rule = f"must be weights of this network: {name.removeprefix('trunk.')} must have the shape {shapes[name]}"
        require(fits, "weights", rule, list(value.shape))
    if not classes:
        weights = weights | _head(network, weights, data, targets, origin)
    network.load_state_dict(weights)
    network.to(data.device).eval()
    scores, misses, ratios = list[Tensor](), list[Tensor](), list[Tensor]()
    for inputs, wanted in StreamedRows(data.train, data.transform, data.device).batches(_ROWS):
        predictive = spec.predictive(network(inputs)[None])
        scores.append(predictive.log_prob(wanted).sum())
        wrong = predictive.mean.argmax(1) != wanted if classes else (predictive.mean - wanted).square()
        misses.append(wrong.float().sum(0))
        ratios.append((wrong / (1 if classes else predictive.variance)).double().sum(0))
    loss = -float(torch.stack(scores).double().sum()) / len(data.train)
    require(math.isfinite(loss), "weights", "must give finite predictions on the training rows", origin)
    stored = {name: value.detach().cpu()[None].contiguous() for name, value in network.state_dict().items()}
    misses_of, ratios_of = (torch.stack(sums).cpu().double().sum(0) / len(data.train) for sums in (misses, ratios))
    doubt = _doubt(misses_of, ratios_of, data)
    about = {"spec": to_mapping(spec), "epochs": 0, "loss": loss}
    return State(stored, about | ({"doubt": doubt} if doubt else {}))


def _doubt(misses: Tensor, ratios: Tensor, data: FitData) -> str:
    """Return a line if the weights predict the training rows worse than a constant does, else an empty text.

    The line may also say that the errors are far from what the log-variances say. Where the likelihood of the training
    rows is at its maximum, the mean of the squared errors over the variances is 1.

    Args:
        misses: the share of the rows with another class; or, of each target [output], the mean squared error.
        ratios: for regression, the mean of the squared error over the variance [output].
    """
    targets = data.train.targets
    if data.task == "classification":
        right, most = 1 - float(misses), float(np.bincount(targets).max() / len(targets))
        if right >= most:
            return ""
        shares = f"right for {right:.0%} of the training rows, and the most frequent class for {most:.0%}"
        return f"this model's predictions are {shares}; are the classes in the same order?"
    variance = data.transform.targets(targets, "cpu").double().var(0, correction=0)
    if bool((misses <= variance).all()):
        root = float(ratios[ratios.log().abs().argmax()].sqrt())
        if 1 / _FAR <= root <= _FAR:
            return ""
        said = f"this model's errors on the training rows are {root:.3g} times what its log-variances say"
        return f"{said}; are they logarithms of variances, not of standard deviations?"
    times = float((misses / variance).sqrt().max())
    worse = f"this model's predictions are {times:.3g} times worse than predicting the mean"
    return f"{worse}; are the targets in the same units?"


def _head(network: Network, weights: Weights, data: FitData, targets: Units, origin: str) -> Weights:
    """Return the head for the mean and log-variance of the transformed targets."""
    weight, bias = (weights[name].double() for name in HEAD)
    outputs, wide = data.outputs, network.width
    rule = f"must have a head of {outputs} means, or of {outputs} means and {outputs} log-variances, of {wide} features"
    shape = list(weight.shape)
    require(shape in ([outputs, wide], [2 * outputs, wide]) and list(bias.shape) == shape[:1], "weights", rule, shape)
    transform = data.transform
    if targets == "own" and transform.shift is not None and transform.scale is not None:
        rule = "must be transformed if the data set's targets are logarithms"
        require(not transform.log, "targets", rule, targets)
        shift, scale = transform.shift.double().cpu(), transform.scale.double().cpu()
        weight[:outputs] /= scale[:, None]
        bias[:outputs] = (bias[:outputs] - shift) / scale
        bias[outputs:] -= 2 * scale.log()[: len(bias) - outputs]
    if len(weight) == outputs:
        network.trunk.load_state_dict(under("trunk.", weights))
        trunk, total = network.trunk.to(data.device).eval(), torch.zeros(outputs, dtype=torch.float64)
        for inputs, wanted in StreamedRows(data.train, transform, data.device).batches(_ROWS):
            means = trunk(inputs).double().cpu() @ weight.T + bias
            total += (wanted.double().cpu() - means).square().sum(0)
        variance = total / len(data.train)  # the mean squared error of each target
        rule = "must not fit every training row exactly: the variance is learnt from their errors"
        require(bool((variance > 0).all()), "weights", rule, origin)
        weight, bias = torch.cat([weight, torch.zeros_like(weight)]), torch.cat([bias, variance.log()])
    return dict(zip(HEAD, (weight.float(), bias.float()), strict=True))
