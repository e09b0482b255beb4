"""cluster/: the image has the packages of the project, Ray accepts the launcher's files, Slurm's script runs."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import psutil
import pytest
import yaml

from tests.end_to_end.conftest import PARAMS, ROOT, make

CLUSTER: Final = ROOT / "cluster"
SRUN: Final = """#!/bin/bash
echo "srun $*" >> "$SLURM_SUBMIT_DIR/slurm.said"
while [[ "$1" == --* ]]; do shift; done
exec "$@"
"""
SCONTROL: Final = """#!/bin/bash
echo "scontrol $*" >> "$SLURM_SUBMIT_DIR/slurm.said"
test "$1" = show && echo one || true
"""


def test_the_image_has_the_packages_of_make_install_and_no_file_of_the_project() -> None:
    text = (CLUSTER / "Dockerfile").read_text()
    makefile = (ROOT / "Makefile").read_text()
    (listing,) = re.findall(r"sed -n '(/\^.*?)' /opt/bdl", text)
    assert listing.replace("#", r"\#") in makefile  # both make the list of packages in the same way
    assert re.findall(r"^COPY (\S+)", text, re.M) == ["constraints.txt"]
    assert (CLUSTER / "Dockerfile.dockerignore").read_text().split() == ["*", "!constraints.txt"]
    assert "dataset-fashion-mnist" in text and "dataset-fashion-mnist" in makefile
    assert re.search(r"^USER \d+$", text, re.M)  # Kubernetes looks up no name for runAsNonRoot
    for each in (text, *((CLUSTER / name).read_text() for name in ("aws.yaml", "ssh.yaml"))):
        assert re.search(r"pip install .*-c \S+/packages.txt torch$", each, re.M)  # what its CUDA build needs


@pytest.mark.soak
@pytest.mark.parametrize("name", ["aws.yaml", "ssh.yaml"])
def test_ray_accepts_the_files_of_its_launcher(name: str) -> None:
    """As ``ray up`` does before it asks the cloud; a file with a key of another name is refused."""
    from jsonschema import ValidationError
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = yaml.safe_load((CLUSTER / name).read_text())
    (mounted,) = config["file_mounts"].values()
    assert (ROOT / mounted).is_file()
    validate_config(prepare_config(dict(config)))
    start = config["head_start_ray_commands"][-1]
    assert start.endswith("--autoscaling-config=~/ray_bootstrap_config.yaml")  # the head needs it to start workers
    for kind in config.get("available_node_types", {}).values():
        assert kind["node_config"]["ImageId"]  # Ray's own default is too old for torch
    with pytest.raises(ValidationError, match="max_worker"):
        validate_config(prepare_config({**config, "max_worker": 3}))


@pytest.mark.parametrize("name", ["raycluster.yaml", "rayjob.yaml", "aws.yaml", "ssh.yaml"])
def test_the_files_parse_and_name_the_pinned_ray_and_one_image(name: str) -> None:
    """``make soak`` also tests the files against the schemas of Kubernetes and Ray."""
    text = (CLUSTER / name).read_text()
    assert [document for document in yaml.safe_load_all(text) if isinstance(document, dict)]
    (pinned,) = re.findall(r"^ray==(\S+)$", (ROOT / "constraints.txt").read_text(), re.M)
    assert set(re.findall(r"rayVersion: (\S+)", text)) <= {pinned}
    assert len(set(re.findall(r"image: (\S+)", text))) <= 1


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.xdist_group("cluster")
@pytest.mark.parametrize("taken", [False, True])
def test_the_slurm_script_runs_a_stage_and_requeues_a_terminated_job(taken: bool, tmp_path: Path) -> None:
    """One node, whose steps are processes here: it works and ends, or is terminated and asks for a second start."""
    project = make(tmp_path / "project", PARAMS)
    (project.folder / ".venv").symlink_to(Path(sys.executable).parents[1])
    stand_ins = tmp_path / "bin"
    stand_ins.mkdir()
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (stand_ins / name).write_text(text)
        (stand_ins / name).chmod(0o755)
    number = str(os.getpid() * 2 + taken)
    environment = {k: v for k, v in project.env.items() if k not in ("BDL_EXECUTOR", "PYTHONPATH")}
    environment |= {"PATH": f"{stand_ins}{os.pathsep}{project.env['PATH']}", "SLURM_SUBMIT_DIR": str(project.folder)}
    environment |= {"SLURM_JOB_ID": number, "SLURM_JOB_NODELIST": "one", "SLURM_CPUS_PER_TASK": "2"}
    if taken:
        project.edit("params.yaml", "override: {epochs: 3}", "override: {epochs: 100000}")
    words = ["bash", str(CLUSTER / "slurm.sh"), "trajectory@boston-sgd"]
    options = {"cwd": tmp_path, "env": environment, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    script = subprocess.Popen(words, text=True, start_new_session=True, **options)
    if taken:
        _until(lambda: list(project.folder.glob(".state/locks/trajectory/*.pid")), 120)
        time.sleep(2)
        script.send_signal(signal.SIGTERM)
    output, _ = script.communicate(timeout=200)
    log = (project.folder / "slurm.said").read_text()
    assert script.returncode == 0, output
    assert (f"scontrol requeue {number}" in log) == taken, output
    assert (project.folder / "work/trajectory/boston-sgd/manifest.json").is_file() != taken, output
    _until(lambda: not _left(number), 30)


def _until(is_so: Callable[[], object], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.1)


def _left(number: str) -> list[str]:
    """List the processes of the job's Ray that still run."""
    words = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            line = " ".join(process.cmdline())
            if f"/tmp/ray-{number}" in line and process.status() != psutil.STATUS_ZOMBIE:
                words.append(line)
    return words
