"""Kronecker factors of a network's Gauss–Newton matrix, computed by the package curvlinops.

Martens & Grosse 2015; of convolutions Grosse & Martens 2016, "expand" in Eschenhagen et al. 2023. The matrix is that of
−log p(y | f(x)) summed over rows: Σ_n J_nᵀ H_n J_n with H_n the Fisher information of the outputs, which needs no y_n.
For class probabilities H = diag p − ppᵀ and for a mean of fixed noise H = I/σ²; for a mean and a log-variance, where
the Hessian itself need not be positive, H = diag(1/σ²(x), ½); of a variance with a floor, ½(d log σ²/d output)².

A layer's factors are exact for one row (of a layer without shared weights), and for all rows where the Jacobian from
the layer's outputs on and H are the same for each: a linear model of Gaussian noise. Else a mean of Kronecker products
is replaced with the product of means.
"""

import math
from collections import Counter
from collections.abc import Iterable
from typing import Final, final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ..errors import UserError
from ..posterior import NetworkSpec
from .kronecker import Factors

_BATCH: Final = 128  # rows at once; changes the sums' rounding alone


Layers = dict[str, nn.Linear | nn.Conv2d]


def layers_of(module: nn.Module) -> Layers:
    """Return the linear and convolutional layers, by their name in ``module``."""
    return {name: m for name, m in module.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)}


@torch.enable_grad()
def layers_with_factors(module: nn.Module, inputs: Float[Tensor, "row ..."]) -> Layers:
    """Return the layers that have Kronecker factors, by their name in ``module``.

    They are the linear and convolutional layers whose weight is a parameter of their own (no weight norm or spectral
    norm), which each pass calls once, and on which the outputs depend. A layer whose weights are used without a call,
    as the last one of ``nn.MultiheadAttention`` is, shows neither its inputs nor the gradient at its outputs. Of a
    layer that is called twice a pass, the curvature is no Kronecker product.

    Args:
        inputs: a few rows.
    """
    calls, layers = Counter[str](), layers_of(module)
    own = {name: m for name, m in layers.items() if "weight" in m._parameters and m._parameters.get("bias") is m.bias}
    hooks = [m.register_forward_hook(lambda *_, name=name: calls.update([name])) for name, m in own.items()]
    try:
        outputs = module(inputs)
    finally:
        for hook in hooks:
            hook.remove()
    slopes = torch.autograd.grad(outputs.sum(), [m.weight for m in own.values()], allow_unused=True)
    used = {name for name, slope in zip(own, slopes, strict=True) if slope is not None}
    return {name: m for name, m in own.items() if calls[name] == 1 and name in used}


def kronecker_factors(
    module: nn.Module, inputs: Float[Tensor, "row ..."], spec: NetworkSpec, layers: Iterable[str] | None = None
) -> dict[str, Factors]:
    """Return the factors of linear and convolutional layers, by their names in ``module``.

    Args:
        module: inputs to outputs as ``spec`` reads them (a network or its head), of float64, in evaluation mode; each
            row's outputs depend on that row alone.
        inputs: rows that the curvature is summed over, of any floating type.
        layers: the names of the layers, of :func:`layers_with_factors`; None: all.

    Raises:
        UserError: curvlinops is not installed.
    """
    operator = _operator()
    whole = _Whitened(module, spec)
    inner = {name: f"module.{name}" if name else "module" for name in (layers_of(module) if layers is None else layers)}
    weights = [p for name in inner.values() for p in whole.get_submodule(name).parameters(recurse=False)]
    classes = spec.likelihood == "categorical"
    parts = inputs.split(_BATCH)
    # the Fisher information needs no targets, curvlinops their shapes
    width = spec.outputs * (2 if spec.likelihood == "gaussian_head" else 1)
    shape = () if classes else (width,)
    data = [(x, x.new_zeros(len(x), *shape, dtype=torch.long if classes else x.dtype)) for x in parts]
    kfac = operator(
        whole,
        nn.CrossEntropyLoss(reduction="sum") if classes else nn.MSELoss(reduction="sum"),
        weights,
        data,
        check_deterministic=False,
        fisher_type="type-2",
        num_data=len(inputs),
        num_per_example_loss_terms=1,
        separate_weight_and_bias=False,
    )
    kfac.compute_kronecker_factors()
    found = kfac.state_dict()
    a, g = found["input_covariances"], found["gradient_covariances"]
    return {name: Factors(a[inside], g[inside]) for name, inside in inner.items()}


@final
class _Whitened(nn.Module):
    """A module of outputs whose squared error has the Hessian of the negative log-likelihood.

    They are Sᵀf/√2, SSᵀ = H with S held fixed.
    """

    def __init__(self, module: nn.Module, spec: NetworkSpec) -> None:
        super().__init__()
        self.module, self._spec = module, spec

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.module(inputs.double())  # here, for a batch: all rows may be too many
        if self._spec.likelihood == "categorical":
            return outputs  # curvlinops knows the Hessian of the cross-entropy
        if self._spec.likelihood == "gaussian":
            return outputs / math.sqrt(2 * self._spec.noise_variance)
        mean, free = outputs.chunk(2, dim=-1)
        variance, slope = self._variance(free.detach())
        return torch.cat([mean / (2 * variance).sqrt(), free * slope / 2], dim=-1)

    def _variance(self, free: Tensor) -> tuple[Tensor, Tensor]:
        """Return σ² and d log σ² / d output."""
        if self._spec.variance_floor is None:
            return free.exp(), torch.ones_like(free)
        variance = self._spec.variance_floor + F.softplus(free)
        return variance, free.sigmoid() / variance


def _operator() -> type:
    try:
        from curvlinops import KFACLinearOperator  # half a second, for this method alone
    except ImportError as error:
        ways = "pip install 'bdl-pipe[laplace]' && pip install --no-deps curvlinops-for-pytorch==3.0.1"
        raise UserError(f"kfac_laplace needs the package curvlinops ({error}): {ways}") from None
    return KFACLinearOperator
