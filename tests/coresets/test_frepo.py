"""FRePo: its loss by hand, and that it learns; its gradients and its ridge regression are in the oracles' tests."""

from typing import Any

import numpy as np
import pytest
import torch

from bdl_pipe import config
from bdl_pipe.artifacts import State
from bdl_pipe.coresets import frepo
from bdl_pipe.coresets.protocols.network import ridge_head
from bdl_pipe.coresets.shared.init import balanced
from bdl_pipe.errors import ConfigError
from bdl_pipe.progress import Report, Silent
from bdl_pipe.seeds import Seed
from tests.cases import CONFIGS

from .cases import normal, tiny_data, tiny_vbpc

SECTION = CONFIGS["frepo", "classification"] | {"coreset": tiny_vbpc()["coreset"]}


def read(**changes: Any) -> frepo.FrepoConfig:
    return config.read(frepo.FrepoConfig, SECTION | changes, "methods.frepo")


def distilled(report: Report | None = None, **changes: Any) -> State:
    return frepo.FREPO.stages["coreset"].fit_one(
        tiny_data(), {}, read(**changes), rng=Seed(2), report=report or Silent()
    )


def test_the_loss_is_that_of_numpy() -> None:
    features, labels, batch = normal(6, 9, at="f"), normal(6, 3, at="y"), normal(5, 9, at="b")
    classes, ridge = torch.tensor([0, 2, 1, 1, 0]), 1e-3
    found = frepo.ridge_loss(batch @ ridge_head(features, labels, ridge), classes, labels)
    phi, y = features.numpy(), labels.numpy()
    gram = phi @ phi.T
    penalty = float(ridge * np.trace(gram) / 6)
    predictions = batch.numpy() @ phi.T @ np.linalg.inv(gram + penalty * np.eye(6)) @ y
    error = predictions - (np.eye(3)[classes] - 1 / 3)
    top = -np.sort(-y, axis=1)
    expected = 0.5 * (error**2).sum(1).mean() - np.minimum(top[:, 0] - top[:, 1], 1 / 3).mean()
    assert float(found) == pytest.approx(expected, rel=1e-10)


def test_it_predicts_the_data_better_than_the_images_it_started_from() -> None:
    """Under its own ridge regression, on a fresh network's features."""
    long = {"coreset": SECTION["coreset"] | {"steps": 60, "batch": 60, "lr": 0.05}}
    data, made = tiny_data(), distilled(**long)
    from bdl_pipe import networks

    network = networks.build(read().network, data.input_shape, 3, rng=Seed(77)).eval()
    inputs, classes = data.tensors("train")
    losses = []
    for images, labels in (
        (made.tensors["images"], made.tensors["labels"]),
        (lambda s: (s.images, s.labels))(balanced(data, 2, 1.0, rng=Seed(2).fold("start"))),
    ):
        with torch.no_grad():
            head = ridge_head(network.trunk(images), labels, 1e-3)
            targets = torch.nn.functional.one_hot(classes, 3) - 1 / 3
            losses.append(float((network.trunk(inputs).double() @ head - targets).square().mean()))
    assert losses[0] < 0.9 * losses[1]


@pytest.mark.parametrize("changes", [{"ipc": 0}, {"ridge": 0.0}])
def test_numbers_out_of_range_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="must be > 0"):
        read(**changes)
