"""Decisions in DVC's own graph: an added decision is played, and the report shows it."""

import shutil

import pytest

from tests.end_to_end.conftest import FORKED, Project

pytestmark = [pytest.mark.slow, pytest.mark.process, FORKED]
DECISIONS = """
decisions:
  valley:
    task: {name: optimisation, function: branin, evaluations: 3, candidates: 20}
    agents: {linear: {rule: thompson, method: linear, updates: true}, chance: {rule: uniform}}
"""


def test_a_plain_dvc_repro_plays_an_added_decision_and_updates_the_report(project: Project) -> None:
    """DVC runs ``sources``, the decision and the report, and no fit again; its cache restores all results."""
    with open(project.folder / "params.yaml", "a") as file:
        file.write(DECISIONS)
    said = project.dvc("repro")
    ran = [line.split("'")[1] for line in said.splitlines() if line.startswith("Running stage")]
    assert ran == ["sources", "decide@valley", "report"]
    assert '<section id="valley">' in (project.folder / "report/explore.html").read_text()
    assert "up to date" in project.dvc("status")
    assert "nothing to do" in project.pipeline("repro").stdout
    shutil.rmtree(project.folder / "work")
    project.dvc("checkout")
    assert "up to date" in project.dvc("status")
