"""From raw rows to what a network sees, and back: scale, standardise, whiten.

Images: x/255, then (x − mean)/std per channel, then optionally W(x − centre) with a ZCA matrix W.
Tables: (x − mean)/std per column; regression targets (y − shift)/scale. Every constant is given or
fitted on training rows only; a transform is plain tensors, stored with the data and the posterior.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ..artifacts import State


@dataclass(frozen=True)
class Whitening:
    """The whitening x ↦ (x − centre) matrix, on flattened inputs [n, d]; ``inverse`` undoes ``matrix``."""

    centre: Tensor  # [d]
    matrix: Tensor  # [d, d], symmetric
    inverse: Tensor  # [d, d], symmetric


@dataclass(frozen=True)
class Transform:
    """A fitted, invertible map of inputs, and of regression targets.

    Attributes:
        kind: ``image`` (uint8 raw, per channel) or ``table`` (floating raw, per column).
        mean, std: [channel] or [feature].
        whitening: applied after standardisation, images only.
        shift, scale: [output] of regression targets; None for classes.
    """

    kind: Literal["image", "table"]
    mean: Tensor
    std: Tensor
    whitening: Whitening | None = None
    shift: Tensor | None = None
    scale: Tensor | None = None

    def inputs(self, raw: np.ndarray | Tensor, device: torch.device | str = "cpu") -> Tensor:
        """Turn raw rows to float32 network inputs of the same shape."""
        values = torch.tensor(raw, device=device) if isinstance(raw, np.ndarray) else raw.to(device)
        if self.kind == "image":
            values = values.to(torch.float32) / 255
        standard = (values - self._wide(self.mean, values)) / self._wide(self.std, values)
        if self.whitening is None:
            return standard.to(torch.float32)
        flat = standard.reshape(len(standard), -1) - self.whitening.centre.to(standard)
        return (flat @ self.whitening.matrix.to(standard)).reshape(standard.shape).to(torch.float32)

    def inverse_inputs(self, values: Tensor) -> Tensor:
        """Turn network inputs back to raw units (images as intensities in [0, 1], unclipped)."""
        if self.whitening is not None:
            flat = values.reshape(len(values), -1) @ self.whitening.inverse.to(values)
            values = (flat + self.whitening.centre.to(values)).reshape(values.shape)
        return values * self._wide(self.std, values) + self._wide(self.mean, values)

    def targets(self, raw: np.ndarray | Tensor, device: torch.device | str = "cpu") -> Tensor:
        """Give labels as int64 [n], or standardised targets as float32 [n, output]."""
        values = torch.tensor(raw, device=device) if isinstance(raw, np.ndarray) else raw.to(device)
        if self.shift is None or self.scale is None:
            return values.to(torch.int64)
        return ((values - self.shift.to(values)) / self.scale.to(values)).to(torch.float32)

    def state(self) -> State:
        named: dict[str, Any] = {"mean": self.mean, "std": self.std, "shift": self.shift, "scale": self.scale}
        if self.whitening is not None:
            named |= {f"whitening.{k}": getattr(self.whitening, k) for k in ("centre", "matrix", "inverse")}
        return State({k: v for k, v in named.items() if v is not None}, {"kind": self.kind})

    @classmethod
    def from_state(cls, state: State) -> "Transform":
        t = state.tensors
        white = None
        if "whitening.matrix" in t:
            white = Whitening(t["whitening.centre"], t["whitening.matrix"], t["whitening.inverse"])
        return cls(state.config["kind"], t["mean"], t["std"], white, t.get("shift"), t.get("scale"))

    def _wide(self, constants: Tensor, values: Tensor) -> Tensor:
        constants = constants.to(values.device, torch.promote_types(values.dtype, torch.float32))
        return constants[:, None, None] if self.kind == "image" else constants
