"""A fit has the same bits by every face: the estimators, a model of the user, and the pipeline's stages.

They share the engine (``bdl_pipe.fitting``); here are one case each of the rows, the runs and the addresses that they
give it. A perceptron of the library as a plain module has the pipeline's bits, ``ffg_w`` to rounding.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bdl_pipe import (
    METHODS,
    BayesianClassifier,
    BayesianRegressor,
    Examples,
    FitData,
    NetworkSpec,
    Seed,
    Silent,
    State,
    artifacts,
    bayesianise,
    load_predictor,
    offers,
    posterior_of,
    read_config,
    stored_address,
)
from bdl_pipe.config import merge, to_mapping
from bdl_pipe.data.inspect.images import inspect_images
from bdl_pipe.data.inspect.profile import Profile
from bdl_pipe.data.inspect.table import inspect_table
from bdl_pipe.data.normalise import fit_transform
from bdl_pipe.data.split_rows import uci_splits
from bdl_pipe.method import ModelFit
from bdl_pipe.networks import MlpConfig
from bdl_pipe.own_model.start import trajectory_section
from bdl_pipe.posterior import Predictor
from bdl_pipe.trajectory.snapshots import begun
from bdl_pipe.yaml_files import read_yaml, write_yaml
from pipeline.add import overlay_of
from pipeline.core import places
from pipeline.core.load import load
from pipeline.core.settings import Settings
from pipeline.plan.plan import one
from pipeline.stages import fit, prepare
from pipeline.work.executor import Inline
from tests.tables import houses

ROOT: Final = Path(__file__).parents[1]
SETTINGS: Final = Settings(executor="inline", tracking=False)
PACE: Final = 0.05
ROWS, WIDTH = 120, 4
NETWORK: Final = {"name": "mlp", "hidden": [12]}
ADDRESS: Final = Seed(3).fold("bayesianise")
OWN: Final = [
    ("classification", "deterministic", None),
    ("classification", "kfac_laplace", None),
    ("classification", "swag", 2),
    ("classification", "d_vbll", 3),
    ("classification", "ffg_w", 2),
    ("regression", "kfac_laplace", None),
    ("regression", "ciber_last", 2),
    ("regression", "vbll", 3),
]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "params.yaml", "params.yaml")
    Path("data").mkdir()
    return tmp_path


def made(profile: Profile, method: str, calibration: float = 0.0) -> artifacts.Artifact:
    """Fit a method by the pipeline's stages, as ``add`` writes its runs, and return the student's artifact."""
    size = profile.size(calibration)
    chosen = [METHODS[method]]
    paces = dict.fromkeys([*offers.upstream(chosen, size), method], PACE)
    overlay = overlay_of("data", profile.dataset(), size, chosen, 1, paces)
    Path("params.yaml").write_text(write_yaml(merge(read_yaml(Path("params.yaml")), overlay)))
    params = load()
    prepare.run(one("prepare", "data", params), params, Inline(SETTINGS), SETTINGS)
    for (kind, key), run in params.runs.items():
        if run.spec.dataset == "data":
            fit.run(one(kind, key, params), params, Inline(SETTINGS), SETTINGS)
    return artifacts.load(places.artifact("student", f"data-{method}"), "student")


def assert_same(model: Any, student: artifacts.Artifact, calibrated: bool = False) -> None:
    (part,) = model.fitted_.parts
    stored = {"0-0": part.posterior, "transform-0": part.transform}
    stored |= {"recalibration-0-0": part.recalibration} if calibrated else {}
    assert {*student.names()} == stored.keys()
    for name, state in stored.items():
        theirs = student.state(name)
        assert state.tensors.keys() == theirs.tensors.keys()
        for tensor in state.tensors:
            assert torch.equal(state.tensors[tensor], theirs.tensors[tensor]), (name, tensor)
    assert part.posterior.config == student.state("0-0").config
    assert model.fitted_.address() == stored_address(student.path)


def fitted_houses(target: str, method: str, calibration: float = 0.0) -> tuple[artifacts.Artifact, Any, Any, Any, Any]:
    """Fit a method to houses; return the artifact, the inputs, the targets, and the numbers of train and test rows."""
    houses(160).to_csv("data/data.csv", index=False)
    student = made(inspect_table(Path("data/data.csv"), [target]), method, calibration)
    frame = pd.read_csv("data/data.csv")
    return student, frame.drop(columns=target), frame[target], *uci_splits(160, 1)[0]


@pytest.mark.slow
@pytest.mark.parametrize(("method", "calibration"), [("swag", 0.0), ("ensemble", 0.0), ("map_blr", 0.2)])
def test_a_regressor_of_a_table_has_the_same_bits_as_the_pipeline(method: str, calibration: float, root: Path) -> None:
    student, rows, prices, train, test = fitted_houses("price", method, calibration)
    model = BayesianRegressor(method, pace=PACE, conformal="split" if calibration else None)
    model.fit(rows.iloc[train], prices.iloc[train])
    assert_same(model, student, calibrated=bool(calibration))
    predictor = load_predictor(student.path)
    raw = model._rows(rows.iloc[test])
    theirs = next(predictor.batches(raw, rng=stored_address(student.path)))[1].mean
    np.testing.assert_array_equal(model.predict(rows.iloc[test]), theirs[:, 0].double().numpy())
    other = BayesianRegressor(method, pace=PACE, conformal=model.conformal, random_state=1)
    other.fit(rows.iloc[train], prices.iloc[train])
    assert not np.array_equal(other.predict(rows.iloc[test]), theirs[:, 0].numpy())  # another seed is another address


@pytest.mark.slow
def test_a_classifier_of_a_table_has_the_same_bits_as_the_pipeline(root: Path) -> None:
    student, rows, labels, train, _ = fitted_houses("made_of", "d_vbll")
    model = BayesianClassifier("d_vbll", pace=PACE).fit(rows.iloc[train], labels.iloc[train])
    assert_same(model, student)
    assert model.classes_.tolist() == student.json("schema.json")["classes"] == ["brick", "stone", "wood"]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["random_coreset", "vbpc"])
def test_a_classifier_of_images_has_the_same_bits_as_the_pipeline(method: str, root: Path) -> None:
    random = np.random.default_rng(0)
    labels = np.arange(90) % 2
    images = random.integers(0, 100, (90, 8, 8)) + 100 * (labels[:, None, None] * (np.arange(8) % 2))
    images = images.astype(np.uint8)
    np.savez("data/data.npz", x_train=images[:60], y_train=labels[:60], x_test=images[60:], y_test=labels[60:])
    student = made(inspect_images(Path("data/data.npz")), method)
    model = BayesianClassifier(method, pace=PACE).fit(images[:60, :, :, None], labels[:60])
    assert_same(model, student)


def problem(task: str) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(ROWS, WIDTH)).astype(np.float32)
    f = 2 * x[:, 0] - x[:, 1] ** 2
    if task == "classification":
        return x, np.digitize(f + 0.5 * generator.normal(size=ROWS), [-1.0, 0.5])
    return x, (100 + 7 * (f + 0.3 * generator.normal(size=ROWS)))[:, None]


def loader_of(task: str) -> DataLoader:
    return DataLoader(TensorDataset(*map(torch.from_numpy, problem(task))), 30)


def of_the_pipeline(task: str, method: str, epochs: int | None, used: Mapping[str, Any]) -> tuple[nn.Module, Predictor]:
    """Return the module as a user has it, and the pipeline's own posterior from its weights."""
    x, y = problem(task)
    classes = task == "classification"
    transform = fit_transform(x.astype(float), y, kind="table", normalise="none", whiten=False)
    rows, nothing = Examples(x, y), Examples(x[:0], y[:0])
    data = FitData(task, rows, nothing, transform, ("a", "b", "c") if classes else ())  # type: ignore[arg-type]
    network = read_config(MlpConfig, NETWORK, "network")
    spec = NetworkSpec(network, (WIDTH,), data.outputs, "categorical" if classes else "gaussian_head")
    start = NetworkSpec(network, (WIDTH,), data.outputs, "gaussian").build(Seed(1))  # a head of means alone
    if not classes:
        nn.init.constant_(start.head.bias, 100.0)
    module = nn.Sequential(*start.trunk, start.head)
    first = begun(spec.build(Seed(0)), spec, dict(start.state_dict()), data, "own", "the module")
    if epochs is not None and method in ("swa", "swag", "ciber", "ciber_last", "pca_ess"):
        setting = ModelFit(NETWORK, data.task, ROWS, 30, epochs, None)
        config = read_config(METHODS["sgd"].config, trajectory_section(setting), "sgd")
        stage = METHODS["sgd"].stages["trajectory"]
        first = stage.fit_one(data, {"trajectory": [first]}, config, rng=ADDRESS.fold("trajectory"), report=Silent())
    if not classes and epochs is None:  # a model of means alone gets no log-variances, and a noise from its errors
        noise = tuple(first.tensors["head.bias"][-1, data.outputs :].double().exp().tolist())
        spec = NetworkSpec(network, (WIDTH,), data.outputs, "gaussian", noise)
        means = {name: first.tensors[name][:, : data.outputs].contiguous() for name in ("head.weight", "head.bias")}
        first = State({**first.tensors, **means}, {**first.config, "spec": to_mapping(spec)})
    section = {key: NETWORK if key == "network" else value for key, value in used.items()}
    student = METHODS[method].stages["student"]
    inputs: dict[Any, list[State]] = {"trajectory": [first]} if "trajectory" in student.needs else {}
    config = read_config(METHODS[method].config, section, method)
    state = student.fit_one(data, inputs, config, rng=ADDRESS.fold("student"), report=Silent())
    return module, Predictor(posterior_of(state), transform)


@pytest.mark.slow
@pytest.mark.parametrize(("task", "method", "epochs"), OWN)
def test_a_module_has_the_predictions_of_the_pipeline(task: str, method: str, epochs: int | None) -> None:
    module, _ = of_the_pipeline(task, "deterministic", None, {})
    posterior = bayesianise(module, method, loader_of(task), epochs=epochs, random_state=3, held_out=0.0)
    _, meant = of_the_pipeline(task, method, epochs, posterior.about.config)
    new = np.random.default_rng(1).normal(size=(50, WIDTH)).astype(np.float32)
    ours = posterior.predict(torch.from_numpy(new), rng=Seed(5))
    theirs = meant.predict(new, rng=Seed(5).fold("predict"))
    if method == "ffg_w":  # the pipeline computes the draws of a table as one batch
        torch.testing.assert_close(ours.mean, theirs.mean, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(ours.variance, theirs.variance, rtol=1e-3, atol=1e-5)
    else:
        assert torch.equal(ours.mean, theirs.mean) and torch.equal(ours.variance, theirs.variance)
    labels = torch.zeros(50, dtype=torch.long) if task == "classification" else torch.full((50, 1), 100.0)
    torch.testing.assert_close(ours.log_prob(labels), theirs.log_prob(labels), rtol=1e-3, atol=1e-4)


def test_the_stored_spec_names_the_module_by_its_digest() -> None:
    module, _ = of_the_pipeline("classification", "deterministic", None, {})
    posterior = bayesianise(module, "deterministic", loader_of("classification"))
    spec = posterior.inner.state().config["spec"]
    assert spec["network"] == {"name": "module", "digest": posterior.about.digest, "dropout": True}
    assert to_mapping(posterior.about)["layout"]["parts"] == [{"name": "", "shape": [WIDTH], "dtype": "float"}]
