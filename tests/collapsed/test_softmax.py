"""The softmax over one weight in 400 digits, and over uniform logits by polylogarithms, quadrature and draws."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from mpmath import mp, mpf
from torch import Tensor

from bdl_pipe.collapsed.integrals import mean_sigmoid
from bdl_pipe.collapsed.integrals.few_uniforms import softmax_one
from bdl_pipe.collapsed.integrals.uniform_logits import CACHE, log_expected_softmax

from .cases import double, numbers

HALVES: dict[str, Callable[..., float]] = {
    "tiny": lambda random: 10 ** random.uniform(-12, -1),
    "middle": lambda random: random.uniform(0.1, 20),
    "large": lambda random: 10 ** random.uniform(1, 4),
}


def exact(logits: list[float], index: int, low: float, high: float, feature: float) -> list[mpf]:
    """[softplus − softplus]/range, in 400 digits; the other classes share the rest."""
    with mp.workdps(400):
        rest = mp.fsum(mp.exp(v) for j, v in enumerate(logits) if j != index)
        ends = [mpf(logits[index]) + mpf(feature) * mpf(w) - mp.log(rest) for w in (low, high)]
        slope = (mp.log1p(mp.exp(ends[1])) - mp.log1p(mp.exp(ends[0]))) / (ends[1] - ends[0])
        others = (mp.log1p(mp.exp(-ends[0])) - mp.log1p(mp.exp(-ends[1]))) / (ends[1] - ends[0])
        return [slope if j == index else others * mp.exp(v) / rest for j, v in enumerate(logits)]


@pytest.mark.parametrize("halves", HALVES)
@pytest.mark.parametrize("far", [1.0, 100.0])
def test_every_class_keeps_twelve_digits(halves: str, far: float) -> None:
    random = numbers("softmax", halves, int(far))
    for case in range(40):
        logits = [float(v) for v in far * random.normal(size=4)]
        middle, half = random.normal(), HALVES[halves](random)
        low, high, feature = float(middle - half), float(middle + half), float(random.choice([-1.5, 1.5]))
        where = [torch.tensor(v, dtype=torch.float64) for v in (low, high, feature)]
        got = softmax_one(torch.tensor(logits, dtype=torch.float64), case % 4, *where).tolist()
        wanted = exact(logits, case % 4, low, high, feature)
        # only the rounding of a logit of 100, and of the ends, remains
        assert all(abs(g - w) <= 1e-12 * w for g, w in zip(got, wanted, strict=True) if w > 1e-300)


def test_without_a_range_or_a_feature_the_result_is_the_softmax() -> None:
    logits, low, high, feature = map(double, ([0.3, -1.0, 2.0], [0.4, -1.0], [0.4, 5.0], [2.0, 0.0]))
    got = softmax_one(logits, 1, low, high, feature)
    torch.testing.assert_close(got[0], (logits + torch.tensor([0, 0.8, 0])).softmax(-1), rtol=1e-7, atol=0)
    torch.testing.assert_close(got[1], logits.softmax(-1), rtol=1e-14, atol=0)


def test_indices_broadcast_and_probabilities_add_up_to_one() -> None:
    random = numbers("softmax shapes")
    logits, feature = torch.tensor(random.normal(size=(6, 1, 5))), torch.tensor(random.normal(size=(6, 1)))
    got = softmax_one(logits, torch.arange(5), -1.0, 2.0, feature)
    assert got.shape == (6, 5, 5)
    torch.testing.assert_close(got.sum(-1), torch.ones(6, 5).double(), rtol=1e-14, atol=0)
    torch.testing.assert_close(got[2, 3], softmax_one(logits[2, 0], 3, -1.0, 2.0, feature[2, 0]), rtol=1e-14, atol=0)
    small = softmax_one(logits.float(), torch.arange(5), -1.0, 2.0, feature.float())
    assert small.dtype == torch.float32
    torch.testing.assert_close(small.double(), got, rtol=2e-6, atol=0)


@pytest.mark.parametrize("reach", [1e-3, 0.4, 3.0, 40.0])
def test_gradients_equal_finite_differences(reach: float) -> None:
    leaves = [double(v).requires_grad_() for v in ([[0.3, -1.0, 2.0]], [0.2 - reach], [0.2 + reach], [0.9])]
    assert torch.autograd.gradcheck(lambda x, low, high, z: softmax_one(x, 2, low, high, z), leaves)
    even = double([0.0, 0.0]).requires_grad_()  # both classes are equally likely
    assert torch.autograd.gradcheck(lambda x: softmax_one(x, 0, -reach, reach, double(1.0)), even)


GAPS = (0.0, 1.5, -5.0, 60.0, -300.0)


def by_polylogarithms(gap: float, half_widths: list[float]) -> mpf:
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
    logs = log_expected_softmax(centre, torch.tensor(widths, dtype=torch.float64)).tolist()
    with mp.workdps(120):
        wanted = [by_polylogarithms(sign * gap, widths[0] + widths[1]) for sign in (1, -1)]
        return [float(abs(mp.exp(mpf(f)) / w - 1)) for f, w in zip(logs, wanted, strict=True)]


@pytest.mark.parametrize(
    ("d", "scale"),
    [*((1, s) for s in (1e-3, 0.1, 1.0, 6.0, 30.0, 3000.0)), (2, 0.05), (2, 1.0), (2, 6.0), (3, 0.1), (3, 1.0)],
)
def test_two_classes_have_eleven_digits(d: int, scale: float) -> None:
    """Narrow boxes and wide, close logits and logits 300 apart, whose small probability keeps its digits."""
    random = numbers("uniform logits", d, str(scale))
    for gap in GAPS:
        widths = [[scale * random.uniform(0.1, 1) for _ in range(d)] for _ in range(2)]
        assert max(relative_errors(gap, widths)) < 1e-11, (gap, widths)


def logits_of(classes: int, d: int, widest: float, rows: int = 6) -> tuple[Tensor, Tensor]:
    random = numbers("uniform logits", classes, d, str(widest))
    widths = np.sort(random.uniform(0, widest, (rows, classes, d)))[..., ::-1]
    return torch.tensor(2 * random.normal(size=(rows, classes))), torch.tensor(widths.copy())


def by_tensor(centre: Tensor, half_widths: Tensor, nodes: int) -> Tensor:
    """A Gauss rule over all weights of all classes [row, class]."""
    axis, shares = (torch.tensor(part) for part in np.polynomial.legendre.leggauss(nodes))
    index = torch.cartesian_prod(*[torch.arange(nodes)] * half_widths.shape[-2:].numel())  # [point, weight]
    at, share = axis[index].reshape(-1, *half_widths.shape[-2:]), (shares[index] / 2).prod(-1)
    rows = zip(centre, half_widths, strict=True)
    return torch.stack([share @ (c + (h * at).sum(-1)).softmax(-1) for c, h in rows])


@pytest.mark.parametrize(
    ("classes", "d", "nodes", "widest", "error"),
    [(3, 1, 13, 1.0, 1e-8), (3, 2, 4, 0.2, 1e-8), (4, 1, 8, 0.4, 1e-8), (10, 1, 3, 0.4, 1e-6)],
)
def test_several_classes_equal_tensor_quadrature(classes: int, d: int, nodes: int, widest: float, error: float) -> None:
    """Wrong variants: one logit at a time, nothing collapsed, and twice the widths are off by far more."""
    centre, widths = logits_of(classes, d, widest)
    averages, exact = log_expected_softmax(centre, widths).exp(), by_tensor(centre, widths, nodes)
    torch.testing.assert_close(averages, exact, rtol=error, atol=0)
    torch.testing.assert_close(averages.sum(-1), torch.ones(6).double(), rtol=1e-13, atol=0)
    for wrong in (
        one_moving_each(centre, widths),
        centre.softmax(-1),
        log_expected_softmax(centre, 2 * widths).exp(),
    ):
        assert ((wrong - exact).abs() > 100 * error * exact).any()


def one_moving_each(centre: Tensor, half_widths: Tensor) -> Tensor:
    """K averages over one logit each, the others at the middle, divided by their sum."""
    rest = [torch.cat([centre[:, :k], centre[:, k + 1 :]], -1).logsumexp(-1) for k in range(centre.shape[-1])]
    averages = mean_sigmoid(centre - torch.stack(rest, -1), half_widths[..., 0])
    return averages / averages.sum(-1, keepdim=True)


def test_rows_in_blocks_equal_rows_alone() -> None:
    """Boxes of different widths in one call, in more than one block; shapes with several leading dimensions."""
    random = numbers("uniform logits", "blocks")
    rows = CACHE // (5 * 60) + 100
    centre, widths = torch.tensor(random.normal(size=(rows, 5))), torch.tensor(random.uniform(0, 0.2, (rows, 5, 1)))
    widths[::50] *= 40
    widths[1] = 0
    logs = log_expected_softmax(centre, widths)
    for row in (0, 1, 50, rows - 1):
        torch.testing.assert_close(log_expected_softmax(centre[row], widths[row]), logs[row], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(logs[1], centre[1].log_softmax(-1), rtol=0, atol=1e-14)
    shaped = log_expected_softmax(centre[:6].reshape(2, 3, 5), widths[:6].reshape(2, 3, 5, 1))
    torch.testing.assert_close(shaped.reshape(6, 5), logs[:6], rtol=1e-10, atol=1e-10)


def test_uniform_logits_in_float32_are_rounded_once() -> None:
    parts = [part.float() for part in logits_of(10, 2, 1.0)]
    single, double_ = log_expected_softmax(*parts), log_expected_softmax(*(part.double() for part in parts))
    assert single.dtype == torch.float32 and torch.equal(single, double_.float())
