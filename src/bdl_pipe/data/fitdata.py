"""What a fit sees: training and validation rows, and the transform fitted on the training rows."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from ..seeds import Seed
from .examples import Examples
from .minibatches import distinct, with_replacement
from .rows import Rows, rows_of
from .transform import Transform


@dataclass(frozen=True)
class FitData:
    """One split of one data set, without its test rows.

    Attributes:
        transform: fitted on all of ``train``.
        device: where a fit puts its tensors.
        search: the same split with its validation rows apart, and the transform of its training rows
            alone; None where ``train`` holds no validation row. A fit that chooses something by a
            score chooses it on ``search or self``, so that no row is scored by what it trained.
    """

    task: Literal["classification", "regression"]
    train: Examples
    validation: Examples
    transform: Transform
    classes: tuple[str, ...] = ()
    device: str = "cpu"
    search: "FitData | None" = None

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Return the shape of a network's input, (channel, height, width) or (feature,)."""
        return self.transform.shape(tuple(self.train.inputs.shape[1:]))

    @property
    def outputs(self) -> int:
        """Return the number of outputs, which is that of classes, or of target columns."""
        return len(self.classes) if self.task == "classification" else self.train.targets.shape[1]

    def on(self, device: str) -> "FitData":
        """Return the same rows, and those of ``search``, for a fit on ``device``."""
        return replace(self, device=device, search=self.search.on(device) if self.search else None)

    def __getstate__(self) -> dict[str, Any]:
        """Prepare for pickling: rows that ``search`` shares with ``train`` are sent to a worker once, not twice."""
        state, search = {k: v for k, v in self.__dict__.items() if k != "_rows_there"}, self.search
        if search is not None and search.search is None and search.device == self.device:
            train, validation = self.train.cut(len(search.train))
            if train.same(search.train) and validation.same(search.validation):
                state["search"] = len(search.train), search.transform
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if isinstance(state["search"], tuple):
            count, transform = state["search"]
            train, validation = self.train.cut(count)
            self.__dict__["search"] = replace(
                self, train=train, validation=validation, transform=transform, search=None
            )

    def tensors(
        self, part: Literal["train", "validation"], device: torch.device | str = "cpu"
    ) -> tuple[Tensor, Tensor]:
        """Give transformed inputs (float32) and targets (int64 [n], or standardised float32 [n, output])."""
        rows = self.train if part == "train" else self.validation
        return self.transform.inputs(rows.inputs, device), self.transform.targets(rows.targets, device)

    def rows(self, part: Literal["train", "validation"], device: torch.device | str = "cpu") -> Rows:
        """Give the same rows for a fit that takes them by batches, so that large ones need not be in memory."""
        return rows_of(self.train if part == "train" else self.validation, self.transform, device)

    def drawn(self, rows: int | None, rng: Seed) -> tuple[Tensor, Tensor]:
        """Give ``rows`` of the training rows (null: all), in an order drawn at ``rng``, transformed, on ``device``."""
        chosen = distinct(len(self.train), rows, rng.generator()).numpy()
        some = replace(self, train=Examples(self.train.inputs[chosen], self.train.targets[chosen]), search=None)
        return some.tensors("train", self.device)

    def batch(self, size: int, rng: Seed) -> tuple[Tensor, Tensor]:
        """Draw ``size`` training rows with replacement at ``rng``; they are transformed, on ``device``."""
        chosen = with_replacement(len(self.train), size, rng.generator())
        if torch.device(self.device).type == "cpu":
            inputs = self.transform.inputs(self.train.inputs[chosen.numpy()])
            return inputs, self.transform.targets(self.train.targets[chosen.numpy()])
        rows, targets = self._rows_there
        there = chosen.to(self.device, non_blocking=True)
        return self.transform.inputs(rows[there], self.device), self.transform.targets(targets[there], self.device)

    @cached_property
    def _rows_there(self) -> tuple[Tensor, Tensor]:
        """The raw training rows and targets on the device, where they are indexed without a copy from here."""
        return torch.from_numpy(self.train.inputs).to(self.device), torch.from_numpy(self.train.targets).to(self.device)
