"""``machine.yaml``: what the tasks of this machine's commands take of a cluster's nodes. It is never hashed.

    resources:
      default: {gpus: 0.25}                       # four small tasks on a GPU
      trajectory: {gpus: 1}                       # a stage kind; tune and study are kinds, too
      student.ciber: {gpus: 0, cpus: 2}           # a method in a stage kind
      evaluate: {memory_gb: 8, resources: {A100: 1}}   # resources of the cluster's own names, as ray start has them

The most specific entry that has a number decides it. The file lies beside ``params.yaml``, or where BDL_MACHINE says.
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
    """What a task takes of the node that it runs on.

    Attributes:
        gpus: a share of one, or a whole number.
        memory_gb: 10⁹ bytes, which Ray counts and does not enforce; 0: whatever it needs.
        others: of resources that the cluster has under names of its own.
    """

    cpus: float = 1.0
    gpus: float = 0.0
    memory_gb: float = 0.0
    others: tuple[tuple[str, float], ...] = ()

    @property
    def counted(self) -> dict[str, float]:
        """Return the amounts by Ray's names, where they are not 0."""
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
    """Write amounts by Ray's names as a person reads them."""
    each = [f"{v / _GB:g} GB memory" if k == "memory" else f"{v:g} {k}" for k, v in amounts.items()]
    return f"{', '.join(each[:-1])} and {each[-1]}" if len(each) > 1 else each[0]


@dataclass(frozen=True)
class Machine:
    """The file as it was read; without one nothing is said of any task.

    Attributes:
        entries: name -> the numbers that it gives.
    """

    entries: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: MappingProxyType({}))

    def __reduce__(self) -> tuple[type, tuple[dict[str, Any]]]:
        return type(self), ({name: dict(numbers) for name, numbers in self.entries.items()},)

    def says(self, kind: str, method: str) -> dict[str, Any]:
        """Return what it gives for the tasks of a method in a stage kind."""
        said: dict[str, Any] = {}
        for name in (_DEFAULT, kind, f"{kind}.{method}"):
            said |= self.entries.get(name, {})
        return said

    def needs(self, kind: str, method: str, usual: Needs) -> Needs:
        """Return what such a task takes: ``usual``, but for the numbers that the file gives."""
        said = self.says(kind, method)
        others = tuple(sorted(said.pop("resources", {}).items())) or usual.others
        return replace(usual, **said, others=others)

    def check_methods(self, known: Iterable[str]) -> None:
        """Refuse an entry of a method that is not known.

        Raises:
            ConfigError: naming the entry.
        """
        known = sorted(known)
        for name in self.entries:
            _, dot, method = name.partition(".")
            if dot and method not in known:
                raise ConfigError(f"machine.yaml: resources.{name}", f"is of no method{nearest(method, known)}")


def read(path: Path) -> Machine:
    """Read the file; where there is none it says nothing.

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
    """Read an amount by Ray's rule: of what is more than one, there are no parts."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not (math.isfinite(value) and value >= 0):
        raise ConfigError(where, "must be a number >= 0", value)
    if value > 1 and not float(value).is_integer() and not where.endswith("memory_gb"):
        raise ConfigError(where, "must be a whole number where it is more than 1", value)
    return float(value)
