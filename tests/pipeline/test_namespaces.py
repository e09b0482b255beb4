"""``missing`` returns one line with the first thing that a cluster of namespaces lacks on a machine, and its cure."""

import os
import shutil
import subprocess
import sys

import pytest

from benchmarks import namespaces

REFUSED = subprocess.CompletedProcess([], 1, "", "mount --make-shared /run/netns failed: Operation not permitted\n")
LACKS = {  # what the machine lacks, and what is said
    "nothing": "",
    "ip": "this needs the command ip: install iproute2",
    "unshare": "this needs the command unshare: install util-linux",
    "root": "this needs root, to make networks and disks: give the command with sudo -E",
    "a mount": "Operation not permitted): run it outside a container",
    "Linux": "this needs the namespaces of Linux: run it on a Linux machine",
}


@pytest.mark.parametrize("lacked", LACKS)
def test_the_first_thing_that_a_machine_lacks_is_named_with_its_cure(
    lacked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin" if lacked == "Linux" else "linux")
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool == lacked else f"/bin/{tool}")
    monkeypatch.setattr(os, "geteuid", lambda: 1000 if lacked == "root" else 0)
    mounted = REFUSED if lacked == "a mount" else subprocess.CompletedProcess([], 0, "", "")
    monkeypatch.setattr(subprocess, "run", lambda *args, **options: mounted)
    missing = namespaces.missing()
    assert LACKS[lacked] in missing if lacked == "a mount" else missing == LACKS[lacked]
    assert namespaces.available() == (lacked == "nothing")
