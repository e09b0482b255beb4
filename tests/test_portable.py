"""A fitted posterior as a program: its answers, and that it runs without this package."""

import ast
import json
import subprocess
import sys
import venv
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch

from bdl_pipe import programs
from bdl_pipe.baselines import trees
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.data.tables.columns import Column, coded_matrix, described_matrix
from bdl_pipe.data.transform import Encoding, Transform
from bdl_pipe.errors import UserError
from bdl_pipe.networks import MlpConfig
from bdl_pipe.posterior import NetworkDraws, NetworkSpec, Predictor
from bdl_pipe.predictive import Categorical
from bdl_pipe.recalibration import Recalibration
from bdl_pipe.registry import posterior_of
from bdl_pipe.seeds import Seed
from pipeline.export import program_folder
from tests.cases import GAUSSIAN, fit
from tests.conftest import make_tiny_images, make_tiny_table
from tests.refusals import refusal
from tests.wheel import link

pytestmark = pytest.mark.slow
FACTS = {"Run": "one", "Data licence": "none"}
CLASSES = ("cat", "dog", "owl")
MOMENTS = [("2024-01-31T10", "+02:00"), ("2024-01-31T10", "Z"), ("2023-06-01T00", "-05:00")]
MOMENTS += [("1970-01-01T00", "Z"), ("2024-02-01T00", "Z")]
CELLS = {
    "size": [3.0, None, 2.5, 7.25, 1e4],
    "colour": ["red", "blue", None, "green", "purple"],
    "day": ["2024-01-31", "1969-12-31T06:30", "2020-02-29", "2000-01-01T00:00:30", "2024-12-31"],
    "moment": [f"{moment}:00{zone}" for moment, zone in MOMENTS],
}
SCRIPTS = pytest.mark.parametrize(
    ("script", "names"), [pytest.param("run_torch.py", (), marks=pytest.mark.soak), ("run_onnx.py", ("torch",))]
)
KINDS = {"size": "number", "colour": "category", "day": "date", "moment": "date"}


def draws(shape: tuple[int, ...], classes: bool, count: int = 3) -> NetworkDraws:
    likelihood = "categorical" if classes else "gaussian_head"
    spec = NetworkSpec(MlpConfig("mlp", (5,)), shape, len(CLASSES) if classes else 1, likelihood)
    return NetworkDraws.of(spec, [dict(spec.build(Seed(7).fold(i)).state_dict()) for i in range(count)])


def images() -> tuple[Predictor, np.ndarray]:
    transform = Transform("image", torch.tensor([0.5]), torch.tensor([0.25]))
    rows = np.random.default_rng(0).integers(0, 256, (20, 1, 4, 4), dtype=np.uint8)
    return Predictor(draws((1, 4, 4), True), transform, CLASSES), rows


def prices(log: bool = False, recalibrated: Recalibration | None = None) -> tuple[Predictor, np.ndarray]:
    transform = Transform("table", torch.tensor([40.0, 6.0]), torch.tensor([10.0, 2.0]))
    transform = replace(transform, shift=torch.tensor([2.0]), scale=torch.tensor([0.5]), log=log)
    rows = np.random.default_rng(0).normal((40, 6), (10, 2), (30, 2))
    return Predictor(draws((2,), False), transform, (), recalibrated), rows


def traced(fitted: Predictor, rows: np.ndarray) -> programs.Program:
    return programs.trace(fitted, torch.from_numpy(rows), rng=Seed(0))


def schema(fitted: Predictor, rows: np.ndarray, **more: object) -> dict[str, object]:
    image = fitted.transform.kind == "image"
    names = [] if image else [f"c{i}" for i in range(rows.shape[1])]
    about = {"task": "classification" if fitted.classes else "regression", "kind": fitted.transform.kind}
    about |= {"classes": list(fitted.classes), "targets": ["price"], "features": names}
    return {**about, "input_shape": list(rows.shape[1:]), **more}


def test_a_temperature_is_part_of_the_program() -> None:
    fitted, rows = images()
    fitted.recalibration = Recalibration((3.0,), (1.0,), torch.zeros(1))
    (answers,) = traced(fitted, rows).traced.module()(torch.from_numpy(rows))
    plain = fitted.predict(rows, rng=Seed(0))
    assert isinstance(plain, Categorical)
    torch.testing.assert_close(answers, torch.softmax(plain.log_probs / 3, -1), rtol=1e-5, atol=1e-6)
    assert (answers - plain.mean).abs().max() > 0.01, "the temperature changes the answers"


@pytest.mark.parametrize("log", [False, True])
def test_a_width_and_logarithms_are_part_of_the_program(log: bool) -> None:
    """Against the moments of the widened mixture by quadrature, in the targets' own units; two parts make one width.

    A row of logarithms is stretched to a standard deviation of at most 1.
    """
    fitted, rows = prices(log, Recalibration((1.5, 1.5), (0.3, 0.7), torch.zeros(1)))
    mean, variance = traced(fitted, rows).traced.module()(torch.from_numpy(rows))
    inner = fitted.posterior.predict(fitted.transform.inputs(rows))
    width = (2 / inner.variance.double().sqrt()).clamp(1, 1.5) if log else 1.5  # the targets' scale is 0.5
    centre, sd = inner.mean.double(), width * inner.draw_variance.double().sqrt()
    means = centre + width * (inner.draw_mean.double() - centre)
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    z = means[..., None] + sd[..., None] * torch.tensor(nodes)
    y = 2.0 + 0.5 * z
    y = y.exp() if log else y
    weight = torch.tensor(weights / weights.sum())
    first = (y * weight).sum(-1).mean(0)
    second = (y.square() * weight).sum(-1).mean(0)
    torch.testing.assert_close(mean, first, rtol=1e-6, atol=0)
    torch.testing.assert_close(variance, second - first.square(), rtol=1e-5, atol=0)


@pytest.fixture(scope="module")
def of_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the exported folder of the posterior of images, with new rows."""
    fitted, rows = images()
    folder = tmp_path_factory.mktemp("images")
    program = program_folder.write(folder, traced(fitted, rows), schema(fitted, rows), FACTS)
    assert program == ["program.pt2", "model.onnx"]
    np.save(folder / "new.npy", rows)
    return folder


def test_the_onnx_model_gives_the_same_answers_for_any_batch_size(of_images: Path) -> None:
    fitted, rows = images()
    session = onnxruntime.InferenceSession(of_images / "model.onnx")
    for count in (1, 13):
        (answer,) = session.run(None, {"rows": rows[:count]})
        assert np.allclose(answer, fitted.predict(rows[:count], rng=Seed(0)).mean, atol=1e-5)


@pytest.mark.soak
def test_a_softmax_quadrature_program_predicts_more_rows_than_one_chunk() -> None:
    data = make_tiny_images()
    layer = {**GAUSSIAN, "covariance": "dense", "predictive": "quadrature"}
    fitted = Predictor(posterior_of(fit("d_vbll", "student", data, layer=layer)), data.transform, data.classes)
    rows = torch.from_numpy(np.concatenate([data.train.inputs] * 4)[:300])
    (answer,) = traced(fitted, data.train.inputs[:20]).traced.module()(rows)
    torch.testing.assert_close(answer, fitted.predict(rows, rng=Seed(0)).mean, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("made", [make_tiny_table, pytest.param(make_tiny_images, marks=pytest.mark.soak)])
def test_trees_export_for_any_number_of_rows(
    made: Callable[[], FitData], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trees, "_AT_ONCE", 64)  # so that these rows are several chunks
    data = made()
    fitted = Predictor(posterior_of(fit("boosting", "student", data)), data.transform, data.classes)
    program = traced(fitted, data.train.inputs[:30])
    rows = np.concatenate([data.train.inputs] * 3)
    for count in (1, 7, len(rows)):
        answers = program.traced.module()(torch.from_numpy(rows[:count]))
        expected = fitted.predict(rows[:count], rng=Seed(0))
        answer = answers[0] if isinstance(answers, tuple) else answers
        torch.testing.assert_close(answer, expected.mean, rtol=1e-5, atol=1e-6, check_dtype=False)
    assert programs.write_onnx(program, tmp_path / "m.onnx") <= programs.CLOSE


@pytest.mark.parametrize("method", ["vbll", pytest.param("vbpc", marks=pytest.mark.soak)])
def test_posteriors_with_triangular_systems_export_to_an_equal_onnx_model(method: str, tmp_path: Path) -> None:
    data = make_tiny_table() if method == "vbll" else make_tiny_images()
    coreset = {"coreset": [fit(method, "coreset", data)]} if method == "vbpc" else {}
    fitted = Predictor(posterior_of(fit(method, "student", data, coreset)), data.transform, data.classes)
    program = traced(fitted, data.train.inputs[:30])
    graph = str(program.traced.run_decompositions().graph)
    assert "linalg_solve_triangular" in graph or "cholesky" in graph, "there is something to replace"
    assert programs.write_onnx(program, tmp_path / "m.onnx") <= programs.CLOSE


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("dropout", "draws when it predicts; distil it with dark_knowledge"),
        ("gp", "cannot be traced by torch.export"),  # it branches on its values
    ],
)
def test_a_posterior_that_cannot_be_a_program_is_refused_in_one_line(
    method: str, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    data = make_tiny_table()
    fitted = Predictor(posterior_of(fit(method, "student", data)), data.transform)
    error = refusal(traced, fitted, data.train.inputs[:8])
    assert message in error and "\n" not in error
    assert capfd.readouterr() == ("", "")


def test_a_program_that_differs_from_its_posterior_is_refused() -> None:
    fitted, rows = images()
    program = traced(fitted, rows)
    with pytest.raises(UserError, match=r"must equal the posterior to 1e-05"):
        programs.difference(program.traced.module(), program.rows, tuple(1.0001 * m for m in program.meant))


def blocked(folder: Path, script: str, rows: str, *names: str) -> list[dict[str, float]]:
    """Run a script of an exported folder where importing ``names`` fails, and read what it prints."""
    hook = f"import sys, runpy; sys.modules.update(dict.fromkeys({names!r})); sys.argv = [{script!r}, {rows!r}]\n"
    hook += f"runpy.run_path({script!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", hook], cwd=folder, capture_output=True, text=True, check=True)
    lines = (line.replace("} {", "}|{").split("|") for line in done.stdout.splitlines())
    return [dict(zip(("first", "second"), map(ast.literal_eval, line), strict=False)) for line in lines]


@pytest.mark.process
@SCRIPTS
def test_the_scripts_run_on_images_without_this_package(script: str, names: tuple[str, ...], of_images: Path) -> None:
    fitted, rows = images()
    output = blocked(of_images, script, "new.npy", "bdl_pipe", *names)
    meant = fitted.predict(rows, rng=Seed(0)).mean.numpy()
    assert [list(row["first"]) for row in output] == [list(CLASSES)] * len(rows)
    assert np.allclose([list(row["first"].values()) for row in output], meant, atol=1e-5)


@pytest.fixture(scope="module")
def of_a_table(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Predictor, list[Column]]:
    """Return the exported folder of the posterior of a table, the posterior and its columns."""
    table = pa.table({name: pa.array(cells) for name, cells in CELLS.items()})
    columns, matrix = described_matrix(table, KINDS, 20, "the table")  # type: ignore[arg-type]
    encoding = Encoding.fit(columns, matrix)
    width = encoding.width
    transform = Transform("table", torch.zeros(width), torch.full((width,), 1e4), encoding=encoding)
    transform = replace(transform, shift=torch.tensor([2.0]), scale=torch.tensor([0.5]))
    fitted, folder = Predictor(draws((width,), False), transform), tmp_path_factory.mktemp("table")
    about = schema(fitted, matrix, features=list(CELLS), columns=[column.mapping() for column in columns])
    program_folder.write(folder, traced(fitted, matrix), about, FACTS)
    return folder, fitted, list(columns)


@pytest.mark.process
@SCRIPTS
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_script_reads_a_table_as_the_pipeline_does(
    script: str, names: tuple[str, ...], suffix: str, of_a_table: tuple[Path, Predictor, list[Column]]
) -> None:
    """Gaps, known and unknown categories, dates with and without a zone, hours."""
    folder, fitted, columns = of_a_table
    new = pa.table({**CELLS, "colour": ["blue", "unheard", None, "green", "red"], "other": ["x"] * 5})
    path = folder / f"new.{suffix}"
    new = new.select(new.column_names[::-1])
    pyarrow.parquet.write_table(new, path) if suffix == "parquet" else pyarrow.csv.write_csv(new, path)
    meant = fitted.predict(coded_matrix(new, columns, "new"), rng=Seed(0))
    output = blocked(folder, script, path.name, "bdl_pipe", *names)
    assert np.allclose([row["first"]["price"] for row in output], meant.mean[:, 0], rtol=1e-5)
    assert np.allclose([row["second"]["price"] for row in output], meant.variance[:, 0], rtol=1e-5)


@pytest.mark.process
def test_a_script_ends_in_one_line_at_a_cell_of_another_kind(of_a_table: tuple[Path, Predictor, list[Column]]) -> None:
    """The reader takes nothing along that needs torch."""
    (of_a_table[0] / "bad.csv").write_text("size,colour,day,moment\nmany,red,2024-01-31,2024-01-31T10:00Z\n")
    hook = "import sys; sys.modules.update(dict.fromkeys(('bdl_pipe', 'torch'))); from rows import read; import json\n"
    command = [sys.executable, "-c", hook + "read('bad.csv', json.load(open('schema.json')))"]
    done = subprocess.run(command, cwd=of_a_table[0], capture_output=True, text=True)
    line = "bad.csv: column 'size' must be numeric, got 'many' in row 1; correct the cells, or fit with another"
    assert done.returncode == 1 and done.stderr.startswith(line) and done.stderr.count("\n") == 1


@pytest.mark.process
def test_onnxruntime_runs_a_model_without_torch_and_this_package(of_images: Path, tmp_path: Path) -> None:
    """The environment holds links to onnxruntime, NumPy and what these two declare."""
    fitted, rows = images()
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    (site,) = (tmp_path / "venv/lib").glob("python3*/site-packages")
    link(["onnxruntime", "numpy"], site)
    python = tmp_path / "venv/bin/python"
    absent = "from importlib.util import find_spec as f; print(*filter(f, ('torch', 'bdl_pipe', 'pipeline', 'onnx')))"
    run = partial(subprocess.run, cwd=of_images, capture_output=True, text=True, check=True)
    assert run([python, "-I", "-c", absent]).stdout.strip() == ""
    lines = run([python, "-I", "run_onnx.py", "new.npy"]).stdout.splitlines()
    table = np.array([list(ast.literal_eval(line).values()) for line in lines])
    assert np.allclose(table, fitted.predict(rows, rng=Seed(0)).mean.numpy(), atol=1e-5)


def test_a_card_has_inputs_outputs_scores_and_a_missing_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted, rows = prices()
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    program = program_folder.write(tmp_path, traced(fitted, rows), schema(fitted, rows), FACTS | {"Test nll": "1.2"})
    assert program == ["program.pt2"] and not (tmp_path / "run_onnx.py").exists()
    text = (tmp_path / "README.md").read_text()
    parts = ("float64 [n, 2]", "mean and variance [n, target]", "| Test nll | 1.2 |", "pip install 'bdl-pipe[onnx]'")
    assert [part for part in parts if part not in text] == []
    assert json.loads((tmp_path / "schema.json").read_text())["features"] == ["c0", "c1"]
