"""A device that is the CPU and poses as another device, so that code for GPUs can be tested on any machine.

Its tensors name ``meta`` as their device and hold their values on the CPU. As on a GPU, an operation on tensors of both
devices is an error unless the tensors of the CPU are single numbers, indices, or the source of a copy. Two more errors
are a random number that a generator of the CPU draws on the device, and a view of the device's memory as a NumPy array.
Inside ``posing()`` torch knows the device.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

DEVICE = "meta"
_COPIES = {"aten::copy_", "aten::_to_copy"}
_INDEXED = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index"}


class There(Tensor):
    """A tensor of the device; ``held``: its values, on the CPU."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "There":
        return Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=torch.device(DEVICE),
        )

    def __init__(self, held: Tensor) -> None:
        self.held = held

    def __repr__(self) -> str:  # type: ignore[override]
        return f"There({self.held!r})"

    def tolist(self) -> Any:
        return self.held.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        if not force:
            raise TypeError("a tensor of another device is no NumPy array; move it to the CPU first")
        return self.held.detach().resolve_conj().resolve_neg().numpy()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return _call(func, args, kwargs or {})


class Generator(torch.Generator):
    """A generator of the device."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device(DEVICE)


class _Mode(TorchDispatchMode):
    def __init__(self, made: list[Generator]) -> None:
        super().__init__()
        self._made = made

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = _call(func, args, kwargs or {})
        drawn = [x for x in _leaves((args, kwargs or {})) if isinstance(x, torch.Generator)]
        if drawn:
            addresses = {_address(g) for g in self._made}
            at = [x for x in _leaves(result) if isinstance(x, Tensor)]
            if any((_address(g) in addresses) != isinstance(x, There) for g in drawn for x in at):
                raise RuntimeError(f"{func}: the generator must be of the tensor's device")
        return result


class _Made(TorchFunctionMode):
    """Handles ``tensor``, ``as_tensor`` and ``new_tensor``, which reach ``meta`` without the dispatcher's modes."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is Tensor.new_tensor:
            like, *args = args
            options = {"dtype": like.dtype, "device": like.device} | kwargs
            func, kwargs = torch.tensor, options
        if func in (torch.tensor, torch.as_tensor) and torch.device(kwargs.get("device") or "cpu").type == DEVICE:
            if isinstance(args[0], Tensor):
                return args[0].to(DEVICE, kwargs.get("dtype") or args[0].dtype)
            grad = kwargs.pop("requires_grad", False)
            return func(*args, **{**kwargs, "device": None}).to(DEVICE).requires_grad_(grad)
        return func(*args, **kwargs)


@contextmanager
def posing() -> Iterator[str]:
    """Let torch know the device, and yield its name."""

    generators: list[
        Generator
    ] = []  # the dispatcher passes on a generator as another object, so that addresses are compared

    def generator(self: Any, device: torch.device | str = "cpu") -> torch.Generator:
        if torch.device(device).type != DEVICE:
            return torch.Generator(device).manual_seed(self.integer())
        generators.append(Generator())
        generators[-1].manual_seed(self.integer())
        return generators[-1]

    known = torch.autocast

    def autocast(device: str, *args: Any, **options: Any) -> Any:
        return known("cpu" if device == DEVICE else device, *args, **options)

    patches = mock.patch("bdl_pipe.seeds.Seed.generator", generator), mock.patch("torch.autocast", autocast)
    overwrites = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)  # a change in place would not reach ``held``
    try:
        with patches[0], patches[1], _Made(), _Mode(generators):
            yield DEVICE
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(overwrites)


def _address(made: torch.Generator) -> int:
    return made._cdata  # type: ignore[attr-defined]


def _leaves(tree: Any) -> list[Any]:
    """Return what lists, tuples and dictionaries hold; torch's own trees take most of the pose's time."""
    leaves, todo = [], [tree]
    while todo:
        x = todo.pop()
        if isinstance(x, list | tuple):
            todo.extend(reversed(x))
        elif isinstance(x, dict):
            todo.extend(reversed(x.values()))
        else:
            leaves.append(x)
    return leaves


def _mapped(change: Callable[[Any], Any], tree: Any) -> Any:
    """Change all that lists, tuples and dictionaries hold."""
    if isinstance(tree, list | tuple):
        changed = [_mapped(change, x) for x in tree]
        return changed if type(tree) is list else tuple(changed)
    if isinstance(tree, dict):
        return {key: _mapped(change, x) for key, x in tree.items()}
    return change(tree)


def _held(x: Any) -> Any:
    return x.held if isinstance(x, There) else x


def _posed(x: Any) -> Any:
    return There(x) if isinstance(x, Tensor) else x


def _call(func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    name, flat = func._schema.name, _leaves((args, kwargs))
    there = [x for x in flat if isinstance(x, There)]
    here = [x for x in flat if isinstance(x, Tensor) and not isinstance(x, There)]
    device = kwargs.get("device")
    wanted = torch.device(device).type if device is not None else None
    goes = wanted == DEVICE if wanted else bool(there)
    if name == "aten::copy_":
        goes = isinstance(args[0], There)
    elif name in _INDEXED:
        one = [args[0], *args[2:3]]
        _require(all(isinstance(x, There) or not x.ndim for x in one if isinstance(x, Tensor)) or not there, name, flat)
    elif name not in _COPIES and there:
        _require(all(not x.ndim for x in here), name, flat)
    if wanted == DEVICE:
        kwargs = {**kwargs, "device": "cpu"}
    result = func(*_mapped(_held, args), **_mapped(_held, kwargs))
    return _mapped(_posed, result) if goes else result


def _require(ok: bool, name: str, flat: list[Any]) -> None:
    if not ok:
        changes = ", ".join(
            f"{'there' if isinstance(x, There) else 'here'} {list(x.shape)}" for x in flat if isinstance(x, Tensor)
        )
        raise RuntimeError(f"{name}: all tensors must be on one device, got {changes}")
