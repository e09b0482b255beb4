"""A search on a cluster of which only the dashboard's port is in reach: Tune's process is a job there.

What Tune tells of each trial comes home as the job's events, and MLflow and the terminal are told here.
"""

import os
import secrets
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from ..core.jobs import calls, client
from ..core.jobs.calls import Outlet
from ..core.settings import Settings
from ..core.storage import Place
from ..work.cluster import as_driver, connected, prepare_environment
from .ray_tune import Kept, tuned
from .telling import Ended, Trials, told

_TOKEN: Final = "job.json"  # in the search's folder: what its jobs are called


@dataclass(frozen=True)
class Asked:
    """The arguments of :func:`search_there`: those of ``ray_tune.run``, and the name of its folder there."""

    trials: Trials
    work: Callable[..., None]
    space: Mapping[str, Any]
    how: Any
    settings: Settings
    away: Place | None
    name: str


def run(
    trials: Trials, work: Callable[..., None], parts: Mapping[str, Any], space: Mapping[str, Any], how: Any, kept: Kept
) -> list[Ended]:
    """Have the trials run by a job; what ``ray_tune.run`` takes, returns and raises."""
    place = kept.away or Place(None, str(kept.folder.absolute()))
    found = place.read(_TOKEN)
    if found is None:  # a new search
        found = {"name": f"bdl-search-{trials.name}-{secrets.token_hex(6)}"}
        place.write(_TOKEN, found)
    asked = Asked(trials, work, space, how, replace(kept.settings, jobs=""), kept.away, found["name"])
    heard = _Heard(told(trials))
    call = calls.Call(found["name"], trials.name, "", search_there, asked, parts)
    client.perform(kept.settings.jobs, call, heard, kept.settings.remote)
    return heard.ended


def search_there(asked: Asked, parts: Mapping[str, Any], outlet: Outlet) -> None:
    """Run the trials on the cluster that this process is a job of; what was there of them is gone on with."""
    prepare_environment()
    folder = Path(tempfile.gettempdir()) / f"bdl-jobs-{os.getuid()}" / asked.name
    folder.mkdir(parents=True, exist_ok=True)
    settings = as_driver(asked.settings)
    with (
        connected(settings, lambda text: outlet.tell(said=text)),
        Kept(folder, settings, asked.away).place(spread=True) as place,
    ):
        found = tuned(asked.trials, asked.work, parts, asked.space, asked.how, place, settings, _relay())
    outlet.tell(trials=[[trial.trial, dict(trial.config), dict(trial.metrics)] for trial in found])


class _Heard:
    """A listener that passes on to Tune's callback what another one heard there."""

    def __init__(self, callback: Any) -> None:
        self._callback, self.ended = callback, list[Ended]()
        self._is_whole = False

    def event(self, event: Mapping[str, Any]) -> None:
        if "trials" in event:
            self.ended = [Ended(*trial) for trial in event["trials"]]
            self._is_whole = True
        if "trial" not in event:
            return
        trial = SimpleNamespace(trial_id=event["trial"], config=event["config"], last_result=event["result"])
        more = {"result": event["result"]} if event["is"] == "result" else {}
        getattr(self._callback, f"on_trial_{event['is']}")(0, [], trial, **more)

    def file(self, name: str, blob: bytes) -> None:
        raise AssertionError("a search sends no files")

    def missing(self) -> list[str]:
        return [] if self._is_whole else ["its trials"]


def _relay() -> Any:
    """Make the callback that writes what it hears as events of the job.

    It is stored with the search, so it holds nothing.
    """
    from ray.tune import Callback

    class Relay(Callback):
        def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            _write("start", trial, {})

        def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: Any, **info: Any) -> None:
            _write("result", trial, result)

        def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            _write("complete", trial, trial.last_result)

        def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            _write("error", trial, {})

    return Relay()


def _write(what: str, trial: Any, result: Mapping[str, Any]) -> None:
    plain = {key: value for key, value in result.items() if isinstance(value, (int, float, str))}
    event = {"trial": trial.trial_id, "is": what, "config": dict(trial.config), "result": plain}
    calls.tell(event)
