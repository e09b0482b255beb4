"""Every last layer refuses invalid labels, no rows and features of a wrong width, with a message of one line."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from bdl_pipe.errors import DataError
from bdl_pipe.last_layer import Discriminative, Generative, Regression
from bdl_pipe.last_layer.layer import check_features, check_rows

WIDTH, CLASSES = 6, 3
FEATURES = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 1, 2, 1])
LAYERS: dict[str, Callable[[], Any]] = {
    "dense": lambda: Discriminative(WIDTH, CLASSES),
    "diagonal": lambda: Discriminative(WIDTH, CLASSES, covariance="diagonal"),
    "low rank": lambda: Discriminative(WIDTH, CLASSES, covariance="lowrank", rank=2),
    "generative": lambda: Generative(WIDTH, CLASSES, class_counts=[5, 5, 5]),
}
LABELS_THAT_ARE_NONE: dict[str, tuple[Tensor, str]] = {
    "between classes": (torch.tensor([0, 1, 2, 1.5]), "^labels must be whole numbers, got 1.5$"),
    "no number": (torch.tensor([0, 1, float("nan"), 1]), "^labels must be whole numbers, got nan$"),
    "too large": (torch.tensor([0, 1, 3, 0]), "^labels must be in 0 … 2, got 3$"),
    "too large, a float": (torch.tensor([0.0, 1, 3, 0]), "^labels must be in 0 … 2, got 3$"),
    "below zero": (torch.tensor([0, -1, 2, 0]), "^labels must be in 0 … 2, got -1$"),
    "too few": (torch.tensor([0, 1, 2]), r"^targets must be 4 class numbers, got shape \(3,\)$"),
    "a column": (
        torch.tensor([[0], [1], [2], [0]]),
        r"^targets must be 4 class numbers, got shape \(4, 1\); pass y\[:, 0\]$",
    ),
}


@pytest.mark.parametrize("bad", LABELS_THAT_ARE_NONE)
@pytest.mark.parametrize("name", LAYERS)
def test_invalid_labels_are_refused(name: str, bad: str) -> None:
    layer, (labels, message) = LAYERS[name](), LABELS_THAT_ARE_NONE[bad]
    asks = [lambda: layer.loss(FEATURES, labels, num_train=9), lambda: layer.bound(FEATURES, labels)]
    if name == "generative":
        asks += [lambda: layer.refit_noise([(FEATURES, labels)]), lambda: layer.condition([(FEATURES, labels)])]
    for ask in asks:
        with pytest.raises(DataError, match=message):
            ask()


@pytest.mark.parametrize("name", LAYERS)
def test_whole_labels_of_floating_type_are_class_numbers(name: str) -> None:
    layer = LAYERS[name]()
    assert torch.equal(layer.loss(FEATURES, LABELS.float(), num_train=9), layer.loss(FEATURES, LABELS, num_train=9))


@pytest.mark.parametrize("name", [*LAYERS, "regression"])
def test_no_rows_and_features_of_a_wrong_width_are_refused(name: str) -> None:
    layer = Regression(WIDTH, 1) if name == "regression" else LAYERS[name]()
    targets = torch.randn(4, 1) if name == "regression" else LABELS
    for ask in (layer.bound, lambda x, y: layer.loss(x, y, num_train=9)):
        with pytest.raises(DataError, match=r"^features must have at least one row, got none$"):
            ask(FEATURES[:0], targets[:0])
        with pytest.raises(DataError, match=r"^features must have 6 columns, got 5$"):
            ask(FEATURES[:, 1:], targets)
    with pytest.raises(DataError, match=r"^features must have 6 columns, got 5$"):
        layer.predict(FEATURES[:, 1:])
    assert layer.predict(FEATURES[:0]).mean.shape == (0, 1 if name == "regression" else CLASSES)


@pytest.mark.parametrize("name", [*LAYERS, "regression"])
def test_complex_targets_are_refused(name: str) -> None:
    layer = Regression(WIDTH, 1) if name == "regression" else LAYERS[name]()
    targets: Any = torch.randn(4, 1) if name == "regression" else LABELS
    for ask in (layer.bound, lambda x, y: layer.loss(x, y, num_train=9)):
        with pytest.raises(DataError, match=r"got torch.complex64"):
            ask(FEATURES, targets + 0j)


def test_the_checks_refuse_features_that_are_not_dense_real_rows() -> None:
    """The checks are called directly, because the tests enforce the layers' annotations and users do not."""
    with pytest.raises(DataError, match=r"^features must have shape \[row, feature\], got \[4, 2, 6\]"):
        check_rows(FEATURES[:, None].expand(4, 2, WIDTH))
    for odd in (FEATURES + 0j, FEATURES > 0, FEATURES.to_sparse()):
        with pytest.raises(DataError, match=r"^features must be a dense tensor of real numbers, got torch"):
            check_features(odd, WIDTH)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.tensor([0, 1, 2, 1.5]), "labels must be whole numbers, got 1.5"),
        (torch.tensor([0, 1, 3, 0]), "labels must be in 0 … 2, got 3"),
        (torch.tensor([0, -1, 2, 0]), "labels must be in 0 … 2, got -1"),
        (torch.tensor([[0], [1], [2], [0]]), r"labels must have shape \[row\], got \[4, 1\]"),
    ],
)
def test_a_prediction_refuses_the_log_probability_of_invalid_labels(labels: Tensor, message: str) -> None:
    with pytest.raises(DataError, match=message):
        LAYERS["dense"]().predict(FEATURES).log_prob(labels)
