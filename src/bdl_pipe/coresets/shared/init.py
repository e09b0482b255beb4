"""The start of a coreset: real training images, equally many of each class, with scaled labels."""

import math
from dataclasses import dataclass, fields
from typing import ClassVar, Final

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from ...artifacts import State
from ...data.fitdata import FitData
from ...errors import DataError, require
from ...seeds import Seed

_SAME: Final = 1e-3  # of intensities in [0, 1]: far above rounding, far below what another transform does


@dataclass(frozen=True)
class Coreset:
    """A coreset: synthetic (or chosen) rows in the transformed space, ordered by class (within each increment).

    Attributes:
        images: x̂ [n, channel, height, width] (or [n, feature]).
        labels: Ŷ [n, k], real-valued.
        classes: the class that each row started from [n].
    """

    images: Float[Tensor, "n ..."]
    labels: Float[Tensor, "n k"]
    classes: Int[Tensor, " n"]
    TENSORS: ClassVar = ("images", "labels", "classes", "raw")  # of its state: one entry a row

    def to(self, device: torch.device | str) -> "Coreset":
        return Coreset(self.images.to(device), self.labels.to(device), self.classes.to(device))

    def state(self, data: FitData, about: dict[str, object]) -> State:
        """Return the artifact's state; ``raw`` are inputs before the transform (intensities in [0, 1], unclipped)."""
        tensors = {
            "images": self.images,
            "labels": self.labels,
            "classes": self.classes,
            "raw": data.transform.inverse_inputs(self.images),
        }
        return State({k: v.detach().cpu().clone() for k, v in tensors.items()}, dict(about))

    @classmethod
    def from_state(cls, state: State, device: torch.device | str = "cpu") -> "Coreset":
        t = state.tensors
        return cls(t["images"], t["labels"], t["classes"]).to(device)

    @classmethod
    def for_fit(cls, state: State, data: FitData) -> "Coreset":
        """Read a coreset that something is fitted to in place of the rows of ``data``, on its device.

        Raises:
            ConfigError: it lacks a tensor; is of other inputs or classes; its labels are not real numbers, one for
                each class; or its images went through another transform than those of ``data``, as ``raw`` shows.
        """
        tensors = state.tensors
        lacks = [name for name in (*(field.name for field in fields(cls)), "raw") if name not in tensors]
        require(not lacks, "input", f"must be of a coreset with images, labels, classes and raw; lacks {lacks}")
        images, labels = tensors["images"], tensors["labels"]
        shape, wanted = tuple(images.shape[1:]), (len(images), data.outputs)
        require(shape == data.input_shape, "input", f"must be of a coreset of inputs of {data.input_shape}", shape)
        real = labels.is_floating_point() and tuple(labels.shape) == wanted and bool(labels.isfinite().all())
        got = f"{str(labels.dtype).removeprefix('torch.')} {tuple(labels.shape)}"
        require(real, "input", f"must be of a coreset with finite real labels [row, class] of {wanted}", got)
        raw = data.transform.inverse_inputs(images)
        same = raw.shape == tensors["raw"].shape and torch.allclose(raw, tensors["raw"], _SAME, _SAME)
        require(same, "input", "must be of a coreset whose images went through the transform of the data at hand")
        return cls.from_state(state, data.device)


def scaled_labels(classes: Int[Tensor, " n"], outputs: int, label_scale: float = 1.0) -> Float[Tensor, "n k"]:
    """Return (onehot − 1/k)/√(k/10) (Zhou et al. 2022), times ``label_scale``."""
    onehot = F.one_hot(classes, outputs).to(torch.float32)
    return label_scale * (onehot - 1 / outputs) / math.sqrt(outputs / 10)


def balanced(data: FitData, ipc: int, label_scale: float, *, rng: Seed) -> Coreset:
    """Draw ``ipc`` training rows of each class that has any, without replacement.

    Raises:
        DataError: such a class has fewer than ``ipc`` training rows.
    """
    generator, chosen, there = rng.numpy(), [], np.unique(data.train.targets).tolist()
    for number in there:
        rows = np.flatnonzero(data.train.targets == number)
        if len(rows) < ipc:
            raise DataError(f"class {number} has {len(rows)} training rows: ipc must be at most that, got {ipc}")
        chosen.append(np.sort(generator.choice(rows, ipc, replace=False)))
    index = np.concatenate(chosen)
    classes = torch.tensor(there).repeat_interleave(ipc)
    images = data.transform.inputs(data.train.inputs[index])
    return Coreset(images, scaled_labels(classes, data.outputs, label_scale), classes)
