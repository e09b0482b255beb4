"""Keys and values of params files that have another name now: ``python -m pipeline upgrade`` rewrites them."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from bdl_pipe.errors import ConfigError

RUNS: Final = ("trajectories", "teachers", "coresets", "runs")
_LEARNING_RATES: Final = ("optimiser", "coreset", "pool", "student")  # sections whose ``rate`` is one
_OF_SGD: Final = {"keep": "snapshots", "after": "extra_epochs", "parts": "snapshots_per_epoch"}


def refuse(raw: Mapping[str, Any]) -> None:
    """Raise an error if a params file that has been read uses an old key or value.

    Raises:
        ConfigError: there is one; with its present name and the command that rewrites the file.
    """
    for key, dataset in _mapping(raw.get("datasets")).items():
        for option, value in _mapping(dataset).items():
            if (name := present_value(option, value)) is not None:
                raise _old(f"datasets.{key}.{option}", name, f"{value} ")
    for section in RUNS:
        for key, run in _mapping(raw.get(section)).items():
            if "members" in _mapping(run):
                raise _old(f"{section}.{key}.members", "seeds")
            method = str(_mapping(run).get("method"))
            _refuse(_mapping(run).get("override"), f"{section}.{key}.override", method, ())
    for method, section in _mapping(raw.get("methods")).items():
        _refuse(section, f"methods.{method}", str(method), ())


def _refuse(section: Any, path: str, method: str, above: tuple[str, ...]) -> None:
    for key, value in _mapping(section).items():
        if (name := present((*above, str(key)), method)) is not None:
            raise _old(f"{path}.{key}", name)
        _refuse(value, f"{path}.{key}", method, (*above, str(key)))


def _old(path: str, name: str, value: str = "") -> ConfigError:
    return ConfigError(path, f"{value}is now called {name}: python -m pipeline upgrade rewrites the file")


def _mapping(value: Any) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}


def present(path: Sequence[str], method: str) -> str | None:
    """Return the present name of the last key of a path in a method's section; None where it is not an old one."""
    key, above = path[-1], path[-2] if len(path) > 1 else ""
    if key == "rate" and (above in _LEARNING_RATES or (method, above) == ("gp", "")):
        return "lr"
    if key == "choose" and above != "augmentation":
        return "early_stopping"
    if (key, above) == ("learn", ""):
        return "training"
    if method == "sgd" and not above:
        return _OF_SGD.get(key)
    return {("label_rate", "coreset"): "label_lr", ("clip", "optimiser"): "grad_clip_norm"}.get((key, above))


def present_value(key: object, value: object) -> str | None:
    """Return the present name of a value of an entry of ``datasets``; None where it is not an old one."""
    return "published" if (key, value) == ("normalise", "paper") else None
