"""A row gets the same prediction in the scores, in a file of new rows, in a search and from the served model."""

from contextlib import chdir
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from mlflow.pyfunc.model import PythonModelContext

from bdl_pipe import artifacts, summary
from bdl_pipe.errors import ArtifactError, DataError
from bdl_pipe.registry import load_predictor, stored_address
from pipeline.core.load import load
from pipeline.core.settings import Settings
from pipeline.export import predict, serving
from pipeline.plan.plan import one
from pipeline.prepared import folders
from pipeline.search import trial
from pipeline.stages import evaluate, fit, prepare
from pipeline.work.executor import Inline
from tests.cases import CONFIGS
from tests.pipeline import tune_cases

SETTINGS = Settings(executor="inline")
SAMPLED = ("bnn", "ffg_u")


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project of one table, with sampled posteriors that are fitted and evaluated; two members each."""
    folder = tmp_path_factory.mktemp("answers")
    written = yaml.safe_load(tune_cases.PARAMS)
    run = {"dataset": "toy", "setting": "s", "seeds": 2, "input": "prepare/toy"}
    written |= {"teachers": {}, "runs": {f"toy-{method}": {"method": method, **run} for method in SAMPLED}}
    written["methods"] = {method: CONFIGS[method, "regression"] for method in SAMPLED}
    written["evaluate"]["batch"] = 7
    (folder / "params.yaml").write_text(yaml.safe_dump(written))
    x = np.random.default_rng(0).normal(size=80)
    pd.DataFrame({"x": x, "y": 30 + 2 * x}).to_csv(folder / "toy.csv", index=False)
    with chdir(folder):
        loaded, inline = load(), Inline(SETTINGS)
        prepare.run(one("prepare", "toy", loaded), loaded, inline, SETTINGS)
        for key in written["runs"]:
            fit.run(one("student", key, loaded), loaded, inline, SETTINGS)
            evaluate.run(one("evaluate", key, loaded), loaded, inline, SETTINGS)
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
    served = serving.FittedPosterior()
    served.load_context(PythonModelContext({"student": f"work/student/{run}"}, {}))
    loaded = load()
    chain = trial.Branch((loaded.run("student", run),), loaded.seed)
    batches = load_predictor(Path(f"work/student/{run}")).batches(rows, rng=chain.predictions)
    frame = pd.DataFrame(rows, columns=["x"], index=range(7, 7 + len(rows)))
    assert (served.predict(PythonModelContext({}, {}), frame).index == frame.index).all()
    with pytest.raises(DataError, match="the input: must have at least one row, got none"):
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


@pytest.mark.parametrize("method", SAMPLED)
def test_the_prediction_of_a_row_does_not_depend_on_its_place_in_the_file(method: str, rows: np.ndarray) -> None:
    many = np.concatenate([np.linspace(-2, 2, 2100)[:, None], rows])  # the test rows come in the third batch
    last = predicted(f"toy-{method}", many)["mean"][2100:]
    np.testing.assert_allclose(last, predicted(f"toy-{method}", rows)["mean"], rtol=1e-5)


def test_an_artifact_without_an_address_is_refused(tmp_path: Path) -> None:
    with artifacts.publish(tmp_path / "old", "student", about={"seed": 0}):
        pass
    with pytest.raises(ArtifactError, match=r"old: must record its seed and its run; make it again$"):
        stored_address(tmp_path / "old")


def test_a_run_of_a_papers_table_is_read_from_the_tree_of_that_table(rows: np.ndarray) -> None:
    expected, own = predicted("toy-bnn", rows), Path("work/paper/vbll-table2/student/toy-other")
    own.parent.mkdir(parents=True)
    own.symlink_to(Path("work/student/toy-bnn").absolute())
    pd.testing.assert_frame_equal(predicted("toy-other", rows, paper="vbll:table2"), expected)
