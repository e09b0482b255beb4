"""The kernels by name, and the function that registers one."""

from typing import Final, Protocol, runtime_checkable

from ... import config as configs
from ...plugins import Registered, variant_name
from ..kernel import Kernel
from .hmc import Hmc
from .psgld import Psgld
from .sghmc import Sghmc
from .sgld import Sgld
from .sgnht import Sgnht

__all__ = ["KERNELS", "Hmc", "KernelConfig", "Psgld", "Sghmc", "Sgld", "Sgnht", "register_kernel"]

KERNELS: Final[Registered[type[Kernel]]] = Registered(
    "kernel", {"sgld": Sgld, "psgld": Psgld, "sghmc": Sghmc, "sgnht": Sgnht, "hmc": Hmc}
)


@runtime_checkable
class KernelConfig(Protocol):
    """A section ``kernel`` of params.yaml; its ``name`` is one of ``KERNELS``."""

    @property
    def name(self) -> str: ...


configs.open_kind(KernelConfig, lambda: dict(KERNELS))


def register_kernel(kernel: type[Kernel]) -> None:
    """Register a kernel under its own name.

    Raises:
        PluginError: ``kernel`` is not a frozen dataclass with a name, or its name is taken.
    """
    KERNELS.add(variant_name(kernel, "kernel"), kernel, kernel.__module__)
