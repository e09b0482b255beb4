"""The comparison as an MLflow experiment: one flat run for each data set, method and setting, with its final scores.

The stages' runs are another experiment (see :mod:`.experiments`), nested as they were made. Here a run is replaced when
what it says has changed, and removed when params.yaml no longer has it: there are never two of one. In a store that
several projects share, each minds its own runs, known by the tag ``project``. What MLflow shows first, columns and
charts, is a shared view: a tag of the experiment that the link names.
"""

import json
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from . import experiments, provenance

EXPERIMENT: Final = "bdl-pipe comparison"
_VIEW_TAG: Final = "mlflow.sharedViewState."
_NOTE: Final = "mlflow.note.content"
_DIGEST: Final = "content"  # set last: a run without it was interrupted as it was written


@dataclass(frozen=True)
class Compared:
    """A run of the comparison.

    Attributes:
        params: what the run is, short texts.
        metrics: its scores, under the same names for every method.
        about: Markdown.
        files: makes small files to look at, name -> content.
        shown: a hash of what ``files`` are made from.
    """

    key: str
    name: str
    params: Mapping[str, str]
    metrics: Mapping[str, float]
    about: str
    files: Callable[[], Mapping[str, bytes]]
    shown: str

    @property
    def digest(self) -> str:
        """Return a hash of all that the run says."""
        return provenance.digest([self.name, dict(self.params), dict(self.metrics), self.about, self.shown])


@dataclass(frozen=True)
class View:
    """A view that MLflow shows first: the runs of one data set, or of all.

    Attributes:
        filter: which runs, in MLflow's words; empty: all.
        order: by what the runs are sorted, smallest first: a param, metric or attribute, as ``metrics.nll``.
        columns: params and metrics.
        charts: title of a section -> (metric, title) of each of its bar charts.
    """

    key: str
    filter: str
    order: str
    columns: Sequence[str]
    charts: Mapping[str, Sequence[tuple[str, str]]]


def publish(runs: Sequence[Compared], views: Sequence[View], about: Callable[[str], str]) -> str | None:
    """Bring the experiment up to date. Return its id, or None without tracking.

    Args:
        runs: all runs of the project; those of before that are not among them are removed.
        about: the experiment's description in Markdown, from its id.
    """
    return experiments.attempt(lambda: _publish(runs, views, about))


def link(experiment: str, view: str) -> str:
    """Return the part of the address after the server's: the runs with their columns and charts."""
    return f"#/experiments/{experiment}/runs?workflowType=machine_learning&viewStateShareKey={view}"


def _publish(runs: Sequence[Compared], views: Sequence[View], about: Callable[[str], str]) -> str:
    experiment, client = experiments.experiment(EXPERIMENT), experiments.client()
    states = {_VIEW_TAG + view.key: json.dumps(state(view), sort_keys=True) for view in views}
    tags = {**experiments.KIND, _NOTE: about(experiment), **states}
    with experiments.store_lock():
        before = client.get_experiment(experiment).tags
        for name, value in tags.items():
            if before.get(name) != value:
                client.set_experiment_tag(experiment, name, value)
        there = {(r.data.tags.get("key"), r.data.tags.get(_DIGEST)): r.info.run_id for r in _ours(client, experiment)}
        wanted = {(run.key, run.digest): run for run in runs}
        for identity, run_id in there.items():
            if identity not in wanted:
                client.delete_run(run_id)
        for identity, run in wanted.items():
            if identity not in there:
                _write(client, experiment, run)
    return experiment


def _ours(client: Any, experiment: str) -> Iterator[Any]:
    token = None
    while True:
        page = client.search_runs([experiment], f"tags.project = '{_project()}'", max_results=1000, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def _write(client: Any, experiment: str, run: Compared) -> None:
    from mlflow.entities import Metric, Param
    from mlflow.utils.time import get_current_time_millis

    now = get_current_time_millis()
    tags = {"project": _project(), "key": run.key, _NOTE: run.about}
    run_id = client.create_run(experiment, run_name=run.name, tags=tags).info.run_id
    metrics = [Metric(name, value, now, 0) for name, value in run.metrics.items()]
    client.log_batch(run_id, metrics=metrics, params=[Param(name, value) for name, value in run.params.items()])
    with tempfile.TemporaryDirectory() as folder:
        for name, blob in run.files().items():
            Path(folder, name).write_bytes(blob)
        client.log_artifacts(run_id, folder)
    client.set_tag(run_id, _DIGEST, run.digest)
    client.set_terminated(run_id)


def _project() -> str:
    """Name this folder on this machine by a hash: in a store that is shared, runs of others are theirs."""
    return provenance.digest([socket.gethostname(), str(Path.cwd())])


def state(view: View) -> dict[str, Any]:
    """Write a view as MLflow's *Share* button stores it."""
    sections = [
        {"uuid": f"section-{i}", "name": title, "display": True, "isReordered": True}
        for i, title in enumerate(view.charts)
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
        for i, section in enumerate(view.charts.values())
        for j, (metric, title) in enumerate(section)
    ]
    return {
        "searchFilter": view.filter,
        "selectedColumns": [_key(column) for column in view.columns],
        "compareRunCharts": bars,
        "compareRunSections": sections,
        "runsHiddenMode": "SHOW_ALL",
        "orderByKey": _key(view.order),
        "orderByAsc": True,
        "isAccordionReordered": True,  # or sections come by name
    }


def _key(name: str) -> str:
    kind, _, rest = name.partition(".")
    return f"{kind}.`{rest}`"
