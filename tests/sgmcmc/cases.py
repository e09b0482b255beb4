"""Tiny data, configs and a network for chains and students."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from bdl_pipe import networks
from bdl_pipe.config import merge, read
from bdl_pipe.data.examples import Examples
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.data.transform import Transform
from bdl_pipe.sgmcmc.method import SgmcmcConfig
from tests.cases import SGMCMC

SECTION = merge(SGMCMC, {"sampler": {"step_size": {"name": "constant", "value": 1e-3}}})


def settings(**override) -> SgmcmcConfig:
    return read(SgmcmcConfig, merge(SECTION, override), "methods.sgmcmc")


def images() -> FitData:
    """60 + 12 images of 4×4 in two classes: bright above or below."""
    random = np.random.default_rng(0)
    labels = np.arange(72) % 2
    pixels = random.integers(0, 100, (72, 1, 4, 4))
    pixels[labels == 0, :, :2] += 120
    pixels[labels == 1, :, 2:] += 120
    pixels = pixels.astype(np.uint8)
    transform = Transform("image", torch.tensor([0.4]), torch.tensor([0.3]))
    parts = Examples(pixels[:60], labels[:60]), Examples(pixels[60:], labels[60:])
    return FitData("classification", *parts, transform, ("above", "below"))


def table(rows: int = 40, validation: int = 0) -> FitData:
    """y = 5 + 3 (x₀ − x₁) + noise, in units that differ from the standardised ones."""
    random = np.random.default_rng(1)
    inputs = random.normal(4, 2, (rows, 2))
    targets = (5 + 3 * (inputs[:, 0] - inputs[:, 1]) + random.normal(0, 1, rows))[:, None]
    x, y = torch.tensor(inputs), torch.tensor(targets)
    transform = Transform("table", x.mean(0), x.std(0), shift=y.mean(0), scale=y.std(0))
    cut = rows - validation
    parts = Examples(inputs[:cut], targets[:cut]), Examples(inputs[cut:], targets[cut:])
    return FitData("regression", *parts, transform)


@dataclass(frozen=True)
class Linear:
    """A network without hidden layers: on unit vectors it can be any function."""

    name: Literal["linear_of_tests"] = "linear_of_tests"


def registered_linear() -> Iterator[None]:
    """The body of a fixture that registers the network for a test."""
    networks.register_network(Linear, lambda config, shape, generator: (torch.nn.Identity(), shape[0]))
    yield
    del networks.NETWORKS._others["linear_of_tests"]
