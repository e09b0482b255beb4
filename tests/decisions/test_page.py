"""The page's differences and verdicts, against SciPy's paired test."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from benchmarks.decisions import page


def scores(gap: float, problems: int) -> pd.DataFrame:
    random = np.random.default_rng(0)
    luck = random.normal(size=problems)  # of the problem, which both agents share
    of = {"vbll": luck + gap + 0.1 * random.normal(size=problems), "gp": luck + 0.1 * random.normal(size=problems)}
    rows = [("wheel-50", agent, "regret", seed, v) for agent, own in of.items() for seed, v in enumerate(own)]
    return pd.DataFrame(rows, columns=["decision", "agent", "metric", "seed", "value"])


@pytest.mark.parametrize("problems", [3, 10])
@pytest.mark.parametrize("gap", [-0.5, -0.12, 0.0, 0.12, 0.5])
def test_the_verdict_agrees_with_the_paired_t_test(gap: float, problems: int) -> None:
    table = scores(gap, problems)
    found = page.difference(table, "regret", ["wheel-50"], "vbll", "gp")
    one, other = (table[table.agent == agent]["value"].to_numpy() for agent in ("vbll", "gp"))
    expected = stats.ttest_rel(one, other)
    assert found.mean / found.error == pytest.approx(expected.statistic)
    word = "no difference beyond its error" if expected.pvalue > 0.05 else "better" if found.mean < 0 else "worse"
    assert page.verdict(found, lower_is_better=True) == word
    assert page.verdict(replace(found, mean=-found.mean), lower_is_better=False) == word


def test_one_problem_alone_shows_no_difference() -> None:
    found = page.difference(scores(5.0, 1), "regret", ["wheel-50"], "vbll", "gp")
    assert page.verdict(found, lower_is_better=True) == "no difference beyond its error"
