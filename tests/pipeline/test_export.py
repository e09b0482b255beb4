"""An exported coreset: its tensors equal the artifact's, and a network of plain torch learns from the folder alone."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from PIL import Image
from safetensors.torch import load_file, save_file

from bdl_pipe import artifacts
from bdl_pipe.config import merge
from bdl_pipe.registry import load_predictor
from bdl_pipe.seeds import Seed
from pipeline import cli
from pipeline.prepared.folders import load_fit
from tests.pipeline import walk
from tests.pipeline.params_cases import changed
from tests.pipeline.params_cases import params as small_params

pytestmark = pytest.mark.slow  # a coreset is distilled first
ROOT = Path(__file__).parents[2]
KEY = "digits-vbpc"
TRAINED = """
import json, runpy, sys
sys.path = [p for p in sys.path if not p.endswith("src")]
import numpy, torch
rows, reached = numpy.load(sys.argv[1]), []
for folder in sys.argv[2:]:
    made = runpy.run_path(folder + "/train.py")
    with torch.no_grad():
        guess = made["network"](made["transform"](torch.tensor(rows["pixels"]))).argmax(1)
    reached.append(float((guess == torch.tensor(rows["classes"])).float().mean()))
assert "bdl_pipe" not in sys.modules
print(json.dumps(reached))
"""


def params() -> dict[str, Any]:
    default = yaml.safe_load((ROOT / "params.yaml").read_text())
    raw = merge(small_params("digits vbpc"), {name: default[name] for name in ("seed", "evaluate", "report")})
    changes = {"ipc": 3, "network": {"name": "convnet", "width": 8, "blocks": 1, "norm": "instance"}}
    changes |= {"coreset.steps": 40, "coreset.batch": 64, "student.steps": 3}
    raw["methods"] = {"vbpc": changed(default["methods"]["vbpc"], changes)}
    return raw


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose coreset and its evaluation are done."""
    folder = tmp_path_factory.mktemp("export")
    (folder / "params.yaml").write_text(yaml.safe_dump(params()))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("BDL_TRACKING", "off")
        for stage in ("prepare digits", f"coreset {KEY}", f"student {KEY}-student", f"evaluate {KEY}-student"):
            walk.stage(*stage.split())
    return folder


@pytest.fixture
def project(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(made)
    return made


def exported(to: Path, run: str = KEY, seed: int = 0) -> Path:
    assert cli.main(["export", "coreset", run, "--to", str(to), "--seed", str(seed)]) == 0
    return to


def test_the_exported_tensors_equal_the_artifact_and_the_images_show_them(project: Path, tmp_path: Path) -> None:
    folder = exported(tmp_path / "out", f"{KEY}-student")  # named by the run that is fitted to the coreset
    stored = artifacts.load(Path("work/coreset") / KEY, "coreset").state("0-0").tensors
    tensors = load_file(folder / "coreset.safetensors")
    assert set(tensors) == {"images", "labels", "classes", "raw"}
    assert all(torch.equal(tensors[name], stored[name]) for name in tensors)
    about = json.loads((folder / "transform.json").read_text())
    mean, std = (torch.tensor(about[key])[:, None, None] for key in ("mean", "std"))
    white = load_file(folder / "whitening.safetensors")
    assert about["forward"].endswith("centre) matrix") and about["inverse"].startswith("flat = x inverse + centre")
    flat = ((tensors["raw"] - mean) / std).flatten(1) - white["centre"]
    assert torch.allclose((flat @ white["matrix"]).float().view_as(tensors["images"]), tensors["images"], atol=2e-3)
    back = (tensors["images"].flatten(1).double() @ white["inverse"] + white["centre"]).view_as(tensors["images"])
    assert torch.allclose((back * std + mean).float(), tensors["raw"], atol=1e-5)
    files = sorted((folder / "images").glob("*/*.png"), key=lambda file: int(file.stem))
    assert [file.parent.name for file in files] == [about["classes"][c] for c in tensors["classes"].tolist()]
    shown = np.stack([np.asarray(Image.open(file)) for file in files])
    assert np.array_equal(shown, np.rint(255 * tensors["raw"][:, 0].clamp(0, 1).numpy()).astype(np.uint8))
    assert Image.open(folder / "sheet.png").size == (3 * 9 * 4, 10 * 9 * 4)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_card_has_the_scores_of_the_run_fitted_to_the_exported_coreset(
    project: Path, tmp_path: Path, seed: int
) -> None:
    text = (exported(tmp_path / "out", seed=seed) / "README.md").read_text()
    record = json.loads(Path(f"work/coreset/{KEY}.run.json").read_text())
    white = "The inverse: flat = x inverse + centre;"
    for part in (record["commit"], record["device"], "CC BY 4.0", white, "`vbpc`", '"ipc": 3', "[30, 1, 8, 8]"):
        assert part in text
    assert f"| Seed of the project, of the run | 0, {seed} |" in text
    line = next(line for line in text.splitlines() if line.startswith(f"| {KEY}-student "))
    stored = pq.read_table(f"work/evaluate/{KEY}-student/scores.parquet").to_pylist()
    both = {row["seed"]: 100 * row["value"] for row in stored if row["metric"] == "accuracy" and row["set"] == "test"}
    assert abs(both[0] - both[1]) > 0.02, "the seeds are not told apart"
    assert float(line.split("|")[3]) == pytest.approx(both[seed], abs=0.01)
    assert line.endswith("| 1 |")


def test_the_card_leaves_out_scores_of_an_earlier_coreset(made: Path, here: Path, command: Callable[..., str]) -> None:
    shutil.copytree(made / "work", here / "work")
    shutil.copy(made / "params.yaml", here)
    place = Path(f"work/identity/student/{KEY}-student.json")
    facts = json.loads(place.read_text())
    facts["inputs"][f"work/coreset/{KEY}"] = "another hash"
    place.write_text(json.dumps(facts))
    note = f"note: {KEY}-student: its test scores are left out, as it is of an earlier coreset"
    assert note in command("export", "coreset", KEY, "--to", "out")
    assert f"| {KEY}-student " not in Path("out/README.md").read_text()


@pytest.mark.soak
@pytest.mark.process
def test_plain_torch_learns_from_the_folder_alone(project: Path, tmp_path: Path) -> None:
    """It learns from 30 images and is tested on 200 other rows; with the labels of other images it does not learn."""
    folder = exported(tmp_path / "out")
    data = load_fit(Path("work/prepare/digits"), 0, final=False)
    rows = {"pixels": (data.validation.inputs / 255).astype(np.float32), "classes": data.validation.targets}
    np.savez(tmp_path / "rows.npz", **rows)

    control = exported(tmp_path / "control")
    tensors = load_file(control / "coreset.safetensors")
    save_file(tensors | {"labels": tensors["labels"].roll(9, 0).contiguous()}, control / "coreset.safetensors")
    command = [sys.executable, "-I", "-c", TRAINED, str(tmp_path / "rows.npz"), str(folder), str(control)]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=True)
    learned, unlearned = json.loads(ran.stdout.splitlines()[-1])
    assert learned > 0.6  # chance is .1, and 200 rows have a standard error of .035
    assert unlearned < 0.4


def test_a_refused_export_is_named_and_writes_nothing(
    project: Path, tmp_path: Path, command: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an unknown run or seed, to a folder with files, or of a coreset that is not made."""

    def refused(run: str, to: str, *options: str) -> str:
        return command("export", "coreset", run, "--to", tmp_path / to, *options, code=2)

    assert "is not a run (did you mean digits-vbpc?)" in refused(KEY[:-1], "out")
    assert "has no split 0 with seed 3 (did you mean 0-1?)" in refused(KEY, "out", "--seed", "3")
    assert not list(tmp_path.iterdir())
    (tmp_path / "mine").write_text("!")
    assert "--to must be a new or an empty folder" in refused(KEY, "")
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]
    empty = tmp_path / "empty"
    empty.mkdir()
    exported(empty)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params()))
    assert "does not exist yet; make repro" in refused(KEY, "new")


def test_a_coreset_of_data_with_another_transform_is_refused(
    made: Path, here: Path, command: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The export would write another transform than the one of the coreset's images."""
    (here / "work").mkdir()
    (here / "work/coreset").symlink_to(made / "work/coreset")
    (here / "params.yaml").write_text(yaml.safe_dump(changed(params(), {"datasets.digits.whiten": False})))
    monkeypatch.setenv("BDL_TRACKING", "off")
    walk.stage("prepare", "digits")
    error = command("export", "coreset", KEY, "--to", "out", code=2)
    assert "whose images have the transform of this data set); make repro" in error and not Path("out").exists()


def test_a_fitted_posterior_is_exported_as_a_program(
    project: Path, command: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without ONNX, which takes most of the time: test_portable.py writes models of ONNX in the same way."""
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    words = ("export", "program", f"{KEY}-student", "--to", "program")
    assert f"program.pt2 of {KEY}-student" in command(*words)
    data = load_fit(Path("work/prepare/digits"), 0, final=True)
    fitted = load_predictor(Path(f"work/student/{KEY}-student"))
    rows = torch.from_numpy(data.train.inputs[100:130])
    (answers,) = torch.export.load("program/program.pt2").module()(rows)
    torch.testing.assert_close(answers, fitted.predict(rows, rng=Seed(0)).mean, rtol=1e-5, atol=1e-6)
    card = (project / "program/README.md").read_text()
    rows_of = pq.read_table(f"work/evaluate/{KEY}-student/scores.parquet").to_pylist()
    (nll,) = (r["value"] for r in rows_of if (r["set"], r["metric"], r["seed"]) == ("test", "nll", 0))
    assert f"| Test nll | {nll:.3f} |" in card and "CC BY 4.0 (Alpaydin and Kaynak 1998" in card
    assert "program: exists; --to" in command(*words, code=2)
