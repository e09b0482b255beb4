"""What a cluster has room for, counted, and the nodes that an autoscaler of Ray's own adds to a real head."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from bdl_pipe.errors import UserError
from pipeline.core.machine import Needs
from pipeline.core.settings import Settings
from pipeline.work import growing, room
from pipeline.work.base import Task
from pipeline.work.choose import choose
from pipeline.work.cluster import prepare_environment
from pipeline.work.display import Display
from pipeline.work.growing import Growth
from tests.pipeline import fake_work

NODES: Final = [
    {"Alive": True, "Resources": {"CPU": 4.0, "GPU": 1.0}},
    {"Alive": True, "Resources": {"CPU": 3.0}},
    {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}},
]
KINDS: Final = {"cpu": {"CPU": 1}, "gpu": {"CPU": 1, "GPU": 1}}
HEAD: Final = "f" * 51 + "00000"  # the id that Ray's stand-in for a cloud expects of a head


def test_places_are_counted_node_by_node() -> None:
    assert room.places(NODES, Needs()) == 7 and room.places(NODES, Needs(2)) == 3
    assert room.places(NODES, Needs(gpus=0.5)) == 2 and room.places(NODES, Needs(5)) == 0
    assert room.places([], Needs(cpus=0)) > 1000  # what takes nothing has room anywhere


def test_a_request_that_no_node_can_meet() -> None:
    room.check(NODES, Needs(4))
    most = "no node of the Ray cluster has 1 CPU and 2 GPU for a task; the most is 4 CPU and 1 GPU"
    with pytest.raises(UserError, match=most):
        room.check(NODES, Needs(gpus=2))
    split = [{"Resources": {"CPU": 4.0}}, {"Resources": {"CPU": 0.0, "GPU": 1.0}}]
    with pytest.raises(UserError):
        room.check(split, Needs(gpus=1))  # no single node has both
    room.check(NODES, Needs(), workers=7)
    with pytest.raises(
        UserError, match=r"^BDL_WORKERS_PER_TASK=8: the Ray cluster has room for 7 workers of 1 CPU each"
    ):
        room.check(NODES, Needs(), workers=8)


def test_what_the_first_autoscaler_reports() -> None:
    report = {
        "pending_launches": {"gpu": 2},
        "pending_nodes": [["10.0.0.7", "cpu", "setting-up"]],
        "node_availability_summary": {
            "node_availabilities": {
                "gpu": {"unavailable_node_information": {"category": "quota", "description": "quota of 8 exceeded"}},
                "cpu": {"unavailable_node_information": None},
            }
        },
    }
    growth = growing.of_report(report)
    assert growth == Growth(("gpu", "gpu", "cpu"), ("quota of 8 exceeded",))
    assert growth.in_words == "2 gpu, 1 cpu" and growth.why == " (quota of 8 exceeded)"
    assert growing.of_report(report, {"10.0.0.7"}).coming == ("gpu", "gpu")
    empty = {"pending_launches": {}, "pending_nodes": [], "node_availability_summary": None}
    assert growing.of_report(empty) == growing.of_report({}) == Growth()


def test_what_the_second_autoscaler_states() -> None:
    from ray.core.generated import autoscaler_pb2 as protocol

    request = protocol.ResourceRequest(resources_bundle={"CPU": 1.0, "GPU": 8.0})
    state = protocol.AutoscalingState(
        pending_instance_requests=[protocol.PendingInstanceRequest(ray_node_type_name="gpu", count=2)],
        pending_instances=[protocol.PendingInstance(ray_node_type_name="cpu")],
        failed_instance_requests=[protocol.FailedInstanceRequest(ray_node_type_name="gpu", reason="no capacity")] * 2,
        infeasible_gang_resource_requests=[
            protocol.GangResourceRequest(requests=[request]),
            protocol.GangResourceRequest(bundle_selectors=[protocol.BundleSelector(resource_requests=[request])]),
        ],
    )
    growth = growing.of_state(state)
    assert growth.in_words == "2 gpu, 1 cpu" and growth.why == " (no capacity)"
    assert growth.never == (Needs(gpus=8).counted,) * 2
    assert growing.of_state(protocol.AutoscalingState()) == Growth()


@pytest.fixture(params=["first", "second"])
def grown(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a head without a CPU that may add two nodes of each kind, by either of Ray's autoscalers."""
    for name, value in dict(os.environ).items():  # put back afterwards, whatever Ray's preparations leave
        monkeypatch.setenv(name, value)
    prepare_environment()
    monkeypatch.delenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", raising=False)
    monkeypatch.setattr(room, "_IDLE_SECONDS", 6.0)  # six rounds of a second
    from ray.util import get_node_ip_address

    (port, client), temporary = _free(2), tempfile.mkdtemp(prefix="bdl-")  # a short path, for sockets
    address = f"{get_node_ip_address()}:{port}"
    config = Path(temporary, "autoscaler.json")
    config.write_text(json.dumps(_autoscaler(address)))
    environment = dict(os.environ) | {"AUTOSCALER_UPDATE_INTERVAL_S": "1", "RAY_FAKE_CLUSTER": "1"}
    if request.param == "second":
        environment |= {"RAY_enable_autoscaler_v2": "1", "RAY_CLOUD_INSTANCE_ID": HEAD}
        environment |= {"RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD}
    options = [f"--port={port}", f"--ray-client-server-port={client}", f"--temp-dir={temporary}", "--num-cpus=0"]
    options += ["--include-dashboard=false", "--object-store-memory=100000000", f"--autoscaling-config={config}"]
    ray = str(Path(sys.executable).with_name("ray"))
    log = Path(temporary, "head.log")
    with log.open("wb") as said:
        head = subprocess.Popen(
            [ray, "start", "--head", "--block", "--min-worker-port=0", "--max-worker-port=0", *options],
            env=environment,
            stdout=said,
            stderr=said,
        )
    try:
        until = time.monotonic() + 120
        while "To view the status" not in log.read_text():
            assert head.poll() is None and time.monotonic() < until, log.read_text()
            time.sleep(0.2)
        yield address
    finally:
        everyone = []
        with contextlib.suppress(psutil.NoSuchProcess):
            everyone = [*psutil.Process(head.pid).children(recursive=True), psutil.Process(head.pid)]
        for process in everyone:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(everyone, timeout=20)
        shutil.rmtree(temporary, ignore_errors=True)


def _autoscaler(address: str) -> dict[str, Any]:
    """A configuration with Ray's stand-in for a cloud, whose machines are processes of this one."""
    kinds = {kind: {"resources": has, "node_config": {}, "max_workers": 2} for kind, has in KINDS.items()}
    stages = ("", "head_", "worker_")
    nothing = {
        "initialization_commands",
        "head_start_ray_commands",
        "worker_start_ray_commands",
        "cluster_synced_files",
    }
    nothing |= {f"{stage}setup_commands" for stage in stages} | {"rsync_exclude", "rsync_filter"}
    return {key: [] for key in sorted(nothing)} | {
        "file_mounts": {},
        "file_mounts_sync_continuously": False,
        "upscaling_speed": 1.0,
        "cluster_name": "grown",
        "max_workers": 4,
        "idle_timeout_minutes": 5,
        "provider": {
            "type": "external",
            "module": "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider",
            "gcs_address": address,
            "head_node_id": HEAD,
            "launch_multiple": True,
            "disable_node_updaters": True,
        },
        "auth": {"ssh_user": "nobody"},
        "available_node_types": {
            **kinds,
            "ray.head.default": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
        },
        "head_node_type": "ray.head.default",
    }


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.xdist_group("cluster")
def test_nodes_that_are_to_come_are_waited_for(grown: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A GPU, though no node is there yet; and never eight, which is said in seconds."""
    settings = Settings(address=grown, checkpoint_seconds=60.0)
    executor = choose(replace(settings, needs=Needs(gpus=1)))
    try:
        with Display("student a") as display:
            (done,) = executor.map(fake_work.placed, [Task("t", 0.0)], shared={}, display=display)
            assert done.result[0] == ["0"]
            assert "student a: waiting for 1 CPU and 1 GPU, " in (said := capsys.readouterr().out), said
            assert "s; the cluster adds 1 gpu" in said
            start = time.monotonic()
            never = (
                "no node of the Ray cluster has 1 CPU and 8 GPU for a task, nor is one to come; the most is 1 CPU and 1"
            )
            with pytest.raises(UserError, match=never):
                room.ensure(grown, Needs(gpus=8), say=display.say)
            assert time.monotonic() - start < 60
    finally:
        executor.close()


def _free(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("", 0))
        return [each.getsockname()[1] for each in sockets]
