"""The posterior of a module, of every method: to eight threads, and as a copy by pickle, the answers of one thread."""

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from bdl_pipe import METHODS, ModulePosterior, bayesianise
from bdl_pipe.own_model.start import able
from tests.threads import at_once

X = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
Y = X[:, :1] - X[:, 1:2] ** 2
LABELS = (Y[:, 0] > 0).long()
ALONE = ("deterministic", "kfac_laplace")  # they train nothing
QUICK = ("kfac_laplace", "swag", "d_vbll", "ffg_u")


def cases() -> list[Any]:
    """Return every method on each of its tasks."""
    pairs = [(method, task) for method in able() for task in METHODS[method].tasks]
    return [pytest.param(*pair, marks=[pytest.mark.soak] * (pair[0] not in QUICK), id="-".join(pair)) for pair in pairs]


def fitted(method: str, task: str) -> ModulePosterior:
    network = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1 if task == "regression" else 2))
    targets = Y if task == "regression" else LABELS
    loader = [(X[start : start + 16], targets[start : start + 16]) for start in range(0, 64, 16)]
    more: dict[str, Any] = {} if method in ALONE else {"epochs": 1}
    if method == "kfac_laplace":
        more = {"config": {"layers": "all"}}
    if method == "dark_knowledge":
        more["teacher"] = bayesianise(network, "kfac_laplace", loader)
    return bayesianise(network, method, loader, **more)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "task"), cases())
def test_answers_to_eight_threads_and_of_a_copy_equal_the_answers_alone(method: str, task: str) -> None:
    posterior = fitted(method, task)
    rows = [X[start : start + 3] for start in range(4)]
    targets = torch.zeros(1, 3, 1) if task == "regression" else torch.zeros(1, 3, dtype=torch.int64)
    calibrated = posterior.recalibrated([(X, Y if task == "regression" else LABELS)])

    def ask(of: tuple[ModulePosterior, ModulePosterior], part: torch.Tensor) -> list[np.ndarray]:
        plain, recalibrated = of
        predictives = [plain.predict(part), plain.predict_dist(part), recalibrated.predict(part)]
        joint = plain.joint(part[None], draws=4).log_prob(targets)
        return [*(p.mean.numpy() for p in predictives), *(p.variance.numpy() for p in predictives), joint.numpy()]

    both = posterior, calibrated
    alone = [ask(both, part) for part in rows]
    for number, found in enumerate(at_once(lambda part: ask(both, part), rows * 4)):
        for value, meant in zip(found, alone[number % 4], strict=True):
            np.testing.assert_array_equal(value, meant, err_msg=f"answer {number}")
    copied = pickle.loads(pickle.dumps(both))
    for value, meant in zip(ask(copied, rows[1]), alone[1], strict=True):
        np.testing.assert_array_equal(value, meant, err_msg="the copy")
