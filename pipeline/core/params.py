"""The typed view of the whole of params.yaml, checked before anything else happens.

Every command reads it first, so a wrong number anywhere stops everything in the first second.
DVC reads the file itself, to know what has changed.
"""

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, get_args

import yaml

from bdl_pipe import config
from bdl_pipe.data.config import DatasetConfig, ImageFolder, Npz, Table, Uci
from bdl_pipe.data.partners import ood_source, transfer_source
from bdl_pipe.errors import ConfigError, DataError, require
from bdl_pipe.evaluation import EvaluateConfig
from bdl_pipe.method import Kind, Method, Room

SECTIONS: Final[Mapping[str, str]] = {
    "trajectory": "trajectories",
    "teacher": "teachers",
    "coreset": "coresets",
    "student": "runs",
}
FIT_KINDS: Final = get_args(Kind)  # in the order in which one may be made from another
_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")
_SETTING: Final = re.compile(r"[\w.=%()+-]+( [\w.=%()+-]+)*|")  # no sign of Markdown's tables, of HTML or of rich markup


@dataclass(frozen=True)
class Entry:
    """A row as it is written.

    Attributes:
        dataset: a key of ``datasets``.
        method: a key of ``methods``.
        members: how many are made for each split of the data.
        input: ``prepare/<data set>``, or ``<stage kind>/<row>`` of a row above: what it is made from.
        override: numbers of this row in place of the method's.
        setting: the column of the comparison that tells runs of one method apart (runs only).
    """

    dataset: str
    method: str
    members: int
    input: str
    override: dict[str, Any] = field(default_factory=dict)
    setting: str = ""

    def __post_init__(self) -> None:
        require(self.members >= 1, "members", "must be >= 1", self.members)
        rule = "must be words of letters, digits and . _ - + = % ( ), one space between them"
        require(_SETTING.fullmatch(self.setting) is not None, "setting", rule, self.setting)


@dataclass(frozen=True)
class ReportConfig:
    """The section ``report``.

    Attributes:
        figures_dpi: CSS pixels an inch of figure.
    """

    figures_dpi: int

    def __post_init__(self) -> None:
        require(self.figures_dpi > 0, "figures_dpi", "must be > 0", self.figures_dpi)


@dataclass(frozen=True)
class Row:
    """A row with everything that follows from it."""

    kind: Kind
    key: str
    entry: Entry
    method: Method
    config: Any

    @property
    def room(self) -> Room:
        return self.method.rooms[self.kind]

    @property
    def input_kind(self) -> str:
        return self.entry.input.split("/")[0]

    @property
    def input_key(self) -> str:
        return self.entry.input.split("/")[1]


@dataclass(frozen=True)
class Params:
    """params.yaml, typed."""

    seed: int
    datasets: Mapping[str, DatasetConfig]
    rows: Mapping[tuple[str, str], Row]
    evaluate: EvaluateConfig
    report: ReportConfig
    raw: Mapping[str, Any]

    def row(self, kind: str, key: str) -> Row:
        if (kind, key) not in self.rows:
            known = [k for other, k in self.rows if other == kind]
            raise ConfigError(f"{SECTIONS.get(kind, kind)}.{key}", f"is not a row{nearest(key, known)}")
        return self.rows[kind, key]

    def of(self, kind: str) -> list[Row]:
        return [row for row in self.rows.values() if row.kind == kind]


def load(path: Path = Path("params.yaml"), registry: Mapping[str, Method] | None = None) -> Params:
    """Read and check all of it. ``registry``: the methods that there are; the library's by default.

    Raises:
        ConfigError: the first key that breaks its rule, with its path, the rule and the value.
        DataError: the file is missing or is not YAML.
    """
    return typed(read_yaml(path), registry)


def typed(raw: Mapping[str, Any], registry: Mapping[str, Method] | None = None) -> Params:
    """``load`` of what was read already.

    Raises:
        ConfigError: as :func:`load`.
    """
    registry = _library() if registry is None else registry
    sections = ("seed", "datasets", "methods", *SECTIONS.values(), "evaluate", "report")
    _keys(raw, sections)
    seed = raw["seed"]
    require(type(seed) is int and seed >= 0, "seed", "must be a whole number >= 0", seed)
    datasets = {k: config.read(DatasetConfig, v, f"datasets.{k}") for k, v in _section(raw, "datasets").items()}
    for key, dataset in datasets.items():
        for i, name in enumerate(dataset.ood):
            ood_source(name, datasets, f"datasets.{key}.ood[{i}]")
        for i, name in enumerate(dataset.transfer):
            transfer_source(name, key, datasets, f"datasets.{key}.transfer[{i}]")
    for name, section in _section(raw, "methods").items():
        require(name in registry, f"methods.{name}", f"is not a method{nearest(name, registry)}")
        config.read(registry[name].config, section, f"methods.{name}")
    rows: dict[tuple[str, str], Row] = {}
    for kind in FIT_KINDS:
        for key, value in _section(raw, SECTIONS[kind]).items():
            rows[kind, key] = _row(kind, key, value, raw, rows, registry, datasets)
    evaluate = config.read(EvaluateConfig, raw["evaluate"], "evaluate")
    return Params(seed, datasets, rows, evaluate, config.read(ReportConfig, raw["report"], "report"), raw)


def _library() -> Mapping[str, Method]:
    from bdl_pipe.methods import METHODS

    return METHODS


def read_yaml(path: Path) -> Mapping[str, Any]:
    """A YAML mapping; a key that stands twice is an error, and 1e-3 is a number (as in YAML 1.2)."""
    try:
        loaded = yaml.load(path.read_text(), _Loader)
    except FileNotFoundError:
        raise DataError(f"{path}: there is no such file in {Path.cwd()}") from None
    except (yaml.MarkedYAMLError, UnicodeDecodeError) as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None) or error
        place = f"{path}:{mark.line + 1}" if mark else str(path)
        raise DataError(f"{place}: is not YAML: {' '.join(str(problem).split())}") from None
    if not isinstance(loaded, dict):
        raise DataError(f"{path}: must be sections (key: value)")
    return loaded


def nearest(key: object, known: Iterable[str]) -> str:
    names = list(known)
    close = difflib.get_close_matches(str(key), names, n=1)
    return f" (did you mean {close[0]}?)" if close else f" (known: {', '.join(names) or 'none'})"


def _keys(raw: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in raw:
        require(key in known, str(key), f"is not a known section{nearest(key, known)}")
    for key in known:
        require(key in raw, key, "is missing")


def _section(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = raw[name] if raw[name] is not None else {}
    require(isinstance(section, dict), name, "must be a section (key: value)", section)
    for key in section:
        good = isinstance(key, str) and _KEY.fullmatch(key) is not None
        require(good, f"{name}.{key}", "must be a key of letters, digits, _ and - alone", key)
    return section


def _row(
    kind: Kind,
    key: str,
    value: Any,
    raw: Mapping[str, Any],
    above: Mapping[tuple[str, str], Row],
    registry: Mapping[str, Method],
    datasets: Mapping[str, DatasetConfig],
) -> Row:
    path = f"{SECTIONS[kind]}.{key}"
    entry = config.read(Entry, value, path)
    require(kind == "student" or not entry.setting, f"{path}.setting", "is for runs only", entry.setting)
    require(kind != "student" or entry.setting != "", f"{path}.setting", "is missing")
    _known(entry.dataset, datasets, f"{path}.dataset", "a data set")
    _known(entry.method, registry, f"{path}.method", "a method")
    _known(entry.method, raw["methods"], f"{path}.method", "a section of methods")
    method = registry[entry.method]
    rooms = ", ".join(method.rooms)
    require(kind in method.rooms, f"{path}.method", f"must be a method that makes a {kind}", f"{method.name}: {rooms}")
    task = datasets[entry.dataset].task
    require(task in method.tasks, f"{path}.method", f"must support {task} (the data of {entry.dataset})", method.name)
    merged = config.merge(raw["methods"][entry.method], entry.override)
    row = Row(kind, key, entry, method, config.read(method.config, merged, f"methods.{entry.method}"))
    _check_input(row, path, above)
    return row


def _check_input(row: Row, path: str, above: Mapping[tuple[str, str], Row]) -> None:
    """The input is the row's data set, or a row above it of a kind that the room needs."""
    needs, place = row.room.needs, f"{path}.input"
    shape = row.entry.input.count("/") == 1
    data = not needs or row.room.optional
    meant = " or ".join([f"{need}/<row>" for need in needs] + [f"prepare/{row.entry.dataset}"] * data)
    require(shape and row.input_kind in (*needs, *["prepare"] * data), place, f"must be {meant}", row.entry.input)
    if row.input_kind == "prepare":
        require(row.input_key == row.entry.dataset, place, f"must be {meant}", row.entry.input)
        _check_source(row, path, None)
        return
    rows = [key for kind, key in above if kind == row.input_kind]
    require(row.input_key in rows, place, f"must be a row above{nearest(row.input_key, rows)}", row.entry.input)
    source = above[row.input_kind, row.input_key]
    same = source.entry.dataset == row.entry.dataset
    require(same, place, f"must be of the data set {row.entry.dataset}", f"{row.entry.input}: {source.entry.dataset}")
    enough = row.room.takes == "all" or row.entry.members <= source.entry.members
    require(enough, f"{path}.members", f"must be <= {source.entry.members}, those of its input", row.entry.members)
    _check_source(row, path, source)


def _check_source(row: Row, path: str, source: Row | None) -> None:
    """The row's numbers fit those of the posterior that it is made from, or that it is made from none."""
    posterior = source if source is not None and source.kind == "student" else None
    if posterior is not None:
        rule, found = f"must be a run of {row.method.name}", f"{row.entry.input}: {posterior.method.name}"
        require(posterior.method.name == row.method.name, f"{path}.input", rule, found)
    if row.room.fits is not None:
        try:
            row.room.fits(row.config, None if posterior is None else posterior.config)
        except ConfigError as error:
            raise ConfigError(f"{path}.{error.path}", error.rule, error.value) from None


def _known(key: str, known: Iterable[str], path: str, what: str) -> None:
    require(key in known, path, f"must be {what}{nearest(key, known)}", key)


def unwatched(params: Params) -> list[str]:
    """What DVC does not watch, one line each: files of users outside ``data/``; rows that another one names."""
    lines = []
    for key, dataset in params.datasets.items():
        if isinstance(dataset.source, (Table, Uci, ImageFolder, Npz)):
            path = Path(dataset.source.path)
            if not path.absolute().is_relative_to(Path("data").absolute()):
                lines.append(f"datasets.{key}.source.path: {path} is outside data/, so a change in it goes unnoticed")
        for kind, names in (("ood", dataset.ood), ("transfer", dataset.transfer)):
            lines += [
                f"datasets.{key}.{kind}: a change of datasets.{name}.source goes unnoticed (dvc repro -f prepare@{key})"
                for name in names
                if name in params.datasets
            ]
    return lines


class _Loader(yaml.SafeLoader):
    pass


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node)
        if key in seen:
            raise yaml.MarkedYAMLError(problem=f"the key {key} stands twice", problem_mark=key_node.start_mark)
        seen.add(key)
    return loader.construct_mapping(node)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+"), list("-+0123456789.")
)
