"""Methods offered for a size: their order, their fit to the size, their upstream runs, and the default of a plugin."""

import math
from dataclasses import dataclass, replace

import pytest
import torch

from bdl_pipe import offers
from bdl_pipe.config import read
from bdl_pipe.data import split_rows
from bdl_pipe.data.size import Section, Size
from bdl_pipe.errors import ConfigError
from bdl_pipe.method import Default, Method, Upstream
from bdl_pipe.registry import METHODS, register_method
from bdl_pipe.seeds import Seed
from bdl_pipe.training.learner import EarlyStopping

SMALL, MIDDLE, LARGE = (Size("regression", rows, 13) for rows in (300, 5_000, 200_000))
IMAGES = Size("classification", 300, 144, image=(1, 12, 12), fewest=150)


def names(size: Size) -> list[str]:
    return [method.name for method in offers.offered(size)]


def test_the_offered_methods_suit_the_task_and_the_size() -> None:
    some = [m.name for m in METHODS.values() if m.default is not None and "regression" in m.tasks]
    # for classes, or many rows; or few
    unsuited = {"swa", "pca_ess", "pca_vi", "kfac_laplace", "svgp", "vbpc_regression"}
    assert names(SMALL) == [name for name in some if name not in unsuited]
    assert [name for name in names(SMALL) if name not in names(MIDDLE)] == ["gp"]
    assert [name for name in names(MIDDLE) if name not in names(SMALL)] == ["svgp"]
    assert {name for name in names(MIDDLE) if name not in names(LARGE)} == {"ciber_last", "ciber_second", "map_blr"}
    table = Size("classification", 300, 13)
    assert {name for name in names(IMAGES) if name not in names(table)} == {"vbpc", "random_coreset"}
    assert all("classification" in METHODS[name].tasks for name in names(IMAGES))


def test_only_needed_upstream_runs_are_listed() -> None:
    def keys(size: Size, *chosen: str) -> list[str]:
        return list(offers.upstream([METHODS[name] for name in chosen], size))

    assert keys(SMALL, "gp", "vbll") == []
    assert keys(SMALL, "dark_knowledge", "swag") == ["iterates", "sgmcmc"]
    assert keys(LARGE, "swag") == ["iterates"]
    assert keys(IMAGES, *names(IMAGES)) == ["sgd", "iterates", "sgmcmc", "vbpc", "random_coreset"]


def test_an_upstream_run_has_several_seeds_only_for_a_method_that_takes_all() -> None:
    def seeds(*chosen: str) -> list[tuple[int, float]]:
        inputs = offers.upstream([METHODS[name] for name in chosen], SMALL).values()
        return [(run.seeds, run.cost) for _, run in inputs]

    assert seeds("deterministic") == seeds("swag", "ciber_last") == [(1, 1.0)]
    assert seeds("ensemble") == seeds("swag", "multi_swag") == [(3, 3.0)]
    assert seeds("sgmcmc") == seeds("dark_knowledge") == [(3, 6.0)]


def test_iterates_per_epoch_fit_the_steps_of_an_epoch_without_validation_rows() -> None:
    """A search fits the training rows without the validation rows: of 469 rows 338, so 10 steps, not 13."""
    for rows in (20, 100, 300, 400, 469, 506, 900, 2_300, 3_000, 9_000):
        size = Size("classification", rows, 13)
        (train, _), *_ = split_rows.uci_splits(rows, 1)
        searched, _ = split_rows.hold_out(len(train), size.dataset({})["validation"], "x.csv", rng=Seed(0))
        section = METHODS["sgd"].upstream["iterates"].override(size)
        steps = max(1, len(searched) // section["batch"])
        assert section["snapshots_per_epoch"] == min(20, steps), rows
        assert section["snapshots"] <= section["extra_epochs"] * section["snapshots_per_epoch"], rows


def test_the_estimated_seconds_equal_the_sum_by_hand_over_the_chosen_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offers, "step_seconds", lambda size: 1e-3)
    swag, gp = METHODS["swag"], METHODS["gp"]
    # 1,000 steps of 1 ms in each of 5 splits, 1.6 times where validation rows end a fit, at cost 1.0 + 0.2; 3 stages
    assert offers.timing([swag], SMALL).seconds == pytest.approx(1.2 * 8 + 3 * 1.5)
    assert offers.timing([swag, gp], SMALL).seconds == pytest.approx(4.2 * 8 + 5 * 1.5)
    assert offers.timing([swag], SMALL, splits=2).seconds == pytest.approx(1.2 * 8 * 2 / 5 + 3 * 1.5)
    assert offers.timing([swag], LARGE).seconds == pytest.approx((1.6 + 0.2) * 4 + 3 * 1.5)  # 4,000 steps of one split
    vbll, bnn = METHODS["vbll"], METHODS["bnn"]
    assert vbll.default is not None and bnn.default is not None
    # 1.9 times where the length of a schedule is chosen
    assert offers.timing([vbll], LARGE).seconds == pytest.approx(1.9 * vbll.default.cost * 4 + 2 * 1.5)
    assert offers.timing([bnn], LARGE).seconds == pytest.approx(bnn.default.cost * 4 + 2 * 1.5)
    monkeypatch.undo()
    drawn, threads = torch.get_rng_state(), torch.get_num_threads()
    assert 0 < offers.step_seconds(SMALL) < 10
    assert torch.equal(torch.get_rng_state(), drawn) and torch.get_num_threads() == threads


def test_only_methods_that_need_more_than_their_share_are_slowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: 8 s a unit of cost; 1.6 (vbll), 6 (ffg_u), 3.2 (sgd and its two methods), 3 (gp, no steps) units."""
    monkeypatch.setattr(offers, "step_seconds", lambda size: 1e-3)
    chosen = [METHODS[name] for name in ("deterministic", "ensemble", "vbll", "gp", "ffg_u")]
    whole = offers.timing(chosen, SMALL)
    fixed = 1.5 * (1 + 2 * 5) + 8 * 3.0
    assert whole.paces == dict.fromkeys(("sgd", "vbll", "gp", "ffg_u"), 1.0)
    assert whole.seconds == pytest.approx(fixed + 8 * (3.2 + 1.6 + 6.0))
    assert offers.timing(chosen, SMALL, whole.seconds).paces["ffg_u"] == pytest.approx(1)

    some = offers.timing(chosen, SMALL, fixed + 62.4)  # 12.8 s of vbll, 25.6 s of sgd for two methods; 24 s are left
    assert some.seconds == pytest.approx(fixed + 62.4)
    assert some.paces == {"sgd": 1.0, "vbll": 1.0, "gp": 1.0, "ffg_u": pytest.approx(24 / 48)}
    few = offers.timing(chosen, SMALL, fixed + 25.6)  # 6.4 s a method
    assert few.paces == {k: pytest.approx(p) for k, p in {"sgd": 0.5, "vbll": 0.5, "gp": 1, "ffg_u": 6.4 / 48}.items()}
    assert few.seconds == pytest.approx(fixed + 25.6)
    none = offers.timing(chosen, SMALL, 0)
    assert {key for key, pace in none.paces.items() if pace == offers.LEAST} == {"sgd", "vbll", "ffg_u"}
    assert none.seconds == pytest.approx(fixed + offers.LEAST * 8 * (3.2 + 1.6 + 6.0))


def test_methods_that_would_run_few_of_their_steps_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand, as above: 5 % of the 48 s of `ffg_u` are 2.4 s, a quarter of a budget that four methods share.

    Left out first are the methods with the longest fits, whose time the other methods get; closed forms always stay.
    """
    monkeypatch.setattr(offers, "step_seconds", lambda size: 1e-3)
    chosen = [METHODS[name] for name in ("deterministic", "ensemble", "vbll", "gp", "ffg_u")]
    fixed = 1.5 * (1 + 2 * 5) + 8 * 3.0
    kept, out = offers.worthwhile(chosen, SMALL, fixed + 4 * 2.45)  # 2.45 s a method, just more than 5 % of 48 s
    assert kept == chosen and out == []
    kept, out = offers.worthwhile(chosen, SMALL, fixed + 4 * 2.35)
    assert [method.name for method in out] == ["ffg_u"] and kept == chosen[:4]
    assert (
        offers.timing(kept, SMALL, fixed + 4 * 2.35).paces["sgd"]
        > offers.timing(chosen, SMALL, fixed + 4 * 2.35).paces["sgd"]
    )
    kept, out = offers.worthwhile(chosen, SMALL, 0)
    assert [method.name for method in kept] == ["gp"]
    assert [method.name for method in out] == ["ffg_u", "deterministic", "ensemble", "vbll"]


@pytest.mark.parametrize("size", [SMALL, MIDDLE, LARGE, IMAGES])
@pytest.mark.parametrize("minutes", [1, 3, 7])
def test_the_estimate_is_within_the_budget_unless_a_pace_is_the_least(
    size: Size, minutes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offers, "step_seconds", lambda size: 2e-3)
    methods, chosen = offers.timing(offers.offered(size), size, 60 * minutes), offers.offered(size)
    slowed = {key: pace for key, pace in methods.paces.items() if pace < 1}
    assert methods.seconds <= 60 * minutes * (1 + 1e-9) or offers.LEAST in slowed.values()
    closed = {"gp", "boosting", "linear", "constant"} & methods.paces.keys()
    assert all(methods.paces[name] == 1 for name in closed)
    keys = {method.default.upstream or method.name for method in chosen if method.default}
    assert keys <= methods.paces.keys()


@dataclass(frozen=True)
class Config:
    last: int


def test_a_plugins_default_is_offered_and_may_bring_an_upstream_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(METHODS, "_others", {})
    above = Upstream("trajectory", 2, 1.5, lambda size: {"epochs": size.epochs(500)})
    method = Method("own", Config, ("regression",), {}, default=Default(1.0, "long"), upstream={"long": above})
    register_method(method)
    assert names(SMALL)[-1] == "own" and "own" not in names(IMAGES)
    assert list(offers.upstream([method], SMALL)) == ["long"]
    register_method(Method("other", Config, ("regression",), {}, default=Default(1.0, "lnog")))
    with pytest.raises(ConfigError, match=r"default\.upstream must be one of sgd, iterates, .*long, got 'lnog'"):
        offers.upstream([METHODS["other"]], SMALL)


def test_the_number_of_blocks_follows_from_the_pixels() -> None:
    """Features of at most four pixels a side, and never less than one."""
    sizes = {side: Size("classification", 1000, 1, image=(3, side, side)) for side in (2, 8, 28, 64, 224)}
    blocks = {side: size.network["blocks"] for side, size in sizes.items()}
    assert blocks == {2: 1, 8: 1, 28: 3, 64: 4, 224: 6}


def test_middle_tables_of_regression_have_bins_a_schedule_and_student_ts_and_iterates_do_not() -> None:
    def chosen(size: Size) -> tuple[Section, Section, Section, Section]:
        (tabm, stacked), sgd = (METHODS[name].default for name in ("tabm", "stacked")), METHODS["sgd"].upstream
        assert tabm is not None and stacked is not None
        parts = stacked.override(size)["tabm"], tabm.override(size)
        return *parts, sgd["sgd"].override(size), sgd["iterates"].override(size)

    nested, tabm, sgd, iterates = chosen(MIDDLE)
    assert nested == {**METHODS["tabm"].settings, **tabm}
    read(METHODS["tabm"].config, tabm, "tabm"), read(METHODS["sgd"].config, sgd, "sgd")
    for of in (tabm, sgd):
        assert of["network"]["bins"] == 32 and "frequencies" not in of["network"] and of["tails"] == "student"
        training = of.get("training", of)
        lengths = EarlyStopping(**training["early_stopping"]).lengths(training["epochs"])
        assert len(lengths) >= 3 and lengths[-1] <= math.ceil(training["epochs"] / 2)
        assert training["epochs"] * MIDDLE.steps_per_epoch == pytest.approx(4_000, rel=0.02)
    assert "tails" not in iterates, "Laplace's approximation, CIBER and chains need Gaussian noise"
    for size in (replace(MIDDLE, rows=1_100), LARGE, replace(MIDDLE, task="classification")):  # 990 training rows
        assert not any("tails" in of or "bins" in of["network"] for of in chosen(size))


def test_networks_with_bins_take_longer() -> None:
    tabm = [METHODS["tabm"]]
    few, more = (
        offers.timing(tabm, replace(MIDDLE, rows=rows), splits=1, step=1e-3).seconds for rows in (1_100, 1_200)
    )
    assert more > 3 * few


def test_stacked_on_middle_tables_has_a_regularised_second_network_which_doubles_its_time() -> None:
    method = METHODS["stacked"]
    assert method.default is not None
    section = {**method.settings, **method.default.override(MIDDLE)}
    first, second = section["tabm"], section["second"]
    assert second["network"] == {**first["network"], "dropout": 0.1}
    assert second["training"]["optimiser"] == {**first["training"]["optimiser"], "lr": 3e-3}
    assert {name for name in first if first[name] != second[name]} == {"network", "training"}
    read(method.config, section, "stacked")
    for size in (replace(MIDDLE, rows=1_100), LARGE, replace(MIDDLE, task="classification")):
        assert "second" not in method.default.override(size)
    one, two = (offers.timing([METHODS[name]], MIDDLE, splits=1, step=1e-3).seconds for name in ("tabm", "stacked"))
    assert 4 < two / one < 5  # 28 / 6
