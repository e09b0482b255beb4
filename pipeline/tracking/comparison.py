"""The comparison in MLflow: an experiment with one flat run for each data set, method and setting.

A run is replaced when what it says has changed, and removed when params.yaml no longer has it. Where several projects
share a store, each changes its own runs only, which have its tag ``project``.
"""

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ..core import provenance
from . import store, view
from .view import View

_CONTENT: Final = "content"  # the tag with the hash of all that a run says


@dataclass(frozen=True)
class Compared:
    """A run of the comparison.

    Attributes:
        params: what the run is, in short texts.
        metrics: its scores, under the same names for every method.
        about: Markdown.
    """

    key: str
    name: str
    params: Mapping[str, str]
    metrics: Mapping[str, float]
    about: str

    @property
    def digest(self) -> str:
        """Return a hash of all that the run says."""
        return provenance.digest([self.name, dict(self.params), dict(self.metrics), self.about])


@dataclass(frozen=True)
class Comparison:
    """All runs of a project side by side.

    Attributes:
        about: the experiment's description in Markdown, from its id.
    """

    runs: Sequence[Compared]
    views: Sequence[View]
    about: Callable[[str], str]


def compare(build: Callable[[], Comparison]) -> str | None:
    """Bring the comparison up to date. Return the experiment's id; None where tracking is off or the store fails."""
    return store.attempt(lambda client: publish(client, build()))


def publish(client: Any, wanted: Comparison) -> str:
    """Bring the comparison in a store up to date, and return the experiment's id."""
    experiment = store.experiment(client, store.COMPARISON)
    tags = {**store.KIND, store.NOTE: wanted.about(experiment), **view.tags(wanted.views)}
    project = provenance.digest([socket.gethostname(), str(Path.cwd())])
    with store.lock():
        before = client.get_experiment(experiment).tags
        for name, value in tags.items():
            if before.get(name) != value:
                client.set_experiment_tag(experiment, name, value)
        missing = {(run.key, run.digest): run for run in wanted.runs}
        for found in store.search(client, experiment, f"tags.project = '{project}'"):
            identity = found.data.tags.get("key"), found.data.tags.get(_CONTENT)
            is_whole = found.info.status == "FINISHED"
            if not is_whole or missing.pop(identity, None) is None:
                client.delete_run(found.info.run_id)
        for run in missing.values():
            own = {"project": project, "key": run.key, store.NOTE: run.about, _CONTENT: run.digest}
            run_id, now = store.create(client, experiment, run.name, own), time.time()
            metrics = ((name, value, now, 0) for name, value in run.metrics.items())
            store.log(client, run_id, metrics, params=run.params)
            client.set_terminated(run_id)
    return experiment
