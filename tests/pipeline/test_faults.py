"""Faults of a cluster during work give one line that says what to do, in good time; lost tasks run again."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
import ray
from ray import exceptions

from bdl_pipe.errors import UserError
from pipeline.work import nodes
from pipeline.work.executor import Task
from pipeline.work.nodes import HeadWatch, TaskWatch, connect_error, explained, require_head


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    """A socket that accepts connections."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        yield server


def address(server: socket.socket) -> str:
    return f"127.0.0.1:{server.getsockname()[1]}"


def at_once(monkeypatch: pytest.MonkeyPatch, **limits: float) -> None:
    for name, seconds in {"_LOOK_SECONDS": 0.0, **limits}.items():
        monkeypatch.setattr(nodes, name, seconds)


def test_the_watch_accepts_a_head_that_answers(listening: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once(monkeypatch, _REFUSED_SECONDS=0.0)
    assert HeadWatch(address(listening)).answers()
    assert HeadWatch("").answers()


def test_a_head_that_refuses_connections_is_given_up_after_a_while(
    listening: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, where = HeadWatch(address(listening)), address(listening)
    assert watch.answers()
    listening.close()
    assert not watch.answers()  # it may be restarting
    at_once(monkeypatch, _REFUSED_SECONDS=0.0)
    said = rf"^the Ray cluster at {where} has gone \(.*refused\): start it again, and the same command continues"
    with pytest.raises(UserError, match=said):
        watch.answers()


def test_a_silent_head_is_waited_for_longer_than_a_refusing_head(
    listening: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once(monkeypatch, _REFUSED_SECONDS=0.0, _ANSWER_SECONDS=0.2)
    with ExitStack() as stack:
        for _ in range(3):  # these fill the queue of connections
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(listening.getsockname())
        error = connect_error(address(listening), 0.2)
        assert error is not None and not isinstance(error, ConnectionRefusedError)
        watch = HeadWatch(address(listening))
        assert not watch.answers()
        monkeypatch.setattr(nodes, "_SILENT_SECONDS", 0.0)
        with pytest.raises(UserError, match="has gone"):
            watch.answers()


class Hub:
    """The hub's actor as the watch calls it, in this process: ``nodes.remote()`` and ``begin.remote(task, node)``."""

    def __init__(self, places: dict[str, str]) -> None:
        self.places = places
        self.nodes, self.begin = SimpleNamespace(remote=lambda: places), SimpleNamespace(remote=places.__setitem__)


def test_tasks_of_a_dead_node_run_again_a_limited_number_of_times(
    listening: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once(monkeypatch, _GRACE_SECONDS=0.0)
    alive, cancelled = {"here", "there"}, list[str]()
    monkeypatch.setattr(
        ray, "nodes", lambda: [{"NodeID": "here", "Alive": True}, *[{"NodeID": "there", "Alive": "there" in alive}]]
    )
    monkeypatch.setattr(ray, "get", lambda value: value)
    monkeypatch.setattr(ray, "cancel", lambda ref, force: cancelled.append(ref))
    hub = Hub({"a": "here", "b": "there"})
    listening.listen(100)
    watch, pending = TaskWatch(address(listening), hub), {"ref-a": Task("a", 0), "ref-b": Task("b", 0)}
    assert watch.lost(pending) == []
    alive.remove("there")
    assert watch.lost(pending) == []  # Ray may fail the task itself
    for _ in range(nodes.RETRIES):
        hub.places["b"] = "there"
        assert watch.lost(pending) == ["ref-b"]
        assert hub.places["b"] == "", "an attempt that has not begun counts as lost"
    assert cancelled == ["ref-b"] * nodes.RETRIES
    hub.places["b"] = "there"
    with pytest.raises(UserError, match=r"^b: its node was lost 4 times; the same command continues"):
        watch.lost(pending)


def test_ray_is_not_called_when_its_head_is_gone(listening: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray would wait for a minute, and then abort the process, before the watch has raised its error."""

    def never() -> None:
        raise AssertionError("called")

    at_once(monkeypatch)
    monkeypatch.setattr(ray, "nodes", never)
    watch = TaskWatch(address(listening), None)
    with pytest.raises(AssertionError, match="called"):
        watch.lost({})
    listening.close()
    assert watch.lost({}) == []
    assert TaskWatch("", None).lost({}) == []


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (exceptions.ObjectStoreFullError("Failed to put object\nmore"), "object store is full.*make space there"),
        (exceptions.OutOfDiskError("Local disk is full\nmore"), "object store is full.*make space there"),
        (exceptions.ActorDiedError(), "^the process that keeps the checkpoints was lost"),
        (exceptions.ActorUnavailableError("gone", None), "^the process that keeps the checkpoints was lost"),
        (exceptions.LocalRayletDiedError(), "^Ray failed: "),
    ],
)
def test_each_error_of_ray_is_one_line_that_says_what_to_do(
    error: Exception, said: str, listening: socket.socket
) -> None:
    ending = f"{said}.*{nodes.CONTINUE}$"
    with pytest.raises(UserError, match=ending) as caught, explained(address(listening)):
        raise error
    assert "\n" not in str(caught.value)


def test_an_ipv6_address_is_split_into_host_and_port(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def refused(where: tuple[str, int], timeout: float) -> None:
        asked.append(where)
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(socket, "create_connection", refused)
    with pytest.raises(UserError, match=r"^RAY_ADDRESS=\[::1\]:6379: no Ray cluster answers there"):
        require_head("[::1]:6379")
    assert asked == [("::1", 6379)]


def test_when_the_head_is_gone_the_error_names_the_head(listening: socket.socket) -> None:
    where = address(listening)
    listening.close()
    with pytest.raises(UserError, match=rf"^the Ray cluster at {where} has gone"), explained(where):
        raise exceptions.ActorDiedError()


def test_errors_of_other_kinds_are_raised_unchanged() -> None:
    with pytest.raises(ZeroDivisionError), explained(""):
        raise ZeroDivisionError
