"""What the nodes of a Ray cluster have room for: a task that none can run would wait for ever.

Where the cluster adds nodes by itself, one that is to come is waited for.
"""

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from bdl_pipe.errors import UserError

from ..core.machine import Needs, in_words
from . import growing
from .lost import Watch, silence

Say = Callable[[str], None]
_LOOK_SECONDS: Final = 1.0
_IDLE_SECONDS: Final = 30.0  # six rounds of an autoscaler: one that has begun nothing by then will begin nothing
_AGAIN_SECONDS: Final = 60.0  # between two lines about one wait


def places(nodes: Iterable[Mapping[str, Any]], needs: Needs) -> int:
    """Count the tasks that the nodes, with nothing else on them, run at once."""
    wanted = needs.counted
    if not wanted:
        return sys.maxsize
    return sum(min(int(node.get(name, 0) / amount) for name, amount in wanted.items()) for node in _alive(nodes))


def check(nodes: Iterable[Mapping[str, Any]], needs: Needs, workers: int = 1, more: str = "") -> None:
    """Refuse a request that the nodes can never meet.

    Args:
        workers: tasks that run only together.
        more: what else is to be said of it.

    Raises:
        UserError: naming what is asked for and the most that there is.
    """
    nodes = list(nodes)
    room = places(nodes, needs)
    if room >= workers:
        return
    if workers > 1:
        rule = f"BDL_WORKERS_PER_TASK={workers}: the Ray cluster has room for {room} workers of {needs} each"
        raise UserError(f"{rule}{more}")
    names = dict.fromkeys(["CPU", "GPU", *needs.counted])
    most = {name: max((node.get(name, 0) for node in _alive(nodes)), default=0) for name in names}
    raise UserError(f"no node of the Ray cluster has {needs} for a task{more}; the most is {in_words(most)}")


def ensure(address: str, needs: Needs, workers: int = 1, say: Say = print) -> None:
    """Return when the cluster that this process has joined has room for ``workers`` tasks.

    Args:
        address: of a cluster; empty: of this process alone, which never grows.
        say: is told what is waited for.

    Raises:
        UserError: it never will have; or it is lost meanwhile.
    """
    import ray

    if places(ray.nodes(), needs) >= workers:
        return
    if not (address and growing.grows()):
        check(ray.nodes(), needs, workers)
        return
    from ray.util.placement_group import placement_group, remove_placement_group

    watch, start, told = Watch(address), time.monotonic(), -_AGAIN_SECONDS
    moved = start
    bundle = {name: int(amount) if name == "memory" else amount for name, amount in needs.counted.items()}
    request = placement_group([bundle] * workers)  # as the tasks' own will be: by it the autoscaler knows
    try:
        while True:
            time.sleep(_LOOK_SECONDS)
            watch.look()
            if silence(address) is not None:  # Ray, asked now, would wait for a minute, and then end this process
                continue
            nodes, now = ray.nodes(), time.monotonic()
            if places(nodes, needs) >= workers:
                return
            growth = growing.look()
            moved = now if growth.coming else moved
            if bundle in growth.never or now - moved > _IDLE_SECONDS:
                check(nodes, needs, workers, f", nor is one to come{growth.why}")
            if growth.coming and now - told > _AGAIN_SECONDS:
                say(f"waiting for {needs}, {now - start:.0f} s; the cluster adds {growth.in_words}{growth.why}")
                told = now
    finally:
        with contextlib.suppress(Exception):  # of a cluster that is lost
            remove_placement_group(request)


def _alive(nodes: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [node["Resources"] for node in nodes if node.get("Alive", True)]
