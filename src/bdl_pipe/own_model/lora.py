"""Low-rank adapters: a few weights in a large model, over which a posterior is fitted; the others stay as they are.

Hu et al. 2022, section 4.1: a linear layer W x + b becomes W x + b + (α/r) B A x with A [r, in] and B [out, r]. W and b
are frozen, A is random and B zero, so that the model's outputs are the same at first. Laplace's approximation over A
and B is that of Yang et al. 2024 (Laplace-LoRA): :func:`~.bayesianise.bayesianise` treats A and B as the linear layers
that they are. Adapters of the package peft are linear layers, too, and need nothing of this module.

Deviation: A is N(0, 1/in) as in the paper; peft draws it from a uniform distribution of variance 1/(3 in). There is no
dropout in front of A.
"""

import copy
import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..errors import UserError, require
from ..networks.base import lecun_normal, linear_layers, skip_init
from ..seeds import Seed

_TRANSPOSED: Final = "Conv1D"  # the linear layer of GPT-2 in transformers; its weight is [in, out]


@final
class LowRank(nn.Module):
    """A frozen linear layer with an adapter.

    Attributes:
        base: the layer; its weights need no gradient.
        down, up: A and B.
        scale: α/r.
    """

    def __init__(self, base: nn.Module, rank: int, alpha: float, generator: torch.Generator) -> None:
        """Adapt ``base``, an ``nn.Linear`` or a ``Conv1D`` of transformers."""
        super().__init__()
        weight = _matrix(base)
        outputs, inputs = weight.shape
        self.base, self.scale = base, alpha / rank
        self.down = lecun_normal(skip_init(nn.Linear, inputs, rank, bias=False), generator)
        self.up = skip_init(nn.Linear, rank, outputs, bias=False)
        nn.init.zeros_(self.up.weight)
        self.down.to(weight.device, weight.dtype), self.up.to(weight.device, weight.dtype)

    def forward(self, inputs: Float[Tensor, "*place in"]) -> Float[Tensor, "*place out"]:
        outputs: Tensor = self.base(inputs)
        return outputs + self.scale * self.up(self.down(inputs))

    @property
    def weight(self) -> Tensor:
        """Return W + (α/r) B A, in the base's own shape, for models that read a layer's weight."""
        change = self.scale * self.up.weight @ self.down.weight
        weight = cast(Tensor, self.base.weight)
        return weight + (change.T if type(self.base).__name__ == _TRANSPOSED else change)

    @property
    def bias(self) -> Tensor | None:
        """Return the base's bias."""
        return cast(Tensor | None, self.base.bias)


def lora(
    model: nn.Module,
    *,
    rank: int = 8,
    alpha: float = 16.0,
    layers: str | Sequence[str] = "*",
    head: bool | None = None,
    random_state: int = 0,
) -> nn.Module:
    """Return a copy of ``model`` in which only adapters, and the last layer, need a gradient.

    The copy shares the frozen weights with ``model``, which is not changed. Its last linear layer gets no adapter.

    Args:
        rank: r.
        alpha: α, the scale of the adapters' outputs times r.
        layers: patterns (``fnmatch``) of the names of the linear layers that get an adapter.
        head: whether the last linear layer needs a gradient; None: unless the model is a :class:`NextToken`.
        random_state: the root seed of A.

    Raises:
        UserError: no linear layer has such a name.
    """
    require(isinstance(rank, int) and rank > 0, "rank", "must be a whole number > 0", rank)
    require(alpha > 0, "alpha", "must be > 0", alpha)
    patterns = [layers] if isinstance(layers, str) else list(layers)
    copied = _sharing(model)
    for weight in copied.parameters():
        weight.requires_grad_(False)
    last = next(reversed(linear_layers(copied)), None)
    every = {n: m for n, m in copied.named_modules() if n and n != last and _is_linear(m)}
    chosen = {n: m for n, m in every.items() if any(fnmatch.fnmatchcase(n, pattern) for pattern in patterns)}
    if not chosen:
        shown = ", ".join(list(every)[:4]) or "none"
        raise UserError(f"layers must be patterns of linear layers' names ({shown} …), got {', '.join(patterns)}")
    for name, layer in chosen.items():
        copied.set_submodule(name, LowRank(layer, rank, alpha, Seed(random_state).fold("lora", name).generator()))
    if last is not None and (not isinstance(model, NextToken) if head is None else head):
        copied.get_submodule(last).requires_grad_(True)
    return copied


def adapted(model: nn.Module) -> bool:
    """Return whether a model has adapters of :func:`lora`."""
    return any(isinstance(layer, LowRank) for layer in model.modules())


@final
class NextToken(nn.Module):
    """A causal language model of transformers as a classifier of the token after a row's last token.

    It takes ``input_ids`` [row, place] and ``attention_mask`` [row, place], padded on either side, and returns the
    logits [row, token] at each row's last place with a mask of 1. A label is the number of a token in ``tokens``.
    """

    def __init__(self, model: nn.Module, tokens: Sequence[int] | None = None) -> None:
        """Wrap a copy of ``model``, which shares its weights.

        Args:
            tokens: the tokens that may follow, such as those of the answers to a question; the logits of all others are
                not computed. None: the whole vocabulary.

        Raises:
            UserError: the model has no linear layer as its output embeddings.
        """
        super().__init__()
        self.model = _sharing(model)
        of: Any = self.model
        head = of.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
        if not isinstance(head, nn.Linear):
            raise UserError(f"model must be a causal language model of transformers, got {type(model).__name__}")
        if tokens is not None:
            rows = torch.as_tensor(list(tokens))
            few = skip_init(nn.Linear, head.in_features, len(rows), bias=head.bias is not None)
            few.to(head.weight.device, head.weight.dtype)
            for name, weight in few.named_parameters():
                weight.data.copy_(head.get_parameter(name).detach()[rows])
            of.set_output_embeddings(few)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        logits: Tensor = self.model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).logits
        last = attention_mask.cumsum(1).argmax(1)  # the first place of the largest count
        return logits[torch.arange(logits.shape[0], device=logits.device), last]


def _sharing(model: nn.Module) -> nn.Module:
    """Return a copy of a model that shares its tensors; to freeze a weight of the copy leaves the model's as it is."""
    memo: dict[int, Any] = {}
    for weight in model.parameters():
        memo[id(weight)] = nn.Parameter(weight.detach(), weight.requires_grad)
    for buffer in model.buffers():
        memo[id(buffer)] = buffer
    return copy.deepcopy(model, memo)


def _is_linear(layer: nn.Module) -> bool:
    weights: Mapping[str, Any] = layer._parameters
    transposed = type(layer).__name__ == _TRANSPOSED and isinstance(weights.get("weight"), Tensor)
    return type(layer) is nn.Linear or (transposed and cast(Tensor, weights["weight"]).ndim == 2)


def _matrix(layer: nn.Module) -> Float[Tensor, "out in"]:
    weight = cast(Tensor, layer.weight).detach()
    return weight.T if type(layer).__name__ == _TRANSPOSED else weight
