"""The stages that DVC is asked to record, and the targets by which they are named."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import Mock

import pytest
import yaml

from pipeline import verbs
from pipeline.core import places
from pipeline.plan.plan import Plan, Stage
from pipeline.run import dvc

ROOT = Path(__file__).parents[2]


def plan_of(**keys: int) -> Plan:
    """A plan of so many stages of each kind."""
    stages = [Stage(k, f"r{i}", frozenset(), (), (), {}, {}) for k, number in keys.items() for i in range(number)]
    return {stage.name: stage for stage in [*stages, Stage("report", "", frozenset(), (), (), {}, {})]}


PLAN = plan_of(prepare=2, student=39, evaluate=39)


def entry(stage: Stage) -> dict[str, object]:
    path = places.identity(stage.kind, stage.key)
    return {"outs": [{"path": str(path), "md5": hashlib.md5(path.read_bytes()).hexdigest()}]}


def commit(*words: str) -> None:
    """Write ``dvc.lock`` as ``dvc commit`` does."""
    dvc.LOCK.write_text(yaml.safe_dump({"stages": {"sources": {}} | {name: entry(s) for name, s in PLAN.items()}}))


@pytest.fixture(autouse=True)
def recorder(here: Path, monkeypatch: pytest.MonkeyPatch) -> Mock:
    """DVC's commands, in a project in which every stage of PLAN has a result."""
    (here / "dvc.yaml").write_text((ROOT / "dvc.yaml").read_text())
    for stage in PLAN.values():
        path = places.identity(stage.kind, stage.key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(stage.name)
    monkeypatch.setattr(dvc, "_dvc", recorder := Mock(side_effect=commit))
    return recorder


def asked(recorder: Mock) -> list[tuple[str, ...]]:
    return [call.args for call in recorder.call_args_list]


def recorded(targets: Sequence[str]) -> set[str]:
    """The stages that DVC records for these targets."""
    if targets == ["dvc.yaml"]:
        return {*PLAN, "sources"}
    return {name for target in targets for name in (*PLAN, "sources") if target in (name, name.partition("@")[0])}


def test_all_stages_are_one_target_few_are_named_one_by_one_and_many_by_kind_without_any_out_of_date() -> None:
    assert dvc._targets([*PLAN, "sources"], list(PLAN), PLAN) == ["dvc.yaml"]
    assert dvc._targets(["report", "student@r3"], list(PLAN), PLAN) == ["report", "student@r3"]
    fresh = [name for name in PLAN if name != "student@r5"]
    targets = dvc._targets([*fresh, "sources"], fresh, PLAN)
    assert recorded(targets) == {*fresh, "sources"} and "evaluate" in targets and "student" not in targets


@pytest.mark.parametrize("text", ["a stage of the user", None, "stages: [", "- a", ""])
def test_with_another_or_an_unreadable_dvc_yaml_the_targets_are_the_kinds(text: str | None) -> None:
    """So a stage that the user added is never recorded."""
    place = Path("dvc.yaml")
    if text == "a stage of the user":
        stages = yaml.safe_load(place.read_text())
        stages["stages"]["deploy"] = {"cmd": "true", "outs": ["deployed"]}
        text = yaml.safe_dump(stages)
    place.unlink() if text is None else place.write_text(text)
    targets = ["evaluate", "prepare", "report", "student"]
    assert dvc._targets(list(PLAN), list(PLAN), PLAN) == targets
    assert dvc._targets([*PLAN, "sources"], list(PLAN), PLAN) == sorted([*targets, "sources"])


def test_a_recorded_stage_is_not_recorded_again_until_its_result_changes(recorder: Mock) -> None:
    assert dvc.record(PLAN, PLAN) is None and dvc.record(PLAN, PLAN) is None
    assert asked(recorder) == [("commit", "--force", "dvc.yaml")]
    places.identity("student", "r3").write_text("another result")
    dvc.record(PLAN, PLAN)
    assert asked(recorder)[1:] == [("commit", "--force", "student@r3")]


def test_stages_of_params_or_data_that_changed_during_the_run_are_not_recorded(
    recorder: Mock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """params.yaml lost a run, got another one, and changed a third; the result of ``sources`` is older."""
    Path("params.yaml").write_text("seed: 0\n")
    began, now = dvc.sources_hash(), plan_of(prepare=2, student=38, evaluate=40)
    Path("params.yaml").write_text("seed: 10\n")
    monkeypatch.setattr(verbs, "load", lambda: None)
    monkeypatch.setattr(verbs.plan, "plan", lambda params: now)
    late = dict.fromkeys(("student@r3", "evaluate@r3", "evaluate@r39", "report"), "the key has changed")
    monkeypatch.setattr(verbs.pool, "stale", lambda stages: late)
    verbs._record(PLAN, {}, began)
    ((_, _, *targets),) = asked(recorder)
    expected = {*PLAN.keys() & now.keys()} - late.keys()
    assert recorded(targets) == expected and "evaluate" not in targets
    said = "params.yaml or data changed during the run: 4 stages are not recorded in dvc.lock; run make repro again"
    assert said in capsys.readouterr().err


def test_stages_that_only_a_lock_file_from_git_records_are_recorded_again(recorder: Mock) -> None:
    """DVC's cache may lack the files, so a clone records its own results even if ``dvc.lock`` lists them."""
    commit()
    dvc.record(PLAN, PLAN)
    assert asked(recorder) == [("commit", "--force", "dvc.yaml")]


def test_the_error_of_a_failed_commit_is_returned_and_the_commit_is_tried_again(recorder: Mock) -> None:
    """A damaged ``recorded.json`` is no error: DVC records again."""
    recorder.side_effect = lambda *words: "dvc commit: no"
    assert dvc.record(PLAN, PLAN) == "dvc commit: no"
    recorder.side_effect = commit
    assert dvc.record(PLAN, PLAN) is None and recorder.call_count == 2
    (places.STATE / "recorded.json").write_text("[1")
    assert dvc.record(PLAN, PLAN) is None and recorder.call_count == 3


@pytest.mark.parametrize("reads", [True, False])
def test_a_truncated_lock_file_is_written_again(
    recorder: Mock, reads: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """If DVC can read the rest, the stages are recorded over it; if DVC refuses it, the file is moved away first."""
    dvc.record(PLAN, PLAN)
    whole = dvc.LOCK.read_text()
    dvc.LOCK.write_text(whole[:-20])
    recorder.reset_mock()
    refused = "dvc commit: dvc.lock is invalid"
    recorder.side_effect = lambda *words: refused if dvc.LOCK.is_file() and not reads else commit()
    assert dvc.record(PLAN, PLAN) is None and dvc.LOCK.read_text() == whole
    assert asked(recorder) == [("commit", "--force", "dvc.yaml")] * (1 if reads else 2)
    moved = "DVC cannot read dvc.lock (moved to .state/dvc.lock.broken)"
    assert (moved in capsys.readouterr().err) is not reads
