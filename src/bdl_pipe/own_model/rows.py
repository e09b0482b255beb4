"""The rows of a loader: read once, packed, and held in memory."""

import contextlib
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..data.examples import Examples, Task
from ..errors import DataError, short
from ..seeds import Seed, global_generator
from .trunk import MASK, Layout, require_plain

_ROUNDED: Final = 1e-3  # the largest error of rounding, as a share of the range of an input
_SHOWN: Final = 3
LABELS: Final = "labels"  # the key of a dictionary's targets


@dataclass(frozen=True)
class LoadedRows:
    """All rows of a loader.

    Attributes:
        layout: the layout of the inputs.
        examples: packed inputs float32 [row, 1, 1, width], and labels int64 [row] or targets float64 [row, output].
        task: ``classification`` or ``regression``.
        batch: the number of rows in the largest batch.
    """

    layout: Layout
    examples: Examples
    task: Task
    batch: int

    def __len__(self) -> int:
        return len(self.examples)

    def split(self, share: float, rng: Seed) -> "tuple[LoadedRows, LoadedRows]":
        """Return the rows without a random ``share`` of them, and this share, each in their order."""
        order = torch.randperm(len(self), generator=rng.generator()).numpy()
        held = max(1, round(share * len(self)))
        places = np.sort(order[held:]), np.sort(order[:held])
        kept, other = (Examples(self.examples.inputs[at], self.examples.targets[at]) for at in places)
        return replace(self, examples=kept, batch=min(self.batch, len(kept))), replace(self, examples=other)


def read(
    loader: object,
    where: str,
    *,
    rng: Seed,
    task: Task | None = None,
    layout: Layout | None = None,
    pad_token: int = 0,
    sigmoid: bool = False,
) -> LoadedRows:
    """Read every batch of a loader.

    Args:
        loader: it yields (inputs, targets), or dictionaries with the targets under the key ``labels``.
        where: the loader's name in errors.
        rng: the address of the loader's own random numbers, such as an order of rows.
        task: the task of integer targets; None means ``classification``.
        layout: the required layout of the inputs. None takes the layout of the first batch; if a later batch has an
            attention mask of another length, sequences are padded to the longest, on the side where the loader pads.
        sigmoid: whether the model ends in a sigmoid, so that real numbers 0 and 1 are labels without a ``task``, too.
        pad_token: the ``input_ids`` in places that are padded, if the loader itself pads none.

    Raises:
        DataError: the loader is empty or yields other objects; inputs or targets differ from batch to batch; a number
            is not finite.
    """
    if not isinstance(loader, Iterable) or isinstance(loader, Tensor | Mapping | str):
        raise DataError(f"{where} must be a loader of batches (inputs, targets), got {short(loader)}")
    rows, targets, rounding, given = list[Tensor](), list[Tensor](), _Rounding(), layout
    with own_randomness(rng):
        for number, batch in enumerate(loader):
            place = f"{where}, batch {number}"
            inputs, labels = _split(batch, place)
            layout = layout or Layout.of(inputs, place)
            if given is None or given.padded:
                layout = layout.with_lengths(inputs, place)
            packed = layout.pack(inputs, place).cpu()
            rounding.add(inputs)
            if not isinstance(labels, Tensor) or (not labels.is_nested and labels.ndim == 0):
                raise DataError(f"{place}: targets must be a tensor [row] or [row, output], got {short(labels)}")
            require_plain(labels, f"{place}: targets")
            if len(labels) != len(packed):
                raise DataError(f"{place}: targets must be as many as the inputs ({len(packed)}), got {len(labels)}")
            rows.append(packed)
            targets.append(labels.detach().cpu())
    if layout is None or sum(map(len, rows)) == 0:
        raise DataError(f"{where} must have rows, got none")
    rounding.require_small(where)
    kinds = {(tuple(labels.shape[1:]), labels.is_floating_point()) for labels in targets}
    if len(kinds) > 1:
        shapes = sorted({str(list(shape)) for shape, _ in kinds})
        raise DataError(f"{where}: targets must be of one shape and type in all batches, got {', '.join(shapes)}")
    together = torch.cat(targets)
    if (task == "classification" or (task is None and sigmoid)) and _are_labels(together):
        together, task = together.flatten().long(), "classification"
    values, kind = _targets(together, where, task)
    if layout.padded:
        rows = _of_one_length(rows, layout, pad_token)
    return LoadedRows(layout, Examples(torch.cat(rows).numpy(), values), kind, max(map(len, rows)))


def _are_labels(targets: Tensor) -> bool:
    """Return whether targets are one column of the real numbers 0 and 1, as a loss of one logit takes them."""
    one = targets.ndim == 1 or (targets.ndim == 2 and targets.shape[1] == 1)
    return one and targets.is_floating_point() and bool(((targets == 0) | (targets == 1)).all())


def _of_one_length(rows: list[Tensor], layout: Layout, pad_token: int) -> list[Tensor]:
    """Return batches of packed rows, each of its own length, with their sequences padded to the longest."""
    batches = [named for some in rows if isinstance(named := layout.unpack(some), dict)]
    masks = [named[MASK] == 0 for named in batches]
    left = any(bool(mask[:, 0].any()) for mask in masks)
    longest = max(mask.shape[1] for mask in masks)
    fill = {"input_ids": float(pad_token)}
    for name in (part.name for part in layout.parts if part.padded and len(part.shape) == 1):
        seen = torch.cat([named[name][mask] for named, mask in zip(batches, masks, strict=True)])
        if len(seen) and bool((seen == seen[0]).all()):
            fill[name] = float(seen[0])
    padded = []
    for named in batches:
        for part in layout.parts:
            if part.padded and (missing := longest - named[part.name].shape[1]):
                sides = [0, 0] * (len(part.shape) - 1) + ([missing, 0] if left else [0, missing])
                named[part.name] = F.pad(named[part.name], sides, value=fill.get(part.name, 0.0))
        padded.append(layout.packed(named))
    return padded


def require_targets(rows: LoadedRows, where: str, outputs: int) -> None:
    """Check that labels are of ``outputs`` classes, or that targets have as many columns.

    Raises:
        DataError: they are not; the message names the loader, ``where``.
    """
    targets = rows.examples.targets
    if rows.task == "regression":
        if targets.shape[1] != outputs:
            raise DataError(f"{where}: targets must have {outputs} columns, as in the fit, got {targets.shape[1]}")
        return
    wrong = (targets < 0) | (targets >= outputs)
    if wrong.any():
        value = f"got {int(targets[wrong][0])} in row {int(wrong.nonzero()[0][0])}"
        raise DataError(f"{where}: labels must be 0 … {outputs - 1}, for {outputs} outputs, {value}")


def check_labels(rows: LoadedRows, task: Task | None, outputs: int) -> None:
    """Raise DataError if targets without a stated task are real numbers that are labels of the model's outputs.

    These are a column of 0 and 1 for each class, several labels of a row, probabilities of the classes, or classes.
    """
    targets = rows.examples.targets
    if task is not None or rows.task == "classification":
        return
    cure = "for regression pass task='regression', for classes "
    one_hot = targets.shape[1] == outputs > 1 and bool(((targets == 0) | (targets == 1)).all())
    if one_hot and bool((targets.sum(1) == 1).all()):
        raise DataError(f"train_loader: targets must not be one-hot (0.0 and 1.0): {cure}pass y.argmax(1)")
    if targets.shape[1] > 1 and bool(((targets == 0) | (targets == 1)).all()):
        rule = "targets must not have several labels in a row, which no method supports"
        raise DataError(f"train_loader: {rule}: {cure}fit a posterior for each label, to y[:, k].long()")
    shares = targets.shape[1] > 1 and bool((targets >= 0).all()) and bool(np.allclose(targets.sum(1), 1, atol=1e-4))
    if shares:
        rule = "targets must not be class probabilities, which no method supports"
        raise DataError(f"train_loader: {rule}: {cure}pass a label of each row, such as y.argmax(1) or a draw")
    labels = bool(((targets == targets.round()) & (targets >= 0) & (targets < max(outputs, 2))).all())
    if targets.shape[1] == 1 and labels and np.ptp(targets) > 0:
        shown = ", ".join(f"{value:g}.0" for value in np.unique(targets)[:_SHOWN])
        more = "y.long()[:, 0]" if outputs == 1 else "y.long()"
        raise DataError(
            f"train_loader: the targets look like class labels stored as floats ({shown}): {cure}pass {more}"
        )


class _Rounding:
    """The largest error of rounding inputs of float64 to float32, beside the range of each value over all rows."""

    def __init__(self) -> None:
        self._of: dict[str, tuple[Tensor, Tensor, Tensor]] = {}  # name -> least, largest, error; each [...]

    def add(self, inputs: Tensor | Mapping[str, Tensor]) -> None:
        for name, values in (inputs if isinstance(inputs, Mapping) else {"": inputs}).items():
            if values.dtype != torch.float64 or len(values) == 0:
                continue
            values = values.detach().cpu()
            new = values.amin(0), values.amax(0), (values - values.float().double()).abs().amax(0)
            least, largest, error = self._of.get(name, new)
            self._of[name] = torch.minimum(least, new[0]), torch.maximum(largest, new[1]), torch.maximum(error, new[2])

    def require_small(self, where: str) -> None:
        """Raise DataError if rounding moves a value by more than a thousandth of its range."""
        for name, (least, largest, error) in self._of.items():
            wrong = (error > _ROUNDED * (largest - least)) & (largest > least)
            if wrong.any():
                place = tuple(wrong.nonzero()[0].tolist())
                span = f"values from {least[place]:.10g} to {largest[place]:.10g}"
                rule = f"must keep {span} apart in float32, which rounds them by up to {error[place]:.3g}"
                raise DataError(f"{where}: {name or 'inputs'} {rule}; subtract a constant, such as their mean, before")


def _split(batch: object, place: str) -> tuple[Any, object]:
    """Return a batch's inputs and targets."""
    if isinstance(batch, Mapping):
        if LABELS not in batch:
            raise DataError(f"{place}: a dictionary must have the key {LABELS}, got {', '.join(map(str, batch))}")
        return {name: values for name, values in batch.items() if name != LABELS}, batch[LABELS]
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return batch[0], batch[1]
    got = f"a {type(batch).__name__}" + (f" of {len(batch)}" if isinstance(batch, tuple | list) else "")
    raise DataError(f"{place}: must be (inputs, targets) or a dictionary with {LABELS}, got {got}")


def _targets(targets: Tensor, where: str, task: Task | None) -> tuple[np.ndarray, Task]:
    """Return labels int64 [row], or targets float64 [row, output], and the task."""
    numbers = targets.is_floating_point() or targets.is_complex()
    kind: Task = task or ("regression" if numbers else "classification")
    if targets.ndim > 2 or (kind == "classification" and targets.ndim > 1):
        rule = "labels must be [row]" if kind == "classification" else "targets must be [row] or [row, output]"
        cure = ""
        if targets.ndim == 2 and targets.shape[1] == 1:
            cure = "; pass y[:, 0]"
        elif targets.ndim == 2:
            one_hot = bool((targets != 0).sum(1).eq(1).all())
            several = "for several labels of a row fit a posterior for each, to y[:, k]"
            cure = f"; {'pass y.argmax(1)' if one_hot else several}"
        raise DataError(f"{where}: {rule}, got the shape {list(targets.shape)}{cure}")
    if kind == "classification":
        if numbers:
            rule = "labels must be whole numbers for classification"
            raise DataError(f"{where}: {rule}, got {targets.dtype}; pass y.long()")
        return targets.long().numpy(), kind
    if targets.is_complex():
        raise DataError(f"{where}: targets must be real numbers, got {targets.dtype}")
    values = targets.double()
    if not bool(torch.isfinite(values).all()):
        row = int((~torch.isfinite(values.reshape(len(values), -1)).all(1)).nonzero()[0, 0])
        raise DataError(f"{where}: targets must be finite, got {short(values[row].tolist())} in row {row}")
    return values.reshape(len(values), -1).numpy(), kind


@contextlib.contextmanager
def own_randomness(rng: Seed) -> Iterator[None]:
    """Seed the global generators of torch, NumPy and Python from ``rng`` inside the block, and restore them after it.

    A loader may draw its order from these generators, and a model its dropout masks.
    """
    with global_generator(rng.integer(), range(torch.cuda.device_count())):
        of_python, of_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 — the user's code may read it
        random.seed(rng.integer())
        np.random.seed(rng.integer() % 2**32)  # noqa: NPY002
        try:
            yield
        finally:
            random.setstate(of_python)
            np.random.set_state(of_numpy)  # noqa: NPY002
