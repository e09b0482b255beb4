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
from typing import Any, Final, Literal

import numpy as np
import torch
from torch import Tensor

from ..artifacts import State, under
from ..config import to_mapping
from ..data.fitdata import FitData
from ..data.tables.formats import LONGEST, other_kind
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
_COUNT: Final = "num_batches_tracked"  # a buffer of batch norm, which files of PyTorch before 0.4.1 lack
_ROWS: Final = 1000  # rows in one forward pass
_SEEN: Final = "pretrained: scores are too good if its weights were trained on rows that are test rows here"


@dataclass(frozen=True)
class PretrainedConfig:
    """The section ``methods.pretrained`` of params.yaml.

    Attributes:
        network: the architecture of the weights; ``python`` for your own network.
        weights: a file with the ``state_dict``, in the format of safetensors or ``torch.save`` (only tensors are read).
            It may be the only ``state_dict`` among the entries of a checkpoint. Names are the module's own, or
            ``trunk.…`` and ``head.…``. The parts ``module.`` and ``_orig_mod.``, which wrappers add to names, are
            removed unless the network's own names have them; so is a first part that all names share, such as
            ``model.`` of Lightning.
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
    scores, misses = list[Tensor](), list[Tensor]()
    for inputs, wanted in _batches(data):
        predictive = spec.predictive(network(inputs)[None])
        scores.append(predictive.log_prob(wanted).sum())
        wrong = predictive.mean.argmax(1) != wanted if classes else (predictive.mean - wanted).square()
        misses.append(wrong.float().sum(0))
    loss = -float(torch.stack(scores).double().sum()) / len(data.train)
    require(math.isfinite(loss), "weights", "must give finite predictions on the training rows", origin)
    stored = {name: value.detach().cpu()[None].contiguous() for name, value in network.state_dict().items()}
    doubt = _doubt(torch.stack(misses).cpu().double().sum(0) / len(data.train), data)
    said: dict[str, Any] = {"doubt": doubt} if doubt else {}
    return State(stored, {"spec": to_mapping(spec), "epochs": 0, "loss": loss, **said})


def _doubt(misses: Tensor, data: FitData) -> str:
    """Return a line if the weights predict the training rows worse than a constant does, else an empty text.

    Args:
        misses: the share of the rows with another class; or, of each target [output], the mean squared error.
    """
    targets = data.train.targets
    if data.task == "classification":
        right, most = 1 - float(misses), float(np.bincount(targets).max() / len(targets))
        if right >= most:
            return ""
        known = f"the most frequent class is right for {most:.0%}"
        cure = "check the order of the classes and the units"
        return f"the weights are right for {right:.0%} of the training rows, {known}: {cure}"
    own = data.transform.targets(targets, "cpu").double().var(0, correction=0)
    if bool((misses <= own).all()):
        return ""
    times = float((misses / own).sqrt().max())
    return f"the means of the weights are {times:.3g} times as wrong as the mean of the training rows: check the units"


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
        if blob[8:9] == b"{":  # after the length of its header
            from safetensors.torch import load

            loaded: object = load(blob)
        else:
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # each of the two formats has its own exceptions
        reason = _reason(blob, path, error)
        raise DataError(f"{path}: must be safetensors or a state_dict of torch.save: {reason}") from None
    return {str(name): value for name, value in _state_dict(loaded, path).items()}


def _reason(blob: bytes, path: Path, error: Exception) -> str:
    """Return the reason why a file of weights cannot be read, with the cure."""
    said = str(error)
    if not blob:
        return "it is empty"
    if "TorchScript" in said:
        return f"it is TorchScript; save its weights: torch.save(torch.jit.load('{path}').state_dict(), 'new.pt')"
    if "Unsupported global" in said or "Unsupported class" in said or "not an allowed global" in said:
        cure = "save the weights alone: torch.save(model.state_dict(), 'new.pt')"
        return f"it holds Python objects, which are never unpickled; {cure}"
    kind = "" if blob.startswith(b"PK") else other_kind(blob[:LONGEST], path.name)
    if "pointer" in kind or "web page" in kind:
        return f"it {kind}"
    return f"it is another format, or not whole; save the weights by torch.save or safetensors ({brief(error)})"


def _state_dict(loaded: object, path: Path) -> Mapping[Any, Tensor]:
    """Return the ``state_dict`` in a loaded file: the file's content, or its only entry that is one.

    Raises:
        DataError: there is none, or several and none under the key ``state_dict``; a tensor has no plain numbers.
    """
    entries = loaded if isinstance(loaded, Mapping) else {}
    found = {key: entry for key, entry in entries.items() if _is_state_dict(entry)}
    if not _is_state_dict(loaded) and len(found) != 1 and "state_dict" not in found:
        rule = "must be a state_dict (name -> tensor), or have one under the key state_dict"
        raise DataError(f"{path}: {rule}" + (f", got {', '.join(map(str, found))}; save one of them" if found else ""))
    weights: Any = loaded if _is_state_dict(loaded) else found.get("state_dict", next(iter(found.values()), None))
    for name, value in weights.items():
        plain = value.layout is torch.strided and not (value.is_quantized or value.is_meta or value.is_complex())
        if not plain:
            got = (
                value.dtype if value.layout is torch.strided and not value.is_meta else f"{value.layout} {value.device}"
            )
            raise DataError(f"{path}: {name} must be a dense tensor of real numbers, got {got}; save it as one")
    return dict(weights)


def _is_state_dict(found: object) -> bool:
    return isinstance(found, Mapping) and bool(found) and all(isinstance(value, Tensor) for value in found.values())


def _unwrapped(network: Network, theirs: Weights) -> tuple[Weights, list[str]]:
    """Return weights without the parts that wrappers add to their names, and the removed parts.

    Parts of the network's own names are kept, and all names are kept if two would become equal.
    """
    own = {part for name in network.state_dict() for part in name.split(".")}
    wrappers = [part for part in _WRAPPERS if part not in own and any(part in name.split(".")[:-1] for name in theirs)]
    names = {name: ".".join(part for part in name.split(".") if part not in wrappers) for name in theirs}
    if len(set(names.values())) < len(names):
        return theirs, []
    found = {names[name]: value for name, value in theirs.items()}
    if "module" in wrappers:
        found.pop("n_averaged", None)  # AveragedModel counts its updates in it
    trunk = {name.removeprefix("trunk.") for name in network.state_dict() if name not in _HEAD and _COUNT not in name}
    while len(first := {name.partition(".")[0] for name in found}) == 1 and not trunk <= found.keys():
        (part,) = first  # such as ``model`` of Lightning
        inner = {name.partition(".")[2]: value for name, value in found.items()}
        if not trunk or not any(trunk <= {name[cut:] for name in inner} for cut in _starts(inner)):
            break
        found, wrappers = inner, [*wrappers, part]
    return found, wrappers


def _starts(names: Mapping[str, Tensor]) -> list[int]:
    """Return the lengths of the first parts that all names share, from none on."""
    first = next(iter(names))
    cuts = [0, *(place + 1 for place, letter in enumerate(first) if letter == ".")]
    return [cut for cut in cuts if all(name.startswith(first[:cut]) for name in names)]


def _summarise(states: Sequence[Sequence[State]], data: Sequence[FitData], config: PretrainedConfig) -> Summary:
    """Warn that the weights may have been trained on evaluation rows, and list the removed parts of names."""
    wrappers = [f"{part}." for part in states[0][0].config.get("taken_off", [])]
    said = f"pretrained: removed {' and '.join(wrappers)} from the names of the weights in {config.weights}"
    doubts = {state.config["doubt"]: None for split in states for state in split if "doubt" in state.config}
    causes = "of the targets (key targets) and the inputs (the data set's normalise)"
    return Summary(warnings=[_SEEN, *[said] * bool(wrappers), *[f"pretrained: {line} {causes}" for line in doubts]])


def _named(network: Network, theirs: Weights, path: str) -> Weights:
    """Return weights under this package's names: the trunk's names, and ``head`` for the remaining layer.

    Raises:
        ConfigError: names are missing or unknown.
    """
    trunk = [name for name in network.state_dict() if name not in _HEAD]
    if set(_HEAD) <= theirs.keys() and {*trunk} <= theirs.keys():
        named = dict(theirs)
    else:
        plain = {name: name.removeprefix("trunk.") for name in trunk}
        rest = [name for name in theirs if name not in plain.values()]
        heads = {name.rpartition(".")[0]: None for name in rest if name.endswith((".weight", ".bias"))}
        named = {name: theirs[key] for name, key in plain.items() if key in theirs}
        if len(heads) == 1:
            (head,) = heads
            named |= {ours: theirs.pop(f"{head}.{ours[5:]}") for ours in _HEAD if f"{head}.{ours[5:]}" in theirs}
            rest = [name for name in rest if name in theirs]
        named |= {name: theirs[name] for name in rest}
    if "head.weight" in named and "head.bias" not in named:
        named["head.bias"] = torch.zeros(len(named["head.weight"]))
    counts = {name: torch.tensor(0) for name in trunk if name.endswith(_COUNT)}
    named = counts | named
    lacks = [name.removeprefix("trunk.") for name in (*trunk, *_HEAD) if name not in named]
    more = [name for name in named if name not in (*trunk, *_HEAD)]
    said = [f"lacks {_few(lacks)}"] * bool(lacks) + [f"has {_few(more)} beside"] * bool(more)
    require(not said, "weights", "must be exactly the weights of this network", f"{path}: {' and '.join(said)}")
    own = network.state_dict()
    for name, value in named.items():
        fits = value.is_floating_point() or not own[name].is_floating_point()
        rule = f"must be real numbers: {name.removeprefix('trunk.')} is quantised without its scale, or no weight"
        require(fits, "weights", rule, f"{path}: {value.dtype}")
    return {name: value.to(own[name].dtype) for name, value in named.items()}


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
        "trajectory": StageSpec(fit, random=False, in_driver=True, summarise=_summarise),
    },
)
