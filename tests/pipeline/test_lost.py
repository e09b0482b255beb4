"""Errors of a cluster that is lost: one line that says what to do, and soon enough."""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import ray
from ray import exceptions

from bdl_pipe.errors import UserError
from pipeline.work import cluster, lost
from pipeline.work.lost import Losses, Silent, Watch, explained, silence


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    """A socket where somebody answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        yield server


def address(server: socket.socket) -> str:
    return f"127.0.0.1:{server.getsockname()[1]}"


def at_once(monkeypatch: pytest.MonkeyPatch, **limits: float) -> None:
    for name, seconds in {"_LOOK_SECONDS": 0.0, **limits}.items():
        monkeypatch.setattr(lost, name, seconds)


def test_a_head_that_answers_is_left_alone(listening: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once(monkeypatch, _REFUSED_SECONDS=0.0)
    Watch(address(listening)).look()
    Watch("").look()


def test_a_head_that_refuses_is_given_up_after_a_while(
    listening: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once(monkeypatch, _REFUSED_SECONDS=0.2)
    watch, where = Watch(address(listening)), address(listening)
    watch.look()
    listening.close()
    watch.look()  # it may be starting again
    time.sleep(0.25)
    with pytest.raises(
        UserError, match=rf"^the Ray cluster at {where} has gone \(.*refused\): start it again, and the"
    ):
        watch.look()


def test_a_head_that_is_silent_is_waited_for_longer(listening: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once(monkeypatch, _REFUSED_SECONDS=0.0, _SILENT_SECONDS=1e6, _ANSWER_SECONDS=0.2)
    with ExitStack() as stack:
        for _ in range(3):  # until nobody is let in
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(listening.getsockname())
        error = silence(address(listening))
        assert error is not None and not isinstance(error, ConnectionRefusedError)
        watch = Watch(address(listening))
        watch.look()
        monkeypatch.setattr(lost, "_SILENT_SECONDS", 0.0)
        with pytest.raises(UserError, match="has gone"):
            watch.look()


def test_where_the_head_is_gone_ray_is_asked_nothing(listening: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray would wait for a minute, and then end the process, before the watch has said its line."""

    def never() -> None:
        raise AssertionError("asked")

    at_once(monkeypatch)
    monkeypatch.setattr(ray, "nodes", never)
    silent = Silent(address(listening), None, Losses(None))
    with pytest.raises(AssertionError, match="asked"):
        silent.look({})
    listening.close()
    assert silent.look({}) == []


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (exceptions.ObjectStoreFullError("Failed to put object\nmore"), "object store is full.*make space there"),
        (exceptions.OutOfDiskError("Local disk is full\nmore"), "object store is full.*make space there"),
        (exceptions.ActorDiedError(), "^the process that keeps the checkpoints was lost"),
        (exceptions.ActorUnavailableError("gone", None), "^the process that keeps the checkpoints was lost"),
        (exceptions.LocalRayletDiedError(), "^Ray could not run it: "),
    ],
)
def test_errors_of_ray_are_one_line_with_the_cure(error: Exception, said: str, listening: socket.socket) -> None:
    ending = f"{said}.*{lost.GO_ON}$"
    with pytest.raises(UserError, match=ending) as caught, explained(address(listening)):
        raise error
    assert "\n" not in str(caught.value)


def test_an_address_of_version_6(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def refused(where: tuple[str, int], timeout: float) -> None:
        asked.append(where)
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(socket, "create_connection", refused)
    with pytest.raises(UserError, match=r"^RAY_ADDRESS=\[::1\]:6379: no Ray cluster answers there"):
        cluster.preflight("[::1]:6379")
    assert asked == [("::1", 6379)]


def test_the_cause_is_the_head_where_that_is_gone(listening: socket.socket) -> None:
    where = address(listening)
    listening.close()
    with pytest.raises(UserError, match=rf"^the Ray cluster at {where} has gone"), explained(where):
        raise exceptions.ActorDiedError()


def test_other_errors_are_as_they_were() -> None:
    with pytest.raises(ZeroDivisionError), explained(""):
        raise ZeroDivisionError
