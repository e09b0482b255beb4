"""The length of a schedule, chosen on validation rows: against fits of each length, and exact resumption."""

import dataclasses
from collections.abc import Sequence

import pytest
import torch

from bdl_pipe.artifacts import to_bytes
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.data.size import Size
from bdl_pipe.predictive import Predictive
from bdl_pipe.progress import Report, Silent
from bdl_pipe.training.fit import fit_epochs
from bdl_pipe.training.learner import EarlyStopping, FitResult, TrainingConfig
from bdl_pipe.training.loop import OptimiserConfig
from bdl_pipe.trajectory.sgd import default_iterates
from tests.resuming import Watched, killed
from tests.training.test_fit import RNGS, Noisy, config, fit, same, table

ONE_CYCLE = OptimiserConfig("adamw", 0.3, schedule="one_cycle", grad_clip_norm=0.5)
LENGTHS = EarlyStopping(every=4, patience=None)
HOW = config(epochs=40, early_stopping=LENGTHS, optimiser=ONE_CYCLE)
TABLES = [table(m, shift=24.0 * m) for m in range(3)]  # the farther the targets, the longer the fit that they need


def test_lengths_are_repeated_halves_of_the_epochs_down_to_the_least() -> None:
    expected = {(3, 30): [4, 8, 15], (1, 5): [1, 2, 3], (4, 8): [4, 8], (5, 8): [8], (2, 2): [2], (1, 1): [1]}
    expected |= {(8, 64): [8, 16, 32]}
    assert {at: EarlyStopping(at[0], None).lengths(at[1]) for at in expected} == expected


def scores(data: FitData, member: int, how: TrainingConfig = HOW) -> dict[int, float]:
    """Return the validation score of a separate fit of each length, up to the first worse score."""
    losses: dict[int, float] = {}
    for length in LENGTHS.lengths(how.epochs):
        alone = dataclasses.replace(how, epochs=length, early_stopping=None)
        (at,) = fit([data.search], [RNGS[member].fold("search")], alone)
        model = Noisy(RNGS[0]).eval()
        model.load_state_dict(at.state)
        inputs, targets = data.search.tensors("validation")
        losses[length] = -model.predict(inputs, rng=RNGS[0]).log_prob(targets).mean().item()
        if losses[length] > min(losses.values()):
            break
    return losses


def test_the_fit_has_the_length_of_the_best_score_or_all_epochs() -> None:
    tried = [scores(data, m) for m, data in enumerate(TABLES)]
    best = [min(scores_of, key=scores_of.__getitem__) for scores_of in tried]
    best = [40 if length == 20 else length for length in best]  # no score was worse than at half of the epochs
    assert 40 in best and any(length < 20 for length in best), "choices that show"
    for m, data in enumerate(TABLES):
        (chosen,) = fit([data], RNGS[m : m + 1], HOW)
        assert chosen.epochs == best[m]
        plain = dataclasses.replace(HOW, epochs=best[m], early_stopping=None)
        same(chosen, fit([data], RNGS[m : m + 1], plain)[0])


def test_the_search_ends_at_the_first_worse_length() -> None:
    report, tried = Watched(), scores(TABLES[0], 0)
    fit([TABLES[0]], RNGS[:1], HOW, report)
    (final,) = fit([TABLES[0]], RNGS[:1], HOW)
    assert max(tried) < 20, "a search that ends early"
    assert len(report.steps) == 3 * sum(tried) + 5 * final.epochs, "steps of the search, and of the final fit"
    shares = [step / total for step, total in report.steps]
    assert all(0 < share <= 1 for share in shares) and shares[-1] == 1.0


def test_members_trained_together_end_where_each_member_alone_ends() -> None:
    together = fit(TABLES, RNGS, HOW)
    assert len({one.epochs for one in together}) > 1, "final fits of several lengths"
    for m, data in enumerate(TABLES):
        (alone,) = fit([data], RNGS[m : m + 1], HOW)
        same(together[m], alone, atol=2e-6, rtol=2e-5)


def results(report: Report) -> list[FitResult]:
    return fit_epochs(lambda _, rng: Noisy(rng), TABLES, HOW, rngs=RNGS, report=report)


def test_a_killed_fit_continues_with_the_same_bits() -> None:
    """Killed in every part of the search, and in each of the final fits of several lengths."""
    expected, watched = results(Silent()), Watched()
    results(watched)
    phases = set()
    for stop in range(1, watched.asked + 1, 7):
        checkpoint = killed(results, stop)
        phases.add(checkpoint.config["phase"])
        resumed = Watched(kept=to_bytes(checkpoint))
        for one, other in zip(results(resumed), expected, strict=True):
            same(one, other)
        if checkpoint.config["phase"].startswith("final"):
            assert len(resumed.steps) <= 5 * sum({one.epochs for one in expected}), "the search is not made again"
    assert {"search-5", "search-10"} <= phases and {f"final-{one.epochs}" for one in expected} <= phases


def test_a_fit_without_a_finite_score_runs_all_epochs() -> None:
    class Lost(Noisy):
        def estimated(
            self, predicted: Sequence[tuple[Predictive, torch.Tensor]]
        ) -> tuple[float, dict[str, torch.Tensor]]:
            return float("nan"), {}

    training = dataclasses.replace(HOW, early_stopping=EarlyStopping(4, None), noise="validation")
    (fitted,) = fit_epochs(lambda _, rng: Lost(rng), TABLES[:1], training, rngs=RNGS[:1], report=Silent())
    assert fitted.epochs == 40


@pytest.mark.parametrize("rows", [300, 3_000, 30_000, 200_000])
@pytest.mark.parametrize("pace", [0.1, 1.0])
def test_defaults_choose_the_epochs_where_rows_could_be_memorised(rows: int, pace: float) -> None:
    size = Size("regression", rows, 10, pace)
    for constant in (False, True):
        chosen = size.training(constant=constant)
        stopping = EarlyStopping(**chosen["early_stopping"])
        assert chosen["noise"] == "validation"
        TrainingConfig(chosen["epochs"], chosen["batch"], OptimiserConfig(**chosen["optimiser"]), stopping)
        lengths = stopping.lengths(chosen["epochs"])
        assert stopping.patience or lengths[0] <= max(1, chosen["epochs"] / 8)
    bare = size.training(regularised=True)
    assert (bare["early_stopping"] is None) == (bare["noise"] == "training") == (not size.small)
    assert "noise" not in dataclasses.replace(size, task="classification").training()


def test_defaults_choose_no_length_where_rows_outnumber_weights() -> None:
    many = Size("regression", 300_000, 10)
    assert many.training()["early_stopping"] is None and many.training(constant=True)["early_stopping"] is None
    assert "extra_epochs" not in default_iterates(many) and default_iterates(many)["snapshots"] == 20
    assert default_iterates(Size("regression", 30_000, 10))["extra_epochs"] == 1
