"""The initial coreset: real training images, equally many of each class, with scaled labels; or rows of a regression.

The rows of a class are drawn at random or selected by their raw inputs: the row nearest to each centre of a k-means of
the class, or herding, where the mean of the selected rows follows the mean of the class (Welling 2009, with inputs as
features). Alternatively, pixels are noise with intensities from Unif[0, 1] (Lee et al. 2025, the appendix's ablation).
"""

import math
from dataclasses import dataclass, fields
from typing import ClassVar, Final, Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from ...artifacts import State
from ...data.fitdata import FitData
from ...errors import DataError, require
from ...seeds import Seed

Choice = Literal["random", "kmeans", "herding", "noise"]
_SAME: Final = 1e-3  # a larger difference of intensities in [0, 1] shows another transform; rounding is far smaller


@dataclass(frozen=True)
class Coreset:
    """A coreset: synthetic or selected rows in transformed units, ordered by class (within each increment).

    Attributes:
        images: x̂ [n, channel, height, width] (or [n, feature]).
        labels: Ŷ [n, k], real-valued.
        classes: the class of each row's initial image [n]; 0 in regression.
    """

    images: Float[Tensor, "n ..."]
    labels: Float[Tensor, "n k"]
    classes: Int[Tensor, " n"]
    TENSORS: ClassVar = ("images", "labels", "classes", "raw")  # the state's tensors with an entry for each row

    def to(self, device: torch.device | str) -> "Coreset":
        return Coreset(self.images.to(device), self.labels.to(device), self.classes.to(device))

    def state(self, data: FitData, about: dict[str, object]) -> State:
        """Return the artifact's state; ``raw`` are the untransformed inputs (intensities, unclipped)."""
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
        """Read a coreset that replaces the training rows of ``data`` in a fit, on the data's device.

        Raises:
            ConfigError: the coreset lacks a tensor, has other inputs or classes, has labels that are not finite numbers
                for each class, or has another transform than ``data`` (``raw`` shows this).
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
        require(same, "input", "must be of a coreset whose images have the transform of this data set")
        return cls.from_state(state, data.device)


def balanced(data: FitData, ipc: int, label_scale: float, *, rng: Seed, choice: Choice = "random") -> Coreset:
    """Select ``ipc`` different training rows of each class that has training rows.

    The labels are (onehot − 1/k)/√(k/10) (Zhou et al. 2022), times ``label_scale``.

    Raises:
        DataError: a class with training rows has fewer than ``ipc``.
    """
    generator, chosen, numbers = rng.numpy(), [], np.unique(data.train.targets).tolist()
    for number in numbers:
        rows = np.flatnonzero(data.train.targets == number)
        if len(rows) < ipc:
            raise DataError(f"class {number} has {len(rows)} training rows: ipc must be at most that, got {ipc}")
        if choice in ("random", "noise"):
            chosen.append(np.sort(generator.choice(rows, ipc, replace=False)))
            continue
        inputs = data.train.inputs[rows].reshape(len(rows), -1).astype(np.float32)
        first = _near_centres(inputs, ipc, generator) if choice == "kmeans" else _herded(inputs, ipc)
        chosen.append(rows[np.sort(first)])
    index = np.concatenate(chosen)
    classes = torch.tensor(numbers).repeat_interleave(ipc)
    raw = data.train.inputs[index]
    if choice == "noise":
        raw = generator.integers(0, 256, raw.shape).astype(np.uint8)
    onehot = F.one_hot(classes, data.outputs).to(torch.float32)
    labels = label_scale * (onehot - 1 / data.outputs) / math.sqrt(data.outputs / 10)
    return Coreset(data.transform.inputs(raw), labels, classes)


def selected(data: FitData, rows: int, label_scale: float, *, rng: Seed, choice: Choice = "random") -> Coreset:
    """Select ``rows`` different training rows of a regression, as one class.

    The labels are the transformed targets times ``label_scale``. The rows for ``kmeans`` and ``herding`` are selected
    by their transformed inputs, since the columns of a table have units.

    Raises:
        DataError: there are fewer training rows.
        ConfigError: ``choice`` is ``noise``, which is for the pixels of images with classes.
    """
    require(choice != "noise", "coreset.start", "must be random, kmeans or herding in regression", choice)
    count, generator = len(data.train), rng.numpy()
    if count < rows:
        raise DataError(f"the data have {count} training rows: rows must be at most that, got {rows}")
    if choice == "random":
        index = generator.choice(count, rows, replace=False)
    else:
        inputs = data.transform.inputs(data.train.inputs).flatten(1).numpy()
        index = _near_centres(inputs, rows, generator) if choice == "kmeans" else _herded(inputs, rows)
    index = np.sort(index)
    chosen, targets = data.transform.rows(data.train.inputs[index], data.train.targets[index])
    return Coreset(chosen, label_scale * targets, torch.zeros(rows, dtype=torch.int64))


def _near_centres(inputs: np.ndarray, count: int, generator: np.random.Generator) -> np.ndarray:
    """Return the row nearest to each centre of a k-means, without repeating a row."""
    from sklearn.cluster import KMeans  # here, because it takes half a second

    state = int(generator.integers(2**31))
    distances = KMeans(count, n_init=1, random_state=state).fit_transform(inputs)  # [row, centre]
    taken = list[int]()
    for centre in range(count):
        distances[taken, centre] = np.inf
        taken.append(int(distances[:, centre].argmin()))
    return np.array(taken)


def _herded(inputs: np.ndarray, count: int) -> np.ndarray:
    """Select rows one after another; each brings the mean of the selected rows nearest to the mean of the inputs.

    Welling's greedy choice maximises ⟨w, x⟩, w ← w + μ − x, which is the same if all inputs have equal norms.
    """
    mean, squares = inputs.mean(0, dtype=np.float64), (inputs.astype(np.float64) ** 2).sum(1)
    taken, total = list[int](), np.zeros(inputs.shape[1])
    for number in range(1, count + 1):
        ahead = number * mean - total  # the row that would leave no error
        errors = squares - 2 * (inputs @ ahead)  # ‖x − ahead‖² up to a constant
        errors[taken] = np.inf
        taken.append(int(errors.argmin()))
        total += inputs[taken[-1]]
    return np.array(taken)


def mean_log_likelihood(
    logits: Float[Tensor, "draw row class"], classes: Int[Tensor, " row"]
) -> Float[Tensor, " draw"]:
    """Compute the mean over rows of log p(class | logits) for each draw."""
    of_rows = F.log_softmax(logits, -1).gather(-1, classes.expand(len(logits), -1)[..., None])
    return of_rows[..., 0].mean(-1)
