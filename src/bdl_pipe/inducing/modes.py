"""Training and evaluation mode."""

from torch import nn


class evaluation:
    """Inside, all of ``module`` is in evaluation mode; each part's own mode comes back after."""

    def __init__(self, module: nn.Module) -> None:
        self._modes = [(m, m.training) for m in module.modules()]
        self._module = module

    def __enter__(self) -> None:
        self._module.eval()

    def __exit__(self, *_: object) -> None:
        for module, training in self._modes:
            module.training = training
