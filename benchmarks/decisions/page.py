"""The page results/decisions: tables, curves and the sentences that they bear. It is made from the stored tables.

Agents of one seed meet the same problem, so differences are paired by problem: a task and a seed. Their standard error
is s/√J of J problems; a difference is called one where Student's test of J − 1 degrees finds it at 5 %.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib
import pandas as pd
from matplotlib.figure import Figure
from scipy import stats

from bdl_pipe.figures import STYLE, Drawing, Mark
from bdl_pipe.files import write_bytes

AREAS: Final = {"wheel": "wheel-", "mushroom": "mushroom"}
LABELLING, SEARCHES = "label-", ("branin", "hartmann6", "tuning")
VBLL: Final = "vbll"
RIVALS: Final = ("linear", "map_blr", "greedy", "ensemble", "swag", "dropout", "bnn", "kfac_laplace", "gp")
_CHART: Final = {"regret": "regret", "accuracy": "accuracy"}


def write(place: Path) -> None:
    """Write ``README.md`` and a curve for each decision beside the stored tables."""
    curves, scores = pd.read_csv(place / "curves.csv"), pd.read_csv(place / "scores.csv")
    facts = json.loads((place / "facts.json").read_text())
    for decision in facts["tasks"]:
        drawing = drawn(curves, decision)
        write_bytes(place / f"{decision}.svg", (drawing.svg(decision) + "\n").encode())
    write_bytes(place / "README.md", page(scores, facts).encode())


def page(scores: pd.DataFrame, facts: dict[str, Any]) -> str:
    """Return the text of the page."""
    done = list(facts["tasks"])
    wheels = [key for key in done if key.startswith(AREAS["wheel"])]
    bandits, labelling = [*wheels, *(k for k in done if k == "mushroom")], [k for k in done if k.startswith(LABELLING)]
    searches = [key for key in SEARCHES if key in done]
    lines = [
        "# Decisions",
        "",
        f"Commit {facts['commit']}, root seed {facts['root']}. Device: {facts['device']}.",
        "Tasks, agents and seeds: `params/decisions.yaml`.",
        "`python -m benchmarks.decisions gather` stores the tables of the runs, and `page` writes this page of them.",
        "Means over seeds ± standard errors. `scores.csv` has each seed, `curves.csv` every round.",
    ]
    if facts["missing"]:
        lines += ["", f"Not yet run: {', '.join(facts['missing'])}."]
    if bandits:
        lines += ["", "## Does it explore well? Bandits", "", *_bandits(scores, bandits, wheels, facts)]
    if searches:
        lines += ["", "## Bayesian optimisation", "", *_searches(scores, searches)]
    if labelling:
        lines += ["", "## Active learning", "", *_labelling(scores, labelling, facts)]
    for decision in done:
        lines += ["", f"![{decision}]({decision}.svg)"]
    return "\n".join(lines) + "\n"


def drawn(curves: pd.DataFrame, decision: str) -> Drawing:
    """Draw the curve of each agent of a decision, with standard errors."""
    part = curves[curves.decision == decision]
    metric = next(name for name in _CHART if name in set(part.metric))
    part = part[part.metric == metric]
    ends = part.sort_values("round").groupby("agent")["mean"].last().sort_values(ascending=metric == "regret")
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(6.2, 3.4))
        axes = figure.subplots()
        for number, agent in enumerate(ends.index):
            own = part[part.agent == agent]
            look = {k: v for k, v in Mark(number, number // 10).look().items() if k not in ("marker", "elinewidth")}
            axes.plot(own["round"], own["mean"], label=agent, linewidth=1.2, **look)
            low, high = own["mean"] - own["error"], own["mean"] + own["error"]
            axes.fill_between(own["round"], low, high, color=look["color"], alpha=0.12, linewidth=0)
        labels = decision.startswith(LABELLING)
        what = "regret of uniform choices" if _is_bandit(decision) else "regret" if not labels else "accuracy"
        axes.set(xlabel="labels" if labels else "round", title=f"{decision}: {what}")
        if metric == "regret" and not _is_bandit(decision):
            axes.set_yscale("log")
        figure.legend(loc="outside right center")
    said = ", ".join(f"{agent} {value:.3g}" for agent, value in ends.items())
    return Drawing(figure, f"{metric} of {decision} by round; at the end: {said}")


def difference(
    scores: pd.DataFrame, metric: str, decisions: Sequence[str], one: str, other: str
) -> tuple[float, float, int]:
    """Return the mean of one agent's score less another's, its standard error, and the number of problems."""
    part = scores[(scores.metric == metric) & scores.decision.isin(decisions)]
    wide = part.pivot_table(index=["decision", "seed"], columns="agent", values="value")
    gaps = (wide[one] - wide[other]).dropna()
    return float(gaps.mean()), float(gaps.std(ddof=1) / math.sqrt(len(gaps))), len(gaps)


def verdict(gap: float, error: float, problems: int, *, lower_is_better: bool) -> str:
    """Return which of two agents is better, by Student's test at 5 %; one problem cannot decide."""
    if problems < 2 or not abs(gap) > stats.t.ppf(0.975, problems - 1) * error:
        return "no difference beyond its error"
    return "better" if (gap < 0) == lower_is_better else "worse"


def _is_bandit(decision: str) -> bool:
    return decision.startswith(tuple(AREAS.values()))


def _bandits(scores: pd.DataFrame, bandits: list[str], wheels: list[str], facts: dict[str, Any]) -> list[str]:
    rounds = {facts["tasks"][key]["rounds"] for key in bandits}
    lines = [
        f"Cumulative regret over {', '.join(map(str, sorted(rounds)))} rounds, which first take each arm in turn.",
        "Regret is in units of the regret of uniform choices: 1 is no better than chance. `uniform`, `oracle` and",
        "`greedy` (a plain network) are the references. The others draw a function for each round (Thompson sampling).",
        "`vbll_marginal` draws each arm's value by itself, and `vbll_ucb` takes the mean plus one standard deviation.",
        "`vbll`, `linear` and `map_blr` learn row by row between refits; `vbll_refit` and the others do not.",
        "",
        *_table(scores, bandits, "regret"),
        "",
        "Simple regret, of the last quarter of the rounds:",
        "",
        *_table(scores, bandits, "simple_regret"),
    ]
    if wheels:
        lines += [
            "",
            f"Regret of `{VBLL}` less another's on the wheels, paired by problem (below 0: `{VBLL}` is better):",
            "",
        ]
        lines += _differences(scores, "regret", wheels, ("vbll_marginal", "vbll_refit", "vbll_ucb", *RIVALS))
        lines += ["", _sentence(scores, wheels)]
    return lines


def _sentence(scores: pd.DataFrame, wheels: list[str]) -> str:
    """Return the sentence that compares exploring by draws from VBLL's joint with draws from its marginals."""
    gap, error, count = difference(scores, "regret", wheels, VBLL, "vbll_marginal")
    of = {name: difference(scores, "regret", wheels, VBLL, name) for name in RIVALS}
    said = {name: verdict(*found, lower_is_better=True) for name, found in of.items()}
    groups = {word: [name for name in RIVALS if said[name] == word] for word in ("better", "worse")}
    rest = [name for name in RIVALS if said[name] not in groups]
    joint = verdict(gap, error, count, lower_is_better=True)
    named = {"better": "is better than", "worse": "is worse than"}.get(joint, "does not differ beyond its error from")
    parts = [f"{word} than {', '.join(names)}" for word, names in groups.items() if names]
    parts += [f"not told apart from {', '.join(rest)}"] if rest else []
    return (
        f"**On {count} wheel problems a function drawn from VBLL's joint {named} values drawn from its marginals "
        f"({gap:+.3f} ± {error:.3f}). VBLL with one-row updates explores {'; '.join(parts)}.**"
    )


def _searches(scores: pd.DataFrame, searches: list[str]) -> list[str]:
    lines = [
        "Regret is the optimum less the best value so far (of `tuning`: mean squared error), here as a mean over 24",
        "evaluations after 10 random ones. `gp` is an exact GP of gpytorch. `…_ei` takes expected improvement in place",
        "of Thompson sampling.",
        "",
        *_table(scores, searches, "mean_regret"),
        "",
        "At the last evaluation:",
        "",
        *_table(scores, searches, "regret"),
    ]
    lines += ["", "Mean regret of one less another's, paired by problem (below 0: the first is better):", ""]
    lines += ["| search | one | other | difference | |", "|---|---|---|---|---|"]
    for key in searches:
        for one, other in (("gp", VBLL), ("gp", "uniform"), (VBLL, "uniform"), (VBLL, "vbll_marginal")):
            gap, error, count = difference(scores, "mean_regret", [key], one, other)
            told = verdict(gap, error, count, lower_is_better=True)
            lines.append(f"| {key} | `{one}` | `{other}` | {gap:+.3g} ± {error:.2g} | {told} |")
    return lines


def _labelling(scores: pd.DataFrame, labelling: list[str], facts: dict[str, Any]) -> list[str]:
    labels = {key: facts["tasks"][key]["labels"] for key in labelling}
    lines = [
        f"Accuracy after {', '.join(f'{count} labels ({key})' for key, count in labels.items())}, in batches of five,",
        "beside two of each class at the start. `network` is a plain network.",
        "",
        *_table(scores, labelling, "accuracy", highest=True),
        "",
        "NLL:",
        "",
        *_table(scores, labelling, "nll"),
        "",
        "Accuracy less that of uniform choices by the same method, paired by problem:",
        "",
        "| agent | difference | |",
        "|---|---|---|",
    ]
    for agent in sorted(set(scores[scores.decision.isin(labelling)].agent)):
        own = next(name for name in ("d_vbll", "dropout", "network") if agent.startswith(name))
        if agent != f"{own}_uniform":
            gap, error, count = difference(scores, "accuracy", labelling, agent, f"{own}_uniform")
            lines.append(
                f"| {agent} | {gap:+.3f} ± {error:.3f} | {verdict(gap, error, count, lower_is_better=False)} |"
            )
    return lines


def _differences(scores: pd.DataFrame, metric: str, decisions: list[str], others: Sequence[str]) -> list[str]:
    lines = ["| other | difference | problems | |", "|---|---|---|---|"]
    for other in others:
        gap, error, count = difference(scores, metric, decisions, VBLL, other)
        lines.append(
            f"| {other} | {gap:+.3f} ± {error:.3f} | {count} | {verdict(gap, error, count, lower_is_better=True)} |"
        )
    return lines


def _table(scores: pd.DataFrame, decisions: list[str], metric: str, highest: bool = False) -> list[str]:
    part = scores[(scores.metric == metric) & scores.decision.isin(decisions)]
    grouped = part.groupby(["agent", "decision"])["value"]
    mean, error = grouped.mean().unstack(), grouped.sem().unstack()
    order = mean.rank(ascending=not highest).mean(axis=1).sort_values().index
    lines = [f"| agent | {' | '.join(decisions)} |", f"|---|{'---|' * len(decisions)}"]
    for agent in order:
        cells = [f"{mean.loc[agent, d]:.3g} ± {error.loc[agent, d]:.2g}".replace(" ± nan", "") for d in decisions]
        lines.append(f"| {agent} | {' | '.join(cells)} |")
    return lines
