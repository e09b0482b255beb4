"""A trajectory whose only snapshot is a pretrained network, read from a file.

Methods that start from a trajectory's last snapshot (one network, Laplace, last layers, inducing weights) then start
from these weights. Methods that need several snapshots (SWA, SWAG, collapsed inference) use a trajectory ``sgd`` that
has this trajectory as its input.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from ..artifacts import State
from ..data.fitdata import FitData
from ..data.tables.formats import LONGEST, other_kind
from ..errors import DataError, brief, require
from ..files import read_error
from ..method import Inputs, Method, StageSpec, Summary
from ..networks import Network, NetworkConfig
from ..posterior import NetworkSpec
from ..progress import Report
from ..seeds import Seed
from ..training.learner import Weights
from .snapshots import HEAD, Units, begun

_WRAPPERS: Final = ("module", "_orig_mod")  # parts that DataParallel and torch.compile add to names
_COUNT: Final = "num_batches_tracked"  # a buffer of batch norm, which files of PyTorch before 0.4.1 lack
_SEEN: Final = "pretrained: scores are optimistic if its weights were trained on rows that are test rows here"


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
    sha256: str | None = None

    def files(self) -> list[Path]:
        """Return the file of the weights, on whose content the result depends."""
        return [Path(self.weights)]


@torch.no_grad()
def fit(data: FitData, inputs: Inputs, config: PretrainedConfig, *, rng: Seed, report: Report) -> State:
    """Return the weights of a file as a trajectory of one snapshot; ``rng`` is not used.

    Raises:
        ConfigError: the weights do not fit the network, or their outputs do not fit the data.
    """
    classes = data.task == "classification"
    spec = NetworkSpec(config.network, data.input_shape, data.outputs, "categorical" if classes else "gaussian_head")
    network = spec.build(Seed(0))
    path = Path(config.weights)
    try:
        blob = path.read_bytes()
    except OSError as error:
        raise read_error(error, path) from None
    digest = hashlib.sha256(blob).hexdigest()
    require(config.sha256 in (None, digest), "sha256", f"must be the hash of {path} ({digest})", config.sha256)
    try:
        if blob[8:9] == b"{":  # after the length of its header
            from safetensors.torch import load

            loaded: object = load(blob)
        else:
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # each of the two formats has its own exceptions
        message, kind = str(error), "" if blob.startswith(b"PK") else other_kind(blob[:LONGEST], path.name)
        reason = f"it is another format, or not whole; save the weights by torch.save or safetensors ({brief(error)})"
        if not blob:
            reason = "it is empty"
        elif "TorchScript" in message:
            reason = f"it is TorchScript; save its weights: torch.save(torch.jit.load('{path}').state_dict(), 'new.pt')"
        elif any(text in message for text in ("Unsupported global", "Unsupported class", "not an allowed global")):
            cure = "save the weights alone: torch.save(model.state_dict(), 'new.pt')"
            reason = f"it holds Python objects, which are never unpickled; {cure}"
        elif "pointer" in kind or "web page" in kind:
            reason = f"it {kind}"
        raise DataError(f"{path}: must be safetensors or a state_dict of torch.save: {reason}") from None
    saved, wrappers = _unwrapped(network, {str(name): value for name, value in _state_dict(loaded, path).items()})
    state = begun(network, spec, _named(network, saved, config.weights), data, config.targets, config.weights)
    report(1, 1, {"loss": state.config["loss"]})
    return State(state.tensors, state.config | {"taken_off": wrappers}) if wrappers else state


def _state_dict(loaded: object, path: Path) -> Mapping[Any, Tensor]:
    """Return the ``state_dict`` in a loaded file: the file's content, or its only entry that is one.

    Raises:
        DataError: there is none, or several and none under the key ``state_dict``; a tensor has no plain numbers.
    """
    states = dict[object, Any]()  # the state_dicts by their keys; the whole content has the key ""
    for key, entry in ({"": loaded} | (dict(loaded) if isinstance(loaded, Mapping) else {})).items():
        if isinstance(entry, Mapping) and entry and all(isinstance(value, Tensor) for value in entry.values()):
            states[key] = entry
    only = next(iter(states.values())) if len(states) == 1 else None
    weights = states.get("", states.get("state_dict", only))
    if weights is None:
        rule = "must be a state_dict (name -> tensor), or have one under the key state_dict"
        got = f", got {', '.join(map(str, states))}; save one of them" if states else ""
        raise DataError(f"{path}: {rule}{got}")
    for name, value in weights.items():
        dense = value.layout is torch.strided and not value.is_meta
        if not dense or value.is_quantized or value.is_complex():
            got = value.dtype if dense else f"{value.layout} {value.device}"
            raise DataError(f"{path}: {name} must be a dense tensor of real numbers, got {got}; save it as one")
    return dict(weights)


def _unwrapped(network: Network, weights: Weights) -> tuple[Weights, list[str]]:
    """Return weights without the parts that wrappers add to their names, and the removed parts.

    Parts of the network's own names are kept, and all names are kept if two would become equal.
    """
    names = [name for name in network.state_dict() if name not in HEAD]
    parts = {part for name in (*names, *HEAD) for part in name.split(".")}
    wrappers = [w for w in _WRAPPERS if w not in parts and any(w in name.split(".")[:-1] for name in weights)]
    inner = {".".join(part for part in name.split(".") if part not in wrappers): weights[name] for name in weights}
    if len(inner) < len(weights):
        return weights, []
    if "module" in wrappers:
        inner.pop("n_averaged", None)  # AveragedModel counts its updates in it
    trunk = {name.removeprefix("trunk.") for name in names if _COUNT not in name}
    columns = zip(*(name.split(".") for name in inner), strict=False)
    shared = [first for first, *_ in takewhile(lambda parts: len({*parts}) == 1, columns)]  # ``model`` of Lightning
    for count in range(len(shared) + 1):
        within = {".".join(name.split(".")[count:]): value for name, value in inner.items()}
        if trunk <= within.keys():
            return within, [*wrappers, *shared[:count]]
    return inner, wrappers


def _summarise(states: Sequence[Sequence[State]], data: Sequence[FitData], config: PretrainedConfig) -> Summary:
    """Warn that the weights may have been trained on evaluation rows, and list the removed parts of names."""
    wrappers = [f"{part}." for part in states[0][0].config.get("taken_off", [])]
    removed = f"pretrained: removed {' and '.join(wrappers)} from the names of the weights in {config.weights}"
    doubts = {state.config["doubt"]: None for split in states for state in split if "doubt" in state.config}
    causes = "Check the key targets, and the inputs' scale (the data set's normalise)"
    return Summary(warnings=[_SEEN, *[removed] * bool(wrappers), *[f"pretrained: {line} {causes}" for line in doubts]])


def _named(network: Network, weights: Weights, path: str) -> Weights:
    """Return weights under this package's names: the trunk's names, and ``head`` for the remaining layer.

    Raises:
        ConfigError: names are missing or unknown.
    """
    expected = network.state_dict()
    trunk = [name for name in expected if name not in HEAD]
    names = dict[str, str]()  # the module's own names -> this package's
    if not {*trunk, *HEAD} <= weights.keys():
        names = {name.removeprefix("trunk."): name for name in trunk}
        heads = {name.rpartition(".")[0] for name in weights.keys() - names if name.endswith((".weight", ".bias"))}
        names |= {f"{head}.{ours[5:]}": ours for ours in HEAD for head in heads if len(heads) == 1}
    named = {names.get(name, name): value for name, value in weights.items()}
    if "head.weight" in named and "head.bias" not in named:
        named["head.bias"] = torch.zeros(len(named["head.weight"]))
    named = {name: torch.tensor(0) for name in trunk if name.endswith(_COUNT)} | named
    lacks = [name.removeprefix("trunk.") for name in (*trunk, *HEAD) if name not in named]
    more = [name for name in named if name not in (*trunk, *HEAD)]
    faults = [f"lacks {_few(lacks)}"] * bool(lacks) + [f"has {_few(more)} beside"] * bool(more)
    require(not faults, "weights", "must be exactly the weights of this network", f"{path}: {' and '.join(faults)}")
    for name, value in named.items():
        fits = value.is_floating_point() or not expected[name].is_floating_point()
        rule = f"must be real numbers: {name.removeprefix('trunk.')} is quantised without its scale, or no weight"
        require(fits, "weights", rule, f"{path}: {value.dtype}")
    return {name: value.to(expected[name].dtype) for name, value in named.items()}


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


PRETRAINED = Method(
    name="pretrained",
    family="trajectory",
    config=PretrainedConfig,
    tasks=("classification", "regression"),
    stages={"trajectory": StageSpec(fit, random=False, in_driver=True, summarise=_summarise)},
)
