"""Recalibration: known temperatures and widths are recovered, and scores and written sets follow."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import torch
from torch import Tensor

from bdl_pipe import artifacts, recalibration, summary
from bdl_pipe.artifacts import State
from bdl_pipe.data.examples import Examples
from bdl_pipe.data.transform import Transform
from bdl_pipe.derived_predictive import Exponential, Mixture
from bdl_pipe.errors import ConfigError
from bdl_pipe.evaluation import EvaluateConfig, score_clean
from bdl_pipe.posterior import Predictor
from bdl_pipe.predictive import Categorical, Gaussian, Predictive
from bdl_pipe.recalibration import Recalibration, Widened
from bdl_pipe.seeds import Seed
from bdl_pipe.student_t import StudentT
from pipeline.prepared import folders
from tests.preparing import dataset_of, prepare_at
from tests.refusals import refusal

PLAIN = Transform("table", torch.zeros(1), torch.ones(1), shift=torch.tensor([3.0]), scale=torch.tensor([2.0]))
UNCHANGED = Transform("table", torch.zeros(1), torch.ones(1), shift=torch.zeros(1), scale=torch.ones(1))
CLASSES = Transform("table", torch.zeros(1), torch.ones(1))


def one_batch(predictive: Predictive, rows: int) -> Iterator[tuple[slice, Predictive]]:
    return iter([(slice(0, rows), predictive)])


def classes(rows: int, temperature: float, seed: int = 0, spread: float = 1.0) -> tuple[Categorical, Examples]:
    """Labels drawn from the true probabilities; the predictive is sharper by ``temperature``."""
    g = np.random.default_rng(seed)
    logits = torch.from_numpy(spread * g.normal(size=(rows, 4)))
    labels = (logits.softmax(1).cumsum(1) < torch.from_numpy(g.random((rows, 1)))).sum(1).numpy()
    return Categorical((temperature * logits).log_softmax(1)[None]), Examples(np.zeros((rows, 1)), labels)


def values(rows: int, width: float, seed: int = 0) -> tuple[Gaussian, Examples]:
    """Targets whose deviation is ``width`` of the predictive's; transformed z = (y − 3)/2."""
    g = np.random.default_rng(seed)
    mean, sd = g.normal(size=(rows, 1)), 0.3 + g.random((rows, 1))
    z = mean + width * sd * g.normal(size=(rows, 1))
    predictive = Gaussian(torch.from_numpy(mean)[None], torch.from_numpy(sd**2)[None])
    return predictive, Examples(np.zeros((rows, 1)), 3 + 2 * z)


@pytest.mark.parametrize("true", [0.5, 1.0, 2.5])
def test_a_known_temperature_and_a_known_width_are_recovered(true: float) -> None:
    """4,000 rows: within 10 %, more than five standard errors of either."""
    predictive, rows = classes(4000, true, spread=2.0)
    learnt = recalibration.fit(one_batch(predictive, 4000), rows, CLASSES)
    assert learnt.factor == pytest.approx(true, rel=0.1)
    wide, targets = values(4000, true)
    learnt = recalibration.fit(one_batch(wide, 4000), targets, PLAIN)
    assert learnt.factor == pytest.approx(true, rel=0.05)  # the standard error is 1.1 %
    again = Recalibration.from_state(learnt.state())
    assert (again.factors, again.shares) == (learnt.factors, learnt.shares)
    assert torch.equal(again.scores, learnt.scores)


def of_gaussians(z: np.ndarray) -> tuple[Iterator[tuple[slice, Predictive]], Examples]:
    """Targets with the normal scores z [row, output] under a predictive N(1, 0.5²) of transformed targets."""
    shape = (1, *z.shape)
    predictive = Gaussian(torch.ones(shape).double(), torch.full(shape, 0.25).double())
    return one_batch(predictive, len(z)), Examples(np.zeros((len(z), 1)), 3 + 2 * (1 + 0.5 * z))


@pytest.mark.parametrize("outputs", [1, 2])
def test_shares_maximise_the_penalised_likelihood(outputs: int) -> None:
    """By the condition of Lindsay (1983): Σ_i p_k(i)/p(i) is n + 40 at a width with a share, and lower elsewhere.

    The sum over the imagined rows is a fine quadrature of its own. The control: equal shares break the condition.
    """
    z = np.random.default_rng(3).standard_t(3, size=(300, outputs))
    learnt, widths = recalibration.fit(*of_gaussians(z), PLAIN), np.array([2 ** (k / 2) for k in range(-6, 4)])
    t = np.linspace(-6, 6, 2001)
    weight = 40 * scipy.stats.norm.pdf(t) * (t[1] - t[0])

    def sums(shares: np.ndarray) -> np.ndarray:
        of_row = scipy.stats.norm.pdf(z[:, None] / widths[:, None]).prod(-1) / widths**outputs  # [row, width]
        imagined = scipy.stats.norm.pdf(t[:, None] / widths) / widths
        return (of_row / (of_row @ shares)[:, None]).sum(0) + weight @ (imagined / (imagined @ shares)[:, None])

    of_width = dict(zip(learnt.factors, learnt.shares, strict=True))
    shares = np.array([of_width.get(width, 0.0) for width in widths])
    totals = sums(shares)
    assert sum(learnt.shares) == pytest.approx(1)
    assert (shares > 0).sum() >= 3
    assert totals[shares > 0.02] == pytest.approx(340, rel=0.01)
    assert totals.max() < 340 * 1.01
    assert sums(np.full(len(widths), 1 / len(widths))).max() > 340 * 1.2


def test_many_nearly_exact_rows_do_not_narrow_the_rest() -> None:
    """Three in five targets are at the mean, as incomes of 0 are; the widest width stays 2.83.

    2,000 rows learn it and 40,000 are scored: the coverage is within 2 % of 90 %, 3 standard errors of 2,000 rows.
    A centre at the median would leave all widths below 0.4 and cover 62 % (seen).
    """
    g = np.random.default_rng(2)

    def drawn(rows: int) -> np.ndarray:
        return np.where(g.random((rows, 1)) < 0.6, 0.02, 1.5) * g.normal(size=(rows, 1))

    learnt = recalibration.fit(*of_gaussians(drawn(2000)), PLAIN)
    ((_, base),), rows = of_gaussians(drawn(40_000))
    assert isinstance(base, Gaussian)
    better, targets = learnt.apply(base), PLAIN.targets(rows.targets)
    inside = (better.quantile(0.05) <= targets) & (targets <= better.quantile(0.95))
    assert abs(float(inside.double().mean()) - 0.9) < 0.02
    assert float((better.log_prob(targets) - base.log_prob(targets)).mean()) > 0.5


def test_a_row_outside_every_width_plays_no_part() -> None:
    z = np.random.default_rng(1).normal(size=(100, 1))
    far = np.concatenate([z, [[1e200]]])
    learnt, without = recalibration.fit(*of_gaussians(far), PLAIN), recalibration.fit(*of_gaussians(z), PLAIN)
    assert learnt.factors == without.factors
    assert learnt.shares == pytest.approx(without.shares)


def test_a_widened_mixture_equals_the_mixture_of_moved_draws() -> None:
    """Against a mixture whose draws are moved away from the mean and scaled by hand."""
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(3, 5, 2, generator=generator, dtype=torch.float64)
    base = Gaussian(mean, 0.1 + torch.rand(3, 5, 2, generator=generator, dtype=torch.float64))
    centre, s = base.mean, 1.7
    expected = Gaussian(centre + s * (base.draw_mean - centre), s**2 * base.draw_variance)
    widened, points = Widened(base, s), torch.randn(5, 2, generator=generator, dtype=torch.float64)
    for name in ("mean", "variance", "epistemic_variance"):
        torch.testing.assert_close(getattr(widened, name), getattr(expected, name))
    torch.testing.assert_close(widened.log_prob(points), expected.log_prob(points))
    torch.testing.assert_close(widened.cdf(points), expected.cdf(points))
    torch.testing.assert_close(widened.quantile(0.9), expected.quantile(0.9))
    shift, scale = torch.tensor([1.0, -2.0]).double(), torch.tensor([3.0, 0.5]).double()
    moved, other = widened.rescale(shift, scale), expected.rescale(shift, scale)
    torch.testing.assert_close(moved.log_prob(points), other.log_prob(points))
    assert widened.reach[1].isinf().all()


def cut(predictive: Predictive, rows: slice) -> Predictive:
    if isinstance(predictive, Categorical):
        return Categorical(predictive.draw_log_probs[:, rows])
    assert isinstance(predictive, Gaussian)
    return Gaussian(predictive.draw_mean[:, rows], predictive.draw_variance[:, rows])


def test_a_level_beyond_the_calibration_rows_is_refused() -> None:
    learnt = Recalibration((1.0,), (1.0,), torch.arange(19).double())
    predictive = Gaussian(torch.zeros(1, 1, 1), torch.ones(1, 1, 1))
    assert [float(learnt.interval(predictive, UNCHANGED, level)[1]) for level in (0.95, 0.5)] == [18.0, 9.0]
    hundred = Recalibration((1.0,), (1.0,), torch.arange(1.0, 100.0))
    assert float(hundred.interval(predictive, UNCHANGED, 0.55)[1]) == 55.0, "100·0.55 is a little more than 55"
    messages = {level: refusal(learnt.interval, predictive, UNCHANGED, level) for level in (0.96, 1.0)}
    assert messages[0.96].endswith("level must be at most 0.95 with 19 calibration rows, got 0.96")
    assert messages[1.0].endswith("level must be in (0, 1), got 1.0")


class _Stored:
    """A posterior that returns rows of a stored predictive; the first input of a row is its number."""

    def __init__(self, predictive: Predictive) -> None:
        self.predictive = predictive

    def predict(self, inputs: Tensor, *, rng: Seed) -> Predictive:
        first, last = int(inputs[0, 0]), int(inputs[-1, 0])
        return cut(self.predictive, slice(first, last + 1))

    def state(self) -> State:
        raise NotImplementedError

    @classmethod
    def from_state(cls, state: State, device: object = "cpu") -> "_Stored":
        raise NotImplementedError


@pytest.mark.parametrize("task", ["classes", "values"])
def test_recalibration_improves_scores_and_written_sets_cover_at_their_level(task: str) -> None:
    rows = 3000
    predictive, examples = (classes if task == "classes" else values)(rows, 3.0)
    transform, names = (CLASSES, list("abcd")) if task == "classes" else (PLAIN, ["y"])
    numbered = Examples(np.arange(rows, dtype=float)[:, None], examples.targets)
    learnt = recalibration.fit(one_batch(predictive, rows), examples, transform)
    fitted = Predictor(_Stored(predictive), transform, tuple(names), learnt)
    scores = score_clean(fitted, numbered, EvaluateConfig(15, 700, 0), Seed(0)).metrics
    after, before = ("_recalibrated", "") if task == "classes" else ("", "_before")
    assert scores[f"nll{after}"][0] < scores[f"nll{before}"][0] - 0.2
    assert scores["coverage_conformal"] == (pytest.approx(0.9, abs=0.002), rows)  # on the rows that it was learnt from
    better = "ece" if task == "classes" else "crps"
    assert scores[better + after][0] < scores[better + before][0]
    table = summary.predictions(fitted, numbered.inputs, names, rng=Seed(0), level=0.8)
    if task == "classes":
        sets = (members.split("|") for members in table["set"])
        inside = [names[label] in members for label, members in zip(examples.targets, sets, strict=True)]
        assert np.mean(inside) == pytest.approx(0.8, abs=0.002)
        recalibrated = np.stack([table[f"recalibrated_p_{name}"] for name in names], axis=1)
        np.testing.assert_allclose(recalibrated.sum(1), 1, rtol=1e-6)
        return
    y = examples.targets[:, 0]
    inside = (table["conformal_lower"] <= y) & (y <= table["conformal_upper"])
    assert np.mean(inside) == pytest.approx(0.8, abs=0.002)
    assert scores["coverage_90"][0] == pytest.approx(0.9, abs=0.01) and scores["coverage_90_before"][0] < 0.5
    plain = summary.predictions(Predictor(_Stored(predictive), transform, ("y",)), numbered.inputs, names, rng=Seed(0))
    np.testing.assert_allclose(table["sd"], learnt.factor * plain["sd"], rtol=1e-5)
    np.testing.assert_allclose(table["mean"], plain["mean"], rtol=1e-5)


def test_sets_of_any_class_names_can_be_parsed_back() -> None:
    """A name may contain the separator of names."""
    names = ["a", "b", "a|b", "b\\"]
    predictive, rows = classes(600, 1.0, spread=2.0)
    learnt = recalibration.fit(one_batch(predictive, 600), rows, CLASSES)
    fitted = Predictor(_Stored(predictive), CLASSES, tuple(names), learnt)
    sets = summary.predictions(fitted, np.arange(600.0)[:, None], names, rng=Seed(0), level=0.8)["set"]
    for text, inside in zip(sets, learnt.class_set(predictive, 0.8).numpy(), strict=True):
        parts = [re.sub(r"\\(.)", r"\1", part) for part in re.findall(r"(?:\\.|[^|\\])+", text)]
        assert parts == [name for name, is_in in zip(names, inside, strict=True) if is_in]


def test_a_level_that_is_not_between_0_and_1_is_refused() -> None:
    fitted = Predictor(_Stored(classes(20, 1.0)[0]), CLASSES, tuple("abcd"), None)
    for level in (0.0, 1.0, -0.1, 1.5, float("nan")):
        with pytest.raises(ConfigError, match=r"level must be in \(0, 1\), got "):
            summary.predictions(fitted, np.arange(20.0)[:, None], list("abcd"), rng=Seed(0), level=level)


def test_intervals_of_log_targets_are_exponentiated() -> None:
    logs = replace(UNCHANGED, log=True)
    predictive = Gaussian(torch.zeros(1, 2, 1).double(), torch.full((1, 2, 1), 4.0).double())
    low, high = Recalibration((1.0,), (1.0,), torch.linspace(0, 1, 99).double()).interval(predictive, logs, 0.5)
    np.testing.assert_allclose(low * high, 1)
    np.testing.assert_allclose(high.log(), 2 * torch.linspace(0, 1, 99).double()[49])


@pytest.mark.parametrize("log", [False, True])
def test_rows_with_one_wide_student_t_have_the_interval_of_their_smallest_errors(log: bool) -> None:
    """The width of a predictive that all rows share plays no part: the radius is the 90th of 99 errors."""

    def student(rows: int) -> StudentT:
        zeros = torch.zeros(1, rows, 1).double()
        return StudentT(zeros, zeros + 1, zeros + 3)

    z = np.arange(1.0, 100.0)[:, None] / 20
    rows, transform = Examples(np.zeros((99, 1)), np.exp(z) if log else z), replace(UNCHANGED, log=log)
    ends = recalibration.fit(one_batch(student(99), 99), rows, transform).interval(student(1), transform, 0.9)
    np.testing.assert_allclose([float(end.log() if log else end) for end in ends], [-4.5, 4.5], rtol=1e-6)


def test_one_far_draw_of_a_logarithm_does_not_set_the_mean_of_the_widened_mixture() -> None:
    """One of 20 draws of a row is far from the others. Without the limit the mean becomes 100 times larger.

    Rows whose standard deviation is far below 1 are stretched as far as other targets are.
    """
    draws = torch.zeros(20, 2, 1).double()
    draws[0, 0] = 4.0
    predictive = Gaussian(draws, torch.full((20, 2, 1), 0.09).double())
    learnt = Recalibration((1.0, 2.83), (0.9, 0.1), torch.zeros(1))
    widened = [learnt.apply(predictive, logs=logs).parts for logs in (True, False)]
    mixture, limited, free = (Mixture([*map(Exponential, parts)], [0.9, 0.1]) for parts in ([predictive] * 2, *widened))
    ratio = limited.mean / mixture.mean
    assert 1 < float(ratio[0]) < 1.05 and float((free.mean / mixture.mean)[0]) > 100
    torch.testing.assert_close(ratio[1], (free.mean / mixture.mean)[1])


def test_the_shares_of_logarithms_are_fitted_to_the_widths_that_the_limit_leaves() -> None:
    """Predictives of standard deviation 1 cannot be stretched, so that the width 2.83 is as good as the width 1."""
    logs = replace(PLAIN, shift=torch.zeros(1), log=True)
    wide = Gaussian(torch.zeros(1, 500, 1).double(), torch.full((1, 500, 1), 0.25).double())
    z = 1.5 * np.random.default_rng(0).normal(size=(500, 1))
    learnt = recalibration.fit(one_batch(wide, 500), Examples(np.zeros((500, 1)), np.exp(z)), logs)
    rescaled = learnt.apply(wide.rescale(torch.zeros(1), torch.full((1,), 2.0)), logs=True)
    assert float(rescaled.variance.sqrt().max()) <= 1 + 1e-9 and learnt.factor > 1.2
    plain = recalibration.fit(one_batch(wide, 500), Examples(np.zeros((500, 1)), z), replace(logs, log=False))
    assert float(plain.apply(wide).variance.sqrt().mean()) * 2 == pytest.approx(1.5, rel=0.05)


def test_calibration_rows_are_apart_from_training_and_test_rows(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("x,y\n" + "".join(f"{i},{i * 1.5}\n" for i in range(200)))
    source = {"name": "table", "path": str(tmp_path / "t.csv"), "target": ["y"], "task": "regression"}

    def made(calibration: float) -> tuple[Path, Path]:
        return prepare_at(tmp_path, dataset_of(source, splits=2, calibration=calibration))

    fit, holdout = made(0.25)
    for split in range(2):
        kept = folders.arrow_rows.read(fit / str(split) / "train.arrow").examples
        apart = folders.load_calibration(fit, split)
        test = folders.arrow_rows.read(holdout / str(split) / "test.arrow").examples
        assert apart is not None
        parts = [set(rows.inputs[:, 0].tolist()) for rows in (kept, apart, test)]
        assert [len(part) for part in parts] == [135, 45, 20]
        assert len(set.union(*parts)) == 200
        stored = artifacts.read_state(fit / str(split) / "transform")
        assert float(stored.tensors["mean"]) == pytest.approx(kept.inputs.mean())
    assert "calibration must be 0 or at least 20 rows, got 18 of 180 training rows" in refusal(made, 0.1)
    assert "calibration must be a whole number of rows >= 0, or a share in [0, 1)" in refusal(made, 1.0)


def test_the_own_units_of_a_mixture_of_logarithms_have_its_exact_moments() -> None:
    """Against integrals of the density in the targets' own units."""
    means, variances = [[0.3, -0.5], [0.8, 0.1]], [[0.2, 0.6], [1.1, 0.4]]  # [part, output]
    moments = (torch.tensor(values).double()[:, None, None] for values in (means, variances))
    mixture = Mixture([Gaussian(m, v) for m, v in zip(*moments, strict=True)], [0.3, 0.7])
    scale = replace(CLASSES, shift=torch.ones(2), scale=torch.full((2,), 0.5), log=True)
    units = Predictor(_Stored(mixture), scale).own_units(mixture)
    assert isinstance(units, Mixture)
    y = np.linspace(1e-6, 400, 2_000_001)
    for output in range(2):
        z = (np.log(y) - 1) / 0.5
        of_part = [(m[output], v[output] ** 0.5) for m, v in zip(means, variances, strict=True)]
        density = sum(w * scipy.stats.norm.pdf(z, *p) for w, p in zip((0.3, 0.7), of_part, strict=True)) / (0.5 * y)
        mean = scipy.integrate.simpson(y * density, x=y)
        variance = scipy.integrate.simpson((y - mean) ** 2 * density, x=y)
        assert units.mean[0, output].item() == pytest.approx(mean, rel=1e-4)
        assert units.variance[0, output].item() == pytest.approx(variance, rel=1e-3)
