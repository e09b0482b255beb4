"""Targets and inputs of 1.7e9 ± 60, such as times in seconds, which float32 rounds to multiples of 128."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from bdl_pipe import summary
from bdl_pipe.artifacts import State
from bdl_pipe.collapsed.mixture import CollapsedMixture
from bdl_pipe.collapsed.output_distributions import Linear as Collapsed
from bdl_pipe.data.examples import Examples
from bdl_pipe.data.normalise import fit_transform
from bdl_pipe.data.transform import Transform
from bdl_pipe.evaluation import EvaluateConfig, score_clean
from bdl_pipe.posterior import Predictor
from bdl_pipe.predictive import Continuous, Gaussian, Predictive
from bdl_pipe.recalibration import Recalibration
from bdl_pipe.seeds import Seed

FAR, SCALE = 1.7e9, 60.0
RANDOM = np.random.default_rng(3)
INPUTS = RANDOM.normal(size=(40, 2))
NEAR = SCALE * RANDOM.normal(size=(40, 1))  # the targets, less FAR
SETTINGS = EvaluateConfig(batch=15, calibration_bins=7, joint_pairs=50)
# Near 1.7e9 a float64 is a multiple of 2.4e-7. Float32 is wrong by 40 in the mean, two thirds of the deviation.
CLOSE: dict[str, Any] = {"rel": 1e-6, "abs": 1e-6}


@dataclass(frozen=True)
class Draws:
    """A posterior of three functions, which predicts in float32 as networks do, or by collapsed weights."""

    form: str

    def predict(self, inputs: Tensor, *, rng: Seed) -> Predictive:
        weights = torch.linspace(-0.5, 0.7, 6).reshape(3, 2, 1)
        mean = torch.einsum("bf,sfo->sbo", inputs.float(), weights)
        if self.form == "gaussian":
            return Gaussian(mean, 0.3 + mean.square())
        weights_of_each = 3 if self.form == "collapsed" else 12
        narrow = 0.2 + torch.rand(*mean.shape, weights_of_each, generator=rng.generator()).double()
        return CollapsedMixture(Collapsed(mean.double(), narrow, torch.full_like(mean, 0.8).double()), 0.1)

    def state(self) -> State:
        return State()

    @classmethod
    def from_state(cls, state: State, device: torch.device | str = "cpu") -> "Draws":
        return cls("gaussian")


def fitted(form: str, far: float, widened: bool = False) -> Predictor:
    shift, scale = (torch.tensor([value]).double() for value in (far, SCALE))
    transform = Transform("table", torch.zeros(2), torch.ones(2), shift=shift, scale=scale)
    learnt = Recalibration((0.7, 2.0), (0.6, 0.4), torch.linspace(0, 3, 60).double())
    return Predictor(Draws(form), transform, recalibration=learnt if widened else None)


@pytest.mark.parametrize("form", ["gaussian", "collapsed", "many collapsed"])
def test_a_shift_of_the_targets_moves_the_predictions_and_no_score(form: str) -> None:
    """All scores equal the scores without the shift, where float32 loses little."""
    rows = {far: Examples(INPUTS, far + NEAR) for far in (0, FAR)}
    at = {far: score_clean(fitted(form, far, True), rows[far], SETTINGS, Seed(0)) for far in rows}
    near, far = ({name: value for name, (value, _) in result.metrics.items()} for result in at.values())
    needed = {"rmse", "nll", "crps", "coverage_90", "width_90", "nll_before", "crps_before", "width_conformal"}
    assert needed <= far.keys()
    for name, value in near.items():
        assert far[name] == pytest.approx(value, **CLOSE), name
    moved = at[FAR].predictions["mean"].to_numpy() - FAR
    assert moved.dtype == np.float64
    np.testing.assert_allclose(moved, at[0].predictions["mean"], atol=1e-6)
    np.testing.assert_allclose(at[FAR].predictions["variance"], at[0].predictions["variance"], rtol=1e-6)


def test_scores_and_written_predictions_equal_a_float64_computation() -> None:
    """By SciPy: the mixture's density, its quantiles as roots of its distribution function, and the squared errors."""
    posterior = fitted("gaussian", FAR)
    result = score_clean(posterior, Examples(INPUTS, FAR + NEAR), SETTINGS, Seed(0))
    values = {name: value for name, (value, _) in result.metrics.items()}
    inner = posterior.transformed(INPUTS, rng=Seed(0))
    assert isinstance(inner, Gaussian)
    mean, sd = SCALE * inner.draw_mean.double().numpy(), SCALE * inner.draw_variance.double().sqrt().numpy()
    assert values["rmse"] == pytest.approx(np.sqrt(np.square(NEAR - mean.mean(0)).mean()), rel=1e-6)
    assert values["nll"] == pytest.approx(-np.log(stats.norm.pdf(NEAR, mean, sd).mean(0)).mean(), rel=1e-6)
    columns = summary.predictions(posterior, INPUTS, ["when"], rng=Seed(0))
    for name, level in (("lower", 0.05), ("upper", 0.95)):
        assert columns[name].dtype == np.float64
        below = stats.norm.cdf((columns[name] - FAR)[:, None], mean, sd).mean(0)
        np.testing.assert_allclose(below, level, atol=1e-8)
    np.testing.assert_allclose(columns["mean"] - FAR, mean.mean(0)[:, 0], atol=1e-6)
    np.testing.assert_allclose(columns["sd"], np.sqrt((sd**2).mean(0) + mean.var(0))[:, 0], rtol=1e-6)


def test_logarithms_of_large_targets_keep_their_differences() -> None:
    """Log targets of deviation 3.5e-8 about 21.25: in float32 all of them are one number."""
    targets = FAR + NEAR
    transform = fit_transform(INPUTS, targets, kind="table", normalise="train", whiten=False, scaling="log")
    assert transform.shift is not None and transform.scale is not None
    answer = Predictor(Draws("gaussian"), transform).predict(INPUTS, rng=Seed(0))
    inner = Draws("gaussian").predict(transform.inputs(INPUTS), rng=Seed(0))
    assert isinstance(inner, Gaussian) and isinstance(answer, Continuous)
    shift, scale = float(transform.shift), float(transform.scale)
    mean, variance = shift + scale * inner.draw_mean.double(), scale**2 * inner.draw_variance.double()
    expected = (mean + variance / 2).exp().mean(0)
    np.testing.assert_allclose(answer.mean.numpy() - FAR, expected.numpy() - FAR, atol=1e-5)
    z = torch.tensor(np.log(targets))
    density = torch.tensor(np.log(stats.norm.pdf(z, mean, variance.sqrt()).mean(0)) - z.numpy())
    torch.testing.assert_close(answer.log_prob(torch.tensor(targets)), density[:, 0], atol=1e-6, rtol=0)


@pytest.mark.parametrize("kind", ["f8", "i8", "u8", ">i8"])
@pytest.mark.parametrize("normalise", ["train", "robust"])
def test_large_inputs_are_standardised_before_the_cast_to_float32(kind: str, normalise: Any) -> None:
    raw = (FAR + np.round(SCALE * INPUTS)).astype(kind)
    transform = fit_transform(raw.astype(np.float64), NEAR, kind="table", normalise=normalise, whiten=False)
    near = fit_transform(raw.astype(np.float64) - FAR, NEAR, kind="table", normalise=normalise, whiten=False)
    expected = near.inputs(raw.astype(np.float64) - FAR)
    assert len(expected.unique()) > 40
    torch.testing.assert_close(transform.inputs(raw), expected, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(transform.inputs(torch.tensor(raw.astype("f8"))), expected, atol=1e-6, rtol=1e-6)


def test_integer_targets_are_standardised_in_float64() -> None:
    """Constants with the dtype of the targets would be integers, too."""
    whole = (FAR + np.round(NEAR)).astype(np.int64)
    transform = fit_transform(INPUTS, whole.astype(np.float64), kind="table", normalise="train", whiten=False)
    torch.testing.assert_close(transform.targets(whole), transform.targets(whole.astype(np.float64)))
    torch.testing.assert_close(
        transform.own_units(transform.targets(whole)), torch.tensor(whole).double(), atol=1e-4, rtol=0
    )


def odd(rows: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Arrays of unusual layouts, each with the plain copy of its values."""
    wide = np.repeat(rows, 2, axis=1)
    locked = rows.copy()
    locked.setflags(write=False)
    errors = {
        "backwards": rows[::-1],
        "every second row": rows[::2],
        "some columns of a wider table": wide[:, ::2],
        "by columns": np.asfortranarray(rows),
        "read-only": locked,
        "big-endian": rows.astype(rows.dtype.newbyteorder(">")),
        "one row for all": np.broadcast_to(rows[:1], rows.shape),
    }
    if rows.dtype.kind == "f":
        errors["float16"] = rows.astype(np.float16)
    return {name: (array, np.array(array, rows.dtype, order="C")) for name, array in errors.items()}


IMAGES = RANDOM.integers(0, 256, (6, 3, 4, 5), dtype=np.uint8)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", odd(INPUTS))
def test_arrays_of_any_layout_give_the_predictions_of_their_plain_copies(name: str) -> None:
    array, plain = odd(INPUTS)[name]
    posterior = fitted("gaussian", FAR)
    predictive, expected = (posterior.predict(rows, rng=Seed(0)) for rows in (array, plain))
    assert torch.equal(predictive.mean, expected.mean) and torch.equal(predictive.variance, expected.variance)
    batches = [p.mean for _, p in posterior.batches(array, 7, rng=Seed(0))]
    torch.testing.assert_close(torch.cat(batches), expected.mean)
    scored = [score_clean(posterior, Examples(rows, rows[:, :1]), SETTINGS, Seed(0)) for rows in (array, plain)]
    assert scored[0].metrics == scored[1].metrics
    kept = Examples(array, array[:, :1])
    assert kept.inputs.dtype == kept.targets.dtype == np.float64
    np.testing.assert_array_equal(kept.inputs, plain)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", odd(IMAGES))
def test_images_of_any_layout_give_the_inputs_of_their_plain_copies(name: str) -> None:
    transform = replace(fitted("gaussian", 0.0).transform, kind="image", mean=torch.zeros(3), std=torch.ones(3))
    array, plain = odd(IMAGES)[name]
    assert torch.equal(transform.inputs(array), transform.inputs(plain))
    assert torch.equal(transform.inputs(array.astype(np.float16)), transform.inputs(plain))


def test_quantiles_of_large_values_are_as_fine_as_float64() -> None:
    """At 1e12 a float64 is a multiple of 1.2e-4; a root found to 1e-13 of the value may be wrong by .1."""
    mean = torch.tensor([[[1e12]], [[1e12 + 2]]], dtype=torch.float64)
    for level in (0.05, 0.3, 0.42, 0.9):
        quantiles = Gaussian(mean, torch.ones_like(mean)).quantile(level)
        below = stats.norm.cdf(float(quantiles) - 1e12 - np.array([0, 2])).mean()
        assert below == pytest.approx(level, abs=5e-5)
