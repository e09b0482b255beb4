"""The data of a fit: training and validation rows, and the transform fitted to the training rows."""

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
        transform: the transform, fitted to all of ``train``.
        device: the device of a fit's tensors.
        search: the same split with separate validation rows, and a transform fitted only to its training rows. None:
            ``train`` includes no validation rows. A fit that selects something by a score uses ``search or self``, so
            that no row is both fitted and scored.
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
        """Return the number of classes or target columns."""
        return len(self.classes) if self.task == "classification" else self.train.targets.shape[1]

    def on(self, device: str) -> "FitData":
        """Return the same data, including ``search``, for a fit on ``device``."""
        return replace(self, device=device, search=self.search.on(device) if self.search else None)

    def __getstate__(self) -> dict[str, Any]:
        """Prepare for pickling, so that rows that ``search`` shares with ``train`` are sent to a worker only once."""
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
        """Return transformed inputs (float32) and targets (int64 [n], or standardised float32 [n, output])."""
        rows = self.train if part == "train" else self.validation
        return self.transform.inputs(rows.inputs, device), self.transform.targets(rows.targets, device)

    def rows(self, part: Literal["train", "validation"], device: torch.device | str = "cpu") -> Rows:
        """Return the same rows for access by batches, so that large data need not fit in memory."""
        return rows_of(self.train if part == "train" else self.validation, self.transform, device)

    def drawn(self, rows: int | None, rng: Seed) -> tuple[Tensor, Tensor]:
        """Return ``rows`` transformed training rows (None: all), in an order drawn from ``rng``, on ``device``."""
        chosen = distinct(len(self.train), rows, rng.generator()).numpy()
        some = replace(self, train=Examples(self.train.inputs[chosen], self.train.targets[chosen]), search=None)
        return some.tensors("train", self.device)

    def batch(self, size: int, rng: Seed) -> tuple[Tensor, Tensor]:
        """Draw ``size`` transformed training rows with replacement from ``rng``, on ``device``."""
        chosen = with_replacement(len(self.train), size, rng.generator())
        if torch.device(self.device).type == "cpu":
            inputs = self.transform.inputs(self.train.inputs[chosen.numpy()])
            return inputs, self.transform.targets(self.train.targets[chosen.numpy()])
        rows, targets = self._rows_there
        there = chosen.to(self.device, non_blocking=True)
        return self.transform.inputs(rows[there], self.device), self.transform.targets(targets[there], self.device)

    @cached_property
    def _rows_there(self) -> tuple[Tensor, Tensor]:
        """Return the raw training rows and targets on the device, so that batches are indexed there."""
        return torch.from_numpy(self.train.inputs).to(self.device), torch.from_numpy(self.train.targets).to(self.device)
