"""What the autoscaler of a Ray cluster says of itself: whether there is one, which nodes are to come, which never.

Ray has no public word for it. What ``ray status`` prints is read here: the report of Ray's first autoscaler, or the
state of its second one.
"""

import json
import time
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any, Final

_FIRST_SECONDS: Final = 12.0  # in which the autoscaler of a head that has just been started speaks
_LOOK_SECONDS: Final = 1.0


@dataclass(frozen=True)
class Growth:
    """What an autoscaler is at.

    Attributes:
        coming: the kind of each node that is asked for or starts.
        failed: why nodes could not be had lately.
        never: requests that no kind of node can meet, each by Ray's names.
    """

    coming: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    never: tuple[Mapping[str, float], ...] = ()

    @property
    def in_words(self) -> str:
        """Return the nodes that are to come, as a person counts them."""
        return ", ".join(f"{self.coming.count(kind)} {kind}" for kind in dict.fromkeys(self.coming))

    @property
    def why(self) -> str:
        """Return why nodes could not be had, in brackets; empty where none failed."""
        return f" ({'; '.join(dict.fromkeys(self.failed))})" if self.failed else ""


def grows() -> bool:
    """Say whether the cluster adds nodes by itself; one whose nodes people have started does not."""
    from ray.autoscaler._private.util import format_readonly_node_type

    if _is_second():
        return True
    until = time.monotonic() + _FIRST_SECONDS
    while not (kinds := (_report() or {}).get("node_type_mapping")):
        if time.monotonic() > until:
            return False
        time.sleep(_LOOK_SECONDS)
    return any(kind != format_readonly_node_type(node) for node, kind in kinds.items())


def look() -> Growth:
    """Ask the autoscaler what it is at."""
    import ray

    if _is_second():
        return of_state(_state())
    alive = [node for node in ray.nodes() if node["Alive"]]
    joined = {node["NodeManagerAddress"] for node in alive} | {node["NodeID"] for node in alive}
    return of_report(_report() or {}, joined)


def of_report(report: Mapping[str, Any], joined: Container[str] = ()) -> Growth:
    """Read the report of the first autoscaler, which does not say what it can never add.

    Args:
        joined: the names of nodes that are there, though the autoscaler may not have finished with them.
    """
    asked = [kind for kind, count in (report.get("pending_launches") or {}).items() for _ in range(count)]
    starting = [kind for name, kind, *_ in report.get("pending_nodes") or () if name not in joined]
    kinds = (report.get("node_availability_summary") or {}).get("node_availabilities") or {}
    failures = [kind.get("unavailable_node_information") or {} for kind in kinds.values()]
    return Growth((*asked, *starting), tuple(each["description"] for each in failures if each.get("description")))


def of_state(state: Any) -> Growth:
    """Read the state of the second autoscaler: an ``AutoscalingState`` of Ray's protocol."""
    asked = [each.ray_node_type_name for each in state.pending_instance_requests for _ in range(each.count)]
    starting = [each.ray_node_type_name for each in state.pending_instances]
    groups = state.infeasible_gang_resource_requests
    together = [each for group in groups for each in group.requests]
    together += [each for group in groups for bundle in group.bundle_selectors for each in bundle.resource_requests]
    return Growth(
        (*asked, *starting),
        tuple(each.reason for each in state.failed_instance_requests if each.reason),
        tuple(dict(each.resources_bundle) for each in (*state.infeasible_resource_requests, *together)),
    )


def _is_second() -> bool:
    from ray.autoscaler.v2.utils import is_autoscaler_v2

    return bool(is_autoscaler_v2(fetch_from_server=True))


def _report() -> Mapping[str, Any] | None:
    from ray._private.ray_constants import DEBUG_AUTOSCALING_STATUS
    from ray.experimental.internal_kv import _internal_kv_get

    stored = _internal_kv_get(DEBUG_AUTOSCALING_STATUS)
    report: Mapping[str, Any] | None = json.loads(stored).get("autoscaler_report") if stored else None
    return report


def _state() -> Any:
    from ray.core.generated.autoscaler_pb2 import GetClusterStatusReply
    from ray.experimental.internal_kv import internal_kv_get_gcs_client

    reply = GetClusterStatusReply()
    reply.ParseFromString(internal_kv_get_gcs_client().get_cluster_status())
    return reply.autoscaling_state
