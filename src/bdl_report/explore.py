"""The page of decisions: the scores of each agent by round, and the agents that differ by more than chance.

All agents play the same problems, so two agents are compared in pairs: the mean difference over J problems has the
standard error s/√J and Student's interval on J − 1 degrees of freedom. The intervals of one sentence and of one column
hold together at 95 % (Bonferroni).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow.parquet as pq

from bdl_pipe import artifacts
from bdl_pipe.metrics import comparison
from bdl_pipe.metrics.comparison import Difference
from bdl_pipe.metrics.metric import Metric
from bdl_pipe.metrics.table import metric_of
from bdl_pipe.metrics.written import writer
from bdl_pipe.scores import estimate

from . import charts
from .columns import NOTHING, Cell, Grid
from .vega import Chart

if TYPE_CHECKING:
    import pandas as pd

CURVES: Final = "curves.parquet"
ORACLE, UNIFORM, JOINT, MARGINAL = "oracle", "uniform", "thompson", "marginal_thompson"  # rules of agents
APART: Final = "statistically tied"
_LABELS: Final = "active_learning"  # the task whose rounds are labels
_OPTIMUM: Final = "optimisation"  # tasks that approach an optimum end with this word


@dataclass(frozen=True)
class Played:
    """A decision that has been played.

    Attributes:
        task: the entry's task, as in params.yaml.
        agents: name -> the agent, as in params.yaml.
        curves: a row for each agent, seed, metric and round, as :func:`bdl_decisions.table` makes them.
    """

    task: Mapping[str, Any]
    agents: Mapping[str, Mapping[str, Any]]
    curves: "pd.DataFrame"

    @cached_property
    def metrics(self) -> list[str]:
        """List the metrics by name. Agents are compared by the first metric."""
        return sorted(set(self.curves["metric"]))

    @cached_property
    def ends(self) -> Mapping[str, "pd.DataFrame"]:
        """Return metric -> values at the last round, seeds × agents."""
        last = self.curves.sort_values("round", kind="stable").groupby(["metric", "agent", "seed"]).tail(1)
        return {m: last[last["metric"] == m].pivot(index="seed", columns="agent", values="value") for m in self.metrics}

    @property
    def looks(self) -> dict[str, dict[str, Any]]:
        """Return agent -> its name and look, the same in all figures of the decision."""
        return {a: {"name": a, "colour": f"var(--m{i % 10})", "dash": i // 10 % 3} for i, a in enumerate(self.agents)}

    def difference(self, one: str, other: str, comparisons: int = 1) -> Difference | None:
        """Return one agent's score minus another's, by the first metric; None for a single problem."""
        values = self.ends[self.metrics[0]]
        gaps = (values[one] - values[other]).to_numpy(np.float64)
        return comparison.over_splits(gaps, 0.0, comparisons=comparisons) if len(gaps) > 1 else None

    def ranked(self) -> list[str]:
        """List the agents by the mean of the first metric, the best first."""
        metric = self.metrics[0]
        means = self.ends[metric].mean() * -better(metric)
        return [str(agent) for agent in means.sort_values(kind="stable").index]

    def ruled(self, rule: str) -> list[str]:
        """List the agents that use ``rule``."""
        return [name for name, agent in self.agents.items() if agent["rule"] == rule]

    def chance(self, agent: str) -> str | None:
        """Return the agent with uniform choices to compare ``agent`` with, of the same method if there is one."""
        if agent in (uniform := self.ruled(UNIFORM)):
            return None
        by_method = {self.agents[name].get("method", ""): name for name in reversed(uniform)}
        return by_method.get(self.agents[agent].get("method", ""), by_method.get(""))


def read(place: Path) -> Played | None:
    """Read a ``decide`` artifact; None if there is none.

    Raises:
        ArtifactError: the artifact is altered, truncated or of an older version.
    """
    if not (place / artifacts.MANIFEST).is_file():
        return None
    stored = artifacts.load(place, "decide")
    entry = stored.manifest["about"]["decision"]
    return Played(entry["task"], entry["agents"], pq.read_table(stored.path / CURVES).to_pandas())


def metric_or_loss(name: str) -> Metric:
    """Return the registered metric of this name; an unregistered metric counts as a loss."""
    try:
        return metric_of(name)
    except KeyError:
        return Metric(name, name.replace("_", " ").capitalize(), "", better=-1, unit="digits")


def better(metric: str) -> int:
    """Return +1 if a higher score is better, otherwise −1."""
    return metric_or_loss(metric).better or -1


def sentences(played: Played) -> list[str]:
    """Return sentences on the best agent, on agents against uniform choices, and on joint against marginal draws."""
    ranked, metric = [name for name in played.ranked() if name not in played.ruled(ORACLE)], played.metrics[0]
    if not ranked:
        return []
    best, rivals, score = ranked[0], ranked[1:], metric_or_loss(metric)
    label, unit = score.label.lower().removesuffix(" %"), " %" if score.percent else ""
    mean = f"{writer(score)(float(played.ends[metric][best].mean()))}{unit}"
    worse = [name for name in rivals if verdict(played.difference(name, best, len(rivals)), metric) == "worse"]
    near = [name for name in rivals if name not in worse]
    if len(near) <= len(worse):
        others = f"statistically tied with it: {', '.join(near)}" if near else "all others are significantly worse"
    else:
        others = f"significantly worse: {', '.join(worse)}" if worse else "no other is significantly worse"
    texts = [f"Best: {best} with {label} {mean}; {others}."]
    chance, groups = _to_chance(played, ranked), dict[str, list[str]]()
    for name, gap in chance.items():
        groups.setdefault(verdict(gap, metric), []).append(name)
    if groups:
        parts = [f"{word} {', '.join(groups[word])}" for word in ("better", "worse", APART) if word in groups]
        texts.append(f"Against uniform choices: {'; '.join(parts) if {*groups} != {APART} else f'all {APART}'}.")
    rest = {name: {key: value for key, value in of.items() if key != "rule"} for name, of in played.agents.items()}
    pairs = [(a, b) for a in played.ruled(JOINT) for b in played.ruled(MARGINAL) if rest[a] == rest[b]]
    for one, other in pairs:
        gap = played.difference(one, other, len(pairs))
        size = f" ({' '.join(_gap_and_half(gap, metric))}{unit})" if gap else ""
        agents = f"{one}, with draws of the joint, against {other}, with marginals"
        texts.append(f"Joint draws: {agents}: {verdict(gap, metric)}{size}.")
    return texts


def _to_chance(played: Played, names: Sequence[str]) -> dict[str, Difference | None]:
    chance = {name: other for name in names if (other := played.chance(name))}
    return {name: played.difference(name, other, len(chance)) for name, other in chance.items()}


def verdict(gap: Difference | None, metric: str) -> str:
    """Return which of two agents is better, by the interval of their difference."""
    if gap is None or not gap.apart:
        return APART
    return "better" if gap.mean * better(metric) > 0 else "worse"


def grid(played: Played) -> Grid:
    """Return the table of agents at the last round, the best first."""
    ranked, first = played.ranked(), played.metrics[0]
    rivals = [name for name in ranked if name not in played.ruled(ORACLE)]
    chance, rows = _to_chance(played, rivals), list[list[Cell]]()
    for name in ranked:
        agent = played.agents[name]
        rule = " ".join(filter(None, (agent["rule"].replace("_", " "), agent.get("method", ""))))
        to_best = played.difference(name, rivals[0], len(rivals) - 1) if name in rivals[1:] else None
        cells = [Cell(name, rule, colour=played.looks[name]["colour"])]
        for metric in played.metrics:
            mean, write = estimate(played.ends[metric][name].tolist()), writer(metric_or_loss(metric))
            error = "" if mean is None or mean.error is None else f"± {write(mean.error)}"
            cells.append(Cell(NOTHING) if mean is None else Cell(write(mean.mean), error, mean.mean))
        for gap in (to_best, chance.get(name)):
            best = verdict(gap, first) == "better"
            cells.append(Cell(*_gap_and_half(gap, first), gap.mean, best) if gap else Cell(NOTHING))
        rows.append(cells)
    title = f"At the end: means over {len(played.ends[first])} problems"
    labels = [metric_or_loss(metric).label for metric in played.metrics]
    return Grid(["Agent, rule", *labels, "to the best", "to uniform choices"], rows, title)


def drawn(played: Played, name: str) -> list[Chart]:
    """Draw each metric that has several rounds, a line for each agent."""
    drawings, unit = [], "labels" if played.task["name"] == _LABELS else "rounds"
    for metric in played.metrics:
        part = played.curves[played.curves["metric"] == metric]
        if part["round"].nunique() < 2:
            continue
        grouped = part.groupby(["agent", "round"])["value"]
        points = grouped.agg(mean="mean", error="sem").fillna({"error": 0.0})
        lines = {agent: points.loc[agent].itertuples(name=None) for agent in played.ranked()}
        log = str(played.task["name"]).endswith(_OPTIMUM) and bool((points["mean"] > 0).all())
        title, label = f"{name}: {metric_or_loss(metric).label.lower()}", metric_or_loss(metric).label
        drawings.append(charts.lines(played.looks, lines, (title, unit, label), f"{title} at the end", log=log))
    return drawings


def _gap_and_half(gap: Difference, metric: str) -> tuple[str, str]:
    """Return the mean of a difference and half of its interval; a metric of shares in per cent."""
    mean, half = ((100 if metric_or_loss(metric).percent else 1) * value for value in (gap.mean, gap.half))
    return f"{mean:+.3g}", f"± {half:.2g}"
