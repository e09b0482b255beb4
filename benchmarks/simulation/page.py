"""The scenarios as a table, and drawn."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks import written
from benchmarks.simulation.model import HOUR, NETWORK

_HEAD: Final = (
    "scenario",
    "slots",
    "stages at once",
    "checkpoints",
    "each s",
    "data",
    "preempted an hour",
    "hours",
    "set by",
    "slots at work",
    "slot hours",
    "dollars",
    "hub",
    "into TB",
    "out TB",
    "peak MB/s",
    "store TB",
    "its peak MB/s",
    "lost work",
    "given up",
    "results held GB",
)

_USUAL: Final = {"checkpoints": "driver", "preempted": 0.0}
SERIES: Final[Mapping[str, Mapping[str, Any]]] = {
    "tables, as many stages as GPUs": {"scenario": "tables", "every": 60.0, **_USUAL},
    "tables, three stages": {"scenario": "tables, three stages at once", **_USUAL},
    "tables but the continual one": {"scenario": "tables but the continual one", **_USUAL},
    "sweep of 10,000 trials": {"scenario": "sweep", **_USUAL},
    "stage of 10,000 seeds": {"scenario": "seeds", "every": 60.0, **_USUAL},
}


def chosen(runs: Sequence[Mapping[str, Any]], of: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the runs with these values."""
    return [run for run in runs if all(run[key] == value for key, value in of.items())]


def row(run: Mapping[str, Any]) -> tuple[str, ...]:
    """Write a scenario as the cells of a row."""
    return (
        run["scenario"],
        f"{run['nodes'] * run['slots']:,}",
        f"{run['stages']:,}",
        run["checkpoints"],
        f"{run['every']:g}",
        run["data"],
        f"{run['preempted']:g}",
        f"{run['makespan'] / HOUR:.2f}",
        f"{run['bound']}, {run['bound_seconds'] / HOUR:.2f} h",
        f"{used(run):.0%}",
        f"{run['paid'] / HOUR:,.0f}",
        f"{run['dollars']:,.0f}",
        f"{run['hub']:.1%}",
        f"{run['into'] / 1e12:.2f}",
        f"{run['out'] / 1e12:.2f}",
        f"{run['peak'] / 1e6:,.0f}",
        f"{run['stored'] / 1e12:.2f}",
        f"{run['store_peak'] / 1e6:,.0f}",
        f"{run['lost'] / run['busy']:.2%}",
        f"{run['given_up']:,}",
        f"{run['held'] / 1e9:,.1f}",
    )


def page(runs: Sequence[Mapping[str, Any]]) -> str:
    """Write all scenarios as a table, and where each series has its knee."""
    knees = [f"- {label}: {knee(chosen(runs, of)):,} slots" for label, of in SERIES.items()]
    said = "The most slots of which 80 % are at work (0: none of those simulated):"
    return "\n".join([said, "", *knees, "", written.table(_HEAD, [*map(row, runs)])]) + "\n"


def used(run: Mapping[str, Any]) -> float:
    """Return the share of the slots' hours spent on work that was not lost."""
    return float(run["busy"] / run["paid"])


def knee(runs: Sequence[Mapping[str, Any]], share: float = 0.8) -> int:
    """Return the largest number of slots with at least this share at work; 0 if there is none."""
    return max((run["nodes"] * run["slots"] for run in runs if used(run) >= share), default=0)


def draw(runs: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw hours, use and the wire's load against slots, and lost work against preemption."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = path.stem  # equal figures are equal bytes
    from matplotlib import pyplot

    figure, ((hours, use), (load, lost)) = pyplot.subplots(2, 2, figsize=(9, 6.6), layout="constrained")
    for label, of in SERIES.items():
        some = chosen(runs, of)
        slots = [run["nodes"] * run["slots"] for run in some]
        hours.loglog(slots, [run["makespan"] / HOUR for run in some], marker="o", label=label)
        use.semilogx(slots, [100 * used(run) for run in some], marker="o")
        load.loglog(slots, [run["peak"] / 1e6 for run in some], marker="o")
    load.axhline(NETWORK / 1e6, color="grey", linestyle=":", label="10 Gbit/s")
    for nodes in (64, 512, 1000):
        some = [r for r in runs if r["scenario"] == "sweep" and r["nodes"] == nodes and r["checkpoints"] == "driver"]
        some = [run for run in some if run["preempted"]]
        shares = [100 * run["lost"] / run["busy"] for run in some]
        lost.loglog([run["preempted"] for run in some], shares, marker="o", label=f"sweep, {nodes:,} nodes")
    some = [r for r in runs if r["scenario"] == "tables" and r["nodes"] == 8 and r["preempted"]]
    shares = [100 * run["lost"] / run["busy"] for run in some]
    lost.loglog([run["preempted"] for run in some], shares, marker="o", label="tables, 8 nodes of 8")
    hours.set(xlabel="slots", ylabel="hours")
    use.set(xlabel="slots", ylabel="slots at work, %", ylim=(0, 105))
    load.set(xlabel="slots", ylabel="driver's wire in its busiest minute, MB/s")
    lost.set(xlabel="times an hour that a node is preempted", ylabel="work lost, %")
    for axes in (hours, load, lost):
        axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
