"""FRePo learns; ``test_oracles_gradients`` tests its loss and gradients, ``test_protocols`` its ridge regression."""

from typing import Any

import torch

from bdl_pipe import config, networks
from bdl_pipe.artifacts import State
from bdl_pipe.coresets import frepo
from bdl_pipe.coresets.protocols.network import ridge_head
from bdl_pipe.coresets.shared.init import balanced
from bdl_pipe.progress import Report, Silent
from bdl_pipe.seeds import Seed
from tests.cases import CONFIGS

from .cases import tiny_data, tiny_vbpc

SECTION = CONFIGS["frepo", "classification"] | {"coreset": tiny_vbpc()["coreset"]}


def read(**changes: Any) -> frepo.FrepoConfig:
    return config.read(frepo.FrepoConfig, SECTION | changes, "methods.frepo")


def distilled(report: Report | None = None, **changes: Any) -> State:
    return frepo.FREPO.stages["coreset"].fit_one(
        tiny_data(), {}, read(**changes), rng=Seed(2), report=report or Silent()
    )


def test_a_frepo_coreset_predicts_the_data_better_than_its_start() -> None:
    """Under its own ridge regression, on a fresh network's features."""
    long = {"coreset": SECTION["coreset"] | {"steps": 60, "batch": 60, "lr": 0.05}}
    data, made = tiny_data(), distilled(**long)
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
