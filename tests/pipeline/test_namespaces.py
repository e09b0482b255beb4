"""What a machine lacks for a cluster of namespaces is one line with its cure."""

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


def test_nothing_is_missing() -> None:
    assert namespaces.missing() == "" and namespaces.available()


@pytest.mark.parametrize(("tool", "cure"), [("ip", "install iproute2"), ("unshare", "install util-linux")])
def test_a_tool(monkeypatch: pytest.MonkeyPatch, tool: str, cure: str) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None if name == tool else name)
    assert namespaces.missing() == f"this needs the command {tool}: {cure}"
    assert not namespaces.available()


def test_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert namespaces.missing() == "this needs root, to make networks and disks: give the command with sudo -E"


def test_a_kernel_that_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = subprocess.CompletedProcess([], 1, "", "mount --make-shared /run/netns failed: Operation not permitted\n")
    monkeypatch.setattr(subprocess, "run", lambda *args, **options: refused)
    assert "Operation not permitted): run it outside a container" in namespaces.missing()


def test_another_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert namespaces.missing() == "this needs the namespaces of Linux: run it on a Linux machine"
