"""The comparison in MLflow: an experiment for each data set, with one flat run for each method and setting.

A run is identified by its content: its name, params, scores and data. Projects that share a store also share a run with
the same content, so a second clone does not double the page. A run has a tag for each project that has it; a project
that no longer has it removes its tag, and the last one deletes the run.

MLflow has no public interface for the initial view of its page. A view is the JSON that its *Share* button stores as a
tag of the experiment, and that a link names. If a version of MLflow does not support the tag, the link opens the plain
list of runs.
"""

import json
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..core import provenance
from . import store

if TYPE_CHECKING:
    from mlflow.entities import Run
    from mlflow.tracking import MlflowClient

_CONTENT: Final = "content"  # the tag with the hash of a run's content
_WHOLE: Final = "whole"  # the tag with the hash of all that is written to the run
_VIEW: Final = "by-nll"


@dataclass(frozen=True)
class Compared:
    """A run of the comparison.

    Attributes:
        params: a description of the run, as short texts.
        metrics: the run's scores, with the same names for all methods.
        costs: figures that differ if the same fit is repeated, such as seconds.
        origin: the commit and the device of the fit, as tags.
        data: the data set's hash.
        about: a description in Markdown.
        draw: returns the run's figures, name of a file -> SVG.
    """

    key: str
    name: str
    params: Mapping[str, str]
    metrics: Mapping[str, float]
    costs: Mapping[str, float]
    origin: Mapping[str, str]
    data: str
    about: str
    draw: Callable[[], Mapping[str, str]] = dict

    @property
    def content(self) -> str:
        """Return a hash of what identifies the run, in which a repetition of the same fit agrees."""
        return provenance.digest([self.key, self.name, dict(self.params), dict(self.metrics), self.data])

    @property
    def whole(self) -> str:
        """Return a hash of all that is written to the run."""
        return provenance.digest([self.content, dict(self.costs), dict(self.origin), self.about])


@dataclass(frozen=True)
class Comparison:
    """The runs of a project on one data set, side by side.

    Attributes:
        view: the state of the page, by :func:`view`.
        about: a description in Markdown.
        taken: the key of the run that the report's verdict takes by the NLL; None if there is none.
    """

    dataset: str
    runs: Sequence[Compared]
    view: str
    about: str
    taken: str | None = None


@dataclass(frozen=True)
class Published:
    """A comparison in the store: the experiment's id, and the id of the run of each key."""

    experiment: str
    runs: Mapping[str, str]


def compare(build: Callable[[], Sequence[Comparison]]) -> dict[str, Published] | None:
    """Bring the comparisons up to date; return them by data set, or None if tracking is off or the store fails."""
    return store.attempt(lambda client: publish(client, build()))


def publish(client: "MlflowClient", wanted: Sequence[Comparison]) -> dict[str, Published]:
    """Bring the comparisons in a store up to date, and return them by data set."""
    project = f"project.{provenance.digest([socket.gethostname(), str(Path.cwd())])}"
    published = {one.dataset: _publish(client, one, project) for one in wanted}
    ours = {one.experiment for one in published.values()}
    for experiment in client.search_experiments(filter_string=f"name LIKE '{store.COMPARISON}%'"):
        if experiment.experiment_id not in ours:  # of a data set that params.yaml no longer has
            runs = store.search(client, experiment.experiment_id, "")
            if sum(_leave(client, run, project) for run in runs) == len(runs) > 0:
                client.delete_experiment(experiment.experiment_id)
    return published


def _publish(client: "MlflowClient", wanted: Comparison, project: str) -> Published:
    experiment = store.experiment(client, f"{store.COMPARISON} {wanted.dataset}")
    tags = {**store.KIND, store.NOTE: wanted.about, f"mlflow.sharedViewState.{_VIEW}": wanted.view}
    with store.lock():
        before = client.get_experiment(experiment).tags
        for name, value in tags.items():
            if before.get(name) != value:
                client.set_experiment_tag(experiment, name, value)
        missing, ids = {run.content: run for run in wanted.runs}, dict[str, str]()
        for entry in store.search(client, experiment, ""):
            run_id, run = entry.info.run_id, missing.get(entry.data.tags.get(_CONTENT, ""))
            alone = not _projects(entry) - {project}
            if run is None or entry.info.status != "FINISHED" or (alone and entry.data.tags.get(_WHOLE) != run.whole):
                _leave(client, entry, project)
                continue
            if project not in entry.data.tags:
                client.set_tag(run_id, project, "1")
            ids[missing.pop(run.content).key] = run_id
        for run in missing.values():
            ids[run.key] = _create(client, experiment, run, {project: "1"})
    return Published(experiment, ids)


def _create(client: "MlflowClient", experiment: str, run: Compared, tags: Mapping[str, str]) -> str:
    """Write a run and end it, and return its id."""
    from mlflow.entities import Dataset, DatasetInput

    marks = {"key": run.key, store.NOTE: run.about, _CONTENT: run.content, _WHOLE: run.whole, **run.origin, **tags}
    run_id, now = store.create(client, experiment, run.name, marks), time.time()
    values = ((name, value, now, 0) for name, value in {**run.metrics, **run.costs}.items())
    data = Dataset(run.params["dataset"], run.data[:36], "bdl-pipe", f"work/prepare/{run.params['dataset']}")
    client.log_inputs(run_id, [DatasetInput(data)])
    store.log(client, run_id, values, params=run.params)
    for name, figure in run.draw().items():
        client.log_text(run_id, figure, f"figures/{name}")
    client.set_terminated(run_id)
    return run_id


def _projects(run: "Run") -> set[str]:
    return {name for name in run.data.tags if name.startswith("project.")}


def _leave(client: "MlflowClient", run: "Run", project: str) -> bool:
    """Remove a project from a run, and delete the run if no project is left; return whether it was deleted."""
    if project not in run.data.tags:
        return False
    if _projects(run) - {project}:
        client.delete_tag(run.info.run_id, project)
        return False
    client.delete_run(run.info.run_id)
    return True


def link(experiment: str) -> str:
    """Return the path, after the server's address, of the experiment's runs, sorted by the NLL."""
    return f"#/experiments/{experiment}/runs?workflowType=machine_learning&viewStateShareKey={_VIEW}"


def view(order: str, columns: Sequence[str], charts: Mapping[str, Mapping[str, str]]) -> str:
    """Return the state of a view of an experiment's runs.

    Args:
        order: the param, metric or attribute by which runs are sorted in ascending order, such as ``metrics.nll``.
        columns: params and metrics.
        charts: title of a section -> metric -> title of its bar chart.
    """
    sections = [
        {"uuid": f"section-{i}", "name": title, "display": True, "isReordered": True} for i, title in enumerate(charts)
    ]
    bars = [
        {
            "type": "BAR",
            "uuid": f"bar-{i}-{j}",
            "metricSectionId": f"section-{i}",
            "metricKey": metric,
            "displayName": title,
            "runsCountToCompare": 100,
            "isGenerated": False,
            "deleted": False,
        }
        for i, section in enumerate(charts.values())
        for j, (metric, title) in enumerate(section.items())
    ]
    state = {
        "selectedColumns": [_column(column) for column in columns],
        "compareRunCharts": bars,
        "compareRunSections": sections,
        "runsHiddenMode": "SHOW_ALL",
        "orderByKey": _column(order),
        "orderByAsc": True,
        "isAccordionReordered": True,  # otherwise the sections are sorted by name
    }
    return json.dumps(state, sort_keys=True)


def _column(name: str) -> str:
    kind, _, rest = name.partition(".")
    return f"{kind}.`{rest}`"
