"""The conversion of a deterministic network into a Bayesian network."""

import copy
import fnmatch
import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Final

import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from ..errors import UserError, require
from ..networks.base import WEIGHTED, has_bias
from ..seeds import Seed
from .config import MIXTURES, Kind, WeightConfig
from .layers import Inducing, Shared, Weights, inducing_posterior
from .low_rank import MatrixNormalWeights, RankOneWeights, TiedWeights
from .network import Bayesian, Place
from .weightspace import FactorisedWeights, FullCovarianceWeights, IndependentWeights, LocalLayer

_OPTIONS: Final = {f.name for f in fields(WeightConfig)} - {"kind"}


def bayesianize(
    network: nn.Module,
    kind: Kind | Mapping[str, Mapping[str, Any] | None] = "ffg_u",
    *,
    shared: tuple[int, int] | None = None,
    rng: Seed = Seed(0),
    **options: Any,
) -> Bayesian:
    """Return a copy of ``network`` with random weights in its linear and convolutional layers.

    ``network`` is not changed. A convolution's weight is the matrix out × (in/groups·kernel), with a bias as the last
    column. Kinds of inducing weights (``_u``) have new initial values; kinds of weights (``_w``) have the given weights
    as means.

    Args:
        kind: the kind of all layers, or a mapping from patterns of layer names (``fnmatch``; the first match counts) to
            fields of :class:`WeightConfig`: ``{"fc": {"kind": "fcg_w"}, "layer4.*": {"rows": 32}}``. Layers without a
            matching pattern, or with a pattern that maps to None, are not converted.
        shared: the rows and cols of global inducing weights (appendix H). With None, each layer has its own.
        rng: the seed address of initial values, and of draws in calls without noise.
        options: fields of :class:`WeightConfig` for all layers.

    Raises:
        ConfigError: a number or name is invalid, or a full covariance would be over too many weights.
        UserError: a chosen layer cannot be converted, or no layer is left to convert.
    """
    for name in options:
        require(name in _OPTIONS, name, f"must be one of {', '.join(sorted(_OPTIONS))}")
    network = copy.deepcopy(network)
    chosen = _choose(network, {"*": {"kind": kind}} if isinstance(kind, str) else kind, options)
    if not chosen:
        raise UserError("the network has no linear or convolutional layer to convert")
    members = {c.members for c in chosen.values() if c.kind in MIXTURES}
    require(len(members) <= 1, "members", "must be the same for all layers, which change members together", members)
    layers, places = dict[str, Weights](), dict[str, Place]()
    for name, config in chosen.items():
        layer, generator = network.get_submodule(name), rng.fold("start", name).generator()
        key = name.replace(".", "/") or "network"
        key = (
            f"{key}/" if key in dir(nn.ModuleDict) else key
        )  # a key of a ModuleDict has no dots and is no method's name
        layers[key] = _distribution(layer, name, config, generator, joint=shared is not None)
        places[key] = Place(name, tuple(layer.weight.shape), has_bias(layer))  # type: ignore[arg-type]
        network = _emptied(network, layer, local=isinstance(layers[key], IndependentWeights))
    return Bayesian(network, layers, places, _shared(layers, chosen, shared, rng), rng)


def _choose(
    network: nn.Module, patterns: Mapping[str, Mapping[str, Any] | None], options: Mapping[str, Any]
) -> dict[str, WeightConfig]:
    """Return the config of each layer to convert, by name."""
    chosen: dict[str, WeightConfig] = {}
    unused, owners = set(patterns), dict[int, str]()
    for name, module in network.named_modules():
        fitting = [p for p in patterns if fnmatch.fnmatchcase(name, p)]
        computes = isinstance(module, Bayesian) or is_parametrized(module)  # its own weights
        if not fitting or not (computes or any(p.ndim > 1 for p in module.parameters(recurse=False))):
            continue  # a container, or a normalisation layer, whose weights are not converted
        unused -= set(fitting)
        fields_of_pattern = patterns[fitting[0]]
        if fields_of_pattern is None:
            continue
        _check(name, module, owners)
        values = {**options, **fields_of_pattern}
        for key in values:
            require(key in _OPTIONS | {"kind"}, f"{fitting[0]}.{key}", "is not a field of a weight's config")
        chosen[name] = WeightConfig(**values)
    for pattern in sorted(unused - {"*"}):
        require(False, "kind", "must have patterns that fit a layer with weights", pattern)
    return chosen


def _check(name: str, module: nn.Module, owners: dict[int, str]) -> None:
    """Raise UserError unless the layer can be converted."""
    called = f"layer {name!r} ({type(module).__name__})"
    if type(module) not in WEIGHTED:
        names = ", ".join(layer.__name__ for layer in WEIGHTED)
        raise UserError(f"{called} cannot be converted: only {names} can; name the layers to convert by patterns")
    extra = {n for n, _ in module.named_parameters(recurse=False)} - {"weight", "bias"}
    if extra or not torch.is_floating_point(module.weight):  # type: ignore[arg-type]
        raise UserError(f"{called} cannot be converted: its weight must be one real parameter")
    first = owners.setdefault(id(module.weight), name)
    if first != name:
        raise UserError(f"{called} cannot be converted: it shares its weight with {first!r}")


def _distribution(
    layer: nn.Module, name: str, config: WeightConfig, generator: torch.Generator, *, joint: bool
) -> Weights:
    """Return the initial distribution of a layer's matrix, in the layer's type and on its device."""
    matrix = layer.weight.detach().flatten(1)  # type: ignore[operator]
    if has_bias(layer):  # the last column
        matrix = torch.cat([matrix, layer.bias.detach()[:, None]], 1)  # type: ignore[operator]
    out, columns = matrix.shape
    scale = config.prior_scale / math.sqrt(columns) if config.prior_sd is None else config.prior_sd
    size = {"fcg_u": config.rows * config.cols, "fcg_w": out * columns}.get(config.kind, 0)
    if size > config.full_limit and not (joint and config.kind == "fcg_u"):
        rule = f"must be >= {size} for the full covariance of {name!r}, {size * (size + 1) // 2:,} numbers"
        require(False, "full_limit", rule, config.full_limit)
    if config.kind == "ffg_w":
        weights: Weights = FactorisedWeights(matrix, config, scale)
    elif config.kind == "fcg_w":
        weights = FullCovarianceWeights(matrix, config, scale)
    elif config.kind == "matrix_normal_w":
        weights = MatrixNormalWeights(matrix, config, scale)
    elif config.kind == "k_tied_w":
        weights = TiedWeights(matrix, config, scale, generator)
    elif config.kind == "rank1_w":
        weights = RankOneWeights(matrix, config, scale, generator)
    else:
        posterior = None if joint else inducing_posterior(config, generator)
        weights = Inducing((out, columns), config, scale, posterior, generator)
    return weights.to(matrix.device, matrix.dtype)


def _shared(
    layers: Mapping[str, Weights], chosen: Mapping[str, WeightConfig], shared: tuple[int, int] | None, rng: Seed
) -> Shared | None:
    if shared is None:
        return None
    alike = {(c.kind, c.cols) for c in chosen.values() if c.kind.endswith("_u")}
    require(len(alike) == 1, "shared", "needs inducing layers (_u) of one kind and one cols", sorted(alike))
    require(min(shared) > 0, "shared", "must be > 0", shared)
    rows = {
        k: c.rows for (k, layer), c in zip(layers.items(), chosen.values(), strict=True) if isinstance(layer, Inducing)
    }
    first = next(c for c in chosen.values() if c.kind.endswith("_u"))
    config = replace(first, rows=shared[0], cols=shared[1])
    size = shared[0] * shared[1]
    fits = config.kind != "fcg_u" or size <= config.full_limit
    require(fits, "full_limit", f"must be >= {size} for the full covariance of the shared weights", config.full_limit)
    joint = Shared(rows, first.cols, config, rng.fold("start of shared").generator())
    like = next(p for layer in layers.values() if isinstance(layer, Inducing) for p in layer.parameters())
    return joint.to(like.device, like.dtype)


def _emptied(network: nn.Module, layer: nn.Module, *, local: bool) -> nn.Module:
    """Remove the layer's weights from the network; each call passes drawn weights instead."""
    for name, like in list(layer.named_parameters(recurse=False)):
        delattr(layer, name)
        layer.register_buffer(name, torch.empty(0, device=like.device, dtype=like.dtype), persistent=False)
    if not local:
        return network
    holder = LocalLayer(layer)
    if layer is network:
        return holder
    for parent in list(network.modules()):
        for name, child in list(parent._modules.items()):  # every occurrence; named_children yields only the first
            if child is layer and parent is not holder:
                setattr(parent, name, holder)
    return network
