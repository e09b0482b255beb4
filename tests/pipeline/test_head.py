"""One Ray head for all stages of a command, which starts when a stage asks for it and ends with the command."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest

from bdl_pipe.errors import UserError
from pipeline.core.settings import Settings
from pipeline.run import children, head
from pipeline.work import cluster, nodes
from pipeline.work.nodes import connect_error


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve in a thread of this process, and yield the socket's path."""

    def serve(own: socket.socket) -> None:
        with contextlib.suppress(OSError):  # the end of the block shuts the socket
            head._serve(Settings(), own)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
        listener.listen()
        with listener.dup() as own:
            thread = threading.Thread(target=serve, args=(own,), daemon=True)
            thread.start()
            yield str(folder / "socket")
            own.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_the_first_stage_that_asks_starts_one_head_for_all_stages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = Mock(return_value=contextlib.nullcontext("127.0.0.1:1"))
    monkeypatch.setattr(head.cluster, "head", starts)
    with served(tmp_path) as place:
        with socket.socket(socket.AF_UNIX) as gone:
            gone.connect(place)  # a stage that was killed before it read the answer
        assert [head.address(place) for _ in range(3)] == ["127.0.0.1:1"] * 3
    assert starts.call_count == 1


def test_every_stage_gets_the_error_of_a_ray_that_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = UserError("Ray (inside this process) did not start: no memory")
    monkeypatch.setattr(head.cluster, "head", Mock(side_effect=error))
    with served(tmp_path) as place:
        for _ in range(2):
            with pytest.raises(UserError, match=r"did not start: no memory$"):
                head.address(place)
    with pytest.raises(UserError, match=r"^Ray did not start: its process has ended$"):
        head.address(str(tmp_path / "other"))


def test_settings_that_need_no_local_ray_start_no_process() -> None:
    for settings in (Settings(executor="inline"), Settings(address="127.0.0.1:9")):
        with head.shared(settings) as place:
            assert place == "" and head.address(place) == ""


@pytest.mark.process
def test_the_process_of_the_head_ends_with_the_block_if_no_stage_asks_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "PRELOAD", ())
    with head.shared(Settings()) as place:
        with socket.socket(socket.AF_UNIX) as seen:
            seen.bind(place + "2")  # the folder is this user's alone
        assert Path(place).parent.stat().st_mode & 0o077 == 0
    with pytest.raises(UserError, match="its process has ended"):
        head.address(place)


@pytest.mark.ray
def test_the_shared_head_answers_and_ends_with_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "PRELOAD", ())
    before = psutil.Process().children(recursive=True)  # among them the head of other tests of this process
    with head.shared(Settings()) as place:
        address = head.address(place)
        assert head.address(place) == address and connect_error(address) is None
        children_now = [p for p in psutil.Process().children(recursive=True) if p not in before]
        started = [p for p in children_now if "ray" in " ".join(p.cmdline())]
    assert connect_error(address) is not None
    _, there = psutil.wait_procs(started, timeout=30)
    assert started and [p for p in there if p.status() != psutil.STATUS_ZOMBIE] == []


def test_a_local_ray_is_started_up_to_three_times_and_a_cluster_is_asked_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ray gives up after 30 seconds, by a plain Exception; the third failure is an error."""
    import ray

    failure = Exception("The current node timed out during startup.\nMore.")
    init = Mock(side_effect=[failure, failure, None, *[failure] * 5])
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(nodes, "ensure", lambda settings, say: None)
    with cluster.connected(Settings()):
        assert init.call_count == 3
    message = r"^Ray \(inside this process\) did not start: The current node timed out"
    with pytest.raises(UserError, match=message), cluster.connected(Settings()):
        pass
    assert init.call_count == 6
    with pytest.raises(UserError, match="did not start"), cluster.connected(Settings(), head=lambda: "127.0.0.1:1"):
        pass
    assert [call.kwargs["address"] for call in init.call_args_list] == ["local"] * 6 + ["127.0.0.1:1"]
    monkeypatch.setattr(nodes, "require_head", lambda address: None)
    message = (
        r"^RAY_ADDRESS=here:1: cannot connect \(The current .*; if the .* requires a token, set RAY_AUTH_MODE=token$"
    )
    with pytest.raises(UserError, match=message), cluster.connected(Settings(address="here:1")):
        pass
    assert init.call_count == 8
