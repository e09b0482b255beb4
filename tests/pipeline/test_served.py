"""A row gets the same prediction from the library, in the scores, in a file, in a search and from the served model;
new rows give a whole file or none, and clear errors.
"""

import json
import math
import shutil
from contextlib import chdir
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from fitted_cases import CLASSES, FEATURES, student
from mlflow.exceptions import MlflowException
from mlflow.models.utils import _enforce_schema
from mlflow.pyfunc.model import PythonModelContext
from mlflow.utils.proto_json_utils import dataframe_from_parsed_json
from PIL import Image

from bdl_pipe import BayesianClassifier, BayesianRegressor, artifacts, logged_artifact, served_artifact, summary
from bdl_pipe.data.new_inputs import frame_inputs
from bdl_pipe.data.tables.columns import Column
from bdl_pipe.errors import ArtifactError, DataError, UserError
from bdl_pipe.predictive import Gaussian
from bdl_pipe.registry import load_predictor, stored_address
from bdl_pipe.seeds import Seed
from pipeline import cli
from pipeline.core.load import load
from pipeline.export import predict, shared
from pipeline.export.targets import model
from pipeline.plan.plan import plan
from pipeline.prepared import folders
from pipeline.run import pool
from pipeline.search import trial
from pipeline.stages import comparison
from tests.cases import CONFIGS
from tests.pipeline import tune_cases, walk

CASES = [("classification", False), ("classification", True)]  # the registered models below are of regression


@pytest.fixture
def case(request: pytest.FixtureRequest, here: Path) -> tuple[Path, Any, dict[str, Any]]:
    """An exported model, rows to send, and the columns that the library itself gives."""
    task, images = request.param
    place, saved = student(here / "work/student/toy", task, images), here / "saved"
    assert cli.main(["export", "model", "toy", "--to", str(saved)]) == 0
    random = np.random.default_rng(2)
    rows = random.integers(0, 256, (3, 1, 4, 4), dtype=np.uint8) if images else random.normal(20, 9, (3, 2))
    schema = json.loads((place / "schema.json").read_text())
    direct = load_predictor(place).predict(rows, rng=Seed(0))
    return saved, rows, summary.columns(direct, schema["classes"] or schema["targets"])


def test_an_estimator_logs_itself_without_a_pickle(here: Path) -> None:
    rows = pd.DataFrame(np.random.default_rng(0).normal(size=(200, 2)), columns=["a", "b"])
    labels = np.where(rows["b"] > 0, "up", "down")
    regressor = BayesianRegressor("linear", conformal="split").fit(rows, rows["a"].to_numpy())
    classifier = BayesianClassifier("linear").fit(rows, labels)
    mlflow.set_tracking_uri(f"sqlite:///{here / 'mlflow.db'}")
    of_numbers, of_classes = (
        mlflow.pyfunc.load_model(each.log_model().model_uri).predict(rows[:5]) for each in (regressor, classifier)
    )
    np.testing.assert_array_equal(of_numbers["mean"], regressor.predict(rows[:5]))
    low, high = regressor.predict_interval(rows[:5], 0.9)
    np.testing.assert_array_equal(of_numbers[["conformal_lower", "conformal_upper"]], np.stack([low, high], 1))
    np.testing.assert_allclose(of_classes[["p_down", "p_up"]], classifier.predict_proba(rows[:5]), rtol=1e-6)
    assert not [p for p in here.rglob("*") if p.suffix in (".pkl", ".pickle")]


@pytest.mark.parametrize("case", CASES, indirect=True)
def test_a_model_loaded_by_mlflow_and_its_server_give_the_posteriors_predictions(case: Any, here: Path) -> None:
    """A request is read as MLflow's server reads JSON."""
    saved, rows, expected = case
    kinds = {path.suffix for path in saved.rglob("*") if path.is_file()}  # the import of its code adds .pyc
    assert kinds <= {"", ".json", ".py", ".safetensors", ".txt", ".yaml"}, "nothing is pickled"
    loaded = mlflow.pyfunc.load_model(str(saved))
    direct = loaded.predict(rows if rows.ndim == 4 else pd.DataFrame(rows, columns=FEATURES))
    table = {"columns": FEATURES, "data": rows.tolist()}
    Path("request").write_text(json.dumps({"inputs": rows.tolist()} if rows.ndim == 4 else {"dataframe_split": table}))
    places = {"input_path": "request", "output_path": "answer"}
    mlflow.models.predict(str(saved), **places, content_type="json", env_manager="local")
    for answers in (direct, pd.DataFrame(json.loads(Path("answer").read_text())["predictions"])):
        assert list(answers.columns) == list(expected)
        for name, values in expected.items():
            if name == "predicted":
                assert list(answers[name]) == list(values)
            else:
                assert np.allclose(answers[name], values, rtol=1e-5, atol=1e-7), name


@pytest.mark.parametrize(("answer", "written"), [(0.0, "false"), (1.0, "true")])
def test_the_cells_of_a_request_are_read_like_the_cells_of_a_file(tmp_path: Path, answer: float, written: str) -> None:
    """Booleans, gaps, dates and numbers of JSON pass the signature and reach the reader that files use, too."""
    columns = [Column("flag", "category", ("False", "True"), False), Column("seen", "date", (), False)]
    columns.append(Column("size", "number", (), True))
    schema = {"kind": "table", "features": [column.name for column in columns], "input_shape": [3]}
    schema["columns"] = [column.mapping() for column in columns]
    record = {"flag": json.loads(written), "seen": "2024-01-02", "size": None}
    signature = logged_artifact._signature(schema)
    sent = dataframe_from_parsed_json([record, {**record, "size": 3}], "records", signature.inputs)
    frame = _enforce_schema(sent, signature.inputs)
    np.testing.assert_array_equal(frame_inputs(frame, schema), [[answer, 19724, np.nan], [answer, 19724, 3]])
    late = dataframe_from_parsed_json([{**record, "seen": 1_704_153_600}], "records", signature.inputs)
    with pytest.raises(DataError, match="'seen' must be dates, got '1704153600' in row 1"):
        frame_inputs(_enforce_schema(late, signature.inputs), schema)


SAMPLED = ("bnn", "ffg_u")


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project of one table, with sampled posteriors that are fitted and evaluated; two members each."""
    folder = tmp_path_factory.mktemp("answers")
    sections = yaml.safe_load(tune_cases.PARAMS)
    run = {"dataset": "toy", "setting": "s", "seeds": 2, "input": "prepare/toy"}
    sections |= {"teachers": {}, "runs": {f"toy-{method}": {"method": method, **run} for method in SAMPLED}}
    sections["methods"] = {method: CONFIGS[method, "regression"] for method in SAMPLED}
    sections["evaluate"]["batch"] = 7
    x = np.random.default_rng(0).normal(size=80)
    pd.DataFrame({"x": x, "y": 30 + 2 * x}).to_csv(folder / "toy.csv", index=False)
    walk.prepared(folder, sections, "toy")
    with chdir(folder):
        for key in sections["runs"]:
            walk.stage("student", key)
            walk.stage("evaluate", key)
    return folder


@pytest.fixture
def rows(fitted: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """The test rows' inputs; the project is the working directory."""
    monkeypatch.chdir(fitted)
    return folders.load_holdout(Path("work/holdout/toy"), 0).test.inputs


def predicted(run: str, inputs: np.ndarray, seed: int = 0, paper: str | None = None) -> pd.DataFrame:
    pd.DataFrame(inputs, columns=["x"]).to_csv("new.csv", index=False)
    predict.predict(run, Path("new.csv"), Path("new.parquet"), 0, seed, paper=paper)
    return pd.read_parquet("new.parquet")


@pytest.mark.parametrize("method", SAMPLED)
def test_evaluation_prediction_search_and_served_model_give_equal_predictions(method: str, rows: np.ndarray) -> None:
    run = f"toy-{method}"
    scored = pd.read_parquet(f"work/evaluate/{run}/predictions.parquet")
    first, second = (scored[scored["seed"] == seed] for seed in (0, 1))
    assert not np.allclose(first["mean"], second["mean"], rtol=1e-4)
    served = served_artifact.FittedPosterior()
    served.load_context(PythonModelContext({"student": f"work/student/{run}"}, {}))
    loaded = load()
    chain = trial.Branch((loaded.run("student", run),), loaded.seed)
    batches = load_predictor(Path(f"work/student/{run}")).batches(rows, rng=chain.predictions)
    frame = pd.DataFrame(rows, columns=["x"], index=range(7, 7 + len(rows)))
    assert (served.predict(PythonModelContext({}, {}), frame).index == frame.index).all()
    with pytest.raises(MlflowException, match="the input: must have at least one row, got none"):
        served.predict(PythonModelContext({}, {}), frame[:0])
    answers = {
        "a file": predicted(run, rows),
        "the served model": served.predict(PythonModelContext({}, {}), pd.DataFrame(rows, columns=["x"])),
        "a search": summary.table(batches, ["y"]),
    }
    for who, columns in answers.items():
        for name in ("mean", "variance"):
            np.testing.assert_allclose(columns[name], first[name], rtol=1e-5, err_msg=who)
    np.testing.assert_allclose(predicted(run, rows, seed=1)["mean"], second["mean"], rtol=1e-5)


def test_the_verdicts_run_is_registered_once_with_its_aliases(
    rows: np.ndarray, tables: Path, monkeypatch: pytest.MonkeyPatch, command: Any
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{shutil.copy(tables, 'models.db')}")
    monkeypatch.delattr(mlflow.MlflowClient, "set_model_version_tag")  # after a kill before it, a version has no hash
    said = command("register")
    champion, other = sorted((f"toy-{method}" for method in SAMPLED), key=lambda run: f" {run} " not in said)
    assert f"models:/toy/1: {champion} (aliases: {champion}, champion)" in said
    assert command("register", champion, other) == f"{said}models:/toy/2: {other} (aliases: {other})\n"
    frame = pd.DataFrame(rows, columns=["x"])
    for alias, run in (("champion", champion), (other, other)):
        scored = pd.read_parquet(f"work/evaluate/{run}/predictions.parquet")
        answers = mlflow.pyfunc.load_model(f"models:/toy@{alias}").predict(frame)
        np.testing.assert_allclose(answers["mean"], scored[scored["seed"] == 0]["mean"], rtol=1e-5)
    assert "is not a run with scores (did you mean toy-bnn?)" in command("register", "toy-bn", code=2)


@pytest.fixture
def older(fitted: Path, here: Path) -> Path:
    """A project with the results of ``fitted``, in which the run toy-bnn has another setting now."""
    (here / "work").symlink_to(fitted / "work")
    shutil.copy(fitted / "toy.csv", here)
    text = yaml.safe_load((fitted / "params.yaml").read_text())
    text["runs"]["toy-bnn"]["setting"] = "other"
    (here / "params.yaml").write_text(yaml.safe_dump(text))
    return here


def test_a_run_with_scores_of_other_params_is_neither_compared_nor_registered(older: Path, command: Any) -> None:
    params = load()
    (compared,) = comparison.of(params, pool.stale(plan(params)))
    assert [run.key for run in compared.runs] == ["toy-ffg_u"]
    said = "toy-bnn: its scores are not up to date (the key runs.toy-bnn has changed); make repro"
    assert command("register", "toy-bnn", code=2) == f"register: {said}\n"


def test_scores_of_an_earlier_fit_are_left_out(fitted: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(fitted / "work", here / "work")
    assert shared.scores_of("toy-bnn", 0, [0], ["rmse"]).keys() == {"rmse"} and not capsys.readouterr().out
    manifest = here / "work/student/toy-bnn/manifest.json"
    manifest.write_text(manifest.read_text() + "\n")  # as if the run had been fitted again
    assert shared.scores_of("toy-bnn", 0, [0], ["rmse"]) == {}
    assert capsys.readouterr().out.startswith("note: toy-bnn: its test scores are left out, as they are of an earlier")


def test_a_fit_that_is_out_of_date_or_of_a_removed_run_is_used_with_a_note(
    older: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs = np.ones((2, 1))

    def said(run: str) -> str:
        predicted(run, inputs)
        return capsys.readouterr().out.partition("new.parquet: ")[0]

    assert said("toy-ffg_u") == ""
    assert said("toy-bnn").startswith("note: toy-bnn is out of date (student@toy-bnn: the key runs.toy-bnn has")
    params = yaml.safe_load(Path("params.yaml").read_text())
    params |= {"runs": {"toy-ffg_u": params["runs"]["toy-ffg_u"]}}
    Path("params.yaml").write_text(yaml.safe_dump(params))
    assert said("toy-bnn") == "note: toy-bnn is no longer in params.yaml; its stored fit is used\n"
    Path("params.yaml").write_text("runs: [")
    assert said("toy-bnn").startswith("note: whether toy-bnn is up to date is unknown (params.yaml:1: is not YAML")


def test_a_program_of_a_removed_data_set_is_refused(older: Path, command: Any) -> None:
    params = yaml.safe_load(Path("params.yaml").read_text())
    Path("params.yaml").write_text(yaml.safe_dump(params | {"datasets": {}, "runs": {}}))
    error = command("export", "program", "toy-bnn", "--to", "program", code=2)
    assert error == "export: toy-bnn: params.yaml no longer has its data set toy; add it again first\n"


def test_a_program_of_a_fit_to_other_columns_is_refused(
    older: Path, monkeypatch: pytest.MonkeyPatch, command: Any
) -> None:
    now = {**folders.load_schema(Path("work/prepare/toy")), "features": ["x", "w"], "input_shape": [2]}
    monkeypatch.setattr("pipeline.export.targets.program.load_schema", lambda prepared: now)
    error = command("export", "program", "toy-ffg_u", "--to", "program", code=2)
    assert error == "export: toy-ffg_u: toy has other columns or classes than at the fit; make repro\n"


def test_an_artifact_without_an_address_is_refused(tmp_path: Path) -> None:
    with artifacts.publish(tmp_path / "old", "student", about={"seed": 0}):
        pass
    with pytest.raises(ArtifactError, match=r"old: must record its seed and its run; make it again$"):
        stored_address(tmp_path / "old")


def test_a_run_of_a_papers_table_is_read_from_the_tree_of_that_table(rows: np.ndarray) -> None:
    expected, folder = predicted("toy-bnn", rows), Path("work/paper/vbll-table2/student/toy-other")
    folder.parent.mkdir(parents=True)
    folder.symlink_to(Path("work/student/toy-bnn").absolute())
    pd.testing.assert_frame_equal(predicted("toy-other", rows, paper="vbll:table2"), expected)


def go(run, given, **more):
    predict.predict(run, Path(given), Path("out/made.parquet"), **more)
    return pd.read_parquet("out/made.parquet")


def table(rows=7):
    return pd.DataFrame(np.random.default_rng(0).normal(30, 9, (rows, 2)), columns=FEATURES)


def test_class_predictions_of_a_table_equal_the_posterior(here):
    place, rows = student(here / "work/student/c"), table(2500)  # several batches
    rows[["rooms", "age"]].assign(other="x").to_csv("new.csv", index=False)  # another order, one column more
    predictions = go("c", "new.csv")
    direct = load_predictor(str(place)).predict(rows.to_numpy(), rng=Seed(0))
    expected = summary.columns(direct, CLASSES)
    assert list(predictions) == ["row", *expected]
    for name in expected.keys() - {"predicted"}:
        assert np.allclose(predictions[name], expected[name], atol=1e-6), name
    assert list(predictions["predicted"]) == [CLASSES[i] for i in direct.mean.argmax(1)]
    assert (predictions["mutual_information"] > 0).any() and list(predictions["row"]) == list(range(2500))


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("new.csv", r"--output: is written as Parquet; name it new\.parquet"),
        ("./new.parquet", r"--output: must not be the input new\.parquet, which would be lost"),
    ],
)
def test_predictions_never_replace_the_input_and_are_named_as_parquet(here, output, said):
    student(here / "work/student/c")
    table().to_parquet("new.parquet")
    before = Path("new.parquet").read_bytes()
    with pytest.raises(UserError, match=said):
        predict.predict("c", Path("new.parquet"), Path(output))
    assert Path("new.parquet").read_bytes() == before and not Path("new.csv").exists()


def test_predictions_of_a_folder_name_the_image_files_in_order(here):
    student(here / "work/student/i", images=True)
    (here / "new").mkdir()
    for name in ("b.png", "a.png"):
        Image.fromarray(np.full((4, 4), 9, np.uint8)).save(here / "new" / name)
    assert list(go("i", "new")["file"]) == ["a.png", "b.png"]


def test_a_wrong_run_column_or_seed_is_named_and_no_file_is_written(here):
    student(here / "work/student/c")
    table().to_csv("new.csv", index=False)
    table().set_axis(["age", "room"], axis=1).to_csv("other.csv", index=False)
    with pytest.raises(UserError, match=r"is not a fitted run \(fitted: c"):
        go("x", "new.csv")
    with pytest.raises(UserError, match=r"is not a fitted run \(fitted: c"):
        go("../student/c", "new.csv")
    with pytest.raises(UserError, match="rooms"):
        go("c", "other.csv")
    with pytest.raises(UserError, match="has no seed 4 of split 0"):
        go("c", "new.csv", seed=4)
    assert not (here / "out").exists()
    with pytest.raises(ArtifactError, match="has no seed 4 of split 0"):
        model.export("c", here / "saved", seed=4)
    assert sorted(path.name for path in here.iterdir()) == ["new.csv", "other.csv", "work"]


def test_columns_of_several_targets_have_the_names_of_the_targets():
    two = Gaussian(torch.tensor([[[1.0, 2.0]]]), torch.tensor([[[4.0, 9.0]]]))
    columns = summary.columns(two, ["a", "b"])
    assert (columns["mean_a"], columns["sd_b"]) == (1.0, 3.0)
    assert math.isclose(float(columns["epistemic_variance_a"][0]), 0.0)
