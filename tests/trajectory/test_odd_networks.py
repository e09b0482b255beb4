"""Users' networks with tied weights, attention, weight norm, spectral norm, and layers used twice or never.

A method has the right posterior of each, or refuses it in one line before training.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bdl_pipe import plugins
from bdl_pipe.artifacts import State
from bdl_pipe.config import read
from bdl_pipe.data.examples import Examples
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.errors import ConfigError
from bdl_pipe.networks import Network
from bdl_pipe.posterior import NetworkSpec
from bdl_pipe.registry import posterior_of
from bdl_pipe.seeds import Seed
from bdl_pipe.trajectory.curvature import kronecker_factors, layers_of, layers_with_factors
from bdl_pipe.trajectory.laplace import KFAC_LAPLACE
from tests.cases import LAPLACE, fit
from tests.conftest import make_tiny_images, make_tiny_table

from .test_curvature import dense_block, product

TEXT = Path(__file__).with_name("odd_networks.txt").read_text()
FIRST, MID = "trunk.first", "mid.parametrizations.weight.original"
ATTENTION = ["in_proj_weight", "out_proj.weight"]
FIXED: dict[str, tuple[list[str], list[str]]] = {
    "plain": ([], [FIRST, "trunk.mid", "head"]),
    "weight norm": ([f"{MID}0", f"{MID}1"], [FIRST, "head"]),
    "spectral norm": ([MID], [FIRST, "head"]),
    "attention": ([f"mid.{name}" for name in ATTENTION], [FIRST, "head"]),
    "encoder": (
        [f"mid.self_attn.{name}" for name in ATTENTION],
        [FIRST, "trunk.mid.linear1", "trunk.mid.linear2", "head"],
    ),
    **dict.fromkeys(("twice", "unused", "without outputs"), (["mid.weight"], [FIRST, "head"])),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("odd")
    (path / "odd.py").write_text(TEXT)
    return path


@pytest.fixture(autouse=True)
def there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(folder)
    plugins.load_file("odd.py")
    yield


def section(kind: str, made: str = "Net") -> dict[str, Any]:
    return {"name": "python", "path": "odd.py", "object": made, "options": {"kind": kind}}


def spec_of(kind: str) -> NetworkSpec:
    about = {"network": section(kind), "input_shape": [4], "outputs": 2, "likelihood": "categorical"}
    return read(NetworkSpec, about, "spec")


def built(kind: str) -> Network:
    """Return a network with random weights, in evaluation mode and in float64."""
    return spec_of(kind).build(Seed(1)).eval().double()


def rows(count: int) -> Tensor:
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def classes() -> FitData:
    """The small table, its targets cut at their median."""
    data = make_tiny_table()
    middle = np.median(data.train.targets)
    parts = [Examples(p.inputs, (p.targets[:, 0] > middle).astype(np.int64)) for p in (data.train, data.validation)]
    return FitData("classification", *parts, replace(data.transform, shift=None, scale=None), ("a", "b"))


def trained(kind: str) -> State:
    return fit("sgd", "trajectory", classes(), network=section(kind), epochs=3, snapshots=2)


@pytest.mark.parametrize("kind", FIXED)
def test_the_factors_of_each_layer_equal_the_dense_block_of_one_row(kind: str) -> None:
    """One row and one place a layer: Kronecker's product is the block of the Gauss-Newton matrix."""
    network, spec, row = built(kind), spec_of(kind), rows(1)
    layers = layers_with_factors(network, rows(2))
    assert list(layers) == FIXED[kind][1]
    factors_of = kronecker_factors(network, row, spec, layers)
    for name, factors in factors_of.items():
        torch.testing.assert_close(product(factors), dense_block(network, name, spec, row), rtol=1e-9, atol=1e-12)


def test_the_factors_of_a_layer_called_twice_differ_from_the_dense_block() -> None:
    """This is why Laplace leaves such a layer fixed: it would be drawn from the wrong Gaussian."""
    network, spec, row = built("twice"), spec_of("twice"), rows(1)
    wrong = product(kronecker_factors(network, row, spec)["trunk.mid"])
    assert not torch.allclose(wrong, dense_block(network, "trunk.mid", spec, row), rtol=0.1)


@pytest.mark.parametrize("predictive", ["draws", "linearised"])
@pytest.mark.parametrize("kind", FIXED)
def test_laplace_draws_layers_with_factors_and_a_warning_names_the_fixed_weights(kind: str, predictive: str) -> None:
    data, trajectory, (fixed, drawn) = classes(), trained(kind), FIXED[kind]
    section: dict[str, Any] = {**LAPLACE, "rows": None, "predictive": predictive, "prior_precision": 1.0}
    state = fit("kfac_laplace", "student", data, {"trajectory": [trajectory]}, **section)
    draws = {name: value[1 if predictive == "linearised" else 0 :] for name, value in state.tensors.items()}
    last = {name: value[-1].expand_as(draws[name]) for name, value in trajectory.tensors.items()}
    assert {n.rpartition(".")[0] for n, v in last.items() if not torch.equal(draws[n], v)} == set(drawn)
    config: Any = read(KFAC_LAPLACE.config, section, "methods.kfac_laplace")
    lines = KFAC_LAPLACE.stages["student"].summarise([[state]], [data], config).warnings
    assert len(lines) == bool(fixed)
    assert not fixed or f"the weights {', '.join(fixed)} keep their trained values" in lines[0]
    (inputs, _), posterior = data.tensors("validation"), posterior_of(state)
    mean = posterior.predict(inputs, rng=Seed(0)).mean
    assert mean.isfinite().all() and mean.std() > 0
    if predictive == "linearised":
        functions = posterior.functions(inputs[None, :3], rng=Seed(0))  # type: ignore[attr-defined]
        assert functions.covariance.isfinite().all() and functions.covariance.diagonal(dim1=-2, dim2=-1).min() > 0


@pytest.mark.parametrize("predictive", ["draws", "linearised"])
def test_an_unused_layer_does_not_change_the_predictive_mean(predictive: str) -> None:
    """A network without the layer predicts the same: weights that no output depends on do not count in the evidence."""
    data, trajectory = classes(), trained("unused")
    tensors = {name: value for name, value in trajectory.tensors.items() if not name.startswith("trunk.mid")}
    bare = {name.replace("trunk.first", "trunk.1"): value for name, value in tensors.items()}
    about = {"network": {"name": "mlp", "hidden": [5], "activation": "tanh"}}
    without = State(bare, {**trajectory.config, "spec": trajectory.config["spec"] | about})
    section: dict[str, Any] = {**LAPLACE, "rows": None, "predictive": predictive, "prior_precision": None}
    inputs, _ = data.tensors("validation")
    starts = ({"trajectory": [start]} for start in (trajectory, without))
    mean, meant = (posterior_of(fit("kfac_laplace", "student", data, start, **section)) for start in starts)
    torch.testing.assert_close(mean.predict(inputs, rng=Seed(0)).mean, meant.predict(inputs, rng=Seed(0)).mean)


SAME = r"object must return a network with one name for each weight; call one .*, which are the same weight'"
COMPUTED = r"must have parameters as weights, .* got 'the layer trunk.mid, which"
REFUSED = [
    *(("build", kind, SAME) for kind in ("tied", "one module", "tied head")),
    *(("images", kind, SAME) for kind in ("tied", "one module")),
    ("build", "old weight norm", r"object must return a network that can be copied \(parametrizations.weight"),
    *(("sngp", kind, COMPUTED) for kind in ("weight norm", "spectral norm")),
    *(
        ("dropout", k, r"network\.name must be a network with layers in sequence")
        for k in ("plain", "attention", "unused")
    ),
]


@pytest.mark.parametrize(("way", "kind", "message"), REFUSED)
def test_networks_that_a_method_cannot_take_are_refused(way: str, kind: str, message: str) -> None:
    """Tied weights and networks that cannot be copied when they are built."""
    with pytest.raises(ConfigError, match=message):
        if way == "build":
            spec_of(kind).build(Seed(0))
        elif way == "images":
            fit("sgd", "trajectory", make_tiny_images(), network=section(kind, "Images"), epochs=1)
        else:
            fit(way, "student", classes(), network=section(kind))


def test_a_chain_over_a_network_with_an_unused_layer_is_finite() -> None:
    """The gradient of an unused weight's likelihood is zero; torch has none for it."""
    target = {"network": section("unused"), "prior_precision": 1.0, "noise_precision": 10.0}
    state = fit("sgmcmc", "teacher", classes(), target=target)
    assert all(value.isfinite().all() for value in state.tensors.values() if value.is_floating_point())
    assert list(layers_of(spec_of("unused").build(Seed(0)))) == ["trunk.first", "trunk.mid", "head"]
