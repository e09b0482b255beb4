"""The transform between raw rows and network inputs: scaling, standardisation, whitening.

Images: x/255, then (x − mean)/std per channel, then optionally W(x − centre) with a ZCA matrix W. Tables: categories,
dates and gaps become numbers (:mod:`.encoding`), then z = (x − mean)/std per column and, with ``smooth``, z/√(1 +
(z/3)²), which is in (−3, 3) (Holzmüller et al. 2024, section 3). Regression targets: (y − shift)/scale, or with ``log``
(log y − shift)/scale. Every constant is given or fitted to training rows only; a transform is plain tensors, stored
with the data and the posterior.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ..artifacts import State, under
from .encoding import Encoding
from .examples import native


@dataclass(frozen=True)
class Whitening:
    """The whitening x ↦ (x − centre) matrix, for flattened inputs [n, d]; ``inverse`` is the inverse of ``matrix``."""

    centre: Tensor  # [d]
    matrix: Tensor  # [d, d], symmetric
    inverse: Tensor  # [d, d], symmetric


@dataclass(frozen=True)
class Transform:
    """A fitted, invertible map of inputs, and of regression targets.

    Attributes:
        kind: ``image`` (uint8 raw, per channel) or ``table`` (floating raw, per column).
        mean, std: the constants of inputs, [channel] or [feature].
        whitening: the whitening after standardisation, only for images.
        shift, scale: the constants of regression targets [output]; None for classes.
        encoding: the encoding of a table's columns. None: all columns are plain numbers.
        smooth: whether inputs of a table are mapped into (−3, 3).
        log: whether regression targets are replaced by their logarithms before they are scaled.
    """

    kind: Literal["image", "table"]
    mean: Tensor
    std: Tensor
    whitening: Whitening | None = None
    shift: Tensor | None = None
    scale: Tensor | None = None
    encoding: Encoding | None = None
    smooth: bool = False
    log: bool = False

    def shape(self, raw: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of a network's input, given a raw row's shape."""
        return raw if self.encoding is None else (self.encoding.width,)

    def inputs(self, raw: np.ndarray | Tensor, device: torch.device | str = "cpu") -> Tensor:
        """Convert raw rows to float32 network inputs, see :meth:`shape`.

        Args:
            raw: rows of any numeric type, byte order and strides. Columns are standardised in float64, which keeps
                small differences between large numbers.
        """
        values = _tensor(raw, device)
        values = values.to(torch.float32) / 255 if self.kind == "image" else values.to(torch.float64)
        if self.encoding is not None:
            values = self.encoding(values)
        standard = (values - self._wide(self.mean, values)).div_(self._wide(self.std, values))  # 60,000 images: 188 MB
        if self.smooth:
            standard = standard / (1 + (standard / 3).square()).sqrt()
        if self.whitening is None:
            return standard.to(torch.float32)
        flat = standard.flatten(1) - self.whitening.centre.to(standard)
        return (flat @ self.whitening.matrix.to(standard)).reshape(standard.shape).to(torch.float32)

    def inverse_inputs(self, values: Tensor) -> Tensor:
        """Convert network inputs to raw units (images to intensities in [0, 1], unclipped)."""
        if self.whitening is not None:
            flat = values.reshape(len(values), -1) @ self.whitening.inverse.to(values)
            values = (flat + self.whitening.centre.to(values)).reshape(values.shape)
        return values * self._wide(self.std, values) + self._wide(self.mean, values)

    def targets(self, raw: np.ndarray | Tensor, device: torch.device | str = "cpu") -> Tensor:
        """Return labels as int64 [n], or standardised targets as float32 [n, output].

        If logarithms are fitted, a target of 0 becomes −inf and a negative target NaN.
        """
        values = _tensor(raw, device)
        if self.shift is None or self.scale is None:
            return values.to(torch.int64)
        values = values.double().log() if self.log else values.double()
        return ((values - self.shift.to(values)) / self.scale.to(values)).to(torch.float32)

    def own_units(self, values: Tensor) -> Tensor:
        """Convert transformed targets, or ends of intervals, to the targets' own units, in float64."""
        assert self.shift is not None and self.scale is not None, "classes have no units"
        values = values.double()
        values = self.shift.to(values) + self.scale.to(values) * values
        return values.exp() if self.log else values

    def state(self) -> State:
        named: dict[str, Any] = {"mean": self.mean, "std": self.std, "shift": self.shift, "scale": self.scale}
        if self.whitening is not None:
            named |= {f"whitening.{k}": getattr(self.whitening, k) for k in ("centre", "matrix", "inverse")}
        about: dict[str, Any] = {"kind": self.kind}
        about |= {name: True for name in ("smooth", "log") if getattr(self, name)}
        if self.encoding is not None:
            encoded = self.encoding.state()
            named |= {f"encoding.{k}": v for k, v in encoded.tensors.items()}
            about["encoding"] = dict(encoded.config)
        return State({k: v for k, v in named.items() if v is not None}, about)

    @classmethod
    def from_state(cls, state: State) -> "Transform":
        t = state.tensors
        white = None
        if "whitening.matrix" in t:
            white = Whitening(t["whitening.centre"], t["whitening.matrix"], t["whitening.inverse"])
        about = state.config
        encoding = None
        if "encoding" in about:
            encoding = Encoding.from_state(State(under("encoding.", t), about["encoding"]))
        return cls(
            about["kind"],
            t["mean"],
            t["std"],
            white,
            t.get("shift"),
            t.get("scale"),
            encoding,
            about.get("smooth", False),
            about.get("log", False),
        )

    def _wide(self, constants: Tensor, values: Tensor) -> Tensor:
        constants = constants.to(values.device, torch.promote_types(values.dtype, torch.float32))
        return constants[:, None, None] if self.kind == "image" else constants


def _tensor(raw: np.ndarray | Tensor, device: torch.device | str) -> Tensor:
    """Return numbers as a tensor; an array, which may be read-only, is copied."""
    if isinstance(raw, Tensor):
        return raw.to(device)
    return torch.tensor(native(raw), device=device)
