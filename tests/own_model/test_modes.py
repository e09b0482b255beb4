"""torch's settings and float64 of the user's code around :func:`bdl_pipe.bayesianise`."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
from torch import Tensor, nn

from bdl_pipe import bayesianise
from bdl_pipe.errors import DataError
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


def test_a_head_of_float64_keeps_a_bias_that_float32_would_round() -> None:
    """A bias of 100,000,003 became 100,000,000: means were off by 3, and the deviations were 3 instead of .1."""
    own = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    torch.nn.init.constant_(own[2].bias, 100_000_003)
    mean = own(X.double()).detach()
    targets = mean + 0.1 * torch.randn(60, 1, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    predictive = bayesianise(own, "deterministic", [(X.double(), targets)]).predict(X.double())
    torch.testing.assert_close(predictive.mean, mean, rtol=0, atol=1e-5)
