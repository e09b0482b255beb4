"""TabM and trees as the draws of one posterior, in the shares that rows give that were left out."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bdl_pipe.artifacts import State
from bdl_pipe.baselines import stacked
from bdl_pipe.baselines.stacked import StackedPosterior, with_tails
from bdl_pipe.config import to_mapping
from bdl_pipe.data import units
from bdl_pipe.data.examples import Examples
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.data.split_rows import take
from bdl_pipe.derived_predictive import best_shares
from bdl_pipe.predictive import Categorical
from bdl_pipe.progress import Silent
from bdl_pipe.registry import METHODS, posterior_of
from bdl_pipe.seeds import Seed
from bdl_pipe.student_t import StudentT
from tests.cases import config_of, fit
from tests.refusals import refusal


def score(parts: Tensor, shares: object) -> float:
    return float((torch.as_tensor(shares)[:, None] * parts.exp()).sum(0).log().sum())


def best_of(parts: Tensor) -> np.ndarray:
    return best_shares(parts.double().numpy(), steps=5_000)


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_the_draws_are_the_members_and_the_trees_in_the_share(
    task: str, tiny: dict[str, FitData], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tiny[task]
    monkeypatch.setattr(stacked, "best_shares", lambda logs, steps: np.array([0.5, 0.5]))
    state = fit("stacked", "student", data, rng=Seed(3))
    inputs, targets = data.tensors("validation")
    draws = state.config["draws"]
    for share in (0.01, 0.43, 0.99):
        posterior = StackedPosterior(with_shares(state, share, 1 - share))
        predictive, count = posterior.predict(inputs), round(share * draws)
        network = posterior.parts["tabm"].predict(inputs)
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
        return StackedPosterior(with_shares(kept, share, 1 - share)).predict(inputs).log_prob(targets)

    assert tiny_table.search is None
    every = Examples(
        *(np.concatenate(of) for of in zip(_columns(tiny_table.train), _columns(tiny_table.validation), strict=True))
    )
    both = replace(tiny_table, train=every, search=tiny_table)
    state = fit("stacked", "student", both, rng=Seed(3))
    one = fit("stacked", "student", tiny_table, rng=Seed(3))
    assert torch.equal(state.tensors["shares"], one.tensors["shares"])
    assert not torch.equal(state.tensors["tabm.head.weight"], one.tensors["tabm.head.weight"]), "fitted to more rows"
    best = best_of(torch.stack([with_share(1.0), with_share(0.0)]))
    np.testing.assert_allclose(kept.tensors["shares"], best, atol=1e-3)


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
    share = float(state.tensors["shares"][0])
    left_out, known = (torch.cat(of, 1).double() for of in (logs, seen))
    grid = np.linspace(0, 1, 10_001)
    assert share == pytest.approx(grid[np.argmax([score(left_out, [w, 1 - w]) for w in grid])], abs=1e-4)
    assert abs(best_of(known)[0] - share) > 1e-2


def test_trees_for_quantiles_are_mixed_with_the_network_at_the_best_share(tiny_table: FitData) -> None:
    boosting = {**config_of("stacked", "regression").boosting.__dict__, "noise": "quantiles"}
    state = fit("stacked", "student", tiny_table, rng=Seed(3), boosting=boosting)
    inputs, targets = tiny_table.tensors("validation")
    posterior = StackedPosterior(state)
    logs = torch.stack([of.predict(inputs).log_prob(targets).double() for of in posterior.parts.values()])
    share, rest = state.tensors["shares"].tolist()
    assert [share, rest] == pytest.approx(best_of(logs)) and 0 < share < 1 and state.config["tails"] is None
    expected = (share * logs[0].exp() + rest * logs[1].exp()).log()
    torch.testing.assert_close(posterior.predict(inputs).log_prob(targets).double(), expected)


@pytest.mark.parametrize("noise", ["one", "quantiles"])
@pytest.mark.parametrize("only", ["tabm", "boosting"])
def test_a_part_without_a_share_is_not_fitted_again_nor_stored(
    only: str, noise: str, tiny_table: FitData, monkeypatch: pytest.MonkeyPatch
) -> None:
    boosting = {**config_of("stacked", "regression").boosting.__dict__, "noise": noise}
    settings: dict[str, Any] = {"boosting": boosting, "share_folds": 2}
    both = fit("stacked", "student", tiny_table, rng=Seed(3), **settings)
    monkeypatch.setattr(stacked, "best_shares", lambda logs, steps: np.array([only == "tabm", only != "tabm"], float))
    state = fit("stacked", "student", tiny_table, rng=Seed(3), **settings)
    assert state.tensors["shares"].tolist() == [1.0] and list(StackedPosterior(state).parts) == [only]
    kept = {name for name in both.tensors if name.startswith(f"{only}.")}
    assert kept and set(state.tensors) == {*kept, "shares"}
    assert all(torch.equal(state.tensors[name], both.tensors[name]) for name in kept)
    inputs, targets = tiny_table.tensors("validation")
    alone = StackedPosterior(both).parts[only].predict(inputs)
    tails = both.config["tails"] if only == "boosting" else None
    expected = with_tails(alone, tails).log_prob(targets)
    assert torch.equal(StackedPosterior(state).predict(inputs).log_prob(targets), expected)


@pytest.mark.parametrize("noise", ["one", "quantiles"])
def test_a_second_network_has_its_own_share(noise: str, tiny_table: FitData) -> None:
    config = config_of("stacked", "regression")
    other = {**to_mapping(config.tabm), "members": 3}
    boosting = {**config.boosting.__dict__, "noise": noise}
    state = fit("stacked", "student", tiny_table, rng=Seed(3), draws=20, second=other, boosting=boosting)
    posterior = StackedPosterior(with_shares(state, 0.32, 0.45, 0.23))
    inputs, targets = tiny_table.tensors("validation")
    *parts, plain = (part.predict(inputs) for part in posterior.parts.values())
    trees = with_tails(plain, state.config["tails"])
    assert [len(part.draw_mean) for part in parts] == [config.tabm.members, 3]  # type: ignore[attr-defined]
    predictive = posterior.predict(inputs)
    if noise == "one":
        # 6, 9 and 5 of 20 draws: .32, .77 and 1 are rounded
        draws = predictive.draw_mean  # type: ignore[attr-defined]
        assert all(any(torch.equal(row, of) for of in parts[0].draw_mean) for row in draws[:6])  # type: ignore[attr-defined]
        counts = [sum(torch.equal(row, of) for row in draws[6:15]) for of in parts[1].draw_mean]  # type: ignore[attr-defined]
        assert counts == [3, 3, 3] and all(torch.equal(row, trees.mean) for row in draws[15:])
    else:
        logs = torch.stack([part.log_prob(targets) for part in (*parts, trees)]).double()
        weighted = torch.tensor([0.32, 0.45, 0.23]).double()[:, None] * logs.exp()
        torch.testing.assert_close(predictive.log_prob(targets).double(), weighted.sum(0).log())
    logs = torch.stack([part.log_prob(targets) for part in (*parts, trees)])
    np.testing.assert_allclose(state.tensors["shares"], best_of(logs), atol=1e-6)


def test_both_networks_have_the_same_tails() -> None:
    config = config_of("stacked", "regression")
    other = replace(config.tabm, tails="gaussian" if config.tabm.tails == "student" else "student")
    message = refusal(replace, config, second=other)
    assert f"second.tails must be those of tabm ({config.tabm.tails}), got '{other.tails}'" in message


def test_folds_keep_the_rows_of_a_group_together(tiny_table: FitData) -> None:
    groups = np.arange(len(tiny_table.train)) // 8
    grouped = replace(tiny_table, train=Examples(*_columns(tiny_table.train), units=groups))
    parts = [held for held, _, _ in stacked._held(grouped, 4, Seed(1))]
    assert sum(len(held.validation) for held in parts) == len(groups)
    for held in parts:
        assert held.train.units is not None and held.validation.units is not None and held.search is None
        assert not set(held.train.units) & set(held.validation.units)


def with_shares(state: State, *shares: float) -> State:
    return State({**state.tensors, "shares": torch.tensor(shares, dtype=torch.float64)}, state.config)


def _columns(of: Examples) -> tuple[np.ndarray, np.ndarray]:
    return of.inputs, of.targets


def test_a_fit_without_validation_rows_is_refused(tiny_table: FitData) -> None:
    rows = tiny_table.train
    without = replace(tiny_table, validation=Examples(rows.inputs[:0], rows.targets[:0]))
    message = refusal(fit, "stacked", "student", without)
    assert message == "ConfigError: methods.stacked must have validation rows, on which the share is found, got 0"
