"""torch's settings, float64 and threads of the user's code around :func:`bdl_pipe.bayesianise`."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bdl_pipe import METHODS, ModulePosterior, bayesianise
from bdl_pipe.errors import DataError
from bdl_pipe.own_model.start import able
from tests.threads import assert_same_wherever
from tests.torch_modes import float64_as_the_default

from .models import Function

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(60, 4, generator=GENERATOR)
Y = (X[:, 0] > 0).long() + (X[:, 1] > 1).long()
EPOCHS = {"kfac_laplace": None, "d_vbll": 1, "sgmcmc": 2}
MODES: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "no gradients": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "float64 as the default": float64_as_the_default,
    "another default device": lambda: torch.device("meta"),
}


def model() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        of = {"dtype": torch.float32, "device": "cpu"}
        return nn.Sequential(nn.Linear(4, 16, **of), nn.ReLU(), nn.Linear(16, 3, **of))


def answers(method: str) -> Tensor:
    posterior = bayesianise(model(), method, [(X.clone(), Y.clone())], epochs=EPOCHS[method])
    return posterior.recalibrated([(X, Y)]).predict(X[:20]).draw_log_probs


@pytest.fixture(scope="module")
def plain() -> dict[str, Tensor]:
    return {method: answers(method) for method in EPOCHS}


@pytest.mark.parametrize("method", EPOCHS)
@pytest.mark.parametrize("mode", MODES)
def test_a_mode_of_the_users_code_changes_no_bit(mode: str, method: str, plain: dict[str, Tensor]) -> None:
    with MODES[mode]():
        before = torch.get_default_dtype(), torch.get_default_device()
        inside = answers(method)
        assert before == (torch.get_default_dtype(), torch.get_default_device())
        assert torch.is_inference_mode_enabled() == (mode == "inference")
        assert torch.is_grad_enabled() == (mode not in ("no gradients", "inference"))
        assert torch.is_autocast_enabled("cpu") == (mode == "autocast")
    assert torch.equal(inside, plain[method])


def test_products_of_float32_are_exact_inside_a_fit_and_as_the_user_has_set_them_after_it() -> None:
    """Small products have the same bits at each precision, so that the bits of small fits tell nothing."""
    seen = set[str]()
    looks = Function(lambda inputs: seen.add(torch.get_float32_matmul_precision()) or inputs)
    torch.set_float32_matmul_precision("medium")
    try:
        bayesianise(nn.Sequential(looks, *model()), "d_vbll", [(X, Y)], epochs=1).predict(X)
        assert seen == {"highest"} and torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize(
    ("inputs", "spoilt"),
    [
        (1.7e9 + 60 * X.double(), True),  # float32 has a number each 128
        (1.7e9 + 6e5 * X.double(), False),
        (X.double(), False),
        (1.7e9 + 0 * X.double() + 1, False),  # a constant that moves tells nothing
    ],
)
def test_inputs_that_float32_would_not_keep_apart_are_refused(inputs: Tensor, spoilt: bool) -> None:
    shifted = nn.Sequential(Function(lambda times: (times - 1.7e9) / 1e6), *model())  # a clock's time
    if not spoilt:
        bayesianise(shifted, "kfac_laplace", [(inputs, Y)])
        return
    rule = r"train_loader: inputs must keep values from .* apart in float32, which rounds them by up to .*; subtract"
    with pytest.raises(DataError, match=rule):
        bayesianise(shifted, "kfac_laplace", [(inputs[:30], Y[:30]), (inputs[30:], Y[30:])])


ROWS = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
TARGETS = ROWS[:, :1] - ROWS[:, 1:2] ** 2
LABELS = (TARGETS[:, 0] > 0).long()
ALONE = ("deterministic", "kfac_laplace")  # they train nothing
QUICK = ("kfac_laplace", "swag", "d_vbll", "ffg_u")


def cases() -> list[Any]:
    """Return every method on each of its tasks."""
    pairs = [(method, task) for method in able() for task in METHODS[method].tasks]
    return [pytest.param(*pair, marks=[pytest.mark.soak] * (pair[0] not in QUICK), id="-".join(pair)) for pair in pairs]


def fitted(method: str, task: str) -> ModulePosterior:
    network = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1 if task == "regression" else 2))
    targets = TARGETS if task == "regression" else LABELS
    loader = [(ROWS[start : start + 16], targets[start : start + 16]) for start in range(0, 64, 16)]
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
    targets = torch.zeros(1, 3, 1) if task == "regression" else torch.zeros(1, 3, dtype=torch.int64)
    calibrated = posterior.recalibrated([(ROWS, TARGETS if task == "regression" else LABELS)])

    def ask(of: tuple[ModulePosterior, ModulePosterior], part: torch.Tensor) -> list[np.ndarray]:
        plain, recalibrated = of
        predictives = [plain.predict(part), plain.predict_dist(part), recalibrated.predict(part)]
        joint = plain.joint(part[None], draws=4).log_prob(targets)
        return [*(p.mean.numpy() for p in predictives), *(p.variance.numpy() for p in predictives), joint.numpy()]

    assert_same_wherever((posterior, calibrated), ask, ROWS, times=4)
