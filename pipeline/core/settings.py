"""Machine settings: how and where work runs, independent of its results. They come only from the environment.

BDL_EXECUTOR            inline | ray (default: ray)
RAY_ADDRESS             host:port of the head of a cluster that this machine can reach; http://host:8265 of its
                        dashboard, which runs the whole command as a job; if unset, Ray is started in this process
BDL_DEVICE              cpu | cuda (default: cpu)
BDL_WAIT_FOR_NODES      seconds to wait for an autoscaler to add a node that a task needs (default: 0)
BDL_GPUS_PER_TASK       share of a GPU for each task (default: 1 with cuda, else 0)
BDL_MACHINE             a file with the resources of tasks by stage and method (default: machine.yaml if it exists)
BDL_THREADS             threads of each task (default: 1; another number changes the last bits)
BDL_WORKERS_PER_TASK    processes that share each batch of a fit (default: 1), each with the task's threads
                        and GPU share; more changes the last bits, and batch norm sees a share of a batch;
                        the inline executor uses one
BDL_CHECKPOINT_SECONDS  seconds between checkpoints (default: 15)
BDL_CHECKPOINTS         a folder or s3://bucket/path that all machines share, where Ray's workers write checkpoints of
                        unfinished tasks (default: the driver keeps them in the project)
BDL_TRACKING            on | off (default: on): whether runs are tracked in MLflow; off: MLflow is not imported
BDL_REMOTE              on | off (default: off): take results from DVC's default remote before anything runs, and push
                        them there at the end of the command
BDL_SEARCHES            a folder or s3://bucket/path that all machines share, where searches and studies keep their
                        trials, so that any machine can resume them (default: a folder of the project)
BDL_MLFLOW_ARTIFACTS    s3://bucket/path of the artifacts of tracked runs (default: beside the tracking store)

``machine.yaml``: the resources of tasks on a cluster's nodes. It never makes a result stale.

    resources:
      default: {gpus: 0.25}                       # four small tasks on a GPU
      trajectory: {gpus: 1}                       # a stage kind; tune and study are kinds, too
      student.ciber: {gpus: 0, cpus: 2}           # a method in a stage kind
      evaluate: {memory_gb: 8, resources: {A100: 1}}   # resources by the names that ray start defines

    track: {models: true, system: true}           # repro registers each run's posterior in MLflow, and logs the
                                                  # machine's CPU, memory, disk, network and GPUs; default: false

The most specific entry with a value for a key decides. The file is beside ``params.yaml``, or at BDL_MACHINE.
"""

import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from bdl_pipe import config
from bdl_pipe.config import nearest
from bdl_pipe.errors import ConfigError, UserError, require
from bdl_pipe.yaml_files import read_yaml

from .storage import has_userinfo, hide

_FILE: Final = Path("machine.yaml")
_KINDS: Final = ("trajectory", "teacher", "coreset", "student", "prepare", "evaluate", "decide", "tune", "study")
_DEFAULT: Final = "default"
_GB: Final = 10**9


@dataclass(frozen=True)
class Needs:
    """The resources of a task.

    Attributes:
        gpus: a share of a GPU, or a whole number of GPUs.
        memory_gb: units of 10⁹ bytes, which Ray counts but does not enforce. 0: memory is not counted.
        others: amounts of resources with names that the cluster defines.
    """

    cpus: float = 1.0
    gpus: float = 0.0
    memory_gb: float = 0.0
    others: tuple[tuple[str, float], ...] = ()

    @property
    def counted(self) -> dict[str, float]:
        """Return the nonzero amounts, by Ray's names."""
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
    """Describe amounts, given by Ray's names, in words."""
    each = [f"{v / _GB:g} GB memory" if k == "memory" else f"{v:g} {k}" for k, v in amounts.items()]
    return f"{', '.join(each[:-1])} and {each[-1]}" if len(each) > 1 else each[0]


@dataclass(frozen=True)
class Amounts:
    """An entry of ``machine.yaml``; None means that the entry does not set the value.

    Attributes:
        resources: amounts of resources with names that the cluster defines.
    """

    cpus: float | None = None
    gpus: float | None = None
    memory_gb: float | None = None
    resources: dict[str, float] | None = None

    def __post_init__(self) -> None:
        named = {f"resources.{name}": amount for name, amount in (self.resources or {}).items()}
        for key, amount in {"cpus": self.cpus, "gpus": self.gpus, "memory_gb": self.memory_gb, **named}.items():
            value = amount or 0.0
            require(value >= 0, key, "must be >= 0", value)
            whole = value <= 1 or value.is_integer() or key == "memory_gb"  # Ray's rule
            require(whole, key, "must be a whole number if it is more than 1", value)


@dataclass(frozen=True)
class Track:
    """The section ``track`` of ``machine.yaml``.

    Attributes:
        models: whether ``repro`` logs the posterior of each run to MLflow, and registers it.
        system: whether a command's run has the machine's CPU, memory, disk, network and GPUs, measured every 10 s.
    """

    models: bool = False
    system: bool = False


@dataclass(frozen=True)
class Machine:
    """``machine.yaml``; without a file it has no entries.

    Attributes:
        resources: name of an entry -> its amounts.
        track: what MLflow gets besides figures and scores.
    """

    resources: dict[str, Amounts] | None = None
    track: Track = field(default_factory=Track)

    def __post_init__(self) -> None:
        for name in self.resources or ():
            kind = name.partition(".")[0]
            exists = kind in _KINDS or name == _DEFAULT
            require(exists, f"resources.{name}", f"is not a stage kind{nearest(kind, (_DEFAULT, *_KINDS))}")

    def amounts(self, kind: str, method: str) -> dict[str, Any]:
        """Return the amounts for the tasks of a method in a stage kind, by key."""
        names, entries = (_DEFAULT, kind, f"{kind}.{method}"), self.resources or {}
        entered = [vars(entries[name]).items() for name in names if name in entries]
        return {key: amount for items in entered for key, amount in items if amount is not None}

    def needs(self, kind: str, method: str, usual: Needs) -> Needs:
        """Return the resources of a task of a method in a stage kind: ``usual``, updated by the file's amounts."""
        amounts = self.amounts(kind, method)
        others = tuple(sorted(amounts.pop("resources", {}).items())) or usual.others
        return replace(usual, **amounts, others=others)

    def check_methods(self, methods: Iterable[str]) -> None:
        """Check that entries name known methods.

        Raises:
            ConfigError: an entry names an unknown method.
        """
        methods = sorted(methods)
        for name in self.resources or ():
            _, dot, method = name.partition(".")
            good = not dot or method in methods
            require(good, f"machine.yaml: resources.{name}", f"names no method{nearest(method, methods)}")


@dataclass(frozen=True)
class Settings:
    """Machine settings, read from the environment and checked.

    Attributes:
        address: host:port of the cluster that this process joins; empty if there is none.
        node_seconds: the seconds to wait for a node that an autoscaler adds.
        needs: the resources of each task.
        machine: the resources by stage and method; see :meth:`of`.
        jobs: http(s)://host:port of a dashboard that runs whole commands as jobs; empty if there is none.
    """

    executor: str = "ray"
    address: str = ""
    device: str = "cpu"
    needs: Needs = field(default_factory=Needs)
    threads: int = 1
    checkpoint_seconds: float = 15.0
    workers: int = 1
    tracking: bool = True
    jobs: str = ""
    remote: bool = False
    artifacts: str = ""
    searches: str = ""
    checkpoints: str = ""
    node_seconds: float = 0.0
    machine: Machine = field(default_factory=Machine)

    def of(self, kind: str, method: str) -> "Settings":
        """Return the settings of the tasks of a method in a stage kind.

        If ``machine.yaml`` gives a task no GPU, it computes on the CPU for any BDL_DEVICE.
        """
        needs = self.machine.needs(kind, method, self.needs)
        on_cpu = self.machine.amounts(kind, method).get("gpus") == 0
        return replace(self, needs=needs, device="cpu" if on_cpu else self.device)

    @classmethod
    def read(cls, environment: Mapping[str, str] | None = None) -> "Settings":
        """Read the environment.

        Raises:
            ConfigError: a value breaks its rule; the message has the variable, the rule and the value.
        """
        env = os.environ if environment is None else environment
        device = _choice(env, "BDL_DEVICE", "cpu", ("cpu", "cuda"))
        address = env.get("RAY_ADDRESS", "").strip()
        is_dashboard = address.startswith(("http://", "https://"))
        return cls(
            executor=_choice(env, "BDL_EXECUTOR", "ray", ("inline", "ray")),
            address="" if is_dashboard else address,
            jobs=address.rstrip("/") if is_dashboard else "",
            device=device,
            needs=Needs(gpus=_number(env, "BDL_GPUS_PER_TASK", 1.0 if device == "cuda" else 0.0)),
            machine=_machine(env),
            threads=_count(env, "BDL_THREADS"),
            checkpoint_seconds=_number(env, "BDL_CHECKPOINT_SECONDS", 15.0),
            workers=_count(env, "BDL_WORKERS_PER_TASK"),
            tracking=_choice(env, "BDL_TRACKING", "on", ("on", "off")) == "on",
            remote=_choice(env, "BDL_REMOTE", "off", ("on", "off")) == "on",
            artifacts=_on_s3(env, "BDL_MLFLOW_ARTIFACTS"),
            searches=_shared(env, "BDL_SEARCHES", is_here=not is_dashboard),
            checkpoints=_shared(env, "BDL_CHECKPOINTS", is_here=not is_dashboard),
            node_seconds=_number(env, "BDL_WAIT_FOR_NODES", 0.0),
        )


def _machine(env: Mapping[str, str]) -> Machine:
    named = env.get("BDL_MACHINE", "")
    if named and not Path(named).is_file():
        raise ConfigError("BDL_MACHINE", "must be a file", named)
    return read_machine(Path(named) if named else _FILE)


def read_machine(path: Path) -> Machine:
    """Read ``machine.yaml``; a missing file has no entries.

    Raises:
        ConfigError: a key is unknown, or a number breaks its rule.
    """
    return config.read(Machine, read_yaml(path), str(path)) if path.exists() else Machine()


def require_device(device: str) -> None:
    """Raise UserError if ``device`` is ``cuda`` and this process sees no GPU."""
    if device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise UserError("BDL_DEVICE=cuda, but there is no GPU that torch can use here: set BDL_DEVICE=cpu")


def _choice(env: Mapping[str, str], name: str, default: str, options: tuple[str, ...]) -> str:
    value = env.get(name) or default
    if value not in options:
        raise ConfigError(name, f"must be {' or '.join(options)}", hide(value, environment=env))
    return value


def _shared(env: Mapping[str, str], name: str, is_here: bool = True) -> str:
    """Read the address of shared storage; with ``is_here``, a folder must exist on this machine."""
    value = env.get(name, "").strip()
    if "://" in value:
        return _on_s3(env, name)
    if value and not (Path(value).is_absolute() and (Path(value).is_dir() or not is_here)):
        raise ConfigError(name, "must be s3://bucket/path, or the absolute path of a folder that exists", value)
    return value.rstrip("/")


def _on_s3(env: Mapping[str, str], name: str) -> str:
    """Read an address on S3; empty if the variable is not set."""
    value = env.get(name, "").strip().rstrip("/")
    if has_userinfo(value):
        rule = "must hold no credential; export AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        raise ConfigError(name, rule, hide(value, environment=env))
    if value and not re.fullmatch(r"s3://[a-z0-9][a-z0-9.-]+(/[^\s?#]+)?", value):
        raise ConfigError(name, "must be s3://bucket/path", hide(value, environment=env))
    return value


def _count(env: Mapping[str, str], name: str) -> int:
    """Read a whole number, 1 by default."""
    value = _number(env, name, 1.0, least=1.0)
    if not value.is_integer():
        raise ConfigError(name, "must be a whole number", env[name])
    return int(value)


def _number(env: Mapping[str, str], name: str, default: float, least: float = 0.0) -> float:
    text = env.get(name) or str(default)
    try:
        value = float(text)
    except ValueError:
        raise ConfigError(name, "must be a number", text) from None
    if not (math.isfinite(value) and value >= least):
        raise ConfigError(name, f"must be >= {least:g}", text)
    return value
