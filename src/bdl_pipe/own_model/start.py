"""A method's inputs in place of the pipeline's artifacts: the data of a loader, and a trajectory of one snapshot.

Inputs do not change. Regression targets are standardised as in the pipeline, and the head is rescaled with them. Some
layers keep point weights when a method converts layers to random weights (:func:`points`).
"""

import copy
import re
from dataclasses import replace
from typing import Any, Final, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..artifacts import State
from ..config import read, to_mapping
from ..data.examples import Examples
from ..data.fitdata import FitData
from ..data.normalise import target_constants
from ..data.transform import Transform
from ..errors import DataError, UserError, require
from ..networks.base import WEIGHTED
from ..posterior import NetworkSpec
from ..predictive import Gaussian
from ..seeds import Seed
from ..training.snapshots import snapshot
from ..trajectory.curvature import layers_with_factors
from ..trajectory.linearised import LinearisedDraws
from ..trajectory.snapshots import begun
from .module import Registered, asked
from .rows import LoadedRows, require_targets
from .trunk import ModuleTrunk

_LINEARISED: Final = (
    "torch.func.jvp can linearise, for all layers: without NumPy, without changes of weights or buffers in place, and "
    "with setup_context in functions of its own; or pass config={'layers': 'last'}"
)
_ROWS: Final = 1000  # rows of one forward pass
_MOST_PRECISE: Final = 100.0  # the largest λ_n, since errors on training rows are too small


def transform_of(rows: LoadedRows) -> Transform:
    """Return the transform that keeps inputs unchanged and standardises targets of regression.

    Raises:
        DataError: a target is constant.
    """
    leave = Transform("table", torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64))
    if rows.task == "classification":
        return leave
    shift, scale = target_constants(rows.examples.targets, "standardise", "train_loader")
    return replace(leave, shift=torch.from_numpy(shift), scale=torch.from_numpy(scale))


def fit_data(rows: LoadedRows, outputs: int, transform: Transform, device: torch.device) -> FitData:
    """Return the data of a fit in which all rows are training rows.

    Raises:
        DataError: a label is not the index of an output, or the number of outputs does not fit the targets.
    """
    targets = rows.examples.targets
    if rows.task == "classification":
        rule = "must have an output for each class, two or more (for regression pass task='regression')"
        require(outputs > 1, "model", rule, outputs)
        require_targets(rows, "train_loader", outputs)
    elif outputs not in (targets.shape[1], 2 * targets.shape[1]):
        columns = targets.shape[1]
        rule = f"outputs must be {columns} means, or {columns} means and {columns} log-variances"
        raise DataError(f"model: {rule}, for targets of {columns} columns, got {outputs}")
    classes = tuple(map(str, range(outputs))) if rows.task == "classification" else ()
    nothing = Examples(rows.examples.inputs[:0], targets[:0])
    return FitData(rows.task, rows.examples, nothing, transform, classes, str(device))


def trajectory(model: Registered, data: FitData) -> State:
    """Return the model's weights as a trajectory of one snapshot.

    Raises:
        ConfigError: the model's predictions of the training rows are not finite.
    """
    classes = data.task == "classification"
    spec = NetworkSpec(model.config, data.input_shape, data.outputs, "categorical" if classes else "gaussian_head")
    return begun(spec.build(Seed(0)), spec, model.weights(), data, "own", "model")


def with_fixed_noise(first: State, model: Registered, data: FitData) -> State:
    """Return a trajectory without the log-variances that the model lacks; its noise is that of the model's errors.

    The noise of each target is the mean square of its errors on the training rows. A model that has log-variances, or
    that predicts classes, is returned unchanged.
    """
    columns = data.outputs
    if data.task == "classification" or model.head.out_features != columns:
        return first
    variances = first.tensors["head.bias"][-1, columns:].double().exp()
    noise = tuple(float(value) for value in variances)
    spec = NetworkSpec(model.config, data.input_shape, columns, "gaussian", noise)
    means = {name: first.tensors[name][:, :columns].contiguous() for name in ("head.weight", "head.bias")}
    return State({**first.tensors, **means}, {**first.config, "spec": to_mapping(spec)})


def require_linearisable(first: State, data: FitData) -> None:
    """Raise UserError if torch cannot linearise the model by the layers that ``kfac_laplace`` draws.

    The predictions linearise it; the error comes before the fit and not after it.
    """
    spec, weights = read(NetworkSpec, first.config["spec"], "spec"), snapshot(first, -1)
    network, rows = spec.build(Seed(0)).eval(), torch.from_numpy(data.train.inputs[:2])
    network.load_state_dict(weights)
    drawn = layers_with_factors(network, rows)
    moved = {name: value + (name.rpartition(".")[0] in drawn) for name, value in weights.items()}
    draws = LinearisedDraws(spec, {name: torch.stack([value, moved[name]]) for name, value in weights.items()})
    asked(_LINEARISED, lambda: draws.predict(rows))


def chain_start(start: State, model: Registered, data: FitData) -> tuple[State, float | None]:
    """Return the start of chains, without dropout, and the precision of the targets' noise, None for classes.

    The noise of regression is one variance, the mean square of the model's errors on the training rows.

    Raises:
        UserError: the model has batch norm, or fits every training row exactly.
    """
    layers = model.trunk.module.named_modules()
    norms = [name for name, layer in layers if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
    if norms:
        raise UserError(
            f"sgmcmc needs a model without batch norm, which makes rows depend on each other, got {norms[0]}"
        )
    classes = data.task == "classification"
    shape, outputs = data.input_shape, data.outputs
    weights, precision = snapshot(start, -1), None
    if not classes:
        error = _squared_error(NetworkSpec(model.config, shape, outputs, "gaussian_head"), weights, data)
        rule = "must not fit every training row exactly: the chains take their noise from its errors"
        require(error > 0, "model", rule, error)
        precision = min(1 / error, _MOST_PRECISE)
        weights |= {name: weights[name][:outputs] for name in ("head.weight", "head.bias")}
    config = model.without_dropout.config
    spec = NetworkSpec(config, shape, outputs, "categorical" if classes else "gaussian", 1 / (precision or 1.0))
    stored = {name: value[None].contiguous() for name, value in weights.items()}
    return State(stored, {**start.config, "spec": to_mapping(spec)}), precision


@torch.no_grad()
def _squared_error(spec: NetworkSpec, weights: dict[str, Tensor], data: FitData) -> float:
    """Return the mean square error of the standardised training targets."""
    network, total = spec.build(Seed(0)), 0.0
    network.load_state_dict(weights)
    network.to(data.device).eval()
    for inputs, targets in data.rows("train", data.device).batches(_ROWS):
        predictive = spec.predictive(network(inputs)[None])
        assert isinstance(predictive, Gaussian)
        total += float((targets - predictive.mean).double().square().sum())
    return total / (len(data.train) * data.outputs)


def points(trunk: ModuleTrunk, kind: str, probe: Float[Tensor, "row 1 1 width"]) -> list[str]:
    """Name the layers with matrices that the method ``kind`` cannot make random; the model itself has the name "".

    These are layers of unsupported types and, for ``ffg_w``, layers with a weight or bias that the model reads, since a
    converted layer has no such attribute: a torch encoder layer reads the weight for its fast path, a patch embedding
    for its type.
    """
    seen = _looked_at(trunk, probe) if kind == "ffg_w" else set()
    return [
        name
        for name, layer in trunk.module.named_modules()
        if any(weight.ndim > 1 for weight in layer.parameters(recurse=False))
        and (type(layer) not in WEIGHTED or name in seen)
    ]


def pattern(name: str) -> str:
    """Return a pattern that matches a layer's name in the network, and no other name."""
    return re.sub(r"([*?[])", r"[\1]", ".".join(filter(None, ("trunk.module", name))))


@final
class _Watched(nn.Module):
    """A layer that records whether code outside of it reads its tensors."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.looked_at = layer, False

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.layer(inputs)
        return found

    def __getattr__(self, name: str) -> Any:
        if name not in ("weight", "bias"):
            return super().__getattr__(name)
        self.looked_at = True
        return getattr(self.layer, name)


@torch.no_grad()
def _looked_at(trunk: ModuleTrunk, probe: Tensor) -> set[str]:
    """Name the linear and convolutional layers with a weight or bias that the model reads in a pass of evaluation."""
    trunk = copy.deepcopy(trunk).eval()
    watched = {name: _Watched(m) for name, m in trunk.module.named_modules() if name and type(m) in WEIGHTED}
    for name, layer in watched.items():
        trunk.module.set_submodule(name, layer)
    trunk(probe.cpu())
    return {name for name, layer in watched.items() if layer.looked_at}
