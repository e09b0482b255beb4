"""The comparison in MLflow: each run is stored once, and the runs of another project are left alone."""

import dataclasses
import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from mlflow.tracking import MlflowClient

from pipeline import tracking
from pipeline.tracking import Compared, Comparison, store

NLL = {"Scores": {"nll": "NLL"}}
VIEWS = {
    "all": tracking.view("", "attributes.run_name", ["params.dataset", "metrics.nll"], NLL),
    "toy": tracking.view('params.dataset = "toy"', "metrics.nll", ["metrics.nll"], {**NLL, "Cost": {}}),
}


pytestmark = pytest.mark.usefixtures("client")  # an empty store


def compared(key: str, nll: float = 1.5) -> Compared:
    return Compared(key, f"toy {key}", {"dataset": "toy", "method": key}, {"nll": nll, "nll_se": 0.25}, "**about**")


def published(*runs: Compared) -> dict[str, Any]:
    wanted = Comparison(runs, VIEWS, lambda experiment: f"see {tracking.link(experiment, 'toy')}")
    experiment = tracking.compare(lambda: wanted)
    assert experiment is not None
    return {run.info.run_name: run for run in MlflowClient(tracking.store_uri()).search_runs([experiment])}


def test_each_run_is_stored_once_and_kept_until_it_changes_or_is_removed() -> None:
    before = published(compared("a"), compared("b"), compared("c"), compared("d", nll=2.0))
    assert before.keys() == {"toy a", "toy b", "toy c", "toy d"}
    one = before["toy d"]
    assert one.data.metrics == {"nll": 2.0, "nll_se": 0.25} and one.info.status == "FINISHED"
    assert one.data.params == {"dataset": "toy", "method": "d"}
    assert one.data.tags["mlflow.note.content"] == "**about**" and "mlflow.parentRunId" not in one.data.tags
    changed = dataclasses.replace(compared("c"), about="another text")
    after = published(compared("a"), compared("b", nll=1.25), changed)
    assert after.keys() == {"toy a", "toy b", "toy c"}
    assert after["toy a"].info.run_id == before["toy a"].info.run_id
    assert after["toy b"].data.metrics["nll"] == 1.25
    assert after["toy c"].data.tags["mlflow.note.content"] == "another text"


def test_a_run_that_was_half_written_is_written_again(monkeypatch: pytest.MonkeyPatch, client: MlflowClient) -> None:
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(store, "log", Mock(side_effect=KeyboardInterrupt))
        published(compared("a"))
    (half,) = client.search_runs([client.get_experiment_by_name(store.COMPARISON).experiment_id])
    (whole,) = published(compared("a")).values()
    assert whole.info.run_id != half.info.run_id and whole.info.status == "FINISHED"


def test_runs_of_another_project_in_the_same_store_are_left_alone(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{here}/mlruns/mlflow.db")
    published(compared("a"))
    (here / "other").mkdir()
    monkeypatch.chdir(here / "other")
    assert sorted(published(compared("b"))) == ["toy a", "toy b"]
    assert sorted(published()) == ["toy a"]


def test_the_stored_view_has_its_filter_columns_and_charts(client: MlflowClient) -> None:
    published(compared("a"))
    experiment = client.get_experiment_by_name(store.COMPARISON)
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"
    link = tracking.link(experiment.experiment_id, "toy")
    assert link == f"#/experiments/{experiment.experiment_id}/runs?workflowType=machine_learning&viewStateShareKey=toy"
    assert experiment.tags["mlflow.note.content"] == f"see {link}"
    state = json.loads(experiment.tags["mlflow.sharedViewState.toy"])
    assert state["searchFilter"] == 'params.dataset = "toy"' and state["orderByKey"] == "metrics.`nll`"
    assert state["selectedColumns"] == ["metrics.`nll`"]
    (bar,) = state["compareRunCharts"]
    assert (bar["type"], bar["metricKey"], bar["displayName"]) == ("BAR", "nll", "NLL")
    assert [s["name"] for s in state["compareRunSections"]] == ["Scores", "Cost"]
    assert bar["metricSectionId"] == state["compareRunSections"][0]["uuid"]


def test_a_failed_comparison_gives_one_warning(capsys: pytest.CaptureFixture[str]) -> None:
    assert tracking.compare(Mock(side_effect=OSError("no"))) is None
    assert capsys.readouterr().err.count("no tracking") == 1
