"""Room for a task: what no node has is refused at once, and what an autoscaler can start is waited for."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from bdl_pipe.errors import UserError
from pipeline.core.executors.cluster import prepare_environment
from pipeline.core.executors.room import check_resources, require_room, wait_for_room
from pipeline.core.machine import Needs


def test_a_request_that_no_node_can_meet() -> None:
    nodes = [{"Alive": True, "Resources": {"CPU": 2.0}}, {"Alive": False, "Resources": {"CPU": 8.0, "GPU": 4.0}}]
    check_resources(nodes, Needs(2))
    with pytest.raises(
        UserError, match="no node of the Ray cluster has 1 CPU and 1 GPU for a task; the most is 2 CPU and 0 GPU"
    ):
        check_resources(nodes, Needs(gpus=1))
    split = [{"Resources": {"CPU": 4.0}}, {"Resources": {"CPU": 0.0, "GPU": 1.0}}]
    with pytest.raises(UserError):
        check_resources(split, Needs(gpus=1))  # no single node has both


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head without a CPU, which this process has joined."""
    prepare_environment()
    from ray.cluster_utils import Cluster

    started = Cluster(initialize_head=True, connect=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    yield started
    import ray

    ray.shutdown()
    started.shutdown()


def report(version: int, *infeasible: dict[str, float], group: bool = False) -> None:
    """Say to the head what an autoscaler would."""
    import ray
    from ray._raylet import GcsClient
    from ray.core.generated.autoscaler_pb2 import AutoscalingState, GangResourceRequest, ResourceRequest

    requests = [ResourceRequest(resources_bundle=bundle) for bundle in infeasible]
    state = AutoscalingState(autoscaler_state_version=version, last_seen_cluster_resource_state_version=version)
    if group:
        state.infeasible_gang_resource_requests.append(GangResourceRequest(requests=requests))
    else:
        state.infeasible_resource_requests.extend(requests)
    GcsClient(ray.get_runtime_context().gcs_address).report_autoscaling_state(state.SerializeToString())


@pytest.mark.slow
@pytest.mark.xdist_group("cluster")
def test_a_cluster_that_grows(cluster: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Without an autoscaler what is not there is refused; with one it is waited for, unless it says that it cannot."""
    with pytest.raises(UserError, match="has 1 CPU for a task; the most is 0 CPU and 0 GPU"):
        require_room("", Needs())
    report(1)
    for version, group in ((2, False), (3, True)):
        report(version, {"CPU": 8.0}, group=group)
        with pytest.raises(UserError, match="has 8 CPU for a task, nor any that its autoscaler has"):
            require_room("", Needs(cpus=8))
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(require_room, "", Needs())  # 8 CPU are another request than this one
        time.sleep(2)
        assert not waiting.done()
        cluster.add_node(num_cpus=1)
        waiting.result(timeout=60)
    assert "waiting for the cluster's autoscaler to make room for 1 CPU" in capsys.readouterr().err
    check_resources(ray_nodes(), Needs())
    assert wait_for_room("", Needs(), 1)  # the room that was waited for is left to whoever needs it
    with pytest.raises(UserError, match="has 9 GPU"):
        report(4, {"GPU": 9.0})
        wait_for_room("", Needs(cpus=0, gpus=9), 2)


def ray_nodes() -> list[dict[str, Any]]:
    import ray

    return list(ray.nodes())
