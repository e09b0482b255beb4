"""Forward passes of a trunk: eager or compiled, in float32 or with bfloat16 products.

torch.compile fuses the norm, ReLU and pool of a block into one loop. On a GPU it also captures a pass as one graph
(``mode="reduce-overhead"``); on a CPU this mode changes nothing.
"""

import os
import shutil
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from ..errors import require

Precision = Literal["float32", "bfloat16"]
TrunkPass = Callable[[nn.Module, Tensor], Tensor]
MOST_VARIANTS = 32  # compiled shapes, gradients, modes; beyond torch's own limit a pass would be eager, with other bits


def plain(trunk: nn.Module, inputs: Tensor) -> Tensor:
    """Compute ``trunk(inputs)``, eagerly, in the precision of its weights."""
    return trunk(inputs)


def trunk_pass(compiled: bool, precision: Precision, device: torch.device | str) -> TrunkPass:
    """Return a function of (trunk, inputs [batch, ...]) that computes float32 features [batch, width].

    Trunks of one shape share the compiled code. Its bits depend on the inputs, the processor, the compiler and the
    number of threads.

    Args:
        compiled: whether to use torch.compile: half a minute for three blocks, once per machine and version.
        precision: the precision of the factors of convolutions and products; sums, norms, weights and gradients are
            float32.
        device: the device of the pass.

    Raises:
        ConfigError: ``compiled`` is set for a CPU and there is no C++ compiler.
    """
    if not compiled and precision == "float32":
        return plain

    def compute(trunk: nn.Module, inputs: Tensor) -> Tensor:
        with torch.autocast(inputs.device.type, torch.bfloat16, enabled=precision == "bfloat16"):
            return trunk(inputs).float()

    if not compiled:
        return compute
    if torch.device(device).type == "cpu":
        name = os.environ.get("CXX", "g++")
        rule = f"needs a C++ compiler, and there is no {name} on this machine; install it, or set"
        require(shutil.which(name) is not None, "compiled", rule, "false")
    run: TrunkPass = torch.compile(  # type: ignore[call-overload]  # torch's type hints lack two arguments
        compute,
        fullgraph=True,
        dynamic=False,
        mode="reduce-overhead",
        recompile_limit=MOST_VARIANTS,
        isolate_recompiles=True,
    )
    return run
