"""Class-incremental learning: scores after each step, over orders of the classes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..core.scores import Estimate, Quantity, average, estimate
from . import columns
from .columns import METRICS, Cell, Grid
from .tables import RunInfo, Step, Table, labels


@dataclass(frozen=True)
class Group:
    """All runs on the steps of one experiment, in all orders.

    Attributes:
        names: the first run of each method and setting -> its name.
        alike: the same run -> the number of a step -> the runs of that step, by order.
    """

    step: Step
    names: dict[str, str]
    alike: Mapping[str, Mapping[int, Mapping[int, Sequence[str]]]]

    def scores(self, table: Table, run: str, metric: str) -> list[tuple[int, Estimate]]:
        """Return (classes so far, the mean over orders) for each step; seeds and splits are averaged first."""
        found = []
        for number, orders in sorted(self.alike[run].items()):
            known = [[table.estimate(key, Quantity(metric)) for key in keys] for keys in orders.values()]
            means = [[e.mean for e in of_order if e is not None] for of_order in known]
            over_orders = estimate([average(values) for values in means if values])
            if over_orders is not None:
                found.append(((number + 1) * self.step.classes, over_orders))
        return found

    def grid(self, scores: Mapping[str, list[tuple[int, Estimate]]], metric: str) -> Grid:
        """Return the table of one metric: a row for each method and setting, a column for each step."""
        counts = sorted({count for points in scores.values() for count, _ in points})
        rows = []
        for run, points in scores.items():
            orders = len({order for by_order in self.alike[run].values() for order in by_order})
            figures = [columns.figure(dict(points).get(count), METRICS[metric].write) for count in counts]
            rows.append([Cell(self.names[run]), Cell(str(orders)), *figures])
        return Grid(["Method", "Orders", *(f"{count} classes" for count in counts)], rows, METRICS[metric].label)


def groups(runs: Sequence[RunInfo]) -> Iterator[Group]:
    """Yield the groups of the runs on steps, in their order."""
    steps = {run.key: run.step for run in runs if run.step is not None}
    for name in dict.fromkeys(step.group for step in steps.values()):
        own = [run for run in runs if run.key in steps and steps[run.key].group == name]
        first: dict[tuple[str, str], RunInfo] = {}
        alike: dict[str, dict[int, dict[int, list[str]]]] = {}
        for run in own:
            line = first.setdefault((run.method, run.setting), run).key
            at = steps[run.key]
            alike.setdefault(line, {}).setdefault(at.number, {}).setdefault(at.order, []).append(run.key)
        yield Group(steps[own[0].key], labels(list(first.values()), " "), alike)
