"""Laplace's approximation at the end of a trajectory, with Kronecker-factored curvature.

Ritter, Botev & Barber 2018: each layer's weights are Gaussian around their trained values with precision G ⊗ A + τI.
The curvature is summed over all training rows (or over some of them and scaled up), and τ is the precision of the prior
N(0, I/τ). The layers are independent of each other.

The drawn parameters are the weights and biases of linear and convolutional layers: all layers that have Kronecker
factors (``curvature.layers_with_factors``), or the head alone. Other trained parameters keep their values:
normalisation's scales and shifts, weights under weight norm or spectral norm, attention's matrices. The fit lists the
matrices that are not drawn. The running statistics of batch normalisation are recomputed for each draw, as in SWAG; the
curvature is computed in evaluation mode, with the trajectory's running statistics.

Deviations: τ is added to the product of the factors (see ``curvature``). The trajectory's weights are used as the
posterior's mode; they are the mode only if training converged with the weight decay of this prior. If
``prior_precision`` is null, τ maximises Laplace's evidence on the training rows (Immer et al. 2021); the paper searches
τ on validation rows, together with a factor of the number of rows, which is similar to our ``temperature``.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import torch
from torch import Tensor, nn

from ..artifacts import State
from ..config import LATER
from ..data.fitdata import FitData
from ..data.size import Section
from ..errors import ConfigError, require, require_positive
from ..method import Default, FromModel, Inputs, Method, ModelFit, StageSpec, Summary
from ..networks import Network
from ..networks.base import has_bias
from ..networks.convnet import BatchStatistics
from ..posterior import NetworkDraws, NetworkSpec
from ..progress import Report
from ..seeds import Seed
from .curvature import (
    Factors,
    LayerPosterior,
    decompose,
    evidence_precision,
    kronecker_factors,
    layers_with_factors,
)
from .linearised import LayerGaussian, LinearisedLaplace
from .snapshots import BATCH_NORM, FLOATS, BatchNormConfig, FloatName, Snapshots, batch_norm

_FIXED: Final = "not_drawn"  # a key of a state's config
_SHOWN: Final = 4  # the most names in a warning


@dataclass(frozen=True)
class KfacLaplaceConfig(BatchNormConfig):
    """The section ``methods.kfac_laplace`` of params.yaml.

    Attributes:
        layers: the layers to draw. ``last``: the head. ``all``: every linear and convolutional layer that owns its
            weights and that each pass calls once.
        prior_precision: τ, the precision of the prior N(0, I/τ). null: τ maximises the evidence.
        temperature: the factor of the covariance; 1 gives the posterior.
        rows: the number of training rows for the curvature, which is scaled up to all rows. null: all rows.
        predictive: the outputs of a draw. ``draws``: the outputs of the drawn network. ``linearised``: the outputs of
            the network linearised at the trajectory's last weights, with their running statistics.
        max_factor: the largest allowed side of a Kronecker factor; a larger layer is an error.
        draws: the number of networks to draw at the fit.
        dtype: the floating type of the network's passes, of sums over a batch of rows, and of the draws. Sums over
            batches, and results computed from the factors, are in float64.
    """

    layers: Literal["last", "all"]
    prior_precision: float | None
    temperature: float
    rows: int | None
    predictive: Literal["draws", "linearised"]
    max_factor: int
    draws: int
    dtype: FloatName = field(default="float64", metadata=LATER)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "temperature", "max_factor", "draws", or_null=("prior_precision", "rows"))


def fit(data: FitData, inputs: Inputs, config: KfacLaplaceConfig, *, rng: Seed, report: Report) -> State:
    """Return networks drawn around the last snapshot of the trajectory in ``inputs``.

    Raises:
        ConfigError: the noise is a Student t, a layer is too large for its factors, rows depend on each other
            (``norm: batch_stats``), or the weights or the curvature are all zero, so that the evidence has no maximum.
    """
    (trajectory,) = inputs["trajectory"]
    refresh = config.layers == "all" and config.predictive == "draws"  # otherwise the trunk does not change
    snapshots = Snapshots(trajectory, data, config, rng, refresh)
    spec, last = snapshots.spec, snapshots.last
    spec.require_gaussian("the curvature is of Gaussian noise")
    network = spec.build(Seed(0)).to(data.device)
    network.load_state_dict(last)
    layers = posterior(network, spec, data, config, rng)
    precision = config.prior_precision
    if precision is None:
        try:
            precision = evidence_precision(list(layers.values()))
        except ValueError as error:
            raise ConfigError("methods.kfac_laplace.prior_precision", f"must be a number: {error}", None) from None

    drawn = networks(layers, precision, snapshots, config, rng=rng, report=report)
    report(config.draws, config.draws, {"prior_precision": precision})
    if config.predictive == "draws":
        state = drawn.state()
    else:
        gaussians = {}  # in float32 like the network
        for name, layer in layers.items():
            scale = (config.temperature / (layer.curvature + precision)).sqrt()
            gaussians[name] = LayerGaussian(layer.input_vectors.float(), layer.output_vectors.float(), scale.float())
        state = LinearisedLaplace.of(drawn, last, gaussians).state()
    matrices = [name for name, value in network.named_parameters() if value.ndim > 1 and config.layers == "all"]
    fixed = [name.removeprefix("trunk.") for name in matrices if name.rpartition(".")[0] not in layers]
    return State(state.tensors, {**state.config, _FIXED: fixed}) if fixed else state


def networks(
    layers: Mapping[str, LayerPosterior],
    precision: float,
    snapshots: Snapshots,
    config: KfacLaplaceConfig,
    *,
    rng: Seed,
    report: Report,
) -> NetworkDraws:
    """Return networks drawn from the Gaussians of ``layers`` with the prior precision ``precision``."""
    dtype = FLOATS[config.dtype]
    drawn_from = {name: layer.to(dtype) for name, layer in layers.items()}

    def draw(numbers: range) -> dict[str, Tensor]:
        generators, weights = [rng.fold("draw", number).generator() for number in numbers], dict[str, Tensor]()
        for name, layer in drawn_from.items():
            z = torch.stack([torch.randn(layer.mean.shape, generator=one, dtype=dtype) for one in generators])
            matrices = layer.draw(z, precision, config.temperature)  # [draw, fan_out, fan_in]
            weight, shape = f"{name}.weight", snapshots.last[f"{name}.weight"].shape
            if matrices.shape[-1] == math.prod(shape[1:]):
                weights[weight] = matrices.reshape(len(numbers), *shape)
            else:  # the last column is the bias
                weights[weight] = matrices[..., :-1].reshape(len(numbers), *shape)
                weights[f"{name}.bias"] = matrices[..., -1]
        return weights

    return snapshots.draws(draw, config.draws, report=report)


def summarise(states: Sequence[Sequence[State]], data: Sequence[FitData], config: KfacLaplaceConfig) -> Summary:
    """Warn about weights that are not drawn although ``layers`` is ``all``."""
    fixed: list[str] = states[0][0].config.get(_FIXED, [])
    more = f" and {len(fixed) - _SHOWN} more" if len(fixed) > _SHOWN else ""
    rule = "only linear and convolutional layers that each pass calls once are drawn"
    warning = f"kfac_laplace: the weights {', '.join(fixed[:_SHOWN])}{more} keep their trained values: {rule}"
    return Summary(warnings=[warning] if fixed else [])


@torch.enable_grad()
def posterior(
    network: Network, spec: NetworkSpec, data: FitData, config: KfacLaplaceConfig, rng: Seed
) -> dict[str, LayerPosterior]:
    """Return each layer's Gaussian by the layer's name, in float64 on the CPU; convert the network to ``dtype``.

    Raises:
        ConfigError: see :func:`fit`.
    """
    dtype = FLOATS[config.dtype]
    network.eval().to(dtype)
    rule = "must not be batch_stats for kfac_laplace: its rows depend on each other"
    require(not any(isinstance(m, BatchStatistics) for m in network.modules()), "methods.sgd.network.norm", rule)
    rows, _ = data.drawn(config.rows, rng.fold("curvature"))
    names: Mapping[str, nn.Module] = {"head": network.head}
    if config.layers == "all":
        names = layers_with_factors(network, rows[:2].to(dtype))
    for name, layer in names.items():
        out, columns = _matrix(layer).shape
        side = max(out, columns)
        rule = f"must be >= {side}, for the factors [{columns}, {columns}] and [{out}, {out}] of the layer {name}"
        require(side <= config.max_factor, "methods.kfac_laplace.max_factor", rule, config.max_factor)
    if config.layers == "last":
        with torch.no_grad():
            features = torch.cat([network.trunk(part.to(dtype)) for part in rows.split(128)])
        factors = {"head": kronecker_factors(network.head, features, spec)[""]}
    else:
        factors = kronecker_factors(network, rows, spec, names)
    scale, gaussians = len(data.train) / len(rows), dict[str, LayerPosterior]()
    for name, layer in names.items():
        whole = Factors(factors[name].inputs.cpu(), scale * factors[name].outputs.cpu())
        gaussians[name] = decompose(_matrix(layer).cpu().double(), whole)
    return gaussians


def _matrix(layer: nn.Module) -> Tensor:
    """Return a layer's weights [out, in], with a bias that is a weight as the last column."""
    assert isinstance(layer, nn.Linear | nn.Conv2d)
    weight = layer.weight.detach().flatten(1)
    bias = layer.bias if has_bias(layer) else None
    return weight if bias is None else torch.cat([weight, bias.detach()[:, None]], dim=1)


def _from_model(fit: ModelFit) -> Section:
    """Return all rows, and for all layers a linearised predictive: draws of all layers underfit (Immer et al. 2021)."""
    layers = str(fit.config.get("layers", "last"))
    more = {"layers": layers, "predictive": "draws" if layers == "last" else "linearised", "draws": fit.draws}
    return {**KFAC_LAPLACE.settings, "rows": None, "max_factor": 4096, **more, **batch_norm(fit)}


KFAC_LAPLACE = Method(
    name="kfac_laplace",
    family="trajectory",
    bayesian=True,
    config=KfacLaplaceConfig,
    tasks=("classification", "regression"),
    stages={"student": StageSpec(fit, needs={"trajectory": "one_to_one"}, summarise=summarise)},
    search={"temperature": (1e-3, 1.0, "log")},
    settings={
        "layers": "last",
        "prior_precision": None,
        "temperature": 1.0,
        "rows": 2000,
        "predictive": "draws",
        "max_factor": 2048,
        "draws": 10,
        **BATCH_NORM,
    },
    default=Default(
        0.5,
        "iterates",
        lambda size: {"temperature": 0.1} if size.image else {},
        suits=lambda size: size.task == "classification",
    ),
    from_model=FromModel(_from_model, needs_epochs=False),
)
