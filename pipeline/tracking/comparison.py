"""The comparison in MLflow: an experiment with one flat run for each data set, method and setting.

A run is replaced when its content has changed, and removed when params.yaml no longer has it. If several projects share
a store, each changes only its own runs, which have its tag ``project``.

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
    from mlflow.tracking import MlflowClient

_CONTENT: Final = "content"  # the tag with the hash of a run's content


@dataclass(frozen=True)
class Compared:
    """A run of the comparison.

    Attributes:
        params: a description of the run, as short texts.
        metrics: the run's scores, with the same names for all methods.
        about: a description in Markdown.
    """

    key: str
    name: str
    params: Mapping[str, str]
    metrics: Mapping[str, float]
    about: str

    @property
    def digest(self) -> str:
        """Return a hash of the run's content."""
        return provenance.digest([self.name, dict(self.params), dict(self.metrics), self.about])


@dataclass(frozen=True)
class Comparison:
    """All runs of a project side by side.

    Attributes:
        views: the key of each view -> its state, by :func:`view`.
        about: returns the experiment's description in Markdown, given the experiment's id.
    """

    runs: Sequence[Compared]
    views: Mapping[str, str]
    about: Callable[[str], str]


def compare(build: Callable[[], Comparison]) -> str | None:
    """Bring the comparison up to date; return the experiment's id, or None if tracking is off or the store fails."""
    return store.attempt(lambda client: publish(client, build()))


def publish(client: "MlflowClient", wanted: Comparison) -> str:
    """Bring the comparison in a store up to date, and return the experiment's id."""
    experiment = store.experiment(client, store.COMPARISON)
    tags = {**store.KIND, store.NOTE: wanted.about(experiment)}
    tags |= {f"mlflow.sharedViewState.{key}": state for key, state in wanted.views.items()}
    project = provenance.digest([socket.gethostname(), str(Path.cwd())])
    with store.lock():
        before = client.get_experiment(experiment).tags
        for name, value in tags.items():
            if before.get(name) != value:
                client.set_experiment_tag(experiment, name, value)
        missing = {(run.key, run.digest): run for run in wanted.runs}
        for entry in store.search(client, experiment, f"tags.project = '{project}'"):
            identity = entry.data.tags.get("key"), entry.data.tags.get(_CONTENT)
            is_whole = entry.info.status == "FINISHED"
            if not is_whole or missing.pop(identity, None) is None:
                client.delete_run(entry.info.run_id)
        for run in missing.values():
            tags_of_run = {"project": project, "key": run.key, store.NOTE: run.about, _CONTENT: run.digest}
            run_id, now = store.create(client, experiment, run.name, tags_of_run), time.time()
            metrics = ((name, value, now, 0) for name, value in run.metrics.items())
            store.log(client, run_id, metrics, params=run.params)
            client.set_terminated(run_id)
    return experiment


def link(experiment: str, view: str) -> str:
    """Return the path, after the server's address, of the experiment's runs in a view."""
    return f"#/experiments/{experiment}/runs?workflowType=machine_learning&viewStateShareKey={view}"


def view(filter: str, order: str, columns: Sequence[str], charts: Mapping[str, Mapping[str, str]]) -> str:
    """Return the state of a view of the comparison: the runs of one data set, or of all data sets.

    Args:
        filter: the filter of runs, in MLflow's syntax; empty for all runs.
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
        "searchFilter": filter,
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
