"""The comparison in MLflow: each run is stored once, and the runs of another project are left alone."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from pipeline import tracking
from pipeline.tracking import Compared, Comparison, store
from tests.pipeline.tracking_cases import client, project, tables

__all__ = ["client", "project", "tables"]

NLL = {"Scores": {"nll": "NLL"}}
VIEWS = {
    "all": tracking.view("", "attributes.run_name", ["params.dataset", "metrics.nll"], NLL),
    "toy": tracking.view('params.dataset = "toy"', "metrics.nll", ["metrics.nll"], {**NLL, "Cost": {}}),
}


@pytest.fixture(autouse=True)
def store_of_the_project(client: MlflowClient) -> None:
    """Every test has an empty store."""


def compared(key: str, nll: float = 1.5) -> Compared:
    return Compared(key, f"toy {key}", {"dataset": "toy", "method": key}, {"nll": nll, "nll_se": 0.25}, "**about**")


def published(*runs: Compared) -> dict[str, Any]:
    wanted = Comparison(runs, VIEWS, lambda experiment: f"see {tracking.link(experiment, 'toy')}")
    experiment = tracking.compare(lambda: wanted)
    assert experiment is not None
    return {run.info.run_name: run for run in MlflowClient(tracking.store_uri()).search_runs([experiment])}


def test_each_run_is_stored_once_with_its_metrics_params_and_description() -> None:
    runs = published(compared("a"), compared("b", nll=2.0))
    assert runs.keys() == {"toy a", "toy b"}
    one = runs["toy b"]
    assert one.data.metrics == {"nll": 2.0, "nll_se": 0.25} and one.info.status == "FINISHED"
    assert one.data.params == {"dataset": "toy", "method": "b"}
    assert one.data.tags["mlflow.note.content"] == "**about**"
    assert "mlflow.parentRunId" not in one.data.tags


def test_a_run_is_kept_until_it_changes_or_is_removed() -> None:
    before = published(compared("a"), compared("b"), compared("c"), compared("d"))
    changed = dataclasses.replace(compared("c"), about="another text")
    after = published(compared("a"), compared("b", nll=1.25), changed)
    assert after.keys() == {"toy a", "toy b", "toy c"}
    assert after["toy a"].info.run_id == before["toy a"].info.run_id
    assert after["toy b"].data.metrics["nll"] == 1.25
    assert after["toy c"].data.tags["mlflow.note.content"] == "another text"


def test_a_run_that_was_half_written_is_written_again(monkeypatch: pytest.MonkeyPatch, client: MlflowClient) -> None:
    def killed(*args: Any, **more: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(store, "log", killed)
        published(compared("a"))
    (half,) = client.search_runs([client.get_experiment_by_name(store.COMPARISON).experiment_id])
    (whole,) = published(compared("a")).values()
    assert whole.info.run_id != half.info.run_id and whole.info.status == "FINISHED"


def test_runs_of_another_project_in_the_same_store_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlruns/mlflow.db")
    published(compared("a"))
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert sorted(published(compared("b"))) == ["toy a", "toy b"]
    assert sorted(published()) == ["toy a"]


def test_the_stored_view_has_its_filter_columns_and_charts(client: MlflowClient) -> None:
    published(compared("a"))
    found = client.get_experiment_by_name(store.COMPARISON)
    assert found.tags["mlflow.experimentKind"] == "custom_model_development"
    link = tracking.link(found.experiment_id, "toy")
    assert link == f"#/experiments/{found.experiment_id}/runs?workflowType=machine_learning&viewStateShareKey=toy"
    assert found.tags["mlflow.note.content"] == f"see {link}"
    state = json.loads(found.tags["mlflow.sharedViewState.toy"])
    assert state["searchFilter"] == 'params.dataset = "toy"' and state["orderByKey"] == "metrics.`nll`"
    assert state["selectedColumns"] == ["metrics.`nll`"]
    (bar,) = state["compareRunCharts"]
    assert (bar["type"], bar["metricKey"], bar["displayName"]) == ("BAR", "nll", "NLL")
    assert [s["name"] for s in state["compareRunSections"]] == ["Scores", "Cost"]
    assert bar["metricSectionId"] == state["compareRunSections"][0]["uuid"]


def test_a_failed_comparison_gives_one_warning(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> Comparison:
        raise OSError("no")

    assert tracking.compare(fail) is None
    assert capsys.readouterr().err.count("no tracking") == 1
