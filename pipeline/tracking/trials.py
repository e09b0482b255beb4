"""MLflow: a search's trials, each one child run below the search's own, whoever tells of it and how often.

A trial is told of again where a search goes on after a kill, or where a job's events are read a second time: its run
is found by its tags, in the store that the machines share, and gone on with. What no event has told, or a store that
was out of reach did not hear, is made good at the end from what Tune knows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from .experiments import (
    NEST,
    StageRun,
    Tracked,
    attempt,
    begin,
    client,
    experiment,
    flatten,
    log_params,
    reopen,
    try_again,
)

_PAGE: Final = 1000  # runs in one answer


@dataclass(frozen=True)
class Told:
    """What is known of a trial that has ended.

    Attributes:
        numbers: that it began with.
        scores: the last, by the names of metrics.
        step: of those.
    """

    trial: str
    numbers: Mapping[str, Any]
    scores: Mapping[str, float]
    step: int


@dataclass(frozen=True)
class Child:
    """The run of a trial.

    Attributes:
        began: the numbers that it has from its beginning.
        known: metrics and steps that it has, which are not recorded twice.
    """

    run: StageRun
    began: Mapping[str, str]
    known: frozenset[tuple[str, int]] = frozenset()

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """Record figures at a step."""
        if new := {name: value for name, value in values.items() if (name, step) not in self.known}:
            self.run.metrics(new, step)

    def end(self, status: str = "FINISHED") -> None:
        """End the run."""
        if self.run.id is not None:
            attempt(lambda: client().set_terminated(str(self.run.id), status))


@dataclass(frozen=True)
class Children:
    """The trials of a search.

    Attributes:
        parent: the search's own run; None: there is no tracking.
        search: the name of these trials; those of a population and of its finals are below one parent.
        tags: what all of them have.
    """

    parent: str | None
    search: str
    tags: Mapping[str, Any]

    def open(self, trial: str, numbers: Mapping[str, Any]) -> Child:
        """Open the run of a trial, the same one however often; the caller ends it."""
        known = attempt(lambda: self._found(trial, numbers) or self._new(trial, numbers))
        return known or Child(StageRun(), flatten(numbers))

    def settle(self, trials: Sequence[Told]) -> None:
        """Make every trial's run complete, and remove those of trials that a kill has made Tune forget."""
        if self.parent is not None:
            try_again()
            attempt(lambda: self._settle(trials))

    def _settle(self, trials: Sequence[Told]) -> None:
        runs = {run.data.tags["trial"]: run for run in below(str(self.parent), search=self.search)}
        for told in trials:
            run = runs.pop(told.trial, None)
            has = {} if run is None else {**run.data.params, **run.data.metrics}
            is_whole = set(told.numbers) | set(told.scores.items()) <= {*has, *has.items()}
            if run is None or run.info.status != "FINISHED" or not is_whole:
                opened = self.open(told.trial, told.numbers)
                opened.metrics(told.scores, told.step)
                opened.end()
        for forgotten in runs.values():  # others were tried in their place
            client().delete_run(forgotten.info.run_id)

    def _found(self, trial: str, numbers: Mapping[str, Any]) -> Child | None:
        if not (runs := below(str(self.parent), search=self.search, trial=trial)):
            return None
        at, data = reopen(runs[0].info.run_id), runs[0].data
        if missing := {name: value for name, value in flatten(numbers).items() if name not in data.params}:
            log_params(at, missing)
        known = frozenset((name, m.step) for name in data.metrics for m in client().get_metric_history(at, name))
        return Child(Tracked(client(), at), {**missing, **data.params}, known)

    def _new(self, trial: str, numbers: Mapping[str, Any]) -> Child:
        nest = {NEST: self.parent} if self.parent else {}
        tags = {**self.tags, "stage": "trial", "search": self.search, "trial": trial}
        return Child(begin(f"{self.search} {trial}", {**tags, **nest}, numbers), flatten(numbers))


def below(parent: str, **tags: str) -> list[Any]:
    """List MLflow's runs below ``parent`` that have these tags."""
    wanted = " and ".join(f"tags.`{key}` = '{value}'" for key, value in {NEST: parent, **tags}.items())
    page = client().search_runs([experiment()], wanted, max_results=_PAGE)
    runs = list(page)
    while page.token:
        page = client().search_runs([experiment()], wanted, max_results=_PAGE, page_token=page.token)
        runs += page
    return runs


def end_all(parent: str | None, status: str) -> None:
    """End the runs below ``parent`` that nobody works on any more."""

    def close() -> None:
        for run in below(str(parent)):
            if run.info.status == "RUNNING":
                client().set_terminated(run.info.run_id, status)

    if parent is not None:
        attempt(close)
