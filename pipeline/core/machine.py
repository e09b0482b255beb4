"""``machine.yaml``: the resources of tasks on a cluster's nodes. It never makes a result stale.

    resources:
      default: {gpus: 0.25}                       # four small tasks on a GPU
      trajectory: {gpus: 1}                       # a stage kind; tune and study are kinds, too
      student.ciber: {gpus: 0, cpus: 2}           # a method in a stage kind
      evaluate: {memory_gb: 8, resources: {A100: 1}}   # resources of the cluster's own names, as ray start has them

The most specific entry with a value for a key decides. The file lies beside ``params.yaml``, or at BDL_MACHINE.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from bdl_pipe.config import nearest
from bdl_pipe.errors import ConfigError

FILE: Final = Path("machine.yaml")
KINDS: Final = ("trajectory", "teacher", "coreset", "student", "evaluate", "prepare", "tune", "study")
_DEFAULT: Final = "default"
_NUMBERS: Final = ("cpus", "gpus", "memory_gb")
_GB: Final = 10**9


@dataclass(frozen=True)
class Needs:
    """The resources that a task takes of its node.

    Attributes:
        gpus: a share of a GPU, or a whole number.
        memory_gb: units of 10⁹ bytes, which Ray counts and does not enforce; 0: not counted.
        others: amounts of resources with names that the cluster defines.
    """

    cpus: float = 1.0
    gpus: float = 0.0
    memory_gb: float = 0.0
    others: tuple[tuple[str, float], ...] = ()

    @property
    def counted(self) -> dict[str, float]:
        """Return the amounts that are not 0, by Ray's names."""
        amounts = {"CPU": self.cpus, "GPU": self.gpus, "memory": self.memory_gb * _GB, **dict(self.others)}
        return {name: amount for name, amount in amounts.items() if amount}

    @property
    def options(self) -> dict[str, Any]:
        """Return the options of a Ray task."""
        memory = {"memory": int(self.memory_gb * _GB)} if self.memory_gb else {}
        return {"num_cpus": self.cpus, "num_gpus": self.gpus, "resources": dict(self.others), **memory}

    def __str__(self) -> str:
        return in_words(self.counted)


def in_words(amounts: Mapping[str, float]) -> str:
    """Word amounts by Ray's names for a reader."""
    each = [f"{v / _GB:g} GB memory" if k == "memory" else f"{v:g} {k}" for k, v in amounts.items()]
    return f"{', '.join(each[:-1])} and {each[-1]}" if len(each) > 1 else each[0]


@dataclass(frozen=True)
class Machine:
    """The entries of the file; without a file there are none.

    Attributes:
        entries: name -> amounts by key.
    """

    entries: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: MappingProxyType({}))

    def __reduce__(self) -> tuple[type, tuple[dict[str, Any]]]:
        return type(self), ({name: dict(numbers) for name, numbers in self.entries.items()},)

    def amounts(self, kind: str, method: str) -> dict[str, Any]:
        """Return the amounts for the tasks of a method in a stage kind, by key."""
        amounts: dict[str, Any] = {}
        for name in (_DEFAULT, kind, f"{kind}.{method}"):
            amounts |= self.entries.get(name, {})
        return amounts

    def needs(self, kind: str, method: str, usual: Needs) -> Needs:
        """Return the resources of such a task: ``usual``, with the amounts of the file in place of its own."""
        amounts = self.amounts(kind, method)
        others = tuple(sorted(amounts.pop("resources", {}).items())) or usual.others
        return replace(usual, **amounts, others=others)

    def check_methods(self, known: Iterable[str]) -> None:
        """Refuse an entry for an unknown method.

        Raises:
            ConfigError: naming the entry.
        """
        known = sorted(known)
        for name in self.entries:
            _, dot, method = name.partition(".")
            if dot and method not in known:
                raise ConfigError(f"machine.yaml: resources.{name}", f"names no method{nearest(method, known)}")


def read(path: Path) -> Machine:
    """Read the file; a missing file has no entries.

    Raises:
        ConfigError: a key is unknown, or a number breaks its rule.
    """
    if not path.exists():
        return Machine()
    from .load import read_yaml

    raw = read_yaml(path)
    for key in raw:
        if key != "resources":
            raise ConfigError(f"{path}: {key}", f"is not a key{nearest(key, ['resources'])}")
    entries = raw.get("resources") or {}
    if not isinstance(entries, Mapping):
        raise ConfigError(f"{path}: resources", "must be a mapping", entries)
    return Machine({str(name): _entry(f"{path}: resources.{name}", str(name), said) for name, said in entries.items()})


def _entry(where: str, name: str, said: Any) -> dict[str, Any]:
    kind = name.partition(".")[0]
    if kind not in (*KINDS, _DEFAULT) or name.startswith(f"{_DEFAULT}."):
        raise ConfigError(where, f"is no stage kind{nearest(kind, (_DEFAULT, *KINDS))}")
    if not isinstance(said, Mapping):
        raise ConfigError(where, "must be a mapping", said)
    found: dict[str, Any] = {}
    for key, value in said.items():
        if key == "resources":
            if not isinstance(value, Mapping):
                raise ConfigError(f"{where}.{key}", "must be a mapping of names to amounts", value)
            found[key] = {str(k): _amount(f"{where}.{key}.{k}", v) for k, v in value.items()}
        elif key in _NUMBERS:
            found[key] = _amount(f"{where}.{key}", value)
        else:
            raise ConfigError(f"{where}.{key}", f"is not a key{nearest(key, (*_NUMBERS, 'resources'))}")
    return found


def _amount(where: str, value: Any) -> float:
    """Read an amount by Ray's rule: more than one must be a whole number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not (math.isfinite(value) and value >= 0):
        raise ConfigError(where, "must be a number >= 0", value)
    if value > 1 and not float(value).is_integer() and not where.endswith("memory_gb"):
        raise ConfigError(where, "must be a whole number if it is more than 1", value)
    return float(value)
