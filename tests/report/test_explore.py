"""Pages of decisions: differences against SciPy's paired test, the compared agents, sentences, tables and curves."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats

import bdl_report
from bdl_pipe import artifacts
from bdl_pipe.errors import ArtifactError
from bdl_report import explore
from bdl_report.explore import Played
from benchmarks.decisions import page as benchmark

PROBLEMS = 8
AGENTS: dict[str, dict[str, Any]] = {
    "oracle": {"rule": "oracle"},
    "chance": {"rule": "uniform"},
    "joint": {"rule": "thompson", "method": "vbll"},
    "single": {"rule": "marginal_thompson", "method": "vbll"},
    "slow": {"rule": "marginal_thompson", "method": "vbll", "pace": 0.01},
}
LEVELS = {"oracle": 0.0, "chance": 1.0, "joint": 0.2, "single": 0.6, "slow": 0.95}


def curves(levels: dict[str, float], metrics: tuple[str, ...] = ("regret", "simple_regret")) -> pd.DataFrame:
    random, rows = np.random.default_rng(3), []
    luck = random.normal(size=PROBLEMS)  # of a problem, which all agents share
    for agent, level in levels.items():
        values = level + luck + 0.1 * random.normal(size=PROBLEMS)
        for seed, value in enumerate(values.tolist()):
            rows += [(agent, seed, metrics[0], at, value + (30 - at)) for at in (10, 20, 30)]
            rows += [(agent, seed, metrics[-1], 30, 2 * value)] if metrics[1:] else []
    frame = pd.DataFrame(rows, columns=["agent", "seed", "metric", "round", "value"])
    frame.insert(0, "decision", "d")
    return frame.sample(frac=1, random_state=0)  # the order of rows has no meaning


def played(levels: dict[str, float] = LEVELS, **more: Any) -> Played:
    return Played({"name": "wheel"}, {name: AGENTS[name] for name in levels}, curves(levels, **more))


def test_a_difference_equals_scipys_paired_t_test_with_a_bonferroni_interval() -> None:
    agents = played()
    ends = agents.curves[(agents.curves["metric"] == "regret") & (agents.curves["round"] == 30)]
    values = ends.pivot(index="seed", columns="agent", values="value")
    expected = stats.ttest_rel(values["joint"], values["slow"])
    difference = agents.difference("joint", "slow", comparisons=4)
    low, high = expected.confidence_interval(1 - 0.05 / 4)
    assert difference is not None
    assert (difference.mean - difference.half, difference.mean + difference.half) == pytest.approx((low, high))
    assert difference.mean / difference.error == pytest.approx(expected.statistic)


@pytest.mark.parametrize(("metric", "word"), [("regret", "better"), ("accuracy", "worse")])
def test_a_registered_metric_has_its_own_direction_and_any_other_metric_is_a_loss(metric: str, word: str) -> None:
    agents = played(metrics=(metric,))
    assert explore.verdict(agents.difference("joint", "slow"), metric) == word
    assert agents.ranked()[0] == ("oracle" if word == "better" else "chance")


def test_sentences_compare_agents_with_the_best_with_chance_and_with_marginal_draws() -> None:
    """The oracle knows the means, so it is not compared; ``slow`` has another pace, so it is no pair to ``joint``."""
    best, chance, joint = explore.sentences(played())
    mean = played().ends["regret"]["joint"].mean()
    assert best == f"Best: joint with regret {mean:.3g}; all others are significantly worse."
    assert chance == "Against uniform choices: better joint, single; statistically tied slow."
    gap = played().difference("joint", "single")
    assert gap is not None
    shown = f"better ({gap.mean:+.3g} ± {gap.half:.2g})"
    assert joint == f"Joint draws: joint, with draws of the joint, against single, with marginals: {shown}."


def test_sentences_write_scores_and_differences_of_shares_in_per_cent() -> None:
    agents = played(metrics=("accuracy",))
    best, _, joint = explore.sentences(agents)
    gap = agents.difference("joint", "single")
    assert gap is not None
    assert best.startswith(f"Best: chance with accuracy {100 * agents.ends['accuracy']['chance'].mean():.2f} %; ")
    assert joint.endswith(f": worse ({100 * gap.mean:+.3g} ± {100 * gap.half:.2g} %).")


def test_equal_agents_differ_in_at_most_five_percent_of_decisions() -> None:
    """Of 200 decisions of six equal agents, 5 % may have a difference to the first agent.

    A binomial count is above the limit once in 10⁶ times. Intervals without a correction for the five comparisons
    break the limit.
    """
    random, alarms, alone = np.random.default_rng(0), 0, 0
    for _ in range(200):
        values = random.normal(size=(PROBLEMS, 6))
        rows = [("d", f"a{a}", s, "regret", 1, values[s, a]) for s in range(PROBLEMS) for a in range(6)]
        frame = pd.DataFrame(rows, columns=["decision", "agent", "seed", "metric", "round", "value"])
        game = Played({"name": "wheel"}, {f"a{a}": {"rule": "greedy"} for a in range(6)}, frame)
        pairs = [(f"a{a}", "a0") for a in range(1, 6)]
        alarms += any((gap := game.difference(*pair, 5)) is not None and gap.apart for pair in pairs)
        alone += any((gap := game.difference(*pair)) is not None and gap.apart for pair in pairs)
    limit = stats.binom.ppf(1 - 1e-6, 200, 0.05)
    assert alarms <= limit < alone


def test_the_chance_reference_is_uniform_choices_of_the_same_method_where_they_exist() -> None:
    agents = {
        "net_bald": {"rule": "bald", "method": "dropout"},
        "net_uniform": {"rule": "uniform", "method": "dropout"},
        "other": {"rule": "margin", "method": "swag"},
        "uniform": {"rule": "uniform"},
    }
    game = Played({"name": "active_learning"}, agents, curves(dict.fromkeys(agents, 0.5)))
    references = [game.chance(name) for name in agents]
    assert references == ["net_uniform", None, "uniform", None]
    del agents["uniform"]
    assert Played({"name": "active_learning"}, agents, game.curves).chance("other") is None


def test_the_table_has_the_best_agent_first_and_agents_better_than_uniform_bold() -> None:
    table = explore.grid(played())
    assert table.head == ["Agent, rule", "Regret", "Simple regret", "to the best", "to uniform choices"]
    assert [(row[0].text, row[0].small) for row in table.rows][:2] == [("oracle", "oracle"), ("joint", "thompson vbll")]
    bold = {row[0].text for row in table.rows if row[4].best}
    assert bold == {"joint", "single"}
    assert [row[3].text for row in table.rows if row[0].text in ("oracle", "joint")] == ["—", "—"]


def test_an_oracle_alone_has_a_table_without_sentences_and_one_problem_gives_no_differences() -> None:
    game = Played({"name": "wheel"}, {"oracle": AGENTS["oracle"]}, curves({"oracle": 0.0}))
    assert explore.sentences(game) == [] and len(explore.grid(game).rows) == 1
    frame = curves(LEVELS)
    game = Played({"name": "wheel"}, AGENTS, frame[frame["seed"] == 0])
    assert game.difference("joint", "chance") is None
    assert explore.sentences(game)[1] == "Against uniform choices: all statistically tied."
    assert [cell.small for row in explore.grid(game).rows for cell in row[1:]] == [""] * 20


def test_a_metric_of_several_rounds_has_a_figure_whose_legend_lists_the_best_first() -> None:
    (drawing,) = explore.drawn(played(), "d")
    ends = played().ends["regret"].mean().sort_values()
    values = ", ".join(f"{agent} {value:.3g}" for agent, value in ends.items())
    assert drawing.alt == f"d: regret at the end: {values}"
    assert list(drawing.names) == list(ends.index)
    band = [row for row in drawing.spec["data"]["values"] if row["name"] == "joint"][-1]
    of_agent = played().ends["regret"]["joint"]
    assert band["high"] - band["y"] == pytest.approx(of_agent.std() / math.sqrt(PROBLEMS), rel=1e-3)


def test_the_report_has_a_page_of_the_played_decisions(tmp_path: Path) -> None:
    """Curves in an artifact of another kind are refused."""
    about = {"decision": {"task": {"name": "wheel"}, "agents": AGENTS, "seeds": PROBLEMS}, "seed": 0}
    with artifacts.publish(tmp_path / "d", "decide", about=about) as folder:
        pq.write_table(pa.Table.from_pandas(curves(LEVELS), preserve_index=False), folder / "curves.parquet")
    places = {"d": tmp_path / "d", "later": tmp_path / "later"}
    bdl_report.build([], tmp_path / "report", provenance={}, dpi=110, decisions=places)
    page = (tmp_path / "report/pages/explore.html").read_text()
    assert '<section id="d">' in page and "later" not in page
    assert "all others are significantly worse" in page and 'aria-label="d: regret at the end' in page
    assert 'href="pages/explore.html"' in (tmp_path / "report" / "index.html").read_text()
    bdl_report.build([], tmp_path / "none", provenance={}, dpi=110)
    assert sorted(path.name for path in (tmp_path / "none/pages").iterdir()) == ["manifest.json", "vega.js"]
    assert "explore.html" not in (tmp_path / "none/index.html").read_text()
    manifest = json.loads((tmp_path / "d" / artifacts.MANIFEST).read_text())
    manifest["kind"] = "evaluate"
    (tmp_path / "d" / artifacts.MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(ArtifactError, match="decide"):
        explore.read(tmp_path / "d")


def scores(gap: float, problems: int) -> pd.DataFrame:
    random = np.random.default_rng(0)
    luck = random.normal(size=problems)  # of the problem, which both agents share
    of = {"vbll": luck + gap + 0.1 * random.normal(size=problems), "gp": luck + 0.1 * random.normal(size=problems)}
    rows = [("wheel-50", agent, "regret", seed, v) for agent, values in of.items() for seed, v in enumerate(values)]
    return pd.DataFrame(rows, columns=["decision", "agent", "metric", "seed", "value"])


@pytest.mark.parametrize("problems", [3, 10])
@pytest.mark.parametrize("gap", [-0.5, -0.12, 0.0, 0.12, 0.5])
def test_the_verdict_of_the_benchmark_agrees_with_the_paired_t_test(gap: float, problems: int) -> None:
    """One problem alone shows no difference."""
    table = scores(gap, problems)
    difference = benchmark.difference(table, "regret", ["wheel-50"], "vbll", "gp")
    one, other = (table[table.agent == agent]["value"].to_numpy() for agent in ("vbll", "gp"))
    expected = stats.ttest_rel(one, other)
    assert difference.mean / difference.error == pytest.approx(expected.statistic)
    word = "no difference beyond its error" if expected.pvalue > 0.05 else "better" if difference.mean < 0 else "worse"
    assert benchmark.verdict(difference, lower_is_better=True) == word
    assert benchmark.verdict(replace(difference, mean=-difference.mean), lower_is_better=False) == word
    alone = benchmark.difference(scores(5.0, 1), "regret", ["wheel-50"], "vbll", "gp")
    assert benchmark.verdict(alone, lower_is_better=True) == "no difference beyond its error"
