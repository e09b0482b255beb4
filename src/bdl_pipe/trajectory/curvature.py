"""Kronecker factors of a network's Gauss–Newton matrix, and the Gaussian over a layer's weights that they give.

Martens & Grosse 2015; for convolutions Grosse & Martens 2016, "expand" in Eschenhagen et al. 2023. The loss is −log p(y
| f(x)) summed over rows. The matrix is Σ_n J_nᵀ H_n J_n, where H_n, the Fisher information of the outputs, needs no
y_n. For class probabilities H = diag p − ppᵀ, and for a mean with fixed noise H = I/σ². For a mean and a log-variance,
where the Hessian need not be positive, H = diag(1/σ²(x), ½); for a variance with a floor the second entry is ½(d log
σ²/d output)².

A layer's factors are exact for one row (if the layer has no shared weights), and for all rows if the Jacobian after the
layer and H are the same for each row: a linear model with Gaussian noise. Otherwise the mean of Kronecker products is
approximated by the product of means.

A batch of rows costs one forward pass and, for each output of the network, one backward pass that ends at the layers'
outputs: no gradient by a weight is formed.

With W [out, in] the layer's weights (a bias is the last column), the curvature of the row-major vec W is G ⊗ A, and the
posterior precision is G ⊗ A + τI. In the basis of the factors' eigenvectors, A = QDQᵀ and G = PEPᵀ, this matrix is
diagonal with entries e_i d_j + τ, so a draw around M is

    W = M + √T · P (Z ∘ (e dᵀ + τ)^−½) Qᵀ,   Z standard normal [out, in].

Deviation: Ritter, Botev & Barber 2018 add √τI to each factor, (G + √τI) ⊗ (A + √τI). The sum above is exact and costs
the same (as in Immer et al. 2021).
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ..networks.base import has_bias
from ..posterior import NetworkSpec

_BATCH: Final = 128  # rows at a time; affects only the rounding of sums

Layers = dict[str, nn.Linear | nn.Conv2d]


@dataclass(frozen=True)
class Factors:
    """The curvature G ⊗ A of one layer, summed over rows, in float64.

    Attributes:
        inputs: A, the mean outer product of the layer's inputs, with a last entry 1 if the layer has a bias.
        outputs: G, the summed outer product of the gradients at the layer's outputs.
    """

    inputs: Float[Tensor, "fan_in fan_in"]
    outputs: Float[Tensor, "fan_out fan_out"]


def layers_of(module: nn.Module) -> Layers:
    """Return the linear and convolutional layers by their names in ``module``."""
    return {name: m for name, m in module.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)}


@torch.enable_grad()
def layers_with_factors(module: nn.Module, inputs: Float[Tensor, "row ..."]) -> Layers:
    """Return the layers that have Kronecker factors, by their names in ``module``.

    These are linear and convolutional layers that own their weight (no weight norm or spectral norm), that each pass
    calls once, and that the outputs depend on. A bias that is a constant has no curvature. Hooks do not record the
    inputs and output gradients of a layer whose weights are used without a call, such as the last layer of
    ``nn.MultiheadAttention``. The curvature of a layer that is called twice in a pass, or of a convolution with groups,
    is not a Kronecker product.

    Args:
        inputs: a few rows.
    """
    calls, owners = Counter[str](), Layers()
    for name, m in layers_of(module).items():
        owns = "weight" in m._parameters and "bias" in {**m._parameters, **m._buffers}
        if owns and getattr(m, "groups", 1) == 1:
            owners[name] = m
    hooks = [m.register_forward_hook(lambda *_, name=name: calls.update([name])) for name, m in owners.items()]
    try:
        outputs = module(inputs)
    finally:
        for hook in hooks:
            hook.remove()
    slopes = torch.autograd.grad(outputs.sum(), [m.weight for m in owners.values()], allow_unused=True)
    used = {name for name, slope in zip(owners, slopes, strict=True) if slope is not None}
    return {name: m for name, m in owners.items() if calls[name] == 1 and name in used}


def kronecker_factors(
    module: nn.Module, inputs: Float[Tensor, "row ..."], spec: NetworkSpec, layers: Iterable[str] | None = None
) -> dict[str, Factors]:
    """Return the factors of linear and convolutional layers, by their names in ``module``.

    Passes, and sums over a batch of rows, are in the module's floating type; sums over batches are in float64.

    Args:
        module: a network or its head, in evaluation mode, whose outputs ``spec`` describes. The outputs of a row must
            depend on that row alone.
        inputs: the rows to sum the curvature over, of any floating type.
        layers: the names of some of :func:`layers_with_factors`. None: all of them.
    """
    every = layers_of(module)
    chosen = {name: every[name] for name in (every if layers is None else layers)}
    dtype = next(module.parameters()).dtype
    a, g = dict[str, Tensor](), dict[str, Tensor]()
    for part in inputs.split(_BATCH):
        with torch.enable_grad(), _watched(chosen) as seen:
            outputs = module(part.to(dtype))  # a batch at a time, since all rows in float64 may need too much memory
        for name, (entered, _) in seen.items():
            rows = _input_rows(chosen[name], entered)
            _add(a, name, _gram(rows).div_(len(inputs) * (len(rows) // len(part))))
        outgoing = {name: leaving for name, (_, leaving) in seen.items()}
        for column in _roots(outputs.detach(), spec).movedim(-1, 0).contiguous():
            slopes = torch.autograd.grad(outputs, list(outgoing.values()), column, retain_graph=True)
            for name, slope in zip(outgoing, slopes, strict=True):
                by_place = slope.movedim(1, -1) if isinstance(chosen[name], nn.Conv2d) else slope
                _add(g, name, _gram(by_place.flatten(0, -2)))
    return {name: Factors(a[name], g[name]) for name in chosen}


@contextmanager
def _watched(layers: Layers) -> Iterator[dict[str, tuple[Tensor, Tensor]]]:
    """Inside the block, each call of a layer records its inputs and outputs under the layer's name."""
    seen: dict[str, tuple[Tensor, Tensor]] = {}

    def keep(name: str, inputs: tuple[Tensor], outputs: Tensor) -> Tensor:
        seen[name] = inputs[0].detach(), outputs
        return outputs.clone()  # a later operation may change the outputs in place

    hooks = [m.register_forward_hook(lambda _, x, y, name=name: keep(name, x, y)) for name, m in layers.items()]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _input_rows(layer: nn.Linear | nn.Conv2d, inputs: Tensor) -> Float[Tensor, "place fan_in"]:
    """Return the input of each use of the weights, with a last entry 1 for a bias that is a weight."""
    if isinstance(layer, nn.Conv2d):
        sides = layer._reversed_padding_repeated_twice
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        padded = F.pad(inputs, sides, mode=mode) if any(sides) else inputs
        inputs = F.unfold(padded, layer.kernel_size, layer.dilation, 0, layer.stride).mT  # [row, place, fan_in]
    if not has_bias(layer):
        return inputs.flatten(0, -2)
    with_one = inputs.new_empty(*inputs.shape[:-1], inputs.shape[-1] + 1)
    with_one[..., :-1], with_one[..., -1] = inputs, 1
    return with_one.flatten(0, -2)


def _gram(rows: Float[Tensor, "place side"]) -> Float[Tensor, "side side"]:
    return torch.einsum("ni,nj->ij", rows, rows).double()


def _add(sums: dict[str, Tensor], name: str, term: Tensor) -> None:
    sums[name] = sums[name].add_(term) if name in sums else term


def _roots(outputs: Float[Tensor, "row output"], spec: NetworkSpec) -> Float[Tensor, "row output column"]:
    """Return S with SSᵀ = H for each row."""
    if spec.likelihood == "categorical":
        p = outputs.softmax(-1)
        return p.sqrt().diag_embed() - p[:, :, None] * p.sqrt()[:, None]
    two = torch.full_like(outputs, math.sqrt(2))  # by division, which keeps the bits of stored results
    if spec.likelihood == "gaussian":
        return (two / (2 * spec.noise_of(outputs).double()).sqrt()).to(two).diag_embed()
    (mean_two, free_two), (_, free) = two.chunk(2, dim=-1), outputs.chunk(2, dim=-1)
    if spec.variance_floor is None:
        variance, slope = free.exp(), torch.ones_like(free)
    else:
        variance = spec.variance_floor + F.softplus(free)
        slope = free.sigmoid() / variance  # d log σ² / d output
    return torch.cat([mean_two / (2 * variance).sqrt(), free_two / 2 * slope], dim=-1).diag_embed()


@dataclass(frozen=True)
class LayerPosterior:
    """The posterior N(M, T (G ⊗ A + τI)⁻¹) of one layer's weights, for any τ and T.

    Attributes:
        mean: M.
        input_vectors, output_vectors: Q and P, eigenvectors as columns.
        curvature: e dᵀ, the eigenvalues of G ⊗ A.
    """

    mean: Float[Tensor, "fan_out fan_in"]
    input_vectors: Float[Tensor, "fan_in fan_in"]
    output_vectors: Float[Tensor, "fan_out fan_out"]
    curvature: Float[Tensor, "fan_out fan_in"]

    def draw(
        self, z: Float[Tensor, "*draw fan_out fan_in"], prior_precision: float, temperature: float
    ) -> Float[Tensor, "*draw fan_out fan_in"]:
        """Return the weights W for the standard normal numbers Z, a linear map."""
        scaled = z * (self.curvature + prior_precision).rsqrt()
        return self.mean + math.sqrt(temperature) * self.output_vectors @ scaled @ self.input_vectors.T

    def to(self, dtype: torch.dtype) -> "LayerPosterior":
        """Return the posterior in another floating type."""
        return LayerPosterior(**{name: value.to(dtype) for name, value in vars(self).items()})


def decompose(mean: Float[Tensor, "fan_out fan_in"], factors: Factors) -> LayerPosterior:
    """Return the posterior of the weights ``mean``; eigenvalues that are negative by rounding are set to zero."""
    (d, q), (e, p) = torch.linalg.eigh(factors.inputs), torch.linalg.eigh(factors.outputs)
    return LayerPosterior(mean, q, p, torch.outer(e.clamp_min(0), d.clamp_min(0)))


def evidence_precision(layers: Sequence[LayerPosterior]) -> float:
    """Return the prior precision τ of all layers together that maximises Laplace's evidence at their means.

    Up to terms without τ the log evidence is ½[P log τ − τ‖w‖² − Σ_k log(λ_k + τ)], with P weights w and the
    curvature's eigenvalues λ_k (Immer et al. 2021). Its slope is zero where τ‖w‖² = Σ_k λ_k/(λ_k + τ), the number of
    weights that the data determine (MacKay 1992). The left side rises with τ and the right side falls, so there is one
    such τ.

    Raises:
        ValueError: the means or the curvature are all zero, so that the evidence has no maximum at τ > 0.
    """
    eigenvalues = np.concatenate([layer.curvature.flatten().numpy(force=True) for layer in layers])
    squared = sum(float(layer.mean.square().sum()) for layer in layers)
    if squared == 0 or not eigenvalues.any():
        raise ValueError("the evidence has no maximum, because weights or curvature are all zero")
    from scipy.optimize import brentq  # here, because the import takes half a second

    def slope(log_precision: float) -> float:
        precision = math.exp(log_precision)
        return precision * squared - float((eigenvalues / (eigenvalues + precision)).sum())

    high = math.log(eigenvalues.size / squared)  # at ``high`` the left side is P, and the right side is less than P
    low = high - 1.0
    while slope(low) > 0:
        low -= 2 * (high - low)
    return math.exp(brentq(slope, low, high, xtol=1e-12, rtol=1e-12))
