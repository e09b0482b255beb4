"""The page results/decisions: tables, curves and the sentences that they bear. It is made from the stored tables.

Agents of one seed meet the same problem, so differences are paired by problem: a task and a seed. Their standard error
is s/√J of J problems; a difference is called one where Student's test of J − 1 degrees finds it at 5 %.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pandas as pd

from bdl_pipe.drawing import Drawing, Mark
from bdl_pipe.figures import Series, progress
from bdl_pipe.files import write_bytes
from bdl_pipe.metrics.comparison import Difference, over_splits

LABELLING: Final = "label-"
VBLL: Final = "vbll"
RIVALS: Final = ("linear", "map_blr", "greedy", "ensemble", "swag", "dropout", "bnn", "kfac_laplace", "gp")


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
    wheels = [key for key in done if key.startswith("wheel-")]
    bandits, labelling = [*wheels, *(k for k in done if k == "mushroom")], [k for k in done if k.startswith(LABELLING)]
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
    lines += ["", "Bayesian optimisation: [nine functions](nine.md), and the same [in batches of four](nine_fours.md)."]
    if labelling:
        lines += ["", "## Active learning", "", *_labelling(scores, labelling, facts)]
    for decision in done:
        lines += ["", f"![{decision}]({decision}.svg)"]
    return "\n".join(lines) + "\n"


def drawn(curves: pd.DataFrame, decision: str) -> Drawing:
    """Draw the curve of each agent of a decision, with standard errors."""
    part = curves[curves.decision == decision]
    metric = next(name for name in ("regret", "accuracy") if name in set(part.metric))
    points = part[part.metric == metric].set_index(["agent", "round"])[["mean", "error"]]
    agents = list(dict.fromkeys(points.index.get_level_values(0)))
    lines = [Series(agent, Mark(i % 10, i // 10), points.loc[agent]) for i, agent in enumerate(agents)]
    what = "regret of uniform choices" if metric == "regret" else metric
    unit = "labels" if decision.startswith(LABELLING) else "rounds"
    return progress(lines, f"{decision}: {what}", unit, higher=metric == "accuracy", log=False)


def difference(scores: pd.DataFrame, metric: str, decisions: Sequence[str], one: str, other: str) -> Difference:
    """Return the mean of one agent's score less another's, over problems."""
    part = scores[(scores.metric == metric) & scores.decision.isin(decisions)]
    wide = part.pivot_table(index=["decision", "seed"], columns="agent", values="value")
    gaps = (wide[one] - wide[other]).dropna().to_numpy()
    return over_splits(gaps, 0.0)


def verdict(gap: Difference, *, lower_is_better: bool) -> str:
    """Return which of two agents is better, by the interval of their difference."""
    if not gap.apart:
        return "no difference beyond its error"
    return "better" if (gap.mean < 0) == lower_is_better else "worse"


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
    joint, count = difference(scores, "regret", wheels, VBLL, "vbll_marginal"), _problems(scores, wheels)
    of = {name: difference(scores, "regret", wheels, VBLL, name) for name in RIVALS}
    said = {name: verdict(gap, lower_is_better=True) for name, gap in of.items()}
    groups = {word: [name for name in RIVALS if said[name] == word] for word in ("better", "worse")}
    rest = [name for name in RIVALS if said[name] not in groups]
    words = {"better": "is better than", "worse": "is worse than"}
    named = words.get(verdict(joint, lower_is_better=True), "does not differ beyond its error from")
    parts = [f"{word} than {', '.join(names)}" for word, names in groups.items() if names]
    parts += [f"no established difference from {', '.join(rest)}"] if rest else []
    return (
        f"**On {count} wheel problems a function drawn from VBLL's joint {named} values drawn from its marginals "
        f"({joint.mean:+.3f} ± {joint.error:.3f}). VBLL with one-row updates explores {'; '.join(parts)}.**"
    )


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
            gap = difference(scores, "accuracy", labelling, agent, f"{own}_uniform")
            lines.append(f"| {agent} | {gap.mean:+.3f} ± {gap.error:.3f} | {verdict(gap, lower_is_better=False)} |")
    return lines


def _differences(scores: pd.DataFrame, metric: str, decisions: list[str], others: Sequence[str]) -> list[str]:
    lines, count = ["| other | difference | problems | |", "|---|---|---|---|"], _problems(scores, decisions)
    for other in others:
        gap = difference(scores, metric, decisions, VBLL, other)
        told = verdict(gap, lower_is_better=True)
        lines.append(f"| {other} | {gap.mean:+.3f} ± {gap.error:.3f} | {count} | {told} |")
    return lines


def _problems(scores: pd.DataFrame, decisions: Sequence[str]) -> int:
    return len(scores[scores.decision.isin(decisions)][["decision", "seed"]].drop_duplicates())


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
