"""The generative layer of the tests, with features and labels for it."""

import pytest
import torch
from torch import Tensor

from bdl_pipe.last_layer import Generative

from .generative_cases import CLASSES, ROWS, WIDTH, draws, make


@pytest.fixture
def layer() -> Generative:
    return make()


@pytest.fixture
def features() -> Tensor:
    return 1.5 * draws(ROWS, WIDTH, at="features")


@pytest.fixture
def labels() -> Tensor:
    return torch.arange(ROWS) % CLASSES
