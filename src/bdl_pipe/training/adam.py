"""Adam and AdamW by torch's own functions, without the class ``torch.optim.Optimizer`` around them.

The first optimiser of that class imports torch's compiler, which takes a second. Each step passes through hooks and a
profiler, which take more time than the update itself if a network is small.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final, final

import torch
from torch import Tensor
from torch.optim.adam import adam

_BETAS: Final = (0.9, 0.999)
_EPS: Final = 1e-8


@final
class Adam:
    """Adam (Kingma & Ba 2015) with torch's defaults, or AdamW (Loshchilov & Hutter 2019); bit for bit as in torch.

    Attributes:
        param_groups: mappings with ``params``, ``lr``, ``weight_decay`` and ``fused``; ``lr`` may change between steps.
        state: parameter -> ``step`` [], ``exp_avg`` and ``exp_avg_sq`` of its shape; empty before its first gradient.
    """

    def __init__(
        self,
        groups: Sequence[dict[str, Any]],
        *,
        lr: float,
        weight_decay: float = 0.0,
        decoupled: bool = False,
        fused: bool | None = None,
    ) -> None:
        """Take groups of leaf tensors.

        Args:
            lr, weight_decay: the values of groups that do not set them.
            decoupled: whether weight decay is decoupled, as in AdamW.
            fused: whether one kernel updates all tensors, with different rounding. None: torch chooses another method.
        """
        defaults = {"lr": lr, "weight_decay": weight_decay, "fused": fused}
        self.param_groups: list[dict[str, Any]] = [defaults | group for group in groups]
        self.state: dict[Tensor, dict[str, Any]] = defaultdict(dict)
        self._decoupled = decoupled

    def zero_grad(self) -> None:
        """Set all gradients to None, never to zeros."""
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Update the parameters that have a gradient."""
        for group in self.param_groups:
            moved = [parameter for parameter in group["params"] if parameter.grad is not None]
            for parameter in moved:
                if not self.state[parameter]:
                    device = parameter.device if group["fused"] else "cpu"  # where torch keeps the number of steps
                    moments = {"exp_avg": torch.zeros_like(parameter), "exp_avg_sq": torch.zeros_like(parameter)}
                    steps = torch.zeros((), dtype=torch.float32, device=device)
                    self.state[parameter].update(step=steps, **moments)
            states = [self.state[parameter] for parameter in moved]
            adam(
                moved,
                [parameter.grad for parameter in moved],
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                [],
                [state["step"] for state in states],
                fused=group["fused"],
                decoupled_weight_decay=self._decoupled,
                amsgrad=False,
                beta1=_BETAS[0],
                beta2=_BETAS[1],
                lr=group["lr"],
                weight_decay=group["weight_decay"],
                eps=_EPS,
                maximize=False,
            )
