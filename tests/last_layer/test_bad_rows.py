"""Every last layer refuses invalid targets, no rows and features of a wrong width, with a message of one line."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from bdl_pipe.last_layer import Discriminative, Generative, Regression
from bdl_pipe.last_layer.layer import check_features, check_rows
from bdl_pipe.last_layer.regression import condition
from tests.refusals import refusal

WIDTH, CLASSES = 6, 3
FEATURES = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 1, 2, 1])
NUMBERS = torch.randn(4, 1, generator=torch.Generator().manual_seed(1))
CLASSIFIERS: dict[str, Callable[[], Any]] = {
    "dense": lambda: Discriminative(WIDTH, CLASSES),
    "diagonal": lambda: Discriminative(WIDTH, CLASSES, covariance="diagonal"),
    "low rank": lambda: Discriminative(WIDTH, CLASSES, covariance="lowrank", rank=2),
    "generative": lambda: Generative(WIDTH, CLASSES, class_counts=[5, 5, 5]),
}
LAYERS = {**CLASSIFIERS, "regression": lambda: Regression(WIDTH, 1)}
BAD_LABELS: list[tuple[Tensor, str]] = [
    (torch.tensor([0, 1, 2, 1.5]), "labels must be whole numbers, got 1.5"),
    (torch.tensor([0, 1, math.nan, 1]), "labels must be whole numbers, got nan"),
    (torch.tensor([0, 1, 3, 0]), "labels must be in 0 … 2, got 3"),
    (torch.tensor([0.0, 1, 3, 0]), "labels must be in 0 … 2, got 3"),
    (torch.tensor([0, -1, 2, 0]), "labels must be in 0 … 2, got -1"),
    (torch.tensor([0, 1, 2]), "targets must be 4 class numbers, got shape (3,)"),
    (torch.tensor([[0], [1], [2], [0]]), "targets must be 4 class numbers, got shape (4, 1); pass y[:, 0]"),
    (LABELS + 0j, "labels must be whole numbers, got torch.complex64"),
]
every_layer = pytest.mark.parametrize("name", LAYERS)


def calls(layer: Any) -> dict[str, Callable[[Tensor, Tensor], Any]]:
    """Return the calls of a layer that take rows, by name; an exact posterior and a refit take batches of them."""
    of_batches = {"refit": layer.refit_noise, "exact": layer.condition} if isinstance(layer, Generative) else {}
    of_batches |= {"exact": lambda batches: condition(layer, batches)} if isinstance(layer, Regression) else {}
    return {
        "bound": layer.bound,
        "loss": lambda x, y: layer.loss(x, y, num_train=9),
        **{name: lambda x, y, call=call: call([(x, y)]) for name, call in of_batches.items()},
    }


@every_layer
def test_bad_rows_are_refused_by_every_call_of_a_layer(name: str) -> None:
    layer, targets = LAYERS[name](), NUMBERS if name == "regression" else LABELS
    of_numbers = [
        (NUMBERS[:, 0], "targets must have shape (4, 1), got (4,)"),
        (NUMBERS + 0j, "targets must be a tensor of real numbers, got torch.complex64; pass torch.as_tensor(targets)"),
    ]
    bad = [(FEATURES, y, message) for y, message in (of_numbers if name == "regression" else BAD_LABELS)]
    bad += [(FEATURES[:, 1:], targets, "features must have 6 columns, got 5")]
    bad += [(FEATURES[:0], targets[:0], "features must have at least one row, got none")]
    infinite = (FEATURES.masked_fill(FEATURES > 1, math.inf), targets, "features must be finite")
    wrong = {}
    for kind, call in calls(layer).items():
        for x, y, message in [*bad, infinite] if kind in ("refit", "exact") else bad:
            of_batches = message.replace("features must have at", "batches must have at")
            meant = of_batches if kind in ("refit", "exact") else message
            if kind == "exact" and name == "regression" and y.is_complex():
                continue  # the bound that trained the layer has seen these rows
            if (error := refusal(call, x, y)) != f"DataError: {meant}":
                wrong[kind, message] = error
    assert wrong == {}
    for call in (layer.refit_noise, layer.condition) if isinstance(layer, Generative) else ():
        assert refusal(call, []) == "DataError: batches must have at least one row, got none"
    if name == "regression":
        assert refusal(condition, layer, []) == "DataError: batches must have at least one row, got none"
    assert refusal(layer.predict, FEATURES[:, 1:]) == "DataError: features must have 6 columns, got 5"
    assert layer.predict(FEATURES[:0]).mean.shape == (0, 1 if name == "regression" else CLASSES)
    if name in ("regression", "generative"):
        loss = refusal(layer.loss, FEATURES, targets, num_train=0)
        assert loss == "ConfigError: num_train must be > 0, got 0"


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_labels_of_every_dtype_give_the_same_loss(name: str) -> None:
    layer = CLASSIFIERS[name]()
    expected = layer.loss(FEATURES, LABELS, num_train=9)
    for kind in (torch.uint8, torch.int32, torch.float32, torch.float64):
        assert torch.equal(layer.loss(FEATURES, LABELS.to(kind), num_train=9), expected), kind


def test_the_checks_refuse_features_that_are_not_dense_real_rows() -> None:
    """The checks are called directly, because the tests enforce the layers' annotations and users do not."""
    message = refusal(check_rows, FEATURES[:, None].expand(4, 2, WIDTH))
    assert message.startswith("DataError: features must have shape [row, feature], got [4, 2, 6]")
    for odd in (FEATURES + 0j, FEATURES > 0, FEATURES.to_sparse()):
        message = refusal(check_features, odd, WIDTH)
        assert message.startswith("DataError: features must be a dense tensor of real numbers, got torch")


def test_a_prediction_refuses_the_log_probability_of_invalid_labels() -> None:
    predictive = CLASSIFIERS["dense"]().predict(FEATURES)
    bad = [*BAD_LABELS[:1], BAD_LABELS[2], BAD_LABELS[4]]
    bad += [(BAD_LABELS[6][0], "labels must have shape [row], got [4, 1]")]
    for labels, message in bad:
        assert refusal(predictive.log_prob, labels).startswith(f"DataError: {message}")
