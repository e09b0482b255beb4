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

VIEW = tracking.view("metrics.nll", ["metrics.nll"], {"Scores": {"nll": "NLL"}, "Cost": {}})
EXPERIMENT = f"{store.COMPARISON} toy"

pytestmark = pytest.mark.usefixtures("client")  # an empty store


def compared(key: str, nll: float = 1.5, seconds: float = 2.0) -> Compared:
    params, scores = {"dataset": "toy", "method": key}, {"nll": nll, "nll_se": 0.25}
    origin, draw = {"git_commit": "abc"}, lambda: {"reliability.svg": "<svg/>"}
    return Compared(key, f"toy {key}", params, scores, {"seconds": seconds}, origin, "d1" * 32, "**about**", draw)


def published(*runs: Compared, dataset: str = "toy") -> dict[str, Any]:
    placed = tracking.compare(lambda: [Comparison(dataset, runs, VIEW, "the page")])
    assert placed is not None
    found = MlflowClient(tracking.store_uri()).search_runs([placed[dataset].experiment])
    assert placed[dataset].runs.keys() == {run.key for run in runs}
    assert {*placed[dataset].runs.values()} <= {run.info.run_id for run in found}
    return {run.info.run_name: run for run in found}


def test_each_run_is_stored_once_and_kept_until_it_changes_or_is_removed() -> None:
    before = published(compared("a"), compared("b"), compared("c"), compared("d", nll=2.0))
    assert before.keys() == {"toy a", "toy b", "toy c", "toy d"}
    one = before["toy d"]
    assert one.data.metrics == {"nll": 2.0, "nll_se": 0.25, "seconds": 2.0} and one.info.status == "FINISHED"
    assert one.data.params == {"dataset": "toy", "method": "d"}
    assert one.data.tags["mlflow.note.content"] == "**about**" and one.data.tags["git_commit"] == "abc"
    (data,) = one.inputs.dataset_inputs
    assert (data.dataset.name, data.dataset.digest) == ("toy", "d1" * 18)
    assert Path("mlruns/artifacts", one.info.run_id, "artifacts/figures/reliability.svg").read_text() == "<svg/>"
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
    (half,) = client.search_runs([client.get_experiment_by_name(EXPERIMENT).experiment_id])
    (whole,) = published(compared("a")).values()
    assert whole.info.run_id != half.info.run_id and whole.info.status == "FINISHED"


def test_projects_share_a_run_of_equal_content_and_leave_each_others_runs_alone(
    here: Path, monkeypatch: pytest.MonkeyPatch, client: MlflowClient
) -> None:
    """A second clone whose fit took other seconds adds no run; the last project that has a run deletes it."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{here}/mlruns/mlflow.db")
    (first,) = published(compared("a")).values()
    (here / "other").mkdir()
    monkeypatch.chdir(here / "other")
    both = published(compared("a", seconds=3.0), compared("b"))
    assert both.keys() == {"toy a", "toy b"} and both["toy a"].info.run_id == first.info.run_id
    assert len(client.search_runs([first.info.experiment_id])) == 2
    published(compared("a", nll=9.0), compared("b"))  # another content is another run
    assert len(client.search_runs([first.info.experiment_id])) == 3
    monkeypatch.chdir(here)
    client.create_run(first.info.experiment_id, run_name="a user's own")
    published(dataset="another")
    left = {run.info.run_name: run for run in client.search_runs([first.info.experiment_id])}
    assert left.keys() == {"toy a", "toy b", "a user's own"} and left["toy a"].data.metrics["nll"] == 9.0
    monkeypatch.chdir(here / "other")
    published(dataset="another")
    assert [run.info.run_name for run in client.search_runs([first.info.experiment_id])] == ["a user's own"]


def test_the_stored_view_has_its_filter_columns_and_charts(client: MlflowClient) -> None:
    published(compared("a"))
    experiment = client.get_experiment_by_name(EXPERIMENT)
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"
    link = tracking.link(experiment.experiment_id)
    key = link.removeprefix(
        f"#/experiments/{experiment.experiment_id}/runs?workflowType=machine_learning&viewStateShareKey="
    )
    assert experiment.tags["mlflow.note.content"] == "the page"
    state = json.loads(experiment.tags[f"mlflow.sharedViewState.{key}"])
    assert state["orderByKey"] == "metrics.`nll`" and state["orderByAsc"]
    assert state["selectedColumns"] == ["metrics.`nll`"]
    (bar,) = state["compareRunCharts"]
    assert (bar["type"], bar["metricKey"], bar["displayName"]) == ("BAR", "nll", "NLL")
    assert [s["name"] for s in state["compareRunSections"]] == ["Scores", "Cost"]
    assert bar["metricSectionId"] == state["compareRunSections"][0]["uuid"]


def test_a_failed_comparison_gives_one_warning(capsys: pytest.CaptureFixture[str]) -> None:
    assert tracking.compare(Mock(side_effect=OSError("no"))) is None
    assert capsys.readouterr().err.count("no tracking") == 1
