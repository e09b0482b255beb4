"""The stages that DVC is asked to record, and the targets by which they are named."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from pipeline.core import places
from pipeline.plan.plan import Plan, Stage
from pipeline.run import dvc

ROOT = Path(__file__).parents[2]


def plan_of(**keys: int) -> Plan:
    """A plan of so many stages of each kind."""
    stages = [Stage(k, f"r{i}", frozenset(), (), (), {}, {}) for k, number in keys.items() for i in range(number)]
    return {stage.name: stage for stage in [*stages, Stage("report", "", frozenset(), (), (), {}, {})]}


PLAN = plan_of(prepare=2, student=39, evaluate=39)


class Recorder:
    """Stands in for DVC: writes ``dvc.lock`` as ``dvc commit`` does, and keeps the commands that it was given."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.problem: str | None = None

    def __call__(self, *words: str) -> str | None:
        self.asked.append(words)
        if self.problem is None:
            dvc.LOCK.write_text(yaml.safe_dump({"stages": {"sources": {}} | {n: entry(s) for n, s in PLAN.items()}}))
        return self.problem


def entry(stage: Stage) -> dict[str, object]:
    path = places.identity(stage.kind, stage.key)
    return {"outs": [{"path": str(path), "md5": hashlib.md5(path.read_bytes()).hexdigest()}]}


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """A project in which every stage of PLAN has a result."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dvc.yaml").write_text((ROOT / "dvc.yaml").read_text())
    for stage in PLAN.values():
        path = places.identity(stage.kind, stage.key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(stage.name)
    made = Recorder()
    monkeypatch.setattr(dvc, "_dvc", made)
    return made


def recorded(targets: Sequence[str]) -> set[str]:
    """The stages that DVC records for these targets."""
    if targets == ["dvc.yaml"]:
        return {*PLAN, "sources"}
    return {name for target in targets for name in (*PLAN, "sources") if target in (name, name.partition("@")[0])}


def test_all_stages_together_are_one_target(recorder: Recorder) -> None:
    assert dvc._targets([*PLAN, "sources"], list(PLAN), PLAN) == ["dvc.yaml"]


def test_few_stages_are_named_one_by_one(recorder: Recorder) -> None:
    assert dvc._targets(["report", "student@r3"], list(PLAN), PLAN) == ["report", "student@r3"]


def test_many_stages_are_named_by_kind_without_any_that_is_out_of_date(recorder: Recorder) -> None:
    fresh = [name for name in PLAN if name != "student@r5"]
    targets = dvc._targets([*fresh, "sources"], fresh, PLAN)
    assert recorded(targets) == {*fresh, "sources"} and "evaluate" in targets and "student" not in targets


def test_a_stage_that_the_user_added_is_never_recorded(recorder: Recorder, tmp_path: Path) -> None:
    stages = yaml.safe_load((tmp_path / "dvc.yaml").read_text())
    stages["stages"]["deploy"] = {"cmd": "true", "outs": ["deployed"]}
    (tmp_path / "dvc.yaml").write_text(yaml.safe_dump(stages))
    targets = dvc._targets([*PLAN, "sources"], list(PLAN), PLAN)
    assert targets == ["evaluate", "prepare", "report", "sources", "student"]


@pytest.mark.parametrize("text", [None, "stages: [", "- a", ""])
def test_with_a_missing_or_unreadable_dvc_yaml_the_targets_are_the_kinds(
    recorder: Recorder, tmp_path: Path, text: str | None
) -> None:
    (tmp_path / "dvc.yaml").unlink() if text is None else (tmp_path / "dvc.yaml").write_text(text)
    assert dvc._targets(list(PLAN), list(PLAN), PLAN) == ["evaluate", "prepare", "report", "student"]


def test_a_recorded_stage_is_not_recorded_again_until_its_result_changes(recorder: Recorder) -> None:
    assert dvc.record(PLAN, PLAN) is None and dvc.record(PLAN, PLAN) is None
    assert recorder.asked == [("commit", "--force", "dvc.yaml")]
    places.identity("student", "r3").write_text("another result")
    dvc.record(PLAN, PLAN)
    assert recorder.asked[1:] == [("commit", "--force", "student@r3")]


def test_stages_that_only_a_lock_file_from_git_records_are_recorded_again(recorder: Recorder) -> None:
    """DVC's cache may lack the files, so a clone records its own results even if ``dvc.lock`` lists them."""
    recorder()
    dvc.record(PLAN, PLAN)
    assert recorder.asked[1:] == [("commit", "--force", "dvc.yaml")]


def test_the_error_of_a_failed_commit_is_returned_and_the_commit_is_tried_again(recorder: Recorder) -> None:
    recorder.problem = "dvc commit: no"
    assert dvc.record(PLAN, PLAN) == "dvc commit: no"
    recorder.problem = None
    assert dvc.record(PLAN, PLAN) is None and len(recorder.asked) == 2


def test_a_truncated_lock_file_is_written_again(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If DVC can read the rest, the stages are recorded over it; if DVC refuses it, the file is moved away first."""
    dvc.record(PLAN, PLAN)
    whole = dvc.LOCK.read_text()

    def refuses(*words: str) -> str | None:
        recorder.problem = "dvc commit: dvc.lock is invalid" if dvc.LOCK.is_file() else None
        return recorder(*words)

    for reads in (True, False):
        dvc.LOCK.write_text(whole[:-20])
        recorder.asked.clear()
        monkeypatch.setattr(dvc, "_dvc", recorder if reads else refuses)
        assert dvc.record(PLAN, PLAN) is None and dvc.LOCK.read_text() == whole
        assert recorder.asked == [("commit", "--force", "dvc.yaml")] * (1 if reads else 2)
    assert "DVC cannot read dvc.lock (moved to .state/dvc.lock.broken)" in capsys.readouterr().err


def test_with_a_damaged_recorded_json_dvc_records_again_without_an_error(recorder: Recorder) -> None:
    dvc.record(PLAN, PLAN)
    (places.STATE / "recorded.json").write_text(json.dumps([1])[:-1])
    assert dvc.record(PLAN, PLAN) is None and len(recorder.asked) == 2
