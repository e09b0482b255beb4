"""A comparison as a page: counts, the table, its limits, agreement, disagreement, and the origin of the figures.

If another data set replaces the paper's, values need not be equal, and the page compares only orders.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from . import CORRUPTED, PaperTable
from .comparison import Comparison, Kind
from .order import CLEAR, FAR, Order, Pair, compared

_NOTHING: Final = "nothing"
FACTS: Final = "## Where the figures come from"


@dataclass(frozen=True)
class Cells:
    """The number of printed figures for a data set that have a figure of ours beside them.

    Attributes:
        made: figures on the paper's own data. Some are neither near nor far: a side has no standard error.
        near, far: figures of ``made`` within ``FAR`` combined standard errors of the paper's figure, and beyond.
        stand_in: figures on another data set; these do not count as made.
    """

    printed: int
    made: int
    near: int
    far: int
    stand_in: int

    def __str__(self) -> str:
        """Write the line at a page's head."""
        apart = f"{self.near} within {FAR:g} combined standard errors, {self.far} beyond"
        unjudged = self.made - self.near - self.far
        return (
            f"{self.printed} cells printed; {self.made} made on the paper's data ({apart}, "
            f"{unjudged} without an error on both sides); {self.stand_in} made on a stand-in"
        )


def stem(table: PaperTable, dataset: str, kind: Kind) -> str:
    """Return the file name of a page, without its suffix. It has no brackets, which would end a Markdown link.

    Args:
        table: the result of :func:`.comparison.of_kind`.
        dataset: the paper's name.
    """
    ours, theirs = table.names.datasets[dataset], dataset.lower().translate(str.maketrans(" ", "_", "()"))
    ends = {
        "protocol": ours,
        "default run": f"{ours}-default_run",
        "stand-in": (on := f"{theirs}-on-{ours}"),
        "held-out classes": on,
    }
    return f"{table.table}-{ends[kind]}"


def counted(comparison: Comparison) -> Cells:
    """Count the cells of a comparison; if a method has several runs, the first run with scores counts."""
    cells = comparison.cells.values()
    with_ours = [pair for pair in cells if pair.ours]
    if comparison.stand_in:
        return Cells(len(cells), 0, 0, 0, len(with_ours))
    far = sum(pair.far for pair in with_ours)
    return Cells(len(cells), len(with_ours), sum(pair.z is not None for pair in with_ours) - far, far, 0)


def orders(comparison: Comparison) -> dict[tuple[str, str], Order]:
    """Compare the methods' order for each metric and printed setting; methods of different settings have no order."""
    groups: dict[tuple[str, str], dict[str, Pair]] = {}
    for (method, metric), pair in comparison.cells.items():
        if pair.paper:
            groups.setdefault((metric, pair.paper.setting), {})[method] = pair
    return {key: order for key, cells in groups.items() if (order := compared(cells)).pairs}


def markdown(comparison: Comparison, facts: Mapping[str, object]) -> str:
    """Return the page of a comparison, with ``facts`` on the figures' origin at the end: name -> value."""
    table, stand_in = comparison.table, comparison.stand_in
    rows = [comparison.head, [":---", *["---:"] * (len(comparison.head) - 1)], *comparison.rows]
    agrees, not_so = _orders(comparison) if stand_in else _values(comparison)
    sections = {"What limits the comparison": _limits(comparison), "What agrees": agrees, "What does not": not_so}
    lines = [
        f"# {table.names.title}: {table.table}, {comparison.dataset}" + (f"; ours on {stand_in}" if stand_in else ""),
        "",
        f"**{counted(comparison)}.**",
        "",
        f"Ours: mean ± standard error over n splits, or seeds where there is one split ({comparison.counts}); seconds "
        "to fit one seed, including its upstream stages. The paper's ± is as printed and is taken as a standard error."
        + ("" if stand_in else f" A mark (!) means: further apart than {FAR:g} combined standard errors."),
        "",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
    for title, points in sections.items():
        lines += ["", f"## {title}", "", *(f"- {point}" for point in points)]
    return "\n".join([*lines, "", FACTS, "", "| | |", "|---|---|", *(f"| {k} | {v} |" for k, v in facts.items()), ""])


def facts_of(page: str) -> dict[str, str]:
    """Read the facts at the end of a page, in any earlier format."""
    _, _, block = page.rpartition("| | |\n|---|---|\n")
    cells = [line.strip("| ").split(" | ", 1) for line in block.splitlines() if line.startswith("| ")]
    return {cell[0]: cell[1] for cell in cells if len(cell) == 2}


def _limits(comparison: Comparison) -> list[str]:
    table, dataset, first = comparison.table, comparison.dataset, comparison.first
    points = []
    if comparison.stand_in:
        named = {metric: metric.partition(":")[2] for metric in table.metrics(dataset)}
        seen = {named[metric] for (_, metric), pair in comparison.cells.items() if pair.ours}
        sets = {**table.names.datasets, **table.names.transfers}
        others = [where for where in dict.fromkeys(named.values()) if where not in {"", *CORRUPTED}]
        pairs = [f"{sets[where] if where in seen else 'nothing'} for {where}" for where in others]
        points.append(
            f"Ours are of {comparison.stand_in}, the paper's of {dataset}: the order of the methods is "
            "compared, but not the values" + (f". Of other sets: {', '.join(pairs)}" if pairs else "")
        )
    printed = dict.fromkeys(p.setting for m in first for p in table.figures[dataset][m].values() if p.setting)
    settings = dict.fromkeys(line.setting for line in first.values() if line.ran and line.setting)
    points.append(f"The paper's setting: {', '.join(printed)}; ours: {', '.join(settings) or 'none'}")
    one = [name for name, line in first.items() if line.counts == "1"]
    points += [f"One split and one seed, so no standard error of ours: {', '.join(one)}"] if one else []
    none = [name for name, line in first.items() if line.run is None]
    points += [f"Without a run of ours: {', '.join(none)}"] if none else []
    runs: dict[str, list[str]] = {}
    for name, line in first.items():
        if line.ran and line.run:
            runs.setdefault(line.run, []).append(name)
    points += [f"{run} stands for each of {', '.join(names)}" for run, names in runs.items() if len(names) > 1]
    note = table.names.stand_in_notes.get(comparison.stand_in, table.names.default_run_note)
    points += [note] if comparison.kind != "protocol" and note else []
    return points + [f"{', '.join(methods)}: {note}" for note, methods in table.notes(dataset).items()]


def _values(comparison: Comparison) -> tuple[list[str], list[str]]:
    """Split the verdicts on methods (ours − paper, also in standard errors) into agreement and disagreement."""
    verdicts = comparison.agreement()[1:]
    if not verdicts:
        return [(none := "nothing is judged: no method has figures with a standard error on both sides")], [none]
    far = [verdict for verdict in verdicts if "disagrees: " in verdict]
    return [verdict for verdict in verdicts if verdict not in far] or [_NOTHING], far or [_NOTHING]


def _orders(comparison: Comparison) -> tuple[list[str], list[str]]:
    baselines = comparison.table.names.baselines.get(comparison.table.table, ())
    agrees, not_so = [], []
    for (metric, setting), order in orders(comparison).items():
        title, clear = f"{comparison.table.title(metric)} ({setting})", order.clear
        tau = "" if order.tau is None else f" (Kendall's τ-b {order.tau:.2f})"
        text = f"{title}: {len(order.same)} of {len(order.pairs)} pairs of methods in the paper's order{tau}"
        text += f"; of {len(clear.pairs)} that are distinguishable on both sides {len(clear.same)}"
        for baseline in baselines:
            if signs := order.against(baseline).pairs:
                right = sum(pair.same for pair in signs)
                text += f"; against {baseline} {right} of {len(signs)} differences have the paper's sign"
        agrees.append(text)
        if order.opposite:
            not_so.append(f"{title}, opposite to the paper's order, which is: {', '.join(map(str, order.opposite))}")
    if not agrees:
        return [(none := "nothing is judged: no two methods of one setting have figures on both sides")], [none]
    agrees.append(
        f"Two methods are distinguishable on a side if they differ by more than {CLEAR:g} combined standard errors (of "
        "means taken as independent); a figure without an error is not distinguishable from another. Figures that are "
        "equal on a side are in no order. Only methods of one printed setting are compared"
    )
    return agrees, not_so or [_NOTHING]
