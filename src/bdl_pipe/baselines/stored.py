"""The base of posteriors that hold the tensors of their state."""

from typing import ClassVar, TypeVar

import torch

from ..artifacts import State

Own = TypeVar("Own", bound="StoredPosterior")


class StoredPosterior:
    """A posterior that holds the tensors of its state; a subclass adds ``predict``.

    Attributes:
        key: the posterior's key in ``registry.POSTERIORS``.
        tensors: the tensors of the state, on the device.
    """

    key: ClassVar[str]

    def __init__(self, state: State, device: torch.device | str = "cpu") -> None:
        self._state = state
        self.tensors = {name: values.to(device) for name, values in state.tensors.items()}

    def state(self) -> State:
        return self._state

    @classmethod
    def from_state(cls: type[Own], state: State, device: torch.device | str = "cpu") -> Own:
        return cls(state, device)
