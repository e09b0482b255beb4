"""Factors that are computed once and used again as long as they are right.

They are right while the parameters, and which entries a pruned matrix has kept, are number by number those that they
were made from: they are compared with a copy (``torch.equal``, one pass over Z). The parameters' version counters
would be cheaper to compare, and miss what is written through ``.data``, by a replayed graph, or to memory that was
given out twice.
"""

from collections.abc import Sequence
from typing import Any, Final, final

import torch
from torch import Tensor

from .layers import Weights

_DRAWN: Final = ("posterior.mean", "posterior.members")  # parameters that factors do not depend on
_PLACES: Final = ("kept_out.packed", "kept_in.packed")  # buffers that they depend on


@final
class FactorCache:
    """Factors by layer, each with a copy of the parameters it was made from; copies of a network start empty."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[list[Tensor], Any]] = {}

    def get(self, key: str, layer: Weights) -> Any:
        """The layer's factors, computed where its parameters are not those of last time."""
        made_from: list[Tensor] = [p for n, p in layer.named_parameters() if n not in _DRAWN]
        made_from += [b for n, b in layer.named_buffers() if n in _PLACES]
        kept = self._kept.get(key)
        if kept is None or not _same(kept[0], made_from):
            kept = ([p.detach().clone() for p in made_from], layer.factors())
            self._kept[key] = kept
        return kept[1]

    def __deepcopy__(self, _: dict[int, Any]) -> "FactorCache":
        return FactorCache()

    def __reduce__(self) -> tuple[type["FactorCache"], tuple[()]]:
        return FactorCache, ()


def _same(kept: Sequence[Tensor], now: Sequence[Tensor]) -> bool:
    return len(kept) == len(now) and all(
        a.dtype == b.dtype and a.device == b.device and torch.equal(a, b) for a, b in zip(kept, now, strict=True)
    )
