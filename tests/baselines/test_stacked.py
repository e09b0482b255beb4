"""The share of two parts against a dense grid, and TabM and trees as the draws of one posterior."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from bdl_pipe.artifacts import State
from bdl_pipe.baselines import stacked
from bdl_pipe.baselines.stacked import StackedPosterior, best_share, with_tails
from bdl_pipe.data import units
from bdl_pipe.data.examples import Examples
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.data.split_rows import take
from bdl_pipe.predictive import Categorical
from bdl_pipe.progress import Silent
from bdl_pipe.registry import METHODS, posterior_of
from bdl_pipe.seeds import Seed
from bdl_pipe.student_t import StudentT
from tests.cases import config_of, fit
from tests.refusals import refusal


def score(first: Tensor, second: Tensor, share: float) -> float:
    return float((share * first.exp() + (1 - share) * second.exp()).log().sum())


@pytest.mark.parametrize(("lead", "inside"), [(0.3, True), (6.0, False), (-6.0, False)])
def test_the_share_has_the_best_log_score_of_a_dense_grid(lead: float, inside: bool) -> None:
    first, second = torch.randn(2, 60, generator=Seed(1).generator()).double()
    first = first + lead
    share = best_share(first, second)
    grid = np.linspace(0, 1, 10_001)
    best = grid[np.argmax([score(first, second, w) for w in grid])]
    assert share == pytest.approx(best, abs=1e-4) and (0.01 < share < 0.99) == inside
    # wrong: the share of rows on which the first part is better, and a half
    for wrong in [float((first > second).double().mean()), 0.5] if inside else [0.5]:
        assert score(first, second, share) > score(first, second, wrong) + 0.1


def test_rows_that_neither_part_can_have_play_no_part() -> None:
    first, second = torch.randn(2, 30, generator=Seed(2).generator()).double()
    never = torch.full((3,), -torch.inf).double()
    assert best_share(torch.cat([first, never]), torch.cat([second, never])) == best_share(first, second)
    assert best_share(first, torch.full_like(first, -torch.inf)) == pytest.approx(1.0)
    assert best_share(never, never) == 0.5


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_the_draws_are_the_members_and_the_trees_in_the_share(task: str, tiny: dict[str, FitData]) -> None:
    data = tiny[task]
    state = fit("stacked", "student", data, rng=Seed(3))
    inputs, targets = data.tensors("validation")
    draws = state.config["draws"]
    for share in (0.0, 0.43, 1.0):
        state.tensors["share"].fill_(share)
        posterior = StackedPosterior(state)
        predictive, count = posterior.predict(inputs), round(share * draws)
        network = posterior.network.predict(inputs)
        members = network.draw_log_prob(targets)
        ours = predictive.draw_log_prob(targets)
        assert isinstance(predictive, Categorical if task == "classification" else StudentT) and len(ours) == draws
        for row in ours[:count]:
            assert any(torch.allclose(row, member) for member in members)
        assert all(torch.equal(row, ours[-1]) for row in ours[count:])
        used = [sum(torch.allclose(row, member) for row in ours[:count]) for member in members]
        assert max(used) - min(used) <= 1, "members are used about equally often"


def test_the_share_is_the_best_on_validation_rows_of_fits_without_them(tiny_table: FitData) -> None:
    """With data that fit validation rows as well, the share equals the one of the fits to the other rows alone."""
    kept = fit("stacked", "student", tiny_table, rng=Seed(3), draws=6)
    inputs, targets = tiny_table.tensors("validation")

    def with_share(share: float) -> Tensor:
        tensors = {**kept.tensors, "share": torch.tensor(share)}
        return StackedPosterior(State(tensors, kept.config)).predict(inputs).log_prob(targets)

    assert tiny_table.search is None
    every = Examples(
        *(np.concatenate(of) for of in zip(_columns(tiny_table.train), _columns(tiny_table.validation), strict=True))
    )
    both = replace(tiny_table, train=every, search=tiny_table)
    state = fit("stacked", "student", both, rng=Seed(3))
    one = fit("stacked", "student", tiny_table, rng=Seed(3))
    assert torch.equal(state.tensors["share"], one.tensors["share"])
    assert not torch.equal(state.tensors["tabm.head.weight"], one.tensors["tabm.head.weight"]), "fitted to more rows"
    assert float(kept.tensors["share"]) == pytest.approx(best_share(with_share(1.0), with_share(0.0)), abs=1e-3)


def test_the_share_of_folds_is_the_best_on_rows_that_are_each_left_out(tiny_table: FitData) -> None:
    """Both parts are fitted without each fold by hand; the share on the rows that they saw is another one."""
    data, logs, seen = tiny_table, list[Tensor](), list[Tensor]()
    state = fit("stacked", "student", data, rng=Seed(3), share_folds=3)
    config = config_of("stacked", "regression", share_folds=3)
    search = Seed(3).fold("search")
    of_row = units.folds_of(None, len(data.train), None, 3, ordered=False, rng=search.fold("folds"))
    assert sorted(np.bincount(of_row)) == sorted(np.bincount(np.arange(len(data.train)) % 3))
    for number in range(3):
        rest, out = (take(data.train, np.flatnonzero((of_row == number) == here)) for here in (False, True))
        held, at = replace(data, train=rest, validation=out), search.fold("fold", number)
        for rows, into in ((out, logs), (rest, seen)):
            inputs, targets = data.transform.rows(rows.inputs, rows.targets)
            network, trees = (
                posterior_of(
                    METHODS[name]
                    .stages["student"]
                    .fit_one(held, {}, getattr(config, name), rng=at.fold(name), report=Silent())
                )
                for name in ("tabm", "boosting")
            )
            parts = network.predict(inputs), with_tails(trees.predict(inputs), state.config["tails"])
            into.append(torch.stack([part.log_prob(targets) for part in parts]))
    share = float(state.tensors["share"])
    left_out, known = (torch.cat(of, 1).double() for of in (logs, seen))
    grid = np.linspace(0, 1, 10_001)
    assert share == pytest.approx(grid[np.argmax([score(*left_out, w) for w in grid])], abs=1e-4)
    assert abs(best_share(*known) - share) > 1e-2


def test_trees_for_quantiles_are_mixed_with_the_network_at_the_best_share(tiny_table: FitData) -> None:
    boosting = {**config_of("stacked", "regression").boosting.__dict__, "noise": "quantiles"}
    state = fit("stacked", "student", tiny_table, rng=Seed(3), boosting=boosting)
    inputs, targets = tiny_table.tensors("validation")
    posterior = StackedPosterior(state)
    network, trees = (of.predict(inputs).log_prob(targets).double() for of in (posterior.network, posterior.trees))
    share = float(state.tensors["share"])
    assert share == pytest.approx(best_share(network, trees)) and 0 < share < 1 and state.config["tails"] is None
    expected = (share * network.exp() + (1 - share) * trees.exp()).log()
    torch.testing.assert_close(posterior.predict(inputs).log_prob(targets).double(), expected)
    for extreme, only in ((0.0, trees), (1.0, network)):
        state.tensors["share"].fill_(extreme)
        assert torch.equal(StackedPosterior(state).predict(inputs).log_prob(targets).double(), only)


def test_folds_keep_the_rows_of_a_group_together(tiny_table: FitData) -> None:
    groups = np.arange(len(tiny_table.train)) // 8
    grouped = replace(tiny_table, train=Examples(*_columns(tiny_table.train), units=groups))
    parts = [held for held, _, _ in stacked._held(grouped, 4, Seed(1))]
    assert sum(len(held.validation) for held in parts) == len(groups)
    for held in parts:
        assert held.train.units is not None and held.validation.units is not None and held.search is None
        assert not set(held.train.units) & set(held.validation.units)


def _columns(of: Examples) -> tuple[np.ndarray, np.ndarray]:
    return of.inputs, of.targets


def test_a_fit_without_validation_rows_is_refused(tiny_table: FitData) -> None:
    rows = tiny_table.train
    without = replace(tiny_table, validation=Examples(rows.inputs[:0], rows.targets[:0]))
    message = refusal(fit, "stacked", "student", without)
    assert message == "ConfigError: methods.stacked must have validation rows, on which the share is found, got 0"
