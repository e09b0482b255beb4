"""``missing`` returns one line with the first thing that a cluster of namespaces lacks on a machine, and its cure."""

import os
import shutil
import subprocess
import sys

import pytest

from benchmarks import namespaces


@pytest.fixture(autouse=True)
def able(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(shutil, "which", lambda tool: f"/bin/{tool}")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(subprocess, "run", lambda *args, **options: subprocess.CompletedProcess([], 0, "", ""))


def test_a_machine_that_can_run_namespaces_lacks_nothing() -> None:
    assert namespaces.missing() == "" and namespaces.available()


@pytest.mark.parametrize(("tool", "cure"), [("ip", "install iproute2"), ("unshare", "install util-linux")])
def test_a_missing_tool_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch, tool: str, cure: str) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None if name == tool else name)
    assert namespaces.missing() == f"this needs the command {tool}: {cure}"
    assert not namespaces.available()


def test_without_root_the_message_says_to_use_sudo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert namespaces.missing() == "this needs root, to make networks and disks: give the command with sudo -E"


def test_when_the_kernel_refuses_a_mount_the_message_says_to_leave_the_container(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = subprocess.CompletedProcess([], 1, "", "mount --make-shared /run/netns failed: Operation not permitted\n")
    monkeypatch.setattr(subprocess, "run", lambda *args, **options: refused)
    assert "Operation not permitted): run it outside a container" in namespaces.missing()


def test_on_macos_the_message_asks_for_a_linux_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert namespaces.missing() == "this needs the namespaces of Linux: run it on a Linux machine"
