"""A perceptron of the library as a plain module: each method gives the pipeline's bits, ``ffg_w`` to rounding."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bdl_pipe import (
    METHODS,
    Examples,
    FitData,
    NetworkSpec,
    Seed,
    Silent,
    State,
    bayesianise,
    posterior_of,
    read_config,
)
from bdl_pipe.config import to_mapping
from bdl_pipe.data.normalise import fit_transform
from bdl_pipe.method import ModelFit
from bdl_pipe.networks import MlpConfig
from bdl_pipe.own_model.methods import trajectory_section
from bdl_pipe.posterior import Predictor
from bdl_pipe.trajectory.pretrained import begun

ROWS, WIDTH = 120, 4
NETWORK = {"name": "mlp", "hidden": [12]}
ADDRESS = Seed(3).fold("bayesianise")
CLASSES = {
    "deterministic": None,
    "kfac_laplace": None,
    "swa": 2,
    "swag": 2,
    "ciber": 2,
    "pca_ess": 2,
    "d_vbll": 3,
    "g_vbll": 3,
    "ffg_w": 2,
}
REGRESSION = {"deterministic": None, "kfac_laplace": None, "swag": 2, "ciber_last": 2, "vbll": 3, "ffg_w": 2}
BATCHED = ("ffg_w",)  # equal to rounding only: the pipeline computes the draws of a table as one batch


def problem(task: str) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(ROWS, WIDTH)).astype(np.float32)
    f = 2 * x[:, 0] - x[:, 1] ** 2
    if task == "classification":
        return x, np.digitize(f + 0.5 * generator.normal(size=ROWS), [-1.0, 0.5])
    return x, (100 + 7 * (f + 0.3 * generator.normal(size=ROWS)))[:, None]


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
@pytest.mark.parametrize(
    ("task", "method", "epochs"),
    [("classification", *each) for each in CLASSES.items()] + [("regression", *each) for each in REGRESSION.items()],
)
def test_a_module_has_the_predictions_of_the_pipeline(task: str, method: str, epochs: int | None) -> None:
    x, y = problem(task)
    module, _ = of_the_pipeline(task, "deterministic", None, {})
    loader = DataLoader(TensorDataset(torch.from_numpy(x), torch.from_numpy(y)), 30)
    found = bayesianise(module, method, loader, epochs=epochs, random_state=3)
    _, meant = of_the_pipeline(task, method, epochs, found.about.config)
    new = np.random.default_rng(1).normal(size=(50, WIDTH)).astype(np.float32)
    ours = found.predict(torch.from_numpy(new), rng=Seed(5))
    theirs = meant.predict(new, rng=Seed(5).fold("predict"))
    if method in BATCHED:
        torch.testing.assert_close(ours.mean, theirs.mean, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(ours.variance, theirs.variance, rtol=1e-3, atol=1e-5)
    else:
        assert torch.equal(ours.mean, theirs.mean) and torch.equal(ours.variance, theirs.variance)
    labels = torch.zeros(50, dtype=torch.long) if task == "classification" else torch.full((50, 1), 100.0)
    torch.testing.assert_close(ours.log_prob(labels), theirs.log_prob(labels), rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_a_changed_weight_changes_the_predictions() -> None:
    x, y = problem("classification")
    module, meant = of_the_pipeline("classification", "deterministic", None, {})
    with torch.no_grad():
        module[1].weight[0, 0] += 1e-3
    loader = DataLoader(TensorDataset(torch.from_numpy(x), torch.from_numpy(y)), 30)
    ours = bayesianise(module, "deterministic", loader).predict(torch.from_numpy(x))
    assert not torch.equal(ours.mean, meant.predict(x, rng=Seed(0)).mean)


def test_the_stored_spec_names_the_module_by_its_digest() -> None:
    x, y = problem("classification")
    module, _ = of_the_pipeline("classification", "deterministic", None, {})
    loader = DataLoader(TensorDataset(torch.from_numpy(x), torch.from_numpy(y)), 30)
    found = bayesianise(module, "deterministic", loader)
    spec = found.inner.state().config["spec"]
    assert spec["network"] == {"name": "module", "digest": found.about.digest, "dropout": True}
    assert to_mapping(found.about)["layout"]["parts"] == [{"name": "", "shape": [WIDTH], "dtype": "float"}]
