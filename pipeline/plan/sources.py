"""``work/sources.yaml``: hashes of the code and of the users' files that each stage depends on.

DVC reads them as parameters, one for each stage, because its ``foreach`` cannot list different dependencies for each
run. So a change of a method's module makes only that method's stages out of date.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bdl_pipe import config, plugins
from bdl_pipe.data.catalog import Noise
from bdl_pipe.data.config import ood_source, transfer_source
from bdl_pipe.data.raw import Source
from bdl_pipe.files import sha256, write_bytes
from bdl_pipe.plugins import Registered
from bdl_pipe.yaml_files import write_yaml

from ..core import places, provenance
from ..core.model import Params
from . import code


def write(params: Params) -> None:
    """Update ``work/sources.yaml`` and the list of decisions; an equal file is not rewritten."""
    names = json.dumps(list(params.decisions), indent=1) + "\n"
    for path, text in ((places.sources(), write_yaml(digests(params))), (places.decisions(), names)):
        if not path.is_file() or path.read_bytes() != text.encode():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(path, text.encode())


def digests(params: Params) -> dict[str, Any]:
    """Return the content of the file: ``code.<stage kind>``, ``code.{fit,evaluate,decide}.<name>``, ``data.<key>``."""
    of = {"fit": code.methods(), "evaluate": code.methods(), "decide": params.decisions}
    return {
        "code": {
            "prepare": digest("code.prepare", params),
            "inputs": digest("code.inputs", params),
            **{kind: {name: digest(f"code.{kind}.{name}", params) for name in names} for kind, names in of.items()},
            "scores": digest("code.scores", params),
            "report": digest("code.report", params),
        },
        "data": {key: digest(f"data.{key}", params) for key in params.datasets},
    }


def digest(name: str, params: Params) -> str:
    """Return the value of a dotted key of the file."""
    top, kind, *rest = name.split(".")
    if top == "data":
        return data_digest(kind, params)
    if rest:
        return {"fit": fit_digest, "evaluate": evaluate_digest, "decide": decide_digest}[kind](rest[0], params)
    return stored_digest(kind, params) if kind in ("scores", "report") else code.digest(kind)


def fit_digest(method: str, params: Params) -> str:
    """Hash the code that a method's artifacts depend on: the method, and the plugins in its runs' configs.

    A run with another run as its input also depends on the code of that run's method, which defines the posterior. A
    run also depends on the users' files that its config names, such as the file of a network.
    """
    keys = [key for run in params.of_method(method) if (key := run.sources.get("student"))]
    read = {params.run("student", key).method.name for key in keys}
    modules = {module for name in read if (module := code.module_of(name))}
    digest = code.digest("student", method, tuple(sorted({*_plugins(method, params), *modules})))
    named = {str(path) for run in params.of_method(method) for path in params.files_of(run)}
    if not named:
        return digest
    facts = [digest, {path: sha256(Path(path)) for path in sorted(named)}]
    return provenance.digest(facts)


def evaluate_digest(method: str, params: Params) -> str:
    """Hash the code that a method's scores depend on: the code of :func:`fit_digest` and of the evaluation.

    Scores also depend on plugins' metrics of predictives and, if a run is scored on OOD sets, on plugins' OOD scores.
    """
    more = _plugins(method, params)
    if params.plugins:
        more = tuple(sorted({*more, *_plugins_metrics(stored=False)}))
    asked = any(params.datasets[run.spec.dataset].ood for run in params.of("student") if run.method.name == method)
    if params.plugins and asked:
        from bdl_pipe.evaluation import OOD_SCORES

        more = tuple(sorted({*more, *_modules(OOD_SCORES, OOD_SCORES)}))
    return code.digest("evaluate", method, more)


def stored_digest(kind: str, params: Params) -> str:
    """Hash the code of ``scores`` or ``report``, and of the plugins that add metrics or scores of stored rows.

    The report also shows plugins' metrics of predictives.
    """
    from bdl_pipe.metrics.ood import SCORES

    more = _plugins_metrics(stored=True) if params.plugins else set[str]()
    if params.plugins and kind == "report":
        more |= _plugins_metrics(stored=False)
    return code.digest(kind, None, tuple(sorted(more | _modules(SCORES, SCORES))))


def _plugins_metrics(*, stored: bool) -> set[str]:
    """Return the modules of plugins that define metrics of stored predictions, or of predictives."""
    from bdl_pipe.metrics import METRICS, StoredMetric

    return _modules(METRICS, [name for name, metric in METRICS.items() if isinstance(metric, StoredMetric) == stored])


def _modules(registered: Registered[Any], names: Iterable[str]) -> set[str]:
    """Return the modules of plugins that define some registered objects."""
    return {module for name in names if (module := registered.module_of(name))}


def decide_digest(key: str, params: Params) -> str:
    """Hash the code that a decision depends on, with its methods and plugins, and the users' files that it reads."""
    entry = params.decisions[key]
    modules = {*entry.modules(), *(module for name in entry.methods() if (module := code.module_of(name)))}
    facts = [code.digest("decide", None, tuple(sorted(modules))), _files(entry)]
    return provenance.digest(facts)


def _plugins(method: str, params: Params) -> tuple[str, ...]:
    """Return the modules of plugins that define configs of a method's runs or of their input runs."""
    if not params.plugins:
        return ()
    modules = {module for run in params.of_method(method) for module in params.modules_of(run)}
    return tuple(sorted(module for module in modules if plugins.plugin_of(module)))


def data_digest(key: str, params: Params) -> str:
    """Hash the sources of a data set, including ``ood`` and ``transfer``, with their files."""
    datasets = dict(params.datasets)
    dataset = datasets[key]
    named: list[Source | Noise] = [dataset.source]
    named += [ood_source(name, datasets, f"datasets.{key}.ood") for name in dataset.ood]
    named += [transfer_source(name, key, datasets, f"datasets.{key}.transfer") for name in dataset.transfer]
    facts = []
    for source in named:
        module = type(source).__module__
        plugin = [] if plugins.plugin_of(module) is None else [code.digest_of([module])]
        facts.append([config.to_mapping(source), _files(source), *plugin])
    return provenance.digest(facts)


def _files(source: Source | Noise) -> dict[str, str]:
    """Hash the users' files behind a source: path -> SHA-256. ``prepare`` reports missing files."""
    paths = [path for root in source.files() for path in (sorted(root.rglob("*")) if root.is_dir() else [root])]
    return {str(path): sha256(path) for path in paths if path.is_file()}
