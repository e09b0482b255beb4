"""Whether a cluster has room for a task, has none yet, or never will.

In a cluster that grows there may be no worker until work waits for one. Its autoscaler makes itself known by the state
that it reports to the head, and says which requests none of its kinds of nodes can meet. Only the second of Ray's two
does so, which KubeRay and ``ray up`` start.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from bdl_pipe.errors import UserError

from ..machine import Needs, in_words
from .lost import Watch

_POLL_SECONDS: Final = 0.5
_TELL_SECONDS: Final = 60.0


def require_room(address: str, needs: Needs) -> None:
    """See that the cluster that this process has joined can run a task; wait where its autoscaler starts a node first.

    Args:
        address: of the head, to be asked whether it still answers; empty: it is not.

    Raises:
        UserError: no node has what the task needs, now or ever; or the head is gone.
    """
    import ray

    if not has_room(ray.nodes(), needs) and not wait_for_room(address, needs):
        check_resources(ray.nodes(), needs)


def has_room(nodes: Sequence[Mapping[str, Any]], needs: Needs) -> bool:
    """Say whether one of the nodes that are alive has what a task needs, be it taken for now."""
    return any(all(node.get(name, 0) >= amount for name, amount in needs.counted.items()) for node in _alive(nodes))


def check_resources(nodes: Sequence[Mapping[str, Any]], needs: Needs) -> None:
    """Refuse a request that no node can meet, which would wait for ever.

    Raises:
        UserError: naming what is asked for and the most that one node has.
    """
    if has_room(nodes, needs):
        return
    names, alive = dict.fromkeys(["CPU", "GPU", *needs.counted]), _alive(nodes)
    most = {name: max((node.get(name, 0) for node in alive), default=0) for name in names}
    raise UserError(f"no node of the Ray cluster has {needs} for a task; the most is {in_words(most)}")


def _alive(nodes: Sequence[Mapping[str, Any]]) -> list[Mapping[str, float]]:
    return [node["Resources"] for node in nodes if node.get("Alive", True)]


def wait_for_room(address: str, needs: Needs, count: int = 1) -> bool:
    """Wait until there is room for ``count`` tasks, which a cluster's autoscaler makes; say whether there is one.

    Args:
        address: of the head, to be asked whether it still answers; empty: it is not.

    Raises:
        UserError: no kind of node that the autoscaler may start has what a task needs, or the head is gone.
    """
    if _state() is None:
        return False
    from ray.util.placement_group import placement_group, remove_placement_group

    bundle = {name: int(amount) if name == "memory" else amount for name, amount in needs.counted.items()}
    room, watch, told = placement_group([bundle] * count), Watch(address), -_TELL_SECONDS
    try:
        while not room.wait(_POLL_SECONDS):
            watch.look()
            if bundle in _infeasible():
                raise UserError(f"no node of the Ray cluster has {needs} for a task, nor any that its autoscaler has")
            if time.monotonic() - told >= _TELL_SECONDS:
                told = time.monotonic()
                several = f"{count} times " if count > 1 else ""
                print(f"waiting for the cluster's autoscaler to make room for {several}{needs}", file=sys.stderr)
    finally:
        remove_placement_group(room)
    return True


def _state() -> Any:
    """Return what the autoscaler last reported; None where there is none."""
    import ray
    from ray.core.generated.autoscaler_pb2 import GetClusterStatusReply

    reply = GetClusterStatusReply()
    reply.ParseFromString(ray._raylet.GcsClient(ray.get_runtime_context().gcs_address).get_cluster_status(timeout_s=10))
    state = reply.autoscaling_state
    return state if state.autoscaler_state_version else None


def _infeasible() -> list[Mapping[str, float]]:
    """List the requests that the autoscaler cannot meet."""
    state = _state()
    if state is None:
        return []
    groups = [request for group in state.infeasible_gang_resource_requests for request in group.requests]
    return [dict(request.resources_bundle) for request in [*state.infeasible_resource_requests, *groups]]
