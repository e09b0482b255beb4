"""A user's own network: any ``nn.Module`` with a linear last layer, made by a function in a Python file.

Everything before the last layer is the trunk, unchanged. The head is new, or it comes from saved weights
(``trajectory.pretrained``). The file is imported once, like a plugin. Stored results record its path and hash, and a
file with another hash is never run.
"""

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from .. import plugins
from ..errors import ConfigError, brief, require
from ..plugins import PluginError
from ..seeds import global_generator
from .base import close, cut, is_last, linear_layers

_checked: Final[set[str]] = set()  # modules that this process has checked


@dataclass(frozen=True)
class PythonConfig:
    """A network that a function in a Python file makes.

    Attributes:
        path: the file, relative to the project's folder. It may import only installed packages.
        object: a function or class in the file: ``object(input_shape, **options)`` -> an ``nn.Module``, with
            ``input_shape`` (channel, height, width) or (feature,). It may draw weights from torch's global generator.
        head: the dotted name of the module's last layer, an ``nn.Linear``. null means the last ``nn.Linear`` of the
            module.
        options: the keyword arguments of the function.
        sha256: the required hash of the file. null accepts any content. A posterior is always stored with the hash.
    """

    name: Literal["python"]
    path: str
    object: str
    head: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    sha256: str | None = None

    def __post_init__(self) -> None:
        require(self.path.endswith(".py"), "path", "must be a Python file (….py)", self.path)
        try:
            plugin = plugins.load_file(self.path, self.sha256)
        except PluginError as error:
            raise ConfigError("path", f"must be a file that can be imported ({error})", self.path) from None
        object.__setattr__(self, "sha256", plugin.sha256)
        require(callable(self._made_by()), "object", f"must be a function or a class of {self.path}", self.object)

    def files(self) -> list[Path]:
        """Return the files that the network depends on."""
        return [Path(self.path)]

    def make(self, input_shape: tuple[int, ...]) -> nn.Module:
        """Return the user's module.

        Raises:
            ConfigError: the function fails or does not return a module.
        """
        function = self._made_by()
        module = self._asked("object", "must make a network", lambda: function(input_shape, **self.options))
        require(isinstance(module, nn.Module), "object", "must return a torch.nn.Module", type(module).__name__)
        assert isinstance(module, nn.Module)
        return module

    def split(self, module: nn.Module) -> tuple[nn.Module, nn.Linear]:
        """Remove the head from a module, in place.

        Returns:
            The trunk, which is the module without its head, and the head.

        Raises:
            ConfigError: the module has no such layer, or the layer is not linear.
        """
        linear = [*linear_layers(module)]
        name = self.head if self.head is not None else next(reversed(linear), None)
        rule = "must be a linear layer (nn.Linear) that the network has as an attribute"
        got = f"{name} (it has {', '.join(linear) or 'none'})"
        require(name in linear, "object" if self.head is None else "head", rule, got)
        assert name is not None
        return module, cut(module, name)

    def _made_by(self) -> Any:
        return getattr(plugins.module_of_file(self.path), self.object, None)

    def _asked(self, key: str, rule: str, of: Callable[[], Any]) -> Any:
        """Call the user's code; turn any exception into a ConfigError of one line that names the key."""
        try:
            return of()
        except Exception as error:
            place = f"{self.path}: {self.object}"
            raise ConfigError(key, f"{rule}: {type(error).__name__}: {brief(error)}", place) from None

    def check(self, module: nn.Module, input_shape: tuple[int, ...]) -> None:
        """Check that a module is a trunk and a linear head, and a function of its inputs and weights alone.

        The head is removed from the module.

        Raises:
            ConfigError: the check fails.
        """
        names: dict[int, str] = {}
        for name, weight in module.named_parameters(remove_duplicate=False):
            first = names.setdefault(id(weight), name)
            rule = "must return a network with one name for each weight; call one layer twice instead"
            require(first == name, "object", rule, f"{first} and {name}, which are the same weight")
        module.eval()
        probe = torch.randn(2, *input_shape, generator=torch.Generator().manual_seed(0))
        shape = f"rows of shape {list(input_shape)}"
        before, again = (self._asked("object", f"must take {shape}", lambda: module(probe)) for _ in range(2))
        one = isinstance(before, Tensor)
        require(one, "object", "must return a network whose output is one tensor", type(before).__name__)
        rule = "must return a network that gives equal rows the same outputs in evaluation"
        require(close(before, again), "object", rule, self.object)
        names_of = {layer: name for name, layer in linear_layers(module).items()}
        trunk, head = self.split(module)
        key, wide = "head" if self.head is not None else "object", head.in_features
        features = self._asked(key, "must be the last layer of the network", lambda: trunk(probe))
        shapes = [list(v.shape) if isinstance(v, Tensor) else type(v).__name__ for v in (before, features)]
        require(
            shapes == [[2, head.out_features], [2, wide]],
            key,
            f"must turn [2, {wide}] features of 2 {shape} into [2, {head.out_features}] outputs as the last layer",
            shapes,
        )
        rule = "must be the last layer of the network: nothing may follow it, such as a softmax or a ReLU"
        call = partial(self._asked, key, f"must take {shape}", lambda: module(probe))
        require(is_last(module, names_of[head], head, features, before, call), key, rule, self.object)
        if len(input_shape) == 1:  # the seeds of tables are trained as one batched model
            stacked = {name: torch.stack([value, value]) for name, value in trunk.state_dict().items()}
            rule = "must return a network that torch.func.vmap can batch"
            self._asked("object", rule, lambda: vmap(lambda w: functional_call(trunk, w, (probe,)))(stacked))
        alone = self._asked("object", "must take one row alone, too", lambda: trunk(probe[:1]))
        rule = (
            "must return a network that gives a row the same outputs alone as among others (no statistics of a batch)"
        )
        require(close(alone, features[:1]), "object", rule, self.object)


def python_trunk(
    config: PythonConfig, input_shape: tuple[int, ...], generator: torch.Generator
) -> tuple[nn.Module, int]:
    """Build the user's network, and return it without its head, with the number of features.

    Raises:
        ConfigError: the function fails, or its module is not a trunk and a linear head for these rows.
    """
    with global_generator(int(torch.randint(2**62, (), generator=generator))):
        module = config.make(input_shape)
        asked = json.dumps(
            [config.path, config.sha256, config.object, config.head, dict(config.options), input_shape], default=str
        )
        if asked not in _checked:
            rule = "must return a network that can be copied (parametrizations.weight_norm, not utils.weight_norm)"
            config._asked("object", rule, lambda: copy.deepcopy(module))
            with torch.no_grad():
                config.check(config.make(input_shape), input_shape)
            _checked.add(asked)
    trunk, head = config.split(module)
    return trunk, head.in_features
