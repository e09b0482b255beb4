"""The comparison in MLflow: one run of each, never two, never another project's."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pipeline.tracking import comparison, experiments
from pipeline.tracking.comparison import Compared, View

VIEWS = [
    View("all", "", "attributes.run_name", ["params.dataset", "metrics.nll"], {"Scores": [("nll", "NLL")]}),
    View("toy", 'params.dataset = "toy"', "metrics.nll", ["metrics.nll"], {"Scores": [("nll", "NLL")], "Cost": []}),
]


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("MLFLOW_TRACKING_URI", experiments.PARENT):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(experiments, "_stopped", False)
    for cached in (experiments.client, experiments.experiment, experiments._session_parent):
        cached.cache_clear()


def compared(key: str, nll: float = 1.5, picture: bytes = b"<svg/>") -> Compared:
    def files() -> Mapping[str, bytes]:
        return {"figure.svg": picture}

    about = {"dataset": "toy", "method": key}
    return Compared(key, f"toy {key}", about, {"nll": nll, "nll_se": 0.25}, "**about**", files, picture.decode())


def published(*runs: Compared) -> dict[str, Any]:
    experiment = comparison.publish(runs, VIEWS, lambda number: f"see {comparison.link(number, 'toy')}")
    assert experiment is not None
    return {run.info.run_name: run for run in experiments.client().search_runs([experiment])}


def test_each_run_is_there_once_with_all_that_is_said_of_it(tmp_path: Path) -> None:
    runs = published(compared("a"), compared("b", nll=2.0))
    assert runs.keys() == {"toy a", "toy b"}
    one = runs["toy b"]
    assert one.data.metrics == {"nll": 2.0, "nll_se": 0.25} and one.info.status == "FINISHED"
    assert one.data.params == {"dataset": "toy", "method": "b"}
    assert one.data.tags["mlflow.note.content"] == "**about**"
    assert experiments.PARENT not in one.data.tags
    (file,) = experiments.client().list_artifacts(one.info.run_id)
    local = experiments.client().download_artifacts(one.info.run_id, file.path, str(tmp_path))
    assert Path(local).read_bytes() == b"<svg/>"


def test_what_is_the_same_stays_and_what_has_changed_is_replaced() -> None:
    before = published(compared("a"), compared("b"), compared("c"))
    changed = dataclasses.replace(compared("c"), about="another text")
    after = published(compared("a"), compared("b", nll=1.25), changed)
    assert after["toy a"].info.run_id == before["toy a"].info.run_id
    assert (
        after["toy b"].data.metrics["nll"] == 1.25 and after["toy c"].data.tags["mlflow.note.content"] == "another text"
    )
    assert len(after) == 3
    drawn = published(compared("a", picture=b"<svg>new</svg>"), compared("b", nll=1.25), changed)
    assert drawn["toy a"].info.run_id != before["toy a"].info.run_id
    assert drawn["toy b"].info.run_id == after["toy b"].info.run_id


def test_what_is_no_longer_a_run_goes() -> None:
    published(compared("a"), compared("b"))
    assert published(compared("b")).keys() == {"toy b"}


def test_a_run_that_was_half_written_is_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Mapping[str, bytes]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        published(dataclasses.replace(compared("a"), files=broken))
    experiment = experiments.experiment(comparison.EXPERIMENT)
    (half,) = experiments.client().search_runs([experiment])
    (whole,) = published(compared("a")).values()
    assert whole.info.run_id != half.info.run_id and whole.info.status == "FINISHED"


def test_runs_of_another_project_in_the_same_store_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/shared.db")
    published(compared("a"))
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert sorted(published(compared("b"))) == ["toy a", "toy b"]
    assert sorted(published()) == ["toy a"]


def test_the_page_opens_on_runs_with_columns_and_charts() -> None:
    published(compared("a"))
    client = experiments.client()
    found = client.get_experiment_by_name(comparison.EXPERIMENT)
    assert found.tags["mlflow.experimentKind"] == "custom_model_development"
    link = comparison.link(found.experiment_id, "toy")
    assert link == f"#/experiments/{found.experiment_id}/runs?workflowType=machine_learning&viewStateShareKey=toy"
    assert found.tags["mlflow.note.content"] == f"see {link}"
    state = json.loads(found.tags["mlflow.sharedViewState.toy"])
    assert state["searchFilter"] == 'params.dataset = "toy"' and state["orderByKey"] == "metrics.`nll`"
    assert state["selectedColumns"] == ["metrics.`nll`"]
    (bar,) = state["compareRunCharts"]
    assert (bar["type"], bar["metricKey"], bar["displayName"]) == ("BAR", "nll", "NLL")
    assert [s["name"] for s in state["compareRunSections"]] == ["Scores", "Cost"]
    assert bar["metricSectionId"] == state["compareRunSections"][0]["uuid"]


def test_the_stages_runs_are_another_experiment() -> None:
    with experiments.stage_run("student", "x", {}, {}):
        pass
    assert published(compared("a")).keys() == {"toy a"}
    stages = experiments.client().get_experiment_by_name(experiments.EXPERIMENT)
    assert stages.tags["mlflow.experimentKind"] == "custom_model_development"


def test_no_store_loses_nothing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    assert comparison.publish([compared("a")], VIEWS, str) is None
    assert "no tracking" in capsys.readouterr().err
