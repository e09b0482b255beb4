"""Rows for calibration: intervals of a model that has memorised its rows, and what is refused before the fit."""

import warnings

import pytest
import torch
from torch import Tensor, nn

from bdl_pipe import Seed, bayesianise
from bdl_pipe.errors import DataError
from bdl_pipe.own_model.bayesianise import HELD as OF_FIT
from bdl_pipe.own_model.bayesianise import SEEN, TRAINED

GENERATOR = torch.Generator().manual_seed(0)
X = torch.rand(1_000, 2, generator=GENERATOR) * 4 - 2
Y = torch.sin(2 * X[:, :1]) + 0.5 * torch.randn(1_000, 1, generator=GENERATOR)
TRAIN, HELD, NEW = slice(100), slice(100, 200), slice(200, None)


@pytest.fixture(scope="module")
def model() -> nn.Module:
    """A network that has memorised much of the noise of its hundred rows."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(2, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))
    rule = torch.optim.Adam(network.parameters(), 1e-2)
    for _ in range(500):
        rule.zero_grad()
        (network(X[TRAIN]) - Y[TRAIN]).square().mean().backward()
        rule.step()
    return network


def share(low: Tensor, high: Tensor) -> float:
    return float(((low <= Y[NEW]) & (Y[NEW] <= high)).float().mean())


@pytest.mark.slow
def test_a_regression_with_epochs_is_calibrated_on_rows_that_the_fit_has_not_seen() -> None:
    """The held-out rows are no training rows: absurd targets of theirs change the widths, and no weight."""
    torch.manual_seed(0)
    network, held = nn.Sequential(nn.Linear(2, 64), nn.SiLU(), nn.Linear(64, 1)), 20
    fit = {"epochs": 200, "lr": 3e-2}
    own, none = (bayesianise(network, "vbll", [(X[TRAIN], Y[TRAIN])], **fit, held_out=by) for by in (0.2, 0.0))
    assert own.notes == (OF_FIT.format(held, 100),) and none.notes == (SEEN,)
    low, high = own.predict(X[NEW]).quantile(0.05), own.predict(X[NEW]).quantile(0.95)
    assert 0.8 < share(low, high) < 1
    order = torch.randperm(100, generator=Seed(0).fold("bayesianise").fold("held_out").generator())[:held]
    absurd = Y[TRAIN].clone()
    absurd[order] += 100.0 * torch.tensor([1.0, -1.0]).repeat(held // 2)[:, None]
    kept = torch.ones(100).bool().index_fill(0, order, False)
    other = bayesianise(network, "vbll", [(X[TRAIN], absurd)], **fit)
    alone = bayesianise(network, "vbll", [(X[TRAIN][kept], Y[TRAIN][kept])], **fit, held_out=0.0)
    assert own.recalibration is not None and other.recalibration is not None
    assert other.recalibration.factor > 10 * own.recalibration.factor
    assert all(
        torch.equal(value, alone.inner.state().tensors[name]) for name, value in other.inner.state().tensors.items()
    )


@pytest.mark.slow
def test_intervals_hold_new_targets_after_a_fit_with_rows_for_calibration(model: nn.Module) -> None:
    """The wrong variant, calibrated on the rows of the fit, holds less than two thirds of the targets.

    The rows are at a fixed address. By chance the share of calibrated intervals has a deviation of 3 points from the
    100 rows of calibration.
    """
    first = bayesianise(model, "kfac_laplace", [(X[TRAIN], Y[TRAIN])], calibration_loader=[(X[HELD], Y[HELD])])
    predictive = first.predict(X[NEW])
    assert 0.83 < share(predictive.quantile(0.05), predictive.quantile(0.95)) < 0.97
    assert first.notes == ()
    seen = bayesianise(model, "kfac_laplace", [(X[TRAIN], Y[TRAIN])], calibration_loader=[(X[TRAIN], Y[TRAIN])])
    wrong = seen.predict(X[NEW])
    assert share(wrong.quantile(0.05), wrong.quantile(0.95)) < 0.67


def test_the_rows_are_those_of_recalibrated_and_their_absence_is_a_note_and_a_warning(model: nn.Module) -> None:
    with pytest.warns(UserWarning, match=rf"^{SEEN}, or held_out=0") as warned:
        plain = bayesianise(model, "deterministic", [(X[TRAIN], Y[TRAIN])])
    assert plain.notes == (SEEN,) and [one.filename for one in warned] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert bayesianise(model, "deterministic", [(X[TRAIN], Y[TRAIN])], held_out=0).notes == (SEEN,)
    later, first = (
        plain.recalibrated([(X[HELD], Y[HELD])]),
        bayesianise(model, "deterministic", [(X[TRAIN], Y[TRAIN])], calibration_loader=[(X[HELD], Y[HELD])]),
    )
    assert torch.equal(later.predict(X[NEW]).variance, first.predict(X[NEW]).variance)


def test_held_out_rows_that_a_trained_model_has_seen_are_a_warning(model: nn.Module) -> None:
    """The share is 1 less the mean square error over the variance of the rows that are kept; a new model has none."""
    kept = torch.ones(100).bool()
    kept[torch.randperm(100, generator=Seed(0).fold("bayesianise").fold("held_out").generator())[:20]] = False
    with torch.no_grad():
        error = (model(X[TRAIN]) - Y[TRAIN])[kept].square().mean()
    told = TRAINED.format(1 - error / Y[TRAIN][kept].var(correction=0))
    with pytest.warns(UserWarning) as warned:
        posterior = bayesianise(model, "vbll", [(X[TRAIN], Y[TRAIN])], epochs=1)
    assert [str(one.message) for one in warned] == [f"{told}, or held_out=0 to accept them"]
    assert posterior.notes == (OF_FIT.format(20, 100), told)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bayesianise(nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 1)), "vbll", [(X[TRAIN], Y[TRAIN])], epochs=1)


@pytest.mark.parametrize(("times", "doubted"), [(2, False), (1, True)])
def test_logarithms_of_standard_deviations_in_place_of_variances_give_a_warning(times: int, doubted: bool) -> None:
    """Intervals of 90 % then hold about a third of the rows that the model was trained on."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(2))
        model[0].bias.zero_()
        model[1].weight.copy_(torch.tensor([[30.0, 0.0], [0.0, 0.0]]))
        model[1].bias.copy_(torch.tensor([0.0, times * torch.tensor(20.0).log()]))
    y = 30 * X[:, :1] + 20 * torch.randn(1_000, 1, generator=torch.Generator().manual_seed(1))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        posterior = bayesianise(model, "deterministic", [(X, y)], held_out=0)
    said = "errors on the training rows are 4.6 times what its log-variances say"  # √20, and the noise of 1,000 rows
    assert [said in str(one.message) for one in warned] == [True] * doubted, [str(one.message) for one in warned]
    assert [said in note for note in posterior.notes[:-1]] == [True] * doubted


def test_rows_of_another_form_are_refused_before_the_fit(model: nn.Module) -> None:
    two = torch.cat([Y, Y], 1)
    for rows in ([(X[HELD, :1], Y[HELD])], [(X[HELD], two[HELD])], []):
        with pytest.raises(DataError, match=r"^calibration_loader"):
            bayesianise(model, "kfac_laplace", [(X[TRAIN], Y[TRAIN])], calibration_loader=rows)
    posterior = bayesianise(model, "deterministic", [(X[TRAIN], Y[TRAIN])])
    with pytest.raises(DataError, match=r"^the loader of recalibrated: targets must have 1 columns, .* got 2$"):
        posterior.recalibrated([(X[HELD], two[HELD])])
    classes = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3))
    rule = r"^calibration_loader: labels must be 0 … 2, for 3 outputs, got 3 in row 1$"
    with pytest.raises(DataError, match=rule):
        labels, wrong = torch.tensor([0, 1]), torch.tensor([2, 3])
        bayesianise(classes, "kfac_laplace", [(X[:2], labels)], calibration_loader=[(X[2:4], wrong)])
