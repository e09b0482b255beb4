"""The average softmax over uniform logits: against polylogarithms in 120 digits, tensor quadrature, and draws."""

import math
from itertools import product

import numpy as np
import pytest
import torch
from mpmath import mp, mpf
from torch import Tensor

from bdl_pipe.collapsed.integrals import mean_sigmoid
from bdl_pipe.collapsed.integrals.uniform_logits import CACHE, log_expected_softmax
from bdl_pipe.errors import DataError

from .cases import numbers

GAPS = (0.0, 1.5, -5.0, 60.0, -300.0)


def exact(gap: float, half_widths: list[float]) -> mpf:
    """E[σ(gap + Σ h_iU_i)]: the m-fold integral of σ is −Li_m(−eˣ), and a box takes the differences at its corners."""
    with mp.workdps(120):
        corners = [(mpf(gap), 1)]
        for h in map(mpf, half_widths):
            corners = [(u + h, s) for u, s in corners] + [(u - h, -s) for u, s in corners]
        total = mp.fsum(-s * mp.polylog(len(half_widths), -mp.exp(u)) for u, s in corners)
        return total / mp.fprod(2 * mpf(h) for h in half_widths)


def relative_errors(gap: float, widths: list[list[float]]) -> list[float]:
    """The relative errors of the probabilities of two classes whose logits are ``gap`` apart."""
    centre = torch.tensor([gap, 0.0], dtype=torch.float64)
    found = log_expected_softmax(centre, torch.tensor(widths, dtype=torch.float64)).tolist()
    with mp.workdps(120):
        wanted = [exact(sign * gap, widths[0] + widths[1]) for sign in (1, -1)]
        return [float(abs(mp.exp(mpf(f)) / w - 1)) for f, w in zip(found, wanted, strict=True)]


@pytest.mark.parametrize(
    ("d", "scale"),
    [
        (1, 1e-3),
        (1, 0.1),
        (1, 1.0),
        (1, 6.0),
        (1, 30.0),
        (1, 3000.0),
        (2, 0.05),
        (2, 1.0),
        (2, 6.0),
        (3, 0.1),
        (3, 1.0),
    ],
)
def test_two_classes_have_eleven_digits(d: int, scale: float) -> None:
    """Narrow boxes and wide, close logits and logits 300 apart, whose small probability keeps its digits."""
    random = numbers("uniform logits", d, str(scale))
    for gap in GAPS:
        widths = [[scale * random.uniform(0.1, 1) for _ in range(d)] for _ in range(2)]
        assert max(relative_errors(gap, widths)) < 1e-11, (gap, widths)


def problem(classes: int, d: int, widest: float, rows: int = 6) -> tuple[Tensor, Tensor]:
    random = numbers("uniform logits", classes, d, str(widest))
    widths = np.sort(random.uniform(0, widest, (rows, classes, d)))[..., ::-1]
    return torch.tensor(2 * random.normal(size=(rows, classes))), torch.tensor(widths.copy())


def by_tensor(centre: Tensor, half_widths: Tensor, nodes: int) -> Tensor:
    """A Gauss rule over all weights of all classes [row, class]."""
    axis, shares = (torch.tensor(part) for part in np.polynomial.legendre.leggauss(nodes))
    index = torch.tensor(list(product(range(nodes), repeat=half_widths.shape[-2:].numel())))  # [point, weight]
    at = axis[index].reshape(-1, 1, *half_widths.shape[-2:])
    moved = (centre + (half_widths * at).sum(-1)).softmax(-1)
    return ((shares[index] / 2).prod(-1)[:, None, None] * moved).sum(0)


@pytest.mark.parametrize(("classes", "d", "nodes"), [(3, 1, 13), (3, 2, 4), (4, 1, 8)])
def test_several_classes_equal_a_tensor_quadrature(classes: int, d: int, nodes: int) -> None:
    centre, widths = problem(classes, d, {13: 1.0, 4: 0.2, 8: 0.4}[nodes])
    found = log_expected_softmax(centre, widths).exp()
    torch.testing.assert_close(found, by_tensor(centre, widths, nodes), rtol=1e-8, atol=0)
    torch.testing.assert_close(found.sum(-1), torch.ones(6).double(), rtol=1e-13, atol=0)


def one_moving_each(centre: Tensor, half_widths: Tensor) -> Tensor:
    """K averages over one logit each, the others at the middle, divided by their sum."""
    rest = [torch.cat([centre[:, :k], centre[:, k + 1 :]], -1).logsumexp(-1) for k in range(centre.shape[-1])]
    averages = mean_sigmoid(centre - torch.stack(rest, -1), half_widths[..., 0])
    return averages / averages.sum(-1, keepdim=True)


@pytest.mark.parametrize(("widest", "margin"), [(0.4, 1e-4), (1.0, 1e-3), (4.0, 0.03)])
def test_ten_classes_agree_with_draws_and_wrong_variants_do_not(widest: float, margin: float) -> None:
    """60 probabilities within 5 standard errors of 10⁵ draws: a false alarm in 3e-5.

    Wrong variants: one logit at a time, off by more than ``margin``; nothing collapsed, off by more; twice the widths.
    """
    centre, widths = problem(10, 1, widest)
    found = log_expected_softmax(centre, widths).exp()
    random, sums, squares = numbers("uniform logits", "draws"), torch.zeros_like(found), torch.zeros_like(found)
    for _ in range(20):
        uniform = torch.tensor(random.uniform(-1, 1, (5_000, *widths.shape)))
        drawn = (centre + (widths * uniform).sum(-1)).softmax(-1)
        sums, squares = sums + drawn.sum(0), squares + drawn.square().sum(0)
    mean = sums / 100_000
    error = ((squares / 100_000 - mean.square()) / 100_000).sqrt()
    assert ((found - mean).abs() < 5 * error).all()
    single, nothing = one_moving_each(centre, widths), centre.softmax(-1)
    doubled = log_expected_softmax(centre, 2 * widths).exp()
    assert (single - found).abs().max() > margin
    assert (nothing - found).abs().max() > (single - found).abs().max()
    for wrong in (nothing, doubled):
        assert not ((wrong - mean).abs() < 5 * error).all()


def test_rows_in_blocks_equal_rows_alone() -> None:
    """Boxes of different widths in one call, in more than one block; shapes with several leading dimensions."""
    random = numbers("uniform logits", "blocks")
    rows = CACHE // (5 * 60) + 100
    centre, widths = torch.tensor(random.normal(size=(rows, 5))), torch.tensor(random.uniform(0, 0.2, (rows, 5, 1)))
    widths[::50] *= 40
    widths[1] = 0
    found = log_expected_softmax(centre, widths)
    for row in (0, 1, 50, rows - 1):
        torch.testing.assert_close(log_expected_softmax(centre[row], widths[row]), found[row], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(found[1], centre[1].log_softmax(-1), rtol=0, atol=1e-14)
    shaped = log_expected_softmax(centre[:6].reshape(2, 3, 5), widths[:6].reshape(2, 3, 5, 1))
    torch.testing.assert_close(shaped.reshape(6, 5), found[:6], rtol=1e-10, atol=1e-10)


def test_float32_is_rounded_once() -> None:
    centre, widths = problem(10, 2, 1.0)
    found = log_expected_softmax(centre.float(), widths.float())
    assert found.dtype == torch.float32
    torch.testing.assert_close(
        found, log_expected_softmax(centre.float().double(), widths.float().double()).float(), rtol=0, atol=0
    )


@pytest.mark.parametrize(
    ("centre", "widths", "message"),
    [
        ([0.0, math.nan], [[1.0], [1.0]], "centre must be finite, got nan"),
        ([0.0, 1.0], [[1.0], [-1.0]], r"half_widths must be ≥ 0, got -1\.0"),
        ([0.0, 1.0], [[90.0, 80.0]] * 2, r"half_widths must be so narrow that 8192 points .*, got 90, which needs \d+"),
        ([0.0, 1.0], [[1.0] * 4] * 2, "half_widths must be at most 3 for a point, got 4"),
    ],
)
def test_bad_input_is_refused(centre: list[float], widths: list[list[float]], message: str) -> None:
    with pytest.raises(DataError, match=message):
        log_expected_softmax(torch.tensor(centre), torch.tensor(widths))
