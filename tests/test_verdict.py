"""The verdict: the choice of runs against hand computation, and each sentence in each of its cases."""

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from bdl_pipe import scores
from bdl_pipe.metrics.pit import THIRDS
from bdl_pipe.metrics.standings import Candidate
from bdl_pipe.scores import Quantity, RunScores, Score
from bdl_pipe.sgmcmc.diagnostics import DiagnosticsConfig, judge
from bdl_report.choice import LONGER, Choice, choose, coverage, ended, half_width, off_by_width, split_seconds
from bdl_report.verdict import FEW_SEEDS, calibration, cheapest, hour, optimal, taking, verdict, worth

BASE = np.array([2.0, 2.2, 1.9, 2.1, 2.3])
UNIT = np.array([-1.0, 1.0, 0.0, -1.0, 1.0])  # of mean 0 and variance 1
ERROR = math.sqrt(1 / 5 + 1 / 9)  # the standard error of the mean of five differences of variance 1
HEAD = re.compile(r"[:?] ")  # separates a sentence of the verdict from its topic


def run(
    name: str,
    nll: Sequence[float] = (),
    fit: float | None = 1.0,
    network: str = "",
    method: str = "",
    ended: Sequence[str] = (),
    folder: Path = Path("absent"),
    **others: Sequence[float],
) -> Candidate:
    """A run with values of metrics, one a split; ``fit``: the seconds of each fit, None: no cost is recorded."""
    figures = [Score(s, 0, Quantity(m), v, 50) for m, vs in {"nll": nll, **others}.items() for s, v in enumerate(vs)]
    costs = {} if fit is None else {"fit_seconds": fit, "seconds_per_1000": 0.5}
    for s in range(max(1, *map(len, (nll, *others.values())))):
        figures += [Score(s, 0, Quantity(cost, "cost"), value, 1) for cost, value in costs.items()]
    of = RunScores(scores.table("d", name, "", figures))
    return Candidate(name, name, of, folder, network, method or name, ended, optimal(method or name))


def off(mean: float, spread: float = 0.01) -> list[float]:
    """Return the scores of a run whose differences to BASE have that mean and that standard deviation."""
    values: list[float] = (BASE + mean + spread * UNIT).tolist()
    return values


def chosen(*runs: Candidate, metric: str = "nll") -> Choice:
    choice = choose(runs, metric)
    assert choice is not None
    return choice


def test_the_cheapest_run_within_one_standard_error_is_taken() -> None:
    best, rest = run("best", off(0, 0), fit=9), run("rest", off(5), fit=0.1)
    near, far = (run("cheap", off(share * ERROR * 0.01), fit=2) for share in (0.99, 1.01))
    assert chosen(rest, near, best).taken is near and chosen(rest, far, best).taken is best
    assert chosen(near, best).gaps["cheap"].error == pytest.approx(0.01 * ERROR)
    assert taking(chosen(rest, near, best)) == (
        "use cheap. Two runs tie on NLL (within one standard error of the best), "
        "and cheap is the cheapest of them to fit (2 s). "
        "Its NLL is 2.106; best has the best, 2.100 (NLL +0.0055 ± 0.0056)."
    )
    alone = "and no cheaper run is within one standard error of it."
    assert taking(chosen(rest, far, best)) == f"use best: its NLL, 2.100, is the lowest, {alone}"
    dear = run("cheap", off(0.001), fit=20)
    sentence = "use best: its NLL, 2.100, is the lowest, and no run is cheaper to fit (9 s)."
    assert taking(chosen(dear, best)) == sentence


def test_the_cheaper_of_two_runs_with_equal_scores_is_taken() -> None:
    a, b = run("a", off(0), fit=2), run("b", off(0), fit=1)
    choice = chosen(a, b)
    assert choice.best is b and choice.taken is b and choice.near == [b, a] == choice.tied
    unpaired = chosen(run("constant", [2.0], fit=2), run("b", [2.0], fit=1, method="linear"))
    assert unpaired.taken.name == "b" and unpaired.gaps == {}


def test_missing_scores_costs_and_pairs_are_stated_and_never_chosen() -> None:
    good = run("good", off(0), fit=3)
    lost = [run("nan", [math.nan] * 5), run("inf", [math.inf] * 5), run("none")]
    assert choose(lost, "nll") is None and verdict([]) == []
    assert verdict(lost) == ["Verdict: none, because no run has a finite NLL."]
    assert taking(chosen(*lost, good)) == "good is the only run with a finite NLL, 2.100."
    unpriced = chosen(run("a", off(0), fit=None), run("b", off(0.001), fit=None))
    assert taking(unpriced) == "use a: its NLL, 2.100, is the lowest; the time of its fit is not recorded."
    assert cheapest(unpriced) == "the times of the fits are not recorded."
    other_splits = chosen(good, run("two", [2.2, 2.2], fit=1), run("three", [2.3] * 3, fit=2))
    assert other_splits.gaps == {} and other_splits.near == [good]
    sentence = "use good: its NLL, 2.100, is the lowest; two cheaper runs cannot be compared with it in pairs."
    assert taking(other_splits) == sentence
    assert cheapest(other_splits) == (
        "good fits in 3 s and predicts 1,000 rows in 0.5 s. Two cheaper runs cannot be compared with the best in pairs."
    )
    wide = chosen(run("a", accuracy=[0.9] * 5), run("b", accuracy=[0.8] * 5, fit=0.1), metric="accuracy")
    assert taking(wide).startswith("use a: its accuracy, 90.00 %, is the highest")


def test_the_cost_sentence_names_the_cheapest_run_that_is_tied_with_the_best() -> None:
    """The 95 % interval of five splits is 2.776 standard errors, by Student's t on 4 degrees of freedom."""
    best, edge = run("best", off(0, 0), fit=9), 0.01 * ERROR * float(stats.t.ppf(0.975, 4))
    inside, outside = (run(name, off(share * edge), fit=2) for name, share in (("in", 0.99), ("out", 1.01)))
    fast = "fits in 2 s and predicts 1,000 rows in 0.5 s"
    sentence = "Over 5 splits its NLL is statistically tied with the best (NLL +0.0153 ± 0.0056)"
    assert cheapest(chosen(best, inside)) == f"in {fast}. {sentence}."
    alone = "best fits in 9 s and predicts 1,000 rows in 0.5 s. One run is cheaper, but it is significantly worse."
    assert cheapest(chosen(best, outside)) == alone
    constant = run("constant", off(0.5 * edge), fit=1)
    assert cheapest(chosen(best, constant)).endswith(
        "No run is significantly better than constant, so it is not established that the inputs help."
    )
    assert "inputs" not in cheapest(chosen(best, run("constant", off(2 * edge), fit=1)))
    assert "inputs" in cheapest(chosen(run("worse", off(2)), run("constant", off(0))))
    assert "inputs" not in cheapest(chosen(run("constant", off(0))))
    two = chosen(best, *(run(f"out{k}", off(1), fit=1) for k in (0, 1)))
    assert cheapest(two).endswith(". Two runs are cheaper, but all of them are significantly worse.")


def test_coverage_over_splits_is_stated_with_its_error_and_judged() -> None:
    agrees = "this agrees with 90 %"
    for mean, spread, judged in ((0.0, 0.01, agrees), (-0.1, 0.01, "too few"), (0.09, 0.001, "too many")):
        one = run("a", off(0), coverage_90=(0.9 + mean + spread * UNIT).tolist())
        share = f"{90 + 100 * mean:.1f} ± {100 * spread * ERROR:.1f}"
        assert calibration(one) == f" Its 90 % intervals cover {share} % of the test targets: {judged}."


def by_width(shares: Sequence[float], rows: int, splits: int = 1, noise: float = 1.0) -> Candidate:
    """A run with these coverages of the thirds, of ``rows`` rows of each of its splits, by two seeds."""
    named = {**dict(zip(THIRDS, shares, strict=True)), "noise_ratio": noise}
    fits = itertools.product(range(splits), range(2), named.items())
    figures = [Score(split, seed, Quantity(name), value, rows) for split, seed, (name, value) in fits]
    return replace(run("a"), scores=RunScores(scores.table("d", "a", "", figures)))


def test_a_third_with_too_few_or_too_many_targets_inside_is_a_warning() -> None:
    sentence = "90 % intervals cover 99 % of the targets in the third of the narrowest intervals and 75 % "
    sentence += "of the targets in the third of the widest intervals"
    cure = ": its noise is one for all inputs; take noise: each input, where the method has it"
    assert off_by_width(by_width([0.99, 0.9, 0.75], 600)) == sentence + cure
    assert off_by_width(by_width([0.99, 0.9, 0.75], 600, noise=3.0)) == sentence
    assert off_by_width(by_width([0.81, 0.9, 0.97], 10_000)) == "" == off_by_width(run("a", [2.0]))


def test_a_third_of_few_rows_is_seldom_a_warning_by_chance() -> None:
    """If a third of 17 rows is right, the warning's exact probability is below 3 %.

    The bounds alone, the wrong variant, are crossed with a probability of 25 %.
    """
    assert off_by_width(by_width([0.9, 0.9, 13 / 17], 51)) == "" != off_by_width(by_width([0.9, 0.9, 13 / 17], 51, 5))
    chances = {k / 17: stats.binom(17, 0.9).pmf(k) for k in range(18)}
    chance_of = sum(chance for share, chance in chances.items() if off_by_width(by_width([0.9, 0.9, share], 51)))
    bounds = sum(chance for share, chance in chances.items() if not 0.8 <= share <= 0.97)
    assert 0 < chance_of < 0.03 and bounds > 0.2


def test_coverage_of_one_split_has_a_binomial_error_and_classes_have_an_ece() -> None:
    remark = coverage(run("linear", [2.0], coverage_90=[0.8]))
    assert remark is not None and remark.mean == pytest.approx(-0.1)
    assert remark.error == pytest.approx(stats.binom(50, 0.9).std() / 50) and remark.apart
    assert not coverage(run("linear", [2.0], coverage_90=[0.82])).apart  # type: ignore[union-attr]
    once = run("vbll", [2.0], coverage_90=[0.8])
    assert calibration(once) == f" Its 90 % intervals cover 80.0 ± 4.2 % of the test targets: {FEW_SEEDS}."
    two = [Score(0, 0, Quantity("nll"), 2.0, 50), Score(0, 0, Quantity("coverage_90"), 0.8, 100)]  # outputs of a row
    assert coverage(replace(run("linear"), scores=RunScores(scores.table("d", "a", "", two)))) == remark
    of_seed = itertools.product(enumerate((0.7, 0.8, 0.9)), ("nll", "coverage_90"))
    three = [Score(0, seed, Quantity(metric), value, 50) for (seed, value), metric in of_seed]
    spread = coverage(replace(run("vbll"), scores=RunScores(scores.table("d", "a", "", three))))
    assert spread is not None and spread.error**2 == pytest.approx(remark.error**2 + 0.01 / 3) and not spread.apart
    assert calibration(run("a", [2.0], coverage_90=[math.nan])) == "" == calibration(run("a", [2.0], ece=[math.nan]))
    assert calibration(run("a", [2.0], ece=[0.0123])) == " Its ECE is 1.23 %." and calibration(run("a", [2.0])) == ""


def of_seeds(
    name: str, gain: float, place: Path, seeds: int = 3, *, fit: float = 1, ece: float = 0.1, **more: str
) -> Candidate:
    """A run on one split: fits of an NLL that is ``gain`` below 2, by 0.01 apart, with rows and an accuracy of 90 %."""
    g, folder, figures = np.random.default_rng(0), place / name, []
    rows, frames = g.normal(size=400), []
    for seed in range(seeds):
        log_prob = rows + gain - 2 + 0.01 * seed + 0.1 * g.normal(size=400)
        frames.append(pd.DataFrame({"seed": seed, "row": range(400), "log_prob": log_prob, "target": 0}))
        of = {"nll": -log_prob.mean(), "accuracy": 0.9, "ece": ece}
        figures += [Score(0, seed, Quantity(metric), value, 400) for metric, value in of.items()]
        figures += [Score(0, seed, Quantity(cost, "cost"), fit, 1) for cost in ("fit_seconds", "seconds_per_1000")]
    folder.mkdir()
    pd.concat(frames).assign(p_0=0.9, p_1=0.1).to_parquet(folder / "predictions.parquet")
    of = RunScores(scores.table("d", name, "", figures))
    return Candidate(name, name, of, folder, more.get("network", ""), name, optimal=optimal(name))


def network(name: str, nll: Sequence[float], **more: object) -> Candidate:
    return run(name, nll, network="mlp 8", **more)  # type: ignore[arg-type]


def test_a_bayesian_network_is_worth_it_where_it_beats_every_rival() -> None:
    """With two networks an interval is of Student's t at 1 − 0.05/2, to correct for the choice of the best network."""
    bayes = [network("vbll", off(0, 0)), network("swag", off(0.3))]
    edge = 0.01 * ERROR * float(stats.t.ppf(1 - 0.05 / 4, 4))
    better, tied = run("boosting", off(1.01 * edge)), run("linear", off(0.99 * edge))
    worse = run("constant", off(-1.01 * edge))
    best, apart = "vbll, the best of 2 Bayesian networks,", "is statistically tied with linear"
    corrected = "after correcting for choosing the best of 2"
    over, like = "is better than boosting (NLL −0.0197 ± 0.0056)", f"{apart} (NLL −0.0193 ± 0.0056)"
    for rivals, answer in (
        ([better], f"Yes: {best} {over}, {corrected}."),
        ([better, tied], f"Not established: {best} {like} and {over}, {corrected}."),
        ([tied, worse], f"No: {best} is worse than constant (NLL +0.0197 ± 0.0056) and {like}, {corrected}."),
        ([run("linear", [2.0] * 3)], f"Not established: {best} {apart} (not comparable), {corrected}."),
    ):
        assert worth([*bayes, *rivals], "nll") == answer
    assert worth([bayes[0], tied], "nll").startswith("Yes: vbll is better than linear"), "one network is no choice"
    others = ("deterministic", "swa", "ensemble", "tabm", "coreset_nn")
    plain = [*(network(name, off(0)) for name in others), run("gp", off(0)), tied]
    assert worth(plain, "nll") == "No Bayesian network has a finite score."
    assert worth([*bayes, run("linear", [math.nan] * 5)], "nll") == "no run can be compared with vbll."


def test_without_rivals_a_plain_network_of_the_same_architecture_is_the_rival() -> None:
    missing, bayes = "This comparison has no boosting, linear or constant baseline.", network("vbll", off(0, 0))
    other = run("deterministic", off(1), network="mlp 64")
    assert worth([bayes, network("deterministic", off(1))], "nll") == (
        f"Yes, against a plain network: vbll is better than deterministic (NLL −1.0000 ± 0.0056). {missing}"
    )
    assert worth([bayes, other], "nll") == f"no run can be compared with vbll. {missing}"


def test_on_one_split_a_difference_from_a_run_of_few_seeds_is_not_established(tmp_path: Path) -> None:
    """The same rows, where the gain of 0.5 is 50 times the spread of fits; only the number of seeds differs."""
    plain, few, some = of_seeds("deterministic", 0.0, tmp_path), tmp_path / "few", tmp_path / "some"
    few.mkdir()
    some.mkdir()
    once, thrice = of_seeds("vbll", 0.5, few, 2, network=""), of_seeds("vbll", 0.5, some)
    linear = of_seeds("linear", -1, few, 1)
    for runs in ([once, plain], [once, linear]):
        sentences = dict(HEAD.split(sentence, maxsplit=1) for sentence in verdict(runs))
        assert sentences["Probabilities"].startswith(f"{FEW_SEEDS}: vbll has the lowest NLL, ")
        assert sentences["Cost"].startswith(f"{FEW_SEEDS}: vbll, with the best NLL, fits in 1 s")
        assert "1 of 2 runs have fewer than 3 seeds: give them 3 (seeds: 3) to compare them." in sentences["Caution"]
    single, other, three = (replace(one, network="mlp 8") for one in (once, plain, thrice))
    for runs, begins in (
        (
            [single, linear],
            "Not established (fewer than 3 seeds): vbll differs, with fewer than 3 seeds, from linear (NLL −1.",
        ),
        ([single, other], "Not established (fewer than 3 seeds), against a plain network: vbll differs"),
        ([three, linear], "Yes: vbll is better than linear"),
        ([network("vbll", off(-0.5)), run("linear", off(0))], "Yes: vbll"),
    ):
        assert worth(runs, "nll").startswith(begins)
    assert "seeds" not in " ".join(verdict([three, linear, plain]))
    cheap = of_seeds("cheap", 0.49, few, 2, fit=0.1)
    assert taking(chosen(thrice, cheap)).endswith("one cheaper run cannot be compared with it in pairs.")


def test_the_effect_of_longer_fits_is_stated() -> None:
    cases: dict[tuple[str, ...], str] = {  # method and the ends of its fits -> the sentence
        ("linear",): "No: the fits of it end at an optimum.",
        ("vbll", "validation", "validation"): "No: early stopping ended the fits of it.",
        ("vbll", "validation", "steps"):
            "Perhaps: 1 of 2 fits of it used all their steps while their validation score still improved.",
        ("sgmcmc", "chains"): "Yes: the Markov chains of it have not converged.",
        ("vbll", "schedule"): "Unknown for it, which always runs a fixed number of steps.",
        ("gp",): "Unknown: how the fits of it ended is not recorded.",
    }  # fmt: skip
    others = [run("late", [2.0], ended=("steps", "validation")), run("short", [2.0], ended=("chains",))]
    rest = "Perhaps for these runs, which still improved at their last step: late. "
    rest += "Yes for these runs, whose Markov chains have not converged: short."
    for (method, *ends), sentence in cases.items():
        taken = run("it", [2.0], method=method, ended=ends)
        assert hour([taken], taken) == sentence
        assert hour([taken, *others], taken) == f"{sentence} {rest}"


def test_the_time_and_the_gain_of_more_splits_are_stated() -> None:
    """The half-width against the interval of 20 splits; differences over 5 and over 20 splits have equal variances."""
    a, b = run("a", off(0), fit=100), run("b", off(1), fit=400)
    fifteen = "15 more splits would take 125 min of fitting and narrow the intervals of differences by about 46 %."
    assert "more split" not in hour([a, run("c", off(1), fit=None)], a), "a time is not recorded"
    assert "more split" not in hour([a, run("b", off(1), fit=4_000)], a), "not one in an hour"
    seven = "7 more splits would take 58 min of fitting and narrow the intervals of differences by about 37 %."
    assert hour([a, b], a).endswith(seven)
    quick = run("a", off(0), fit=1)
    assert hour([quick], quick).endswith(fifteen.replace("125 min", "15 s"))
    figures = [Score(s, seed, Quantity("fit_seconds", "cost"), 10.0, 1) for s in range(5) for seed in range(3)]
    seeds = Candidate("s", "s", RunScores(scores.table("d", "s", "", figures)), Path("absent"))
    assert split_seconds(seeds) == 30 and split_seconds(run("c", off(0), fit=None)) == math.inf
    ratio = stats.t.ppf(0.975, 19) * math.sqrt(1 / 20 + 1 / 9) / (stats.t.ppf(0.975, 4) * math.sqrt(1 / 5 + 1 / 9))
    assert half_width(20) / half_width(5) == pytest.approx(ratio)
    one = run("a", [2.0], fit=1)
    assert "more split" not in hour([one], one)
    many = run("a", [2.0] * 20, fit=1)
    assert "more split" not in hour([many], many)


def test_the_reason_that_ended_a_fit_is_found() -> None:
    def how(chosen: int, patience: int | None = 10, **more: object) -> str:
        stopping = SimpleNamespace(every=2, patience=patience)
        config = SimpleNamespace(**{"epochs": 100, "early_stopping": stopping, **more})
        assert ended(config, chosen, True) == ended(SimpleNamespace(training=config), chosen, True)
        return ended(config, chosen, True)

    assert how(90) == "validation" and how(91) == "steps"
    assert how(98, None) == "validation" and how(100, None) == "steps"
    assert how(95, extra_epochs=5) == "validation" and how(96, extra_epochs=5) == "steps"
    assert how(50, early_stopping=None) == "schedule"
    stopped = SimpleNamespace(epochs=100, early_stopping=SimpleNamespace(every=2, patience=10))
    assert ended(stopped, 100, False) == "schedule" and ended(SimpleNamespace(rounds=3), 3, True) == ""


def test_the_warning_of_short_chains_ends_as_the_verdict_expects() -> None:
    metrics = {"rhat_prediction": 2.0, "rhat_log_likelihood": 2.0, "ess_prediction": 5.0, "ess_log_likelihood": 5.0}
    (warning,) = judge({**metrics, "ess_tail_prediction": 5.0}, DiagnosticsConfig(10, 1.05, 100))
    assert warning.endswith(LONGER)


def test_the_whole_verdict_has_its_sentences_for_a_table_and_for_classes(tmp_path: Path) -> None:
    table = [
        network("vbll", off(0), rmse=off(1), coverage_90=[0.9] * 5, ended=("validation",)),
        run("linear", off(1), fit=0.01, rmse=off(2)),
    ]
    by, accurate = "Is a Bayesian network better by", "Is a Bayesian network more accurate"
    heads = ["Accuracy", "Intervals", "Cost", f"{by} NLL", f"{by} RMSE", "Would longer training help"]
    assert [HEAD.split(line)[0] for line in verdict(table)] == [*heads, "Caution"]
    limit = "Caution: the winner was picked by its test score among 2 runs, so that score is optimistic."
    assert verdict(table)[-1] == limit
    assert [HEAD.split(line)[0] for line in verdict(table[:1])] == heads, "one run is no choice"
    assert "split" not in verdict(table)[-1]
    best = of_seeds("vbll", 0.5, tmp_path, ece=0.02, fit=2, network="mlp 8")
    some = [best, of_seeds("deterministic", 0.0, tmp_path, fit=1, network="mlp 8")]
    line = dict(HEAD.split(sentence, maxsplit=1) for sentence in verdict(some))
    assert list(line) == [*heads[:1], "Probabilities", *heads[2:4], accurate, *heads[5:], "Caution"]
    taken = "use deterministic: its accuracy, 90.00 %, is the highest, and no run is cheaper"
    assert line["Accuracy"].startswith(taken)
    assert line[f"{by} NLL"].startswith("Yes, against a plain network: vbll is better than deterministic")
    assert "is statistically tied with deterministic" in line[accurate]
    assert line["Caution"].endswith("With a single train/test split, another split could give another ranking.")
