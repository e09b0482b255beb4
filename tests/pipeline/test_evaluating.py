"""The plan of an evaluation: each file is hashed once, and a task itself reads the corrupted rows that it scores."""

import json
import pickle
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from bdl_pipe import artifacts, evaluation
from bdl_pipe.data.fitdata import Examples
from bdl_pipe.data.transform import Transform
from bdl_pipe.errors import ArtifactError
from bdl_pipe.evaluation import EvaluateConfig
from bdl_pipe.files import FileBytes
from bdl_pipe.progress import Silent
from bdl_pipe.registry import load_predictor
from pipeline.core.settings import Settings
from pipeline.prepared import arrow_rows, folders
from pipeline.stages import evaluate
from tests.pipeline import fitted_cases

ROWS, SHIFTED = 40, 30
SETS = [("fog", 1), ("fog", 2), ("noise", 1)]


def images(count: int, seed: int) -> Examples:
    random = np.random.default_rng(seed)
    return Examples(random.integers(0, 256, (count, 1, 4, 4), dtype=np.uint8), random.integers(0, 3, count))


@pytest.fixture
def plan(here: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The plan for one member of each of two splits, on images with three corrupted sets; hashed files are listed."""
    student = fitted_cases.student(Path("work/student/run"), images=True)
    with artifacts.publish(Path("work/holdout/d"), "holdout") as folder:
        for split in range(2):
            arrow_rows.write(folder / str(split) / "test.arrow", images(ROWS, split))
        arrow_rows.write(folder / "ood" / "noise.arrow", images(ROWS, 2))
        for i, (name, severity) in enumerate(SETS):
            arrow_rows.write(folder / "corrupted" / f"{name}-{severity}.arrow", images(SHIFTED, 3 + i))
    with artifacts.publish(Path("work/prepare/d"), "prepare") as folder:
        schema = {"task": "classification", "classes": ["a", "b", "c"], "fit_rows": "train"}
        (folder / "schema.json").write_text(json.dumps(schema))
        for split in range(2):
            arrow_rows.write(folder / str(split) / "train.arrow", images(ROWS, 9 + split), about={"train": ROWS})
            transform = Transform("image", torch.zeros(1), torch.ones(1))
            artifacts.write_state(folder / str(split) / "transform", transform.state())
    with artifacts.publish(student, "student") as folder:
        fitted_student = fitted_cases.student(here / "made", images=True)
        for name in ("0-0", "transform-0"):
            state = artifacts.read_state(fitted_student / name)
            for split in range(2):
                artifacts.write_state(folder / name.replace("0", str(split), 1), state)
        (folder / "schema.json").write_bytes((fitted_student / "schema.json").read_bytes())
    monkeypatch.setattr(artifacts, "sha256", hashed := Mock(wraps=artifacts.sha256))
    spec = SimpleNamespace(dataset="d", setting="s", seeds=1)
    row = SimpleNamespace(key="run", spec=spec, method=SimpleNamespace(name="m"))
    config = EvaluateConfig(calibration_bins=5, batch=16, joint_pairs=0)
    params = SimpleNamespace(seed=0, datasets={"d": SimpleNamespace(splits=2)}, evaluate=config)
    shared, tasks = evaluate._plan(row, params, Settings())  # type: ignore[arg-type]
    return SimpleNamespace(shared=shared, tasks=tasks, hashed=hashed, config=config)


def test_corrupted_rows_are_read_by_the_tasks_that_score_them(plan: SimpleNamespace) -> None:
    """A task is sent the place of its rows, not the rows; its scores and its size equal a computation on the rows.

    Every file of the holdout is hashed once, and not again for each split.
    """
    hashed = [str(call.args[0]) for call in plan.hashed.call_args_list if "holdout" in str(call.args[0])]
    assert len(hashed) == len(set(hashed)) == 2 + 1 + len(SETS)
    held = folders.load_holdout(Path("work/holdout/d"), 0)
    names = [task.name for task in plan.tasks]
    assert names == [f"{split}-0-{kind}" for split in range(2) for kind in ("test", "fog", "noise")]
    sizes = dict(zip(names, (task.size for task in plan.tasks), strict=True))
    assert (sizes["0-0-test"], sizes["0-0-fog"], sizes["1-0-noise"]) == (2 * ROWS, 2 * SHIFTED, SHIFTED)
    for task in plan.tasks:
        sent = {key: plan.shared[key] for key in task.needs}
        stored = evaluate.read(evaluate.answer(task.payload, sent, Silent()))["scores"].to_pylist()
        assert {(row["split"], row["seed"]) for row in stored} == {(task.payload.split, task.payload.seed)}
        if task.payload.corruption is None:
            continue
        bulk = len(pickle.dumps({key: part for key, part in sent.items() if key.startswith("corrupted")}))
        assert bulk < SHIFTED * 20
        severities = [severity for name, severity in SETS if name == task.payload.corruption]
        assert list(dict.fromkeys(row["severity"] for row in stored)) == severities
        for severity in severities:
            fitted = load_predictor(Path("work/student/run"), task.payload.split)
            rows = held.corrupted(task.payload.corruption, severity)
            rng = task.payload.rng
            expected = evaluation.score_classification(fitted, rows, plan.config, rng, "cpu")
            at = {row["metric"]: (row["value"], row["n"]) for row in stored if row["severity"] == severity}
            assert at == expected
        assert {(row["set"], row["name"]) for row in stored} == {("corrupted", task.payload.corruption)}


def test_the_error_names_a_missing_or_truncated_file_of_rows(plan: SimpleNamespace) -> None:
    place = Path("work/holdout/d/corrupted/fog-1.arrow")
    whole = place.read_bytes()
    place.write_bytes(whole[:-10])
    task = next(task for task in plan.tasks if task.name == "0-0-fog")
    with pytest.raises(ArtifactError, match=r"fog-1\.arrow: has been replaced since it was opened"):
        evaluate.answer(task.payload, plan.shared, Silent())
    with pytest.raises(ArtifactError, match=r"^here: is truncated or is not an Arrow file of rows"):
        arrow_rows.loads(FileBytes.of(place), "here")
    place.unlink()
    with pytest.raises(ArtifactError, match=r"fog-1\.arrow: cannot be read"):
        evaluate.answer(task.payload, plan.shared, Silent())
