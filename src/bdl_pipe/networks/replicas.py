"""Calls of one module from several threads."""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Generic, TypeVar, final

from torch import Tensor, nn
from torch.func import functional_call

M = TypeVar("M", bound=nn.Module)


@final
class Replicas(Generic[M]):
    """Copies of a module that share its tensors; each call takes a copy that no other call uses.

    ``torch.func.functional_call`` puts the given weights into the module while it runs, and ``module.eval()`` sets the
    mode of every submodule. Another thread that calls the same module meanwhile would read them. A copy has its own
    places for weights and modes. It is made when all others are in use, so there are as many as calls have run at once.

    Attributes:
        module: the module that is copied. No call uses it.
    """

    def __init__(self, module: M) -> None:
        self.module = module
        self._idle: list[M] = []  # pop and append are atomic

    @contextmanager
    def one(self) -> Iterator[M]:
        """Lend a copy inside the ``with``."""
        try:
            replica = self._idle.pop()
        except IndexError:
            tensors = chain(self.module.parameters(), self.module.buffers())
            replica = copy.deepcopy(self.module, {id(tensor): tensor for tensor in tensors})
        try:
            yield replica
        finally:
            self._idle.append(replica)

    def call(self, weights: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        """Return the module's output with ``weights`` in place of its tensors of these names."""
        with self.one() as replica:
            outputs: Tensor = functional_call(replica, dict(weights), (inputs,))
        return outputs
