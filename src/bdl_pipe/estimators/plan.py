"""The runs of a method: its upstream trajectory, teacher or coreset, and the fit of its posterior.

The plan equals the runs that ``python -m pipeline add`` writes for the method: the same runs, hyperparameters and names
of addresses, for a data set with the name :data:`DATASET`.
"""

import dataclasses
import difflib
import json
import math
import numbers
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, get_args

import numpy as np
import torch
from sklearn.base import BaseEstimator

from .. import config
from ..data.examples import Task
from ..data.size import Section, Size
from ..data.tables.columns import KINDS
from ..errors import ConfigError, UserError, require
from ..fitting import Run
from ..method import Kind, Method, StageSpec
from ..plugins import loaded
from ..registry import METHODS

AUTO: Final = "auto"  # the method that the rows determine, see :func:`bdl_pipe.offers.automatic`
DATASET: Final = "data"
DATA: Final = "data"  # the value of ``made_from`` for a fit from the data alone
_USUAL: Final[Mapping[Kind, str]] = {"trajectory": "iterates", "teacher": "sgmcmc", "coreset": "vbpc"}
_KINDS: Final = get_args(Kind)
_ROOTS: Final = 2**31 - 1
RandomState = int | np.random.RandomState | np.random.Generator | None  # a root seed, or what draws it; None is 0


def plan(
    name: str,
    size: Size,
    *,
    override: Mapping[str, object] | None = None,
    made_from: str | None = None,
    upstream: Mapping[str, Mapping[str, object]] | None = None,
) -> list[Run]:
    """List the runs of a method in the order in which they are fitted; the last one is the posterior's.

    Args:
        override: hyperparameters that replace the method's.
        made_from: the method's source run: a key of some method's ``upstream`` (``sgd``, ``iterates``, ``sgmcmc``,
            ``vbpc``, …), another method, or ``data`` for the data alone. None means the usual source.
        upstream: key or method of an upstream run -> hyperparameters that replace that run's own.

    Raises:
        UserError: there is no such method or run, or the method cannot predict the task.
        DataError: the method is for images, and the rows are not images.
        ConfigError: a hyperparameter is unknown, missing or out of its range.
    """
    method = known(name, size.task)
    changes = dict(upstream or {})
    runs = _runs(method, "student", size, dict(override or {}), made_from, changes)
    require(not changes, "upstream", "must name runs that the method is made from", ", ".join(changes))
    return runs


def known(name: str, task: Task) -> Method:
    """Return the method ``name``, which must have a posterior for the task.

    Raises:
        UserError: the method is unknown, or has no posterior for the task; the message names similar methods.
    """
    if not isinstance(name, str) or name not in METHODS:
        raise UserError(f"method must be a name of bdl_pipe.METHODS{config.nearest(name, METHODS)}, got {name!r}")
    method = METHODS[name]
    if "student" not in method.stages:
        got = f"got {name}, which makes a {' and '.join(method.stages)} for other methods (made_from)"
        raise UserError(f"method must have a posterior, {got}")
    if task not in method.tasks:
        others = [n for n in METHODS if task in METHODS[n].tasks and "student" in METHODS[n].stages]
        near = difflib.get_close_matches(name, others, n=2, cutoff=0.5)
        hint = f" (did you mean {' or '.join(near)}?)" if near else f" (those that do: {', '.join(others)})"
        raise UserError(f"method must support {task}{hint}, got {name}")
    return method


def about(runs: Sequence[Run], method: str, seed: int) -> dict[str, object]:
    """Return the facts of a fit's manifest, with the plugins that define a part of the runs' configs."""
    modules = {module for run in runs for module in _modules(run.config)}
    plugins = [plugin.name for plugin in loaded() if any(plugin.owns(module) for module in modules)]
    return {
        "dataset": DATASET,
        "method": method,
        "run": runs[-1].key,
        "seed": seed,
        "seeds": 1,
        "config": json.loads(json.dumps(config.to_mapping(runs[-1].config))),
        **({"plugins": plugins} if plugins else {}),
    }


def _modules(value: object) -> Iterator[str]:
    if dataclasses.is_dataclass(value):
        yield type(value).__module__
        for field in dataclasses.fields(value):
            yield from _modules(getattr(value, field.name))


def check_parameters(estimator: BaseEstimator) -> None:
    """Check the parameters of an estimator that are not checked where they are used.

    Raises:
        ConfigError: a parameter has a wrong type or value.
        ValueError: torch has no such device.
    """
    params = estimator.get_params(deep=False)
    for name, what in (("method", "a name of bdl_pipe.METHODS"), ("device", "a device of torch")):
        require(isinstance(params[name], str), name, f"must be {what}", params[name])
    try:
        torch.device(params["device"])
    except RuntimeError:
        raise ValueError(f"device: must be a device of torch, such as cpu or cuda, got {params['device']!r}") from None
    conformal, groups = params["conformal"], params["groups"]
    require(conformal in (None, "split", "cross"), "conformal", "must be split, cross or None", conformal)
    require(groups is None or conformal is not None, "groups", "must be None, or conformal split or cross", groups)
    for name in ("pace", "minutes", "threads"):
        value, kind = params[name], numbers.Integral if name == "threads" else numbers.Real
        good = float(value) > 0 if isinstance(value, kind) else value is None and name != "pace"
        require(good, name, "must be > 0" if name == "pace" else "must be > 0 or None", value)
    require(math.isfinite(params["pace"]), "pace", "must be finite", params["pace"])
    for name in ("override", "upstream", "columns"):
        value = params[name]
        require(value is None or isinstance(value, Mapping), name, "must be a mapping or None", value)
    for name, kind in (params["columns"] or {}).items():
        require(kind in KINDS, f"columns.{name}", f"must be one of {', '.join(KINDS)}", kind)


def is_number(value: object) -> bool:
    """Return whether a value is a number, and no truth."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def root_of(random_state: RandomState) -> int:
    """Return the root seed from ``random_state``; see :class:`.base.BayesianEstimator`.

    Raises:
        ConfigError: ``random_state`` is neither a whole number >= 0, nor a generator of NumPy, nor None.
    """
    if random_state is None:
        return 0
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(_ROOTS))
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(_ROOTS))
    is_whole = isinstance(random_state, numbers.Integral) and not isinstance(random_state, bool)
    rule = "must be a whole number >= 0, a generator of NumPy or None"
    require(is_whole and int(random_state) >= 0, "random_state", rule, random_state)
    return int(random_state)


def _runs(
    method: Method,
    kind: Kind,
    size: Size,
    override: Mapping[str, object],
    made_from: str | None,
    changes: dict[str, Mapping[str, object]],
) -> list[Run]:
    """List the upstream runs of a run of ``method``, and then the run itself."""
    stage, default = method.stages[kind], method.default
    if made_from is None:
        made_from = default.upstream if default is not None and kind == "student" else ""
        made_from = made_from or next((_USUAL[of] for of in _KINDS if of in stage.required and of in _USUAL), DATA)
    if made_from == DATA:
        require(not stage.required, "made_from", f"must be a {' and a '.join(stage.required)}", made_from)
    above = [] if made_from == DATA else _upstream(made_from, stage, size, changes)
    last = above[-1] if above else None
    return [*above, _run(kind, method.name, method, config.merge(_section(method, size, last), override), 1, last)]


def _upstream(name: str, stage: StageSpec, size: Size, changes: dict[str, Mapping[str, object]]) -> list[Run]:
    """List the run of the upstream key or method ``name``, after the runs that it needs."""
    override = changes.pop(name, {})
    method = next((m for m in METHODS.values() if name in m.upstream), None)
    if method is not None:
        above = method.upstream[name].of([stage])
        _require_kind(name, above.kind, stage)
        merged = config.merge(config.merge(method.settings, above.override(size)), override)
        return [_run(above.kind, name, method, merged, above.seeds, None)]
    if name not in METHODS:
        keys = [key for m in METHODS.values() for key in m.upstream]
        raise ConfigError("made_from", f"must be data, a run ({', '.join(keys)}) or a method", name)
    method = METHODS[name]
    kind = next((of for of in stage.needs if of in method.stages), None)
    _require_kind(name, kind or next(iter(method.stages)), stage)
    assert kind is not None
    return _runs(method, kind, size, override, None, changes)


def _require_kind(name: str, kind: str, stage: StageSpec) -> None:
    rule = f"must make a {' or a '.join(stage.needs)}" if stage.needs else "must be data"
    require(kind in stage.needs, "made_from", rule, f"{name}, which makes a {kind}")


def _section(method: Method, size: Size, above: Run | None) -> Section:
    """Return a run's hyperparameters: its section, overlaid by the values that the data determine.

    A method without a ``default`` copies the keys that it shares with its source run, such as the network of a coreset.
    Without a source run it takes the network and training of ``size``, unless its section has a network for rows of
    this kind.
    """
    base = method.settings
    if method.default is not None:
        return config.merge(base, method.default.override(size))
    fields = {field.name for field in dataclasses.fields(method.config)}
    if above is not None:
        theirs = config.to_mapping(above.config)
        return {**base, **{key: value for key, value in theirs.items() if key in fields and key in _SHARED}}
    if "network" in base and (base["network"]["name"] == "mlp") == (size.image is None):
        return base
    usual = {"network": size.network, "training": size.training()}
    return {**base, **{key: value for key, value in usual.items() if key in fields}}


_SHARED: Final = frozenset({"network", "rho", "gamma", "feature_scale"})  # a posterior copies these from its coreset


def _run(kind: Kind, key: str, method: Method, merged: Section, seeds: int, above: Run | None) -> Run:
    typed: object = config.read(method.config, merged, f"methods.{method.name}")
    run = Run(kind, f"{DATASET}-{key}", method, typed, seeds, {} if above is None else {above.kind: above.key})
    if run.stage.validate_sources is not None:
        run.stage.validate_sources(typed, {} if above is None else {above.kind: above.config})
    return run
