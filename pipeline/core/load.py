"""Read and check the whole of params.yaml.

Every command reads the file first, so a wrong value anywhere stops it in the first second. DVC also reads the file, to
detect changes.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from bdl_pipe import config, plugins
from bdl_pipe.config import nearest
from bdl_pipe.data.config import DatasetConfig, ood_source, transfer_source
from bdl_pipe.errors import ConfigError, require
from bdl_pipe.evaluation import EvaluateConfig
from bdl_pipe.method import Kind, Method, StageSpec
from bdl_pipe.yaml_files import read_yaml

from .model import FIT_KINDS, SECTIONS, Params, ReportConfig, Run, RunSpec, files_of

_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")


def load(path: Path = Path("params.yaml"), registry: Mapping[str, Method] | None = None) -> Params:
    """Read and check the whole of a params file.

    Args:
        registry: the known methods; the library's by default.

    Raises:
        ConfigError: a key breaks its rule; the message has the first such key, the rule and the value.
        DataError: the file is missing or is not YAML.
        PluginError: a plugin is missing or cannot be imported.
    """
    return typed(read_yaml(path), registry)


def typed(raw: Mapping[str, Any], registry: Mapping[str, Method] | None = None) -> Params:
    """Check the content of a params file, see :func:`load`.

    Raises:
        ConfigError: see :func:`load`.
        PluginError: see :func:`load`.
    """
    needed = ("seed", "datasets", "methods", *SECTIONS.values(), "evaluate", "report")
    sections = (*needed, "inputs", "plugins", "decisions")
    for key in raw:
        require(key in sections, str(key), f"is not a known section{nearest(key, sections)}")
    for key in needed:
        require(key in raw, key, "is missing")
    plugins.load(raw["plugins"] if raw.get("plugins") is not None else [])
    if registry is None:
        from bdl_pipe.registry import METHODS

        registry = METHODS
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
    bundles = {key: _bundle(key, value) for key, value in _section(raw, "inputs").items()} if "inputs" in raw else {}
    runs: dict[tuple[str, str], Run] = {}
    for kind in FIT_KINDS:
        for key, value in _section(raw, SECTIONS[kind]).items():
            runs[kind, key] = _run(kind, key, value, raw, runs, registry, datasets, bundles)
    for key, bundle in bundles.items():
        _check_bundle(key, bundle, runs, datasets)
    evaluate = config.read(EvaluateConfig, raw["evaluate"], "evaluate")
    report = config.read(ReportConfig, raw["report"], "report")
    return Params(seed, datasets, bundles, runs, evaluate, report, raw, _decisions(raw))


def _decisions(raw: Mapping[str, Any]) -> dict[str, Any]:
    if not raw.get("decisions"):
        return {}
    from bdl_decisions import DecisionConfig  # imports torch, which most commands do not need

    return {k: config.read(DecisionConfig, v, f"decisions.{k}") for k, v in _section(raw, "decisions").items()}


def _section(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = raw[name] if raw[name] is not None else {}
    require(isinstance(section, dict), name, "must be a section (key: value)", section)
    for key in section:
        good = isinstance(key, str) and _KEY.fullmatch(key) is not None
        require(good, f"{name}.{key}", "must have only letters, digits, _ and -", key)
    return section


def _run(
    kind: Kind,
    key: str,
    value: Any,
    raw: Mapping[str, Any],
    above: Mapping[tuple[str, str], Run],
    registry: Mapping[str, Method],
    datasets: Mapping[str, DatasetConfig],
    bundles: Mapping[str, Mapping[Kind, str]],
) -> Run:
    path = f"{SECTIONS[kind]}.{key}"
    spec = config.read(RunSpec, value, path)
    require(kind == "student" or not spec.setting, f"{path}.setting", "is for runs only", spec.setting)
    require(kind != "student" or spec.setting != "", f"{path}.setting", "is missing")
    _known(spec.dataset, datasets, f"{path}.dataset", "a data set")
    _known(spec.method, registry, f"{path}.method", "a method")
    methods = _section(raw, "methods")
    _known(spec.method, methods, f"{path}.method", "a section of methods")
    method = registry[spec.method]
    stages = ", ".join(method.stages)
    require(
        kind in method.stages, f"{path}.method", f"must be a method that makes a {kind}", f"{method.name}: {stages}"
    )
    task = datasets[spec.dataset].task
    require(task in method.tasks, f"{path}.method", f"must support {task} (the data of {spec.dataset})", method.name)
    merged = config.merge(methods[spec.method], spec.override)
    section = f"{path}.override" if spec.override else f"methods.{spec.method}"  # each section of methods is read above
    numbers: Any = config.read(method.config, merged, section)
    run = Run(kind, key, spec, method, numbers, _sources(spec, method.stages[kind], path, bundles))
    for file in files_of(run.config):
        require(file.is_file(), section, f"must name existing files in {Path.cwd()}", str(file))
    _check_sources(run, path, above, datasets)
    return run


def _bundle(key: str, value: Any) -> dict[Kind, str]:
    """Check an entry of ``inputs``: stage kind -> ``<stage kind>/<run>``."""
    path = f"inputs.{key}"
    require(isinstance(value, dict) and len(value) > 1, path, "must be two artifacts or more (kind: kind/run)", value)
    for kind, name in value.items():
        require(kind in FIT_KINDS, f"{path}.{kind}", f"must be a stage kind{nearest(kind, FIT_KINDS)}")
        shape = isinstance(name, str) and name.startswith(f"{kind}/") and _KEY.fullmatch(name.removeprefix(f"{kind}/"))
        require(bool(shape), f"{path}.{kind}", f"must be {kind}/<run>", name)
    return value


def _check_bundle(
    key: str,
    bundle: Mapping[Kind, str],
    runs: Mapping[tuple[str, str], Run],
    datasets: Mapping[str, DatasetConfig],
) -> None:
    """Check that the runs of an entry of ``inputs`` exist, and are of one data set or of two successive steps."""
    datasets_of = {}
    for kind, name in bundle.items():
        keys = [k for other, k in runs if other == kind]
        source = name.removeprefix(f"{kind}/")
        require(
            source in keys, f"inputs.{key}.{kind}", f"must be a run of {SECTIONS[kind]}{nearest(source, keys)}", name
        )
        datasets_of[name] = runs[kind, source].spec.dataset
    used = [datasets[name] for name in dict.fromkeys(datasets_of.values())]
    steps = len(used) == 2 and (used[0].comes_after(used[1]) or used[1].comes_after(used[0]))
    require(len(used) == 1 or steps, f"inputs.{key}", "must be of one data set", datasets_of)


def _sources(
    spec: RunSpec, stage: StageSpec, path: str, bundles: Mapping[str, Mapping[Kind, str]]
) -> Mapping[Kind, str]:
    """Return the input runs of a spec: a run of every stage kind that it needs, or of some kinds if they are
    optional."""
    needs, required, data = stage.needs, stage.required, f"prepare/{spec.dataset}"
    meant = [f"{kind}/<run>" for kind in needs if required <= {kind}]
    meant += [f"inputs/<key> with {' and '.join(needs)}"] * (len(required) > 0 and len(needs) > 1)
    meant += [data] * (not required)
    place, rule = f"{path}.input", f"must be {' or '.join(meant)}"
    if spec.input == data:
        require(not required, place, rule, spec.input)
        return {}
    kind, _, key = spec.input.partition("/")
    if kind == "inputs" and len(needs) > 1:
        _known(key, bundles, place, "a key of inputs")
        keys = {of: name.removeprefix(f"{of}/") for of, name in bundles[key].items()}
        named = f"{spec.input}: {', '.join(keys)}"
    else:
        keys, named = {of: key for of in needs if of == kind and _KEY.fullmatch(key)}, spec.input
    require(required <= keys.keys() <= needs.keys() and len(keys) > 0, place, rule, named)
    return keys


def _check_sources(
    run: Run, path: str, above: Mapping[tuple[str, str], Run], datasets: Mapping[str, DatasetConfig]
) -> None:
    """Check that a run's inputs are above it, have its data and enough seeds, and that their configs fit its own."""
    place, configs, dataset = f"{path}.input", {}, run.spec.dataset
    for kind, key in run.sources.items():
        keys, name = [k for other, k in above if other == kind], f"{kind}/{key}"
        require(key in keys, place, f"must be a run that is listed earlier{nearest(key, keys)}", name)
        source = above[kind, key]
        if run.stage.needs[kind] == "earlier":
            right, rule = datasets[dataset].comes_after(datasets[source.spec.dataset]), f"one step before {dataset}"
        else:
            right, rule = source.spec.dataset == dataset, dataset
        require(right, place, f"must be of the data set {rule}", f"{name}: {source.spec.dataset}")
        seeds, there = run.spec.seeds, source.spec.seeds
        rules = {"one_to_one": (seeds <= there, "be <="), "all": (there % seeds == 0, "divide")}
        enough, must = rules.get(run.stage.needs[kind], (True, ""))
        require(enough, f"{path}.seeds", f"must {must} {there}, the seeds of its input", seeds)
        configs[kind] = source.config
    if run.stage.validate_sources is not None:
        try:
            run.stage.validate_sources(run.config, configs)
        except ConfigError as error:
            raise ConfigError(f"{path}.{error.path}", error.rule, error.value) from None


def _known(key: str, names: Iterable[str], path: str, what: str) -> None:
    require(key in names, path, f"must be {what}{nearest(key, names)}", key)


def unwatched(params: Params) -> list[str]:
    """Return a line for each file whose changes DVC does not notice."""
    watched = [Path(name).absolute() for name in ("data", "plugins")]
    lines = []
    for name in params.plugins:
        if not (name.endswith(".py") and Path(name).absolute().is_relative_to(Path("plugins").absolute())):
            lines.append(f"plugins: {name} is outside plugins/, so a change in it goes unnoticed by a plain dvc repro")
    named = {(run.method.name, file): None for run in params.runs.values() for file in params.files_of(run)}
    lines += [
        f"methods.{method}: {file} is outside data/ and plugins/, so a change in it goes unnoticed by a plain dvc repro"
        for method, file in named
        if not any(file.absolute().is_relative_to(folder) for folder in watched)
    ]
    for key, dataset in params.datasets.items():
        lines += [
            f"datasets.{key}.source: {file} is outside data/, so a change in it goes unnoticed by a plain dvc repro"
            for file in dataset.source.files()
            if not file.absolute().is_relative_to(watched[0])
        ]
    return lines
