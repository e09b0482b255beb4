"""Progress messages to a hub that is slow."""

from typing import Any

import pytest
import ray

from pipeline.work.hub import Progress


class _Slow:
    """A hub that has read the messages in ``read``."""

    def __init__(self) -> None:
        self.got: list[tuple[Any, ...]] = []
        self.read: set[int] = set()
        self.report = self

    def remote(self, *message: Any) -> int:
        self.got.append(message)
        return len(self.got) - 1


def test_a_hub_that_is_behind_is_sent_no_more_and_hears_all_figures_later(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = _Slow()
    monkeypatch.setattr(ray, "wait", lambda refs, timeout: ([r for r in refs if r in hub.read], []))
    send = Progress(hub)
    for step in range(1, 4):
        send("a", step, 10, {"loss": float(step), f"only-{step}": 1.0})
    assert hub.got == [("a", 1, 10, {"loss": 1.0, "only-1": 1.0})]
    hub.read.add(0)
    send("a", 4, 10, {"loss": 4.0})
    assert hub.got[1:] == [("a", 4, 10, {"loss": 4.0, "only-2": 1.0, "only-3": 1.0})]
    send("a", 10, 10, {"loss": 5.0})  # the end is said in any case
    assert hub.got[2:] == [("a", 10, 10, {"loss": 5.0})]


def test_a_hub_that_reads_is_sent_each_message(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = _Slow()
    monkeypatch.setattr(ray, "wait", lambda refs, timeout: (refs, []))
    send = Progress(hub)
    for step in range(3):
        send("a", step, 10, {"loss": float(step)})
    assert [message[1] for message in hub.got] == [0, 1, 2]
