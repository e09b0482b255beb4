"""A trajectory whose only snapshot is a pretrained network, read from a file.

Methods that start from a trajectory's last snapshot (one network, Laplace, last layers, inducing weights) then start
from these weights. Methods that need several snapshots (SWA, SWAG, collapsed inference) use a trajectory ``sgd`` that
has this trajectory as its input.

If a regression network predicts only a mean, its variance is constant: the maximum-likelihood value, which is the mean
squared error on the training rows.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

import torch
from torch import Tensor

from ..artifacts import State, under
from ..config import to_mapping
from ..data.fitdata import FitData
from ..errors import DataError, brief, require
from ..files import read_error
from ..method import Inputs, Method, StageSpec, Summary
from ..networks import Network, NetworkConfig
from ..posterior import NetworkSpec
from ..progress import Report
from ..seeds import Seed

Weights = dict[str, Tensor]
Units = Literal["own", "transformed"]
_HEAD: Final = ("head.weight", "head.bias")
_WRAPPERS: Final = ("module", "_orig_mod")  # parts that DataParallel and torch.compile add to names
_ROWS: Final = 1000  # rows in one forward pass
_SEEN: Final = "pretrained: scores are too good if its weights were trained on rows that are test rows here"


@dataclass(frozen=True)
class PretrainedConfig:
    """The section ``methods.pretrained`` of params.yaml.

    Attributes:
        network: the architecture of the weights; ``python`` for your own network.
        weights: a file with the ``state_dict``, in the format of safetensors or ``torch.save`` (only tensors are read).
            Names are the module's own, or ``trunk.…`` and ``head.…``. The parts ``module.`` and ``_orig_mod.``, which
            wrappers add to names, are removed unless the network's own names have them.
        targets: the units of regression outputs. ``own``: the targets' original units. ``transformed``: the units after
            the data set's ``targets`` transform. Inputs are transformed by the data set's ``normalise``; ``none``
            leaves them unchanged.
        sha256: the required hash of the file. null: any content is accepted.
    """

    network: NetworkConfig
    weights: str
    targets: Units = "own"
    sha256: str | None = field(default=None)

    def files(self) -> list[Path]:
        """Return the file of the weights, on whose content the result depends."""
        return [Path(self.weights)]


@torch.no_grad()
def fit(data: FitData, inputs: Inputs, config: PretrainedConfig, *, rng: Seed, report: Report) -> State:
    """Return the weights of a file as a trajectory of one snapshot; ``rng`` is not used.

    Raises:
        ConfigError: the weights do not fit the network, or their outputs do not fit the data.
        DataError: the file cannot be read.
    """
    classes = data.task == "classification"
    spec = NetworkSpec(config.network, data.input_shape, data.outputs, "categorical" if classes else "gaussian_head")
    network = spec.build(Seed(0))
    saved, wrappers = _unwrapped(network, _read(config))
    state = begun(network, spec, _named(network, saved, config.weights), data, config.targets, config.weights)
    report(1, 1, {"loss": state.config["loss"]})
    return State(state.tensors, state.config | {"taken_off": wrappers}) if wrappers else state


@torch.no_grad()
def begun(network: Network, spec: NetworkSpec, weights: Weights, data: FitData, targets: Units, origin: str) -> State:
    """Return weights as a trajectory of one snapshot.

    Args:
        network: a network of ``spec``, into which the weights are loaded.
        weights: every entry of the network's ``state_dict``. For regression the head's rows are means in the units
            ``targets``, or means and log-variances.
        origin: the name of the weights in errors.

    Raises:
        ConfigError: a weight has another shape, or the predictions of the training rows are not finite.
    """
    classes = spec.likelihood == "categorical"
    _require_shapes(network, {name: value for name, value in weights.items() if classes or name not in _HEAD})
    if not classes:
        weights = weights | _head(network, weights, data, targets, origin)
    network.load_state_dict(weights)
    network.to(data.device).eval()
    scores = [spec.predictive(network(x)[None]).log_prob(y).sum() for x, y in _batches(data)]
    loss = -float(torch.stack(scores).double().sum()) / len(data.train)
    require(math.isfinite(loss), "weights", "must give finite predictions on the training rows", origin)
    stored = {name: value.detach().cpu()[None].contiguous() for name, value in network.state_dict().items()}
    return State(stored, {"spec": to_mapping(spec), "epochs": 0, "loss": loss})


def _read(config: PretrainedConfig) -> Weights:
    """Read a ``state_dict`` without executing anything in the file."""
    path = Path(config.weights)
    try:
        blob = path.read_bytes()
    except OSError as error:
        raise read_error(error, path) from None
    found = hashlib.sha256(blob).hexdigest()
    require(config.sha256 in (None, found), "sha256", f"must be the hash of {path} ({found})", config.sha256)
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load

            loaded: object = load(blob)
        else:
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # each of the two formats has its own exceptions
        raise DataError(f"{path}: must be safetensors or a state_dict of torch.save: {brief(error)}") from None
    if isinstance(loaded, Mapping) and isinstance(loaded.get("state_dict"), Mapping):
        loaded = loaded["state_dict"]
    named = dict(loaded) if isinstance(loaded, Mapping) else {}
    if not named or not all(isinstance(value, Tensor) for value in named.values()):
        raise DataError(f"{path}: must be a state_dict (name -> tensor), or have one under the key state_dict")
    return {str(name): value for name, value in named.items()}


def _unwrapped(network: Network, theirs: Weights) -> tuple[Weights, list[str]]:
    """Return weights without the parts that wrappers add to their names, and the removed parts.

    Parts of the network's own names are kept, and all names are kept if two would become equal.
    """
    own = {part for name in network.state_dict() for part in name.split(".")}
    wrappers = [part for part in _WRAPPERS if part not in own and any(part in name.split(".")[:-1] for name in theirs)]
    names = {name: ".".join(part for part in name.split(".") if part not in wrappers) for name in theirs}
    if len(set(names.values())) < len(names):
        return theirs, []
    return {names[name]: value for name, value in theirs.items()}, wrappers


def _summarise(states: Sequence[Sequence[State]], data: Sequence[FitData], config: PretrainedConfig) -> Summary:
    """Warn that the weights may have been trained on evaluation rows, and list the removed parts of names."""
    wrappers = [f"{part}." for part in states[0][0].config.get("taken_off", [])]
    said = f"pretrained: removed {' and '.join(wrappers)} from the names of the weights in {config.weights}"
    return Summary(warnings=[_SEEN, *[said] * bool(wrappers)])


def _named(network: Network, theirs: Weights, path: str) -> Weights:
    """Return weights under this package's names: the trunk's names, and ``head`` for the remaining layer.

    Raises:
        ConfigError: names are missing or unknown.
    """
    trunk = [name for name in network.state_dict() if name not in _HEAD]
    if set(_HEAD) <= theirs.keys() and {*trunk} <= theirs.keys():
        named = dict(theirs)
    else:
        own = {name: name.removeprefix("trunk.") for name in trunk}
        rest = [name for name in theirs if name not in own.values()]
        heads = {name.rpartition(".")[0]: None for name in rest if name.endswith((".weight", ".bias"))}
        named = {name: theirs[key] for name, key in own.items() if key in theirs}
        if len(heads) == 1:
            (head,) = heads
            named |= {ours: theirs.pop(f"{head}.{ours[5:]}") for ours in _HEAD if f"{head}.{ours[5:]}" in theirs}
            rest = [name for name in rest if name in theirs]
        named |= {name: theirs[name] for name in rest}
    if "head.weight" in named and "head.bias" not in named:
        named["head.bias"] = torch.zeros(len(named["head.weight"]))
    lacks = [name.removeprefix("trunk.") for name in (*trunk, *_HEAD) if name not in named]
    more = [name for name in named if name not in (*trunk, *_HEAD)]
    said = [f"lacks {_few(lacks)}"] * bool(lacks) + [f"has {_few(more)} beside"] * bool(more)
    require(not said, "weights", "must be exactly the weights of this network", f"{path}: {' and '.join(said)}")
    return {name: value.to(network.state_dict()[name].dtype) for name, value in named.items()}


def _require_shapes(network: Network, weights: Weights) -> None:
    wide = {name: list(value.shape) for name, value in network.state_dict().items()}
    for name, value in weights.items():
        rule = f"must be weights of this network: {name.removeprefix('trunk.')} must have the shape {wide[name]}"
        require(list(value.shape) == wide[name], "weights", rule, list(value.shape))


def _batches(data: FitData) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the transformed training rows and targets, on the data's device."""
    for start in range(0, len(data.train), _ROWS):
        rows = slice(start, start + _ROWS)
        inputs = data.transform.inputs(data.train.inputs[rows], data.device)
        yield inputs, data.transform.targets(data.train.targets[rows], data.device)


def _head(network: Network, weights: Weights, data: FitData, targets: Units, origin: str) -> Weights:
    """Return the head for the mean and log-variance of the transformed targets."""
    weight, bias = (weights[name].double() for name in _HEAD)
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
        variance = _squared_error(network, weight, bias, data)
        rule = "must not fit every training row exactly: the variance is learnt from their errors"
        require(bool((variance > 0).all()), "weights", rule, origin)
        weight, bias = torch.cat([weight, torch.zeros_like(weight)]), torch.cat([bias, variance.log()])
    return dict(zip(_HEAD, (weight.float(), bias.float()), strict=True))


def _squared_error(network: Network, weight: Tensor, bias: Tensor, data: FitData) -> Tensor:
    """Return the mean squared error of each target on the training rows [output], on the CPU in float64."""
    trunk, total = network.trunk.to(data.device).eval(), torch.zeros(len(weight), dtype=torch.float64)
    for inputs, targets in _batches(data):
        means = trunk(inputs).double().cpu() @ weight.T + bias
        total += (targets.double().cpu() - means).square().sum(0)
    return total / len(data.train)


def _few(names: list[str], shown: int = 3) -> str:
    return ", ".join(names[:shown]) + (f" and {len(names) - shown} more" if len(names) > shown else "")


PRETRAINED = Method(
    name="pretrained",
    config=PretrainedConfig,
    tasks=("classification", "regression"),
    stages={
        "trajectory": StageSpec(fit, in_driver=True, summarise=_summarise),
    },
)
