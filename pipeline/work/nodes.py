"""What the nodes of a Ray cluster can run: Ray itself lets a task that no node can run wait for ever."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from bdl_pipe.errors import UserError

from ..core.settings import Needs, Settings, in_words
from .faults import HeadWatch

_LOOK_SECONDS: Final = 1.0
_LINE_SECONDS: Final = 60.0  # between two lines about one wait


def capacity(nodes: Iterable[Mapping[str, Any]], needs: Needs) -> int:
    """Count the tasks that the nodes can run at once if they run nothing else.

    Args:
        nodes: as ``ray.nodes()`` returns them.
    """
    wanted = needs.counted
    if not wanted:
        return sys.maxsize
    return sum(min(int(node.get(name, 0) / amount) for name, amount in wanted.items()) for node in _alive(nodes))


def ensure(settings: Settings, workers: int = 1, say: Callable[[str], None] = print) -> None:
    """Return when the cluster that this process has joined can run ``workers`` tasks at once.

    The wait is at most ``settings.node_seconds``, during which an autoscaler sees the request.

    Args:
        say: prints a line each minute of the wait.

    Raises:
        UserError: the nodes cannot run the tasks, or the head is gone.
    """
    import ray

    needs = settings.needs
    if capacity(ray.nodes(), needs) >= workers:
        return
    watch, start, last_line = HeadWatch(settings.address), time.monotonic(), -_LINE_SECONDS
    with _requested(needs, workers) if settings.node_seconds else contextlib.nullcontext():
        while (waited := time.monotonic() - start) < settings.node_seconds:
            if waited - last_line >= _LINE_SECONDS:
                last_line = waited
                say(f"waiting for a node with {needs}, {waited:.0f} of {settings.node_seconds:.0f} s")
            time.sleep(_LOOK_SECONDS)
            if watch.answers() and capacity(ray.nodes(), needs) >= workers:
                return
    _refuse(ray.nodes(), needs, workers, settings)


@contextlib.contextmanager
def _requested(needs: Needs, workers: int) -> Iterator[None]:
    """Hold a placement group, which is a request that an autoscaler adds nodes for."""
    from ray.util import placement_group, remove_placement_group

    bundle = {name: int(amount) if name == "memory" else amount for name, amount in needs.counted.items()}
    request = placement_group([bundle] * workers)
    try:
        yield
    finally:
        with contextlib.suppress(Exception):  # the cluster may be gone
            remove_placement_group(request)


def _refuse(nodes: Iterable[Mapping[str, Any]], needs: Needs, workers: int, settings: Settings) -> None:
    """Raise the error that names the request and the most that the nodes have."""
    nodes = list(nodes)
    hint = ""
    if settings.address:
        grown = "add such a node, or set BDL_WAIT_FOR_NODES to the seconds to wait for an autoscaler"
        waited = f"none came in {settings.node_seconds:.0f} s (BDL_WAIT_FOR_NODES)"
        hint = f"; {waited if settings.node_seconds else grown}"
    if workers > 1:
        rule = f"BDL_WORKERS_PER_TASK={workers}: the Ray cluster can run {capacity(nodes, needs)} workers of {needs}"
        raise UserError(f"{rule} at once{hint}")
    names = dict.fromkeys(["CPU", "GPU", *needs.counted])
    most = {name: max((node.get(name, 0) for node in _alive(nodes)), default=0) for name in names}
    raise UserError(f"no node of the Ray cluster has {needs} for a task; the most is {in_words(most)}{hint}")


def _alive(nodes: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [node["Resources"] for node in nodes if node.get("Alive", True)]
