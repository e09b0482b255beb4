"""E[softmax] by each rule against 10⁵ draws, over the range of logits that a trained head gives."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bdl_pipe.last_layer import discriminative as softmax
from bdl_pipe.seeds import Seed

from .cases import draw

TRUTH_DRAWS = 100_000
# (classes, confidence, variance) -> rule -> largest mean total variation allowed over 24 rows; the limits of the two
# approximations are the errors that a user should expect
TOLERANCE = {
    (2, 1.0, 0.3): {"mean_field": 0.02, "quadrature": 0.002},
    (2, 4.0, 8.0): {"mean_field": 0.08, "quadrature": 0.002},
    (10, 1.0, 0.3): {"mean_field": 0.06, "quadrature": 0.003},
    (10, 2.0, 2.0): {"mean_field": 0.17, "quadrature": 0.003},
    (10, 4.0, 8.0): {"mean_field": 0.26, "quadrature": 0.003},
}


def problem(classes: int, confidence: float, variance: float) -> tuple[Tensor, Tensor]:
    """Logits of deviation ``confidence``, their variances uneven over classes."""
    mean = confidence * draw(11, 24, classes)
    return mean, variance * draw(12, 24, classes).exp()


def truth(mean: Tensor, variance: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(13)
    total = torch.zeros_like(mean)
    for _ in range(10):
        noise = torch.randn(TRUTH_DRAWS // 10, *mean.shape, generator=generator)
        total += F.softmax(mean.float() + variance.float().sqrt() * noise, -1).double().mean(0) / 10
    return total


def total_variation(log_probs: Tensor, probs: Tensor) -> float:
    return 0.5 * (log_probs.exp().mean(0) - probs).abs().sum(-1).mean().item()


@pytest.mark.parametrize(("classes", "confidence", "variance"), TOLERANCE)
def test_closed_rules_stay_within_their_stated_errors(classes: int, confidence: float, variance: float) -> None:
    mean, spread = problem(classes, confidence, variance)
    probs = truth(mean, spread)
    errors = {name: total_variation(rule(mean, spread), probs) for name, rule in softmax.CLOSED.items()}
    assert all(errors[name] < limit for name, limit in TOLERANCE[classes, confidence, variance].items()), errors
    assert total_variation(F.log_softmax(mean, -1)[None], probs) > 2 * errors["quadrature"]  # the plain softmax fails


@pytest.mark.parametrize("classes", [2, 10, 100])
def test_quadrature_is_exact_up_to_the_noise_of_the_truth(classes: int) -> None:
    """Each probability within 5 deviations of 10⁵ draws: false alarm 6e-7 a number, 336 numbers."""
    mean, variance = (moment[:3] for moment in problem(classes, 2.0, 1.0))
    probs = truth(mean, variance)
    deviation = (probs * (1 - probs) / TRUTH_DRAWS).sqrt()  # an upper bound of Var[softmax]/draws
    for dtype in (torch.float32, torch.float64):
        ours = softmax.quadrature(mean.to(dtype), variance.to(dtype))[0].exp().double()
        assert ((ours - probs).abs() < 5 * deviation + 1e-6).all()
    rough = softmax.mean_field(mean, variance)[0].exp()
    assert not ((rough - probs).abs() < 5 * deviation + 1e-6).all()


def test_quadrature_takes_as_many_rows_at_once_as_fit_in_the_cache_and_no_bit_depends_on_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With 100 classes. 128 rows at a time, which are enough for ten classes, take twice the time there."""
    mean, variance = (moment.float() for moment in problem(100, 2.0, 1.0))
    whole, sizes, shares = softmax.quadrature(mean, variance), list[int](), softmax._log_shares
    monkeypatch.setattr(softmax, "_log_shares", lambda m, d: (sizes.append(m.numel()), shares(m, d))[1])
    rows = [softmax.quadrature(m, v) for m, v in zip(mean.split(1), variance.split(1), strict=True)]
    assert torch.equal(whole, torch.cat(rows, 1))
    sizes.clear()
    softmax.quadrature(mean, variance)
    assert sum(sizes) == mean.numel() and max(sizes) * softmax._GRID <= softmax._TERMS


@pytest.mark.parametrize(("deviation", "error"), [(0.1, 1e-9), (1.0, 1e-9), (3.0, 1e-5), (5.0, 3e-4), (8.0, 3e-3)])
@pytest.mark.parametrize("share", [0.5, 0.02])
def test_quadrature_of_two_classes_equals_the_logistic_integral(deviation: float, error: float, share: float) -> None:
    """E[sigmoid(d)], d ~ N(gap, deviation²), by 20,001 trapezoids; ``share`` of the variance in one logit."""
    gap = torch.linspace(-8, 8, 33, dtype=torch.float64)
    x = torch.linspace(-9, 9, 20_001, dtype=torch.float64)
    density = torch.exp(-0.5 * x**2) / math.sqrt(2 * math.pi)
    exact = torch.trapezoid(torch.sigmoid(gap[:, None] + deviation * x) * density, x)
    mean = torch.stack([torch.zeros_like(gap), gap], -1)
    variance = deviation**2 * torch.tensor([share, 1 - share], dtype=torch.float64).expand_as(mean)
    ours = softmax.quadrature(mean, variance)[0].exp()[:, 1]
    torch.testing.assert_close(ours, exact, rtol=0, atol=error)
    assert (softmax.mean_field(mean, variance)[0].exp()[:, 1] - exact).abs().max() > error


@pytest.mark.parametrize("rule", list(softmax.CLOSED))
def test_extreme_logits_give_normalised_probabilities_without_nan(rule: str) -> None:
    mean = torch.tensor([[80.0, 0.0, -80.0], [0.0, 0.0, 0.0], [-300.0, 300.0, 5.0]])
    variance = torch.tensor([[1e-4, 1.0, 30.0], [1e-6, 1e-6, 1e-6], [100.0, 1e-3, 1.0]])
    log_probs = softmax.CLOSED[rule](mean, variance)
    assert not log_probs.isnan().any()
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(1, 3))


def test_samples_are_softmaxes_of_logits_with_one_normal_number_a_class_for_all_rows() -> None:
    mean, variance = problem(3, 1.0, 1.0)
    noise = torch.randn(7, 1, 3, generator=Seed(4).generator(), dtype=torch.float64)
    expected = F.log_softmax(mean + variance.sqrt() * noise, -1)
    assert torch.equal(softmax.sampled(mean, variance, 7, Seed(4)), expected)
    assert not torch.equal(softmax.sampled(mean, variance, 7, Seed(5)), expected)


@pytest.mark.parametrize("gap", [50.0, 120.0, 300.0])
def test_an_unlikely_class_keeps_its_log_probability_in_float32(gap: float) -> None:
    """log E[softmax_1] → −gap + (v_0 + v_1)/2, the mean of e^(z_1 − z_0), also where its exponential underflows."""
    mean, variance = torch.tensor([[0.0, -gap]]), torch.tensor([[0.3, 0.5]])
    mean_share = softmax.quadrature(mean, variance)[0, 0, 1]
    assert mean_share.dtype == torch.float32
    torch.testing.assert_close(mean_share, torch.tensor(-gap + 0.4), atol=2e-4, rtol=1e-6)
