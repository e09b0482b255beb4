"""The typed view of params.yaml, with its runs; :mod:`pipeline.core.load` checks it."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, get_args

from bdl_pipe import plugins
from bdl_pipe.config import nearest
from bdl_pipe.data.config import DatasetConfig
from bdl_pipe.errors import ConfigError, require
from bdl_pipe.evaluation import EvaluateConfig
from bdl_pipe.method import Kind, Method, StageSpec

SECTIONS: Final[Mapping[str, str]] = {
    "trajectory": "trajectories",
    "teacher": "teachers",
    "coreset": "coresets",
    "student": "runs",
}
FIT_KINDS: Final = get_args(Kind)  # a kind may need the kinds before it
_SETTING: Final = re.compile(r"[\w.=%()+-]+( [\w.=%()+-]+)*|")  # without characters of Markdown, HTML or rich markup


@dataclass(frozen=True)
class RunSpec:
    """A run of params.yaml, as written.

    Attributes:
        dataset: a key of ``datasets``.
        method: a key of ``methods``.
        seeds: the number of results for each split of the data. If the method takes all seeds of an input, each result
            takes an equal share of them: nine networks make three ensembles of three.
        input: the run's input: ``prepare/<data set>``, ``<stage kind>/<run>`` of a run above, or ``inputs/<key>``,
            which names several such inputs.
        override: hyperparameters of this run that replace the method's.
        setting: a text that distinguishes runs of one method in the comparison (section ``runs`` only).
    """

    dataset: str
    method: str
    seeds: int
    input: str
    override: dict[str, Any] = field(default_factory=dict)
    setting: str = ""

    def __post_init__(self) -> None:
        require(self.seeds >= 1, "seeds", "must be >= 1", self.seeds)
        rule = "must be words of letters, digits and . _ - + = % ( ), one space between them"
        require(_SETTING.fullmatch(self.setting) is not None, "setting", rule, self.setting)


@dataclass(frozen=True)
class ReportConfig:
    """The section ``report`` of params.yaml.

    Attributes:
        figures_dpi: the CSS pixels per inch of a figure.
    """

    figures_dpi: int

    def __post_init__(self) -> None:
        require(self.figures_dpi > 0, "figures_dpi", "must be > 0", self.figures_dpi)


@dataclass(frozen=True)
class Run:
    """A checked run, with its method, its typed hyperparameters and its inputs.

    Attributes:
        sources: stage kind -> key of the input run.
    """

    kind: Kind
    key: str
    spec: RunSpec
    method: Method
    config: Any
    sources: Mapping[Kind, str]

    @property
    def stage(self) -> StageSpec:
        """Return the method's description of the run's stage kind."""
        return self.method.stages[self.kind]


@dataclass(frozen=True)
class Params:
    """A params file, typed and checked as a whole.

    Attributes:
        inputs: name -> artifacts that form an input together: stage kind -> ``<stage kind>/<run>``.
        raw: the content of the file.
        decisions: key -> a checked ``bdl_decisions.DecisionConfig``.
    """

    seed: int
    datasets: Mapping[str, DatasetConfig]
    inputs: Mapping[str, Mapping[Kind, str]]
    runs: Mapping[tuple[str, str], Run]
    evaluate: EvaluateConfig
    report: ReportConfig
    raw: Mapping[str, Any]
    decisions: Mapping[str, Any] = field(default_factory=dict)

    @property
    def plugins(self) -> Sequence[str]:
        """Return the names of the plugins that params.yaml names."""
        return self.raw.get("plugins") or ()

    @property
    def method_names(self) -> set[str]:
        """Return the methods that have a section or a run."""
        return {*self.raw["methods"], *(run.method.name for run in self.runs.values())}

    def method_of(self, kind: str, key: str) -> str:
        """Return the method that a stage runs; empty if it runs none."""
        run = self.runs.get(("student" if kind == "evaluate" else kind, key))
        return run.method.name if run else ""

    def modules_of(self, run: Run) -> set[str]:
        """Return the modules that define the configs of a run and of its upstream runs."""
        return set[str]().union(*(_modules(above.config) for above in self.lineage(run)))

    def plugins_of(self, run: Run) -> list[str]:
        """List the plugins that define the run's method, its config, or the config of an upstream run."""
        modules = {run.method.config.__module__, *self.modules_of(run)}
        owners = {plugin.name for module in modules if (plugin := plugins.plugin_of(module))}
        return [name for name in self.plugins if name in owners]

    def files_of(self, run: Run) -> list[Path]:
        """List the user's files that a run's hyperparameters name."""
        return sorted(set(files_of(run.config)))

    def run(self, kind: str, key: str) -> Run:
        """Return the run ``key`` of a stage kind.

        Raises:
            ConfigError: there is no such run; the message suggests the nearest name.
        """
        if (kind, key) not in self.runs:
            keys = [k for other, k in self.runs if other == kind]
            raise ConfigError(f"{SECTIONS.get(kind, kind)}.{key}", f"is not a run{nearest(key, keys)}")
        return self.runs[kind, key]

    def of(self, kind: str) -> list[Run]:
        """List the runs of a stage kind."""
        return [run for run in self.runs.values() if run.kind == kind]

    def of_method(self, method: str) -> list[Run]:
        """List the runs of a method, of all stage kinds."""
        return [run for run in self.runs.values() if run.method.name == method]

    def lineage(self, run: Run) -> list[Run]:
        """List a run's upstream runs and then the run; each run is after its inputs."""
        above = [self.lineage(self.run(kind, key)) for kind, key in run.sources.items()]
        return [*{(r.kind, r.key): r for runs in above for r in runs}.values(), run]


def _modules(value: object) -> set[str]:
    """Return the modules that define a config and the configs in it."""
    if not dataclasses.is_dataclass(value):
        return set()
    inside = [_modules(getattr(value, field.name)) for field in dataclasses.fields(value)]
    return {type(value).__module__}.union(*inside)


def files_of(value: object) -> list[Path]:
    """Return the user's files that a config and the configs in it name."""
    if not dataclasses.is_dataclass(value):
        return []
    named = value.files() if hasattr(value, "files") else []
    return named + [path for field in dataclasses.fields(value) for path in files_of(getattr(value, field.name))]
