"""Tests that share a fixture of their module are in one group, so that one process makes it, whatever runs them."""

import os

import pytest


@pytest.fixture(scope="module")
def maker() -> int:
    return os.getpid()


@pytest.mark.parametrize("number", range(3))
def test_tests_that_share_a_fixture_are_in_one_group(number: int, maker: int, request: pytest.FixtureRequest) -> None:
    """By its name pytest-xdist sends a group to one process; under pytest 9.2 it names none."""
    (group,) = [mark.args[0] for mark in request.node.iter_markers("xdist_group")]
    assert group == __name__
    if getattr(request.config.option, "loadgroup", False):  # in a process that pytest-xdist has started
        assert request.node.nodeid.endswith(f"@{__name__}")
