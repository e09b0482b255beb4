"""How many tasks the nodes of a cluster can run, and which requests are refused or waited for."""

from collections.abc import Iterator
from typing import Any, Final

import pytest
import ray

from bdl_pipe.errors import UserError
from pipeline.core.settings import Needs, Settings
from pipeline.work import nodes
from pipeline.work.nodes import capacity, ensure

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
def growing_ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ray]:
    fake = Ray(100, {"Alive": True, "Resources": {"CPU": 8.0, "GPU": 8.0}})
    monkeypatch.setattr(ray, "nodes", fake.nodes)
    monkeypatch.setattr(nodes.time, "sleep", fake.sleep)
    monkeypatch.setattr(nodes.time, "monotonic", lambda: fake.time)
    monkeypatch.setattr("ray.util.placement_group", fake.placement_group)
    monkeypatch.setattr("ray.util.remove_placement_group", fake.remove_placement_group)
    monkeypatch.setattr(nodes.HeadWatch, "answers", lambda self: True)
    yield fake


def test_tasks_are_counted_node_by_node() -> None:
    assert capacity(NODES, Needs()) == 7 and capacity(NODES, Needs(2)) == 3
    assert capacity(NODES, Needs(gpus=0.5)) == 2 and capacity(NODES, Needs(5)) == 0
    assert capacity([], Needs(cpus=0)) > 1000, "a task that takes nothing fits any node"


def test_a_request_that_no_node_can_meet_is_refused_at_once(growing_ray: Ray) -> None:
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


def test_a_request_for_cpu_and_gpu_that_no_single_node_has_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "nodes", lambda: [{"Resources": {"CPU": 4.0}}, {"Resources": {"CPU": 0.0, "GPU": 1.0}}])
    with pytest.raises(UserError, match="the most is 4 CPU and 1 GPU"):
        ensure(Settings(needs=Needs(gpus=1)))


def test_a_node_that_an_autoscaler_adds_is_waited_for(growing_ray: Ray) -> None:
    """The autoscaler sees the request as a placement group; each minute a line names the resources and the time."""
    said: list[str] = []
    ensure(Settings(address=CLUSTER, needs=Needs(gpus=8), node_seconds=600.0), say=said.append)
    assert 90 < growing_ray.time < 110
    assert growing_ray.requests == [[{"CPU": 1.0, "GPU": 8.0}]] and growing_ray.removed == 1
    assert said == [f"waiting for a node with 1 CPU and 8 GPU, {seconds} of 600 s" for seconds in (0, 60)]


def test_the_wait_for_a_node_ends_with_an_error_after_its_limit(growing_ray: Ray) -> None:
    with pytest.raises(UserError, match=r"1 GPU; no such node came in 30 s \(BDL_WAIT_FOR_NODES\)$"):
        ensure(Settings(address=CLUSTER, needs=Needs(gpus=8), node_seconds=30.0), say=lambda text: None)
    assert growing_ray.removed == 1
