"""The smallest configs of every registered method, of cases.yaml, and the cases of the conformance test."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from safetensors.torch import save_file

from bdl_pipe.artifacts import State
from bdl_pipe.config import read
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.method import Kind, Method, StageSpec
from bdl_pipe.posterior import NetworkSpec
from bdl_pipe.progress import Report, Silent
from bdl_pipe.registry import METHODS
from bdl_pipe.seeds import Seed
from tests.case_files import loaded

_FILE: dict[str, dict[str, Any]] = loaded(Path(__file__).with_suffix(".yaml"))
PARTS = _FILE["parts"]
CONVNET, MLP, LEAKY = PARTS["convnet"], PARTS["mlp"], PARTS["leaky"]
LEARN, WHOLE = PARTS["learn"], PARTS["whole"]
SGMCMC, DARK_KNOWLEDGE, LAPLACE = PARTS["sgmcmc"], PARTS["dark_knowledge"], PARTS["laplace"]
GAUSSIAN, GENERATIVE, FEATURES = PARTS["gaussian"], PARTS["generative"], PARTS["features"]
RANDOM, RANDOM_IMAGES = PARTS["random"], PARTS["random_images"]
HEAD, VBPC, BPC, INNER = PARTS["head"], PARTS["vbpc"], PARTS["bpc"], PARTS["inner"]
TRAINED_ON_CORESET = PARTS["trained_on_coreset"]

_FOLDER = tempfile.TemporaryDirectory()  # holds the weights of the ``pretrained`` configs


def weights_of(network: Mapping[str, Any], shape: list[int], outputs: int, likelihood: str) -> str:
    """Write the initial weights of a network to a file, and return its path."""
    section = {"network": network, "input_shape": shape, "outputs": outputs, "likelihood": likelihood}
    path = Path(_FOLDER.name) / f"{network['name']}.safetensors"
    save_file(read(NetworkSpec, section, "spec").build(Seed(0)).state_dict(), path)
    return str(path)


CONFIGS: dict[tuple[str, str], dict[str, Any]] = {}
for _name, _section in _FILE["configs"].items():
    _method, _, _task = _name.partition(" ")
    for _each in [_task] if _task else ["classification", "regression"]:
        CONFIGS[_method, _each] = _section
CONFIGS["pretrained", "classification"]["weights"] = weights_of(CONVNET, [1, 8, 8], 3, "categorical")
CONFIGS["pretrained", "regression"]["weights"] = weights_of(MLP, [4], 1, "gaussian_head")


def _same_class(name: str, method: Method) -> bool:
    return METHODS[name].config is method.config


for name, method in METHODS.items():  # a variant has the config of the method with the same class of configs
    for task in method.tasks:
        if (name, task) not in CONFIGS:
            alike = [section for (other, of), section in CONFIGS.items() if of == task and _same_class(other, method)]
            CONFIGS[name, task] = alike[0]

# students that hold several functions
STUDENTS = {
    "heads": {"student": {"name": "heads", "heads": 3, "draws_per_step": 2}},
    "latent": {"student": {"name": "latent", "dimension": 2, "draws": 4, "probe": 20, "draws_per_step": 2}},
}

# changes of the smallest config: the trajectory of a coreset's experts, and the students of several functions
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "": {},
    "experts": {"keep_start": True, "network": {**CONVNET, "norm": "instance"}},
    **STUDENTS,
}

# stage kind -> the method that makes it for other methods; a method with a stage of this kind uses its own stage
UPSTREAM: Mapping[str, str] = {"trajectory": "sgd", "teacher": "sgmcmc", "coreset": "random_coreset"}

# a method that may choose its input -> the stage kinds that it is made from here
CHOSEN: Mapping[str, tuple[Kind, ...]] = {"dark_knowledge": ("teacher",)}


@dataclass(frozen=True)
class Case:
    """One method in one stage on one task."""

    method: str
    kind: str
    task: str
    variant: str = ""

    def __str__(self) -> str:
        return "-".join([self.method, self.kind, self.task, *([self.variant] if self.variant in STUDENTS else [])])

    @property
    def section(self) -> dict[str, Any]:
        return {**CONFIGS[self.method, self.task], **VARIANTS[self.variant]}

    @property
    def stage(self) -> StageSpec:
        return METHODS[self.method].stages[self.kind]  # type: ignore[index]

    @property
    def sources(self) -> tuple[Kind, ...]:
        return CHOSEN.get(self.method, tuple(kind for kind in self.stage.needs if kind in self.stage.required))

    def upstream(self, kind: str) -> "Case":
        has_stage = kind in METHODS[self.method].stages
        variant = "experts" if self.kind == "coreset" and self.stage.needs.get("trajectory") == "all" else ""
        return Case(self.method if has_stage else UPSTREAM[kind], kind, self.task, variant)


CASES = [Case(name, kind, task) for name, method in METHODS.items() for kind in method.stages for task in method.tasks]
CASES += [
    Case("dark_knowledge", "student", task, variant) for task in METHODS["dark_knowledge"].tasks for variant in STUDENTS
]


def config_of(method: str, task: str, **changes: Any) -> Any:
    """Read a method's smallest config with changes."""
    return read(METHODS[method].config, CONFIGS[method, task] | changes, f"methods.{method}")


def fit(
    method: str,
    kind: str,
    data: FitData,
    inputs: Mapping[str, list[State]] = MappingProxyType({}),
    *,
    rng: Seed = Seed(0),
    report: Report | None = None,
    **changes: Any,
) -> State:
    """Fit a method's stage with its smallest config and changes."""
    config, stage = config_of(method, data.task, **changes), METHODS[method].stages[kind]  # type: ignore[index]
    return stage.fit_one(data, inputs, config, rng=rng, report=report or Silent())
