"""Features and logits of every posterior that has them, and the rows that evaluation stores of them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bdl_pipe import evaluation, metrics
from bdl_pipe.artifacts import State
from bdl_pipe.config import read
from bdl_pipe.data.examples import Examples
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.errors import DataError
from bdl_pipe.evaluation import EvaluateConfig, last_layer, unfamiliar
from bdl_pipe.metrics import ood
from bdl_pipe.posterior import FeaturesPosterior, NetworkDraws, NetworkSpec, Predictor
from bdl_pipe.predictive import Categorical
from bdl_pipe.registry import POSTERIORS, posterior_of
from bdl_pipe.seeds import Seed

from .cases import CONVNET, fit

SETTINGS = EvaluateConfig(calibration_bins=15, batch=16, joint_pairs=0)
MADE = {  # posterior -> the methods that make it, in order; the last method makes the posterior
    "network_draws": ("sgd", "ensemble"),
    "ciber": ("sgd", "ciber"),
    "vbpc": ("random_coreset", "coreset_vi"),
    "vbpc_bma": ("random_coreset", "coreset_bma"),
    "last_layer": ("d_vbll",),
    "bnn": ("bnn",),
    "dropout": ("dropout",),
    "sngp": ("sngp",),
}


def made(key: str, data: FitData) -> Predictor:
    *first, method = MADE[key]
    inputs = {}
    for other in first:
        kind = "trajectory" if other == "sgd" else "coreset"
        inputs = {kind: [fit(other, kind, data)]}
    changes: dict[str, Any] = {"stochastic": "head"} if method == "bnn" else {}
    state: State = fit(method, "student", data, inputs, **changes)
    assert state.config["posterior"] == key
    return Predictor(posterior_of(state), data.transform)


def test_every_posterior_with_a_last_layer_is_made_here() -> None:
    some = {key for key, posterior in POSTERIORS.items() if issubclass(posterior, FeaturesPosterior)}
    assert {*MADE} == some - {"linearised_draws", "linearised_laplace"}


@pytest.mark.parametrize("key", [key for key in MADE if key not in ("network_draws", "ciber", "vbpc_bma")])
def test_logits_are_affine_in_the_features_and_zero_at_the_origin(key: str, tiny_images: FitData) -> None:
    """Least squares recovers the affine map; its logits at the origin are 0."""
    fitted = made(key, tiny_images)
    inputs = fitted.transform.inputs(tiny_images.train.inputs)
    layer = last_layer(fitted.posterior, inputs, rng=Seed(0))
    assert layer.logits is not None and layer.origin is not None and len(layer.features) == len(inputs)
    design = torch.cat([layer.features, torch.ones(len(inputs), 1)], 1).double()
    solved = torch.linalg.lstsq(design, layer.logits.double(), driver="gelsd").solution
    torch.testing.assert_close(design @ solved, layer.logits.double(), rtol=1e-4, atol=1e-4)
    assert layer.weight is not None
    torch.testing.assert_close(torch.nn.functional.linear(layer.features, layer.weight, layer.bias), layer.logits)
    if torch.linalg.matrix_rank(design) == design.shape[1]:
        there = torch.cat([layer.origin, torch.ones(1)]).double() @ solved
        torch.testing.assert_close(there, torch.zeros_like(there), rtol=0, atol=1e-3)


@pytest.mark.parametrize("key", ["ciber", "vbpc", "last_layer", "bnn", "dropout", "sngp"])
def test_react_is_stored_where_one_trunk_has_a_linear_last_layer(key: str, tiny_images: FitData) -> None:
    """A last layer of variational means has weights that are parameters, which NumPy refuses."""
    fitted, held = made(key, tiny_images), sets(tiny_images)
    table = evaluation.stored_rows(fitted, tiny_images.train, held.test, held.others, SETTINGS, Seed(0))
    assert table is not None and ("score_react" in table.column_names) == (key != "ciber"), "snapshots share no trunk"


def network(draws: int, *, shared: bool) -> NetworkDraws:
    section = {"network": CONVNET, "input_shape": [1, 8, 8], "outputs": 3, "likelihood": "categorical"}
    spec = read(NetworkSpec, section, "spec")
    states = [spec.build(Seed(k)).state_dict() for k in range(draws)]
    if shared:
        states = [{n: states[0][n] if n.startswith("trunk.") else v for n, v in s.items()} for s in states]
    return NetworkDraws.of(spec, states)


def by_hand(posterior: NetworkDraws, draw: int, inputs: Tensor) -> tuple[Tensor, Tensor]:
    module = posterior.spec.build(Seed(9)).eval()
    module.load_state_dict({name: value[draw] for name, value in posterior.weights.items()})
    with torch.no_grad():
        return module.features(inputs), module(inputs)


@pytest.mark.parametrize("shared", [True, False])
def test_features_and_logits_are_the_means_over_draws(shared: bool) -> None:
    posterior, inputs = network(3, shared=shared), torch.randn(5, 1, 8, 8, generator=Seed(1).generator())
    layer, of_draws = last_layer(posterior, inputs, rng=Seed(0)), [by_hand(posterior, k, inputs) for k in range(3)]
    features, logits = (torch.stack(part) for part in zip(*of_draws, strict=True))
    torch.testing.assert_close(layer.features, features.mean(0), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(layer.logits, logits.mean(0), rtol=1e-5, atol=1e-6)
    assert (layer.weight is not None) == shared, "no weight of a layer on features that differ from draw to draw"
    one = network(1, shared=True)
    predicted = one.predict(inputs)
    assert isinstance(predicted, Categorical)
    alone = last_layer(one, inputs, rng=Seed(0)).logits
    assert alone is not None
    torch.testing.assert_close(alone.log_softmax(-1), predicted.log_probs)


def test_a_posterior_without_features_is_refused_in_one_line(tiny_images: FitData) -> None:
    fitted = posterior_of(fit("ffg_u", "student", tiny_images))
    with pytest.raises(DataError, match=r"^a posterior random_weights has no features: [^\n]+$"):
        last_layer(fitted, tiny_images.transform.inputs(tiny_images.train.inputs[:2]), rng=Seed(0))


@dataclass(frozen=True)
class Sets:
    test: Examples
    others: dict[str, Examples]


def sets(data: FitData) -> Sets:
    random = Seed(3).numpy()
    other = Examples(random.integers(0, 256, (30, 1, 8, 8), dtype=np.uint8), np.zeros(30, np.int64))
    return Sets(data.validation, {"noise": other})


@pytest.mark.parametrize("width", [2, unfamiliar.WIDEST])
def test_stored_rows_hold_the_predictions_and_features_of_the_posterior(
    width: int, tiny_images: FitData, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Predictions to 1e-5, features, or their products with fixed directions, to the digits of float16."""
    monkeypatch.setattr(unfamiliar, "WIDEST", width)
    monkeypatch.setattr(unfamiliar, "MOST", {"train": 50, "test": 20})
    monkeypatch.setattr(unfamiliar, "MOST_OTHERS", 12)
    fitted, held = Predictor(network(2, shared=True), tiny_images.transform), sets(tiny_images)
    table = evaluation.stored_rows(fitted, tiny_images.train, held.test, held.others, SETTINGS, Seed(0))
    assert table is not None
    assert table["set"].to_pylist() == ["train"] * 50 + ["test"] * 20 + ["noise"] * 12 + ["origin"]
    stored = ood.of_table(table)
    rows = table["row"].to_numpy()[50:70]
    predicted = fitted.predict(held.test.inputs[rows], rng=Seed(0))
    assert isinstance(predicted, Categorical)
    np.testing.assert_allclose(stored.test.log_probs, predicted.log_probs.numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(stored.test.labels, held.test.targets[rows])
    assert (stored.others["noise"].labels == -1).all()
    np.testing.assert_allclose(
        stored.test.own["mutual_information"], -predicted.mutual_information().numpy(), rtol=1e-4, atol=1e-7
    )
    layer = last_layer(fitted.posterior, fitted.transform.inputs(held.test.inputs[rows]), rng=Seed(0))
    features = layer.features
    of_train = fitted.transform.inputs(tiny_images.train.inputs[table["row"].to_numpy()[:50]])
    train_features = last_layer(fitted.posterior, of_train, rng=Seed(0)).features.numpy()
    assert layer.weight is not None and layer.bias is not None
    clipped = ood.react(train_features, features.numpy(), layer.weight.numpy(), layer.bias.numpy())
    np.testing.assert_allclose(stored.test.own["react"], clipped, rtol=1e-5, err_msg="of all features, not of some")
    assert (ood.scores_of(stored)["react"]["test"] == stored.test.own["react"]).all()
    assert layer.logits is not None and stored.test.features is not None and stored.train.origin is not None
    assert stored.test.logits is not None
    if width < features.shape[1]:
        directions = unfamiliar._directions(features.shape[1])
        torch.testing.assert_close(directions.T @ directions, torch.eye(width), rtol=0, atol=1e-6)
        features = features @ directions
    assert stored.test.features.dtype == np.float16 and stored.test.features.shape[1] == features.shape[1]
    np.testing.assert_allclose(stored.test.features, features.numpy(), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(stored.test.logits, layer.logits.numpy(), rtol=1e-5, atol=1e-5)
    kept = evaluation.training_rows(tiny_images.train)
    again = evaluation.stored_rows(fitted, kept, held.test, held.others, SETTINGS, Seed(0))
    assert again is not None and again.drop_columns(["row"]).equals(table.drop_columns(["row"]))


def test_rows_are_stored_only_with_unfamiliar_sets_and_change_no_score(tiny_images: FitData) -> None:
    fitted, held = Predictor(network(2, shared=False), tiny_images.transform), sets(tiny_images)
    others: dict[str, Any] = {"ood": held.others, "transfer": {}}
    before, plain = evaluation.score_all(fitted, held.test, SETTINGS, Seed(0), **others)
    after, clean = evaluation.score_all(fitted, held.test, SETTINGS, Seed(0), **others, train=tiny_images.train)
    timed = {quantity for quantity in before if quantity.metric == "seconds_per_1000"}
    assert {q: v for q, v in before.items() if q not in timed} == {q: v for q, v in after.items() if q not in timed}
    assert plain.unfamiliar is None and "unfamiliar" not in plain.tables
    stored = ood.of_table(clean.tables["unfamiliar"])
    assert stored.test.features is not None and "react" not in stored.test.own, "the two trunks differ"
    scores = ood.scores_of(stored)  # all rows fit under the caps, so that the common score is the report's
    auroc = metrics.detection(scores["max_softmax"]["test"], scores["max_softmax"]["noise"])["auroc"]
    (known_as,) = (v for q, v in after.items() if (q.metric, q.score, q.set) == ("auroc", "max_prob", "ood"))
    assert auroc == pytest.approx(known_as[0], abs=1e-9)
    others["ood"] = {}
    _, without = evaluation.score_all(fitted, held.test, SETTINGS, Seed(0), **others, train=tiny_images.train)
    assert without.unfamiliar is None


def test_an_unfamiliar_set_with_the_name_of_a_part_is_refused(tiny_images: FitData) -> None:
    fitted, held = Predictor(network(1, shared=True), tiny_images.transform), sets(tiny_images)
    others = {"origin": held.others["noise"]}
    with pytest.raises(DataError, match="an unfamiliar set must not have the name origin"):
        evaluation.stored_rows(fitted, tiny_images.train, held.test, others, SETTINGS, Seed(0))


def test_features_that_float16_cannot_hold_are_stored_as_float32(tiny_images: FitData) -> None:
    posterior = network(1, shared=True)
    norm = [name for name in posterior.weights if name.startswith("trunk.") and name.endswith("weight")]
    posterior.weights[norm[-1]] = 1e7 * posterior.weights[norm[-1]]
    held = sets(tiny_images)
    fitted = Predictor(posterior, tiny_images.transform)
    table = evaluation.stored_rows(fitted, tiny_images.train, held.test, held.others, SETTINGS, Seed(0))
    features = ood.of_table(table).test.features if table is not None else None
    assert features is not None and features.dtype == np.float32 and np.isfinite(features).all()
