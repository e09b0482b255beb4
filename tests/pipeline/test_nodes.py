"""The nodes of a cluster: how many tasks they run, which requests are refused or waited for, and what their faults say.

A fault during work gives one line that says what to do, in good time; lost tasks run again.
"""

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import Mock

import pytest
import ray
from ray import exceptions

from bdl_pipe.errors import UserError
from pipeline.core.settings import Needs, Settings
from pipeline.work import nodes
from pipeline.work.executor import Task
from pipeline.work.nodes import HeadWatch, TaskWatch, capacity, connect_error, ensure, explained, require_head

NODES: Final = [
    {"Alive": True, "Resources": {"CPU": 4.0, "GPU": 1.0}},
    {"Alive": True, "Resources": {"CPU": 3.0}},
    {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}},
]
CLUSTER: Final = "10.0.0.1:6379"


class Ray:
    """Ray's view of the nodes, which gains ``more`` at the look number ``at``; and a clock that sleep moves."""

    def __init__(self, at: int, more: dict[str, Any]) -> None:
        self.looks, self.time, self._at, self._more = 0, 0.0, at, more
        self.requests: list[list[dict[str, float]]] = []
        self.removed = 0

    def nodes(self) -> list[dict[str, Any]]:
        self.looks += 1
        return [*NODES, *([self._more] if self.looks >= self._at else [])]

    def sleep(self, seconds: float) -> None:
        self.time += seconds

    def placement_group(self, bundles: list[dict[str, float]]) -> str:
        self.requests.append(bundles)
        return "group"

    def remove_placement_group(self, group: str) -> None:
        self.removed += 1


@pytest.fixture
def growing_ray(monkeypatch: pytest.MonkeyPatch) -> Ray:
    fake = Ray(100, {"Alive": True, "Resources": {"CPU": 8.0, "GPU": 8.0}})
    monkeypatch.setattr(ray, "nodes", fake.nodes)
    monkeypatch.setattr(nodes.time, "sleep", fake.sleep)
    monkeypatch.setattr(nodes.time, "monotonic", lambda: fake.time)
    monkeypatch.setattr("ray.util.placement_group", fake.placement_group)
    monkeypatch.setattr("ray.util.remove_placement_group", fake.remove_placement_group)
    monkeypatch.setattr(nodes.HeadWatch, "answers", lambda self: True)
    return fake


def test_tasks_are_counted_node_by_node() -> None:
    assert capacity(NODES, Needs()) == 7 and capacity(NODES, Needs(2)) == 3
    assert capacity(NODES, Needs(gpus=0.5)) == 2 and capacity(NODES, Needs(5)) == 0
    assert capacity([], Needs(cpus=0)) > 1000, "a task that takes nothing fits any node"


def test_a_request_that_no_node_can_meet_is_refused_at_once(growing_ray: Ray, monkeypatch: pytest.MonkeyPatch) -> None:
    ensure(Settings(address=CLUSTER, needs=Needs(4)))
    most = "^no node of the Ray cluster has 1 CPU and 2 GPU for a task; the most is 4 CPU and 1 GPU; add such a node"
    with pytest.raises(UserError, match=f"{most}, or set BDL_WAIT_FOR_NODES"):
        ensure(Settings(address=CLUSTER, needs=Needs(gpus=2)))
    with pytest.raises(UserError, match=r"the most is 4 CPU and 1 GPU$"):
        ensure(Settings(needs=Needs(gpus=2)))  # this machine does not grow
    for needs, words in (
        (Needs(others=(("TPU", 1.0),)), "has 1 CPU and 1 TPU for a task; the most is 4 CPU, 1 GPU and 0 TPU"),
        (Needs(cpus=5), "has 5 CPU for a task; the most is 4 CPU and 1 GPU"),
        (Needs(memory_gb=10**6), r"has 1 CPU and 1e\+06 GB memory for a task"),
    ):
        with pytest.raises(UserError, match=words):
            ensure(Settings(address=CLUSTER, needs=needs))
    ensure(Settings(address=CLUSTER), workers=7)
    with pytest.raises(UserError, match=r"^BDL_WORKERS_PER_TASK=8: the Ray cluster can run 7 workers of 1 CPU at once"):
        ensure(Settings(address=CLUSTER), workers=8)
    assert growing_ray.time == 0 and not growing_ray.requests
    apart = [{"Resources": {"CPU": 4.0}}, {"Resources": {"CPU": 0.0, "GPU": 1.0}}]  # no single node has both
    monkeypatch.setattr(ray, "nodes", lambda: apart)
    with pytest.raises(UserError, match="the most is 4 CPU and 1 GPU"):
        ensure(Settings(needs=Needs(gpus=1)))


def test_a_node_that_an_autoscaler_adds_is_waited_for_up_to_a_limit(growing_ray: Ray) -> None:
    """The autoscaler sees the request as a placement group; each minute a line names the resources and the time."""
    with pytest.raises(UserError, match=r"1 GPU; no such node came in 30 s \(BDL_WAIT_FOR_NODES\)$"):
        ensure(Settings(address=CLUSTER, needs=Needs(gpus=8), node_seconds=30.0), say=lambda text: None)
    lines: list[str] = []
    ensure(Settings(address=CLUSTER, needs=Needs(gpus=8), node_seconds=600.0), say=lines.append)
    assert 90 < growing_ray.time < 110
    assert growing_ray.requests == [[{"CPU": 1.0, "GPU": 8.0}]] * 2 and growing_ray.removed == 2
    assert lines == [f"waiting for a node with 1 CPU and 8 GPU, {seconds} of 600 s" for seconds in (0, 60)]


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


def test_a_head_that_refuses_connections_is_given_up_after_a_while(
    listening: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, where = HeadWatch(address(listening)), address(listening)
    assert watch.answers() and HeadWatch("").answers()
    listening.close()
    assert not watch.answers()  # it may be restarting
    at_once(monkeypatch, _REFUSED_SECONDS=0.0)
    message = rf"^the Ray cluster at {where} has gone \(.*refused\): start it again, and the same command continues"
    with pytest.raises(UserError, match=message):
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


def test_tasks_of_a_dead_node_run_again_a_limited_number_of_times(
    listening: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once(monkeypatch, _GRACE_SECONDS=0.0)
    here, there, cancelled = {"NodeID": "here", "Alive": True}, {"NodeID": "there", "Alive": True}, list[str]()
    monkeypatch.setattr(ray, "nodes", lambda: [here, there])
    monkeypatch.setattr(ray, "get", lambda value: value)
    monkeypatch.setattr(ray, "cancel", lambda ref, force: cancelled.append(ref))
    places = {"a": "here", "b": "there"}  # the hub's actor: where each task has begun
    remotes = {"nodes": lambda: places, "begin": places.__setitem__}
    hub = SimpleNamespace(**{name: SimpleNamespace(remote=remote) for name, remote in remotes.items()})
    listening.listen(100)
    watch, pending = TaskWatch(address(listening), hub), {"ref-a": Task("a", 0), "ref-b": Task("b", 0)}
    assert watch.lost(pending) == []
    there["Alive"] = False
    assert watch.lost(pending) == []  # Ray may fail the task itself
    for _ in range(nodes.RETRIES):
        places["b"] = "there"
        assert watch.lost(pending) == ["ref-b"]
        assert places["b"] == "", "an attempt that has not begun counts as lost"
    assert cancelled == ["ref-b"] * nodes.RETRIES
    places["b"] = "there"
    with pytest.raises(UserError, match=r"^b: its node was lost 4 times; the same command continues"):
        watch.lost(pending)


def test_ray_is_not_called_when_its_head_is_gone(listening: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray would wait for a minute, and then abort the process, before the watch has raised its error."""
    at_once(monkeypatch)
    monkeypatch.setattr(ray, "nodes", Mock(side_effect=AssertionError("called")))
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
    refused = Mock(side_effect=ConnectionRefusedError(111, "Connection refused"))
    monkeypatch.setattr(socket, "create_connection", refused)
    with pytest.raises(UserError, match=r"^RAY_ADDRESS=\[::1\]:6379: no Ray cluster answers there"):
        require_head("[::1]:6379")
    assert {call.args[0] for call in refused.call_args_list} == {("::1", 6379)}


def test_the_error_names_a_head_that_is_gone_and_errors_of_other_kinds_are_raised_unchanged(
    listening: socket.socket,
) -> None:
    where = address(listening)
    listening.close()
    with pytest.raises(UserError, match=rf"^the Ray cluster at {where} has gone"), explained(where):
        raise exceptions.ActorDiedError()
    with pytest.raises(ZeroDivisionError), explained(""):
        raise ZeroDivisionError
