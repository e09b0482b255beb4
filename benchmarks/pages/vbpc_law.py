"""results/vbpc/law: how VBPC's errors fall with outer steps, from the studies ``vbpc-steps`` and ``vbpc-recipe``.

    python -m benchmarks.pages.vbpc_law

For every width and depth of the trunk y = a + b (steps/1000)^−c is fitted by least squares, y the NLL or the share of
errors, 0 <= a, 0.05 <= c <= 3 (SciPy). At the paper's 500,000 steps the law predicts about a. This is far outside the
measured steps, so the page has its standard error, too (the error of the fit, not of the law). ``law.md`` has the laws,
``law.svg`` the curves against steps and against seconds.
"""

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.optimize import curve_fit

from benchmarks import written

OUT = Path("results/vbpc")
PAPER_STEPS, PAPER = 500_000, {"errors": 1 - 0.894, "nll": 0.30}  # Lee et al. 2025, table 1: three blocks, width 128
STUDIES = {"steps": 2, "recipe": 3}  # the study's file -> blocks of its trunk
METRICS = {"errors": "share of errors", "nll": "NLL"}


@dataclass(frozen=True)
class Curve:
    """Runs of one trunk, by their number of outer steps.

    Attributes:
        steps, seconds, nll, errors: the values of each run [n].
    """

    blocks: int
    width: int
    steps: np.ndarray
    seconds: np.ndarray
    nll: np.ndarray
    errors: np.ndarray

    @property
    def name(self) -> str:
        return f"{self.blocks} blocks, width {self.width}"


@dataclass(frozen=True)
class Law:
    """The fit y = a + b (steps/1000)^−c.

    Attributes:
        values, errors: (a, b, c), and their standard errors.
        residual: the root mean square of the residuals.
    """

    values: np.ndarray
    errors: np.ndarray
    residual: float

    def __call__(self, steps: np.ndarray | float) -> np.ndarray:
        return _law(np.asarray(steps, float), *self.values)


def main() -> None:
    """Read the studies, fit, and write the page and the figure."""
    curves, laws = stored()
    draw(curves, laws)
    text = page(curves, laws)
    (OUT / "law.md").write_text(text)
    print("\n".join(text.splitlines()[-len(laws) :]))


def stored() -> tuple[list[Curve], dict[tuple[str, str], Law]]:
    """Return the curves of the stored studies and the laws that fit them: (curve, metric) -> law."""
    curves = [curve for study, blocks in STUDIES.items() for curve in read(OUT / f"{study}.csv", blocks)]
    return curves, {(curve.name, name): fit(curve.steps, getattr(curve, name)) for curve in curves for name in METRICS}


def page(curves: list[Curve], laws: dict[tuple[str, str], Law]) -> str:
    """Return the page of the laws."""
    head = ("trunk", "metric", "steps run", "a", "b", "c", "residual", "at 500,000 steps", "the paper's", "s/step")
    rows = list[list[str]]()
    for curve in curves:
        step = float(np.median(curve.seconds / curve.steps))
        for metric, title in METRICS.items():
            law = laws[curve.name, metric]
            (a, b, c), (a_error, _, c_error) = law.values, law.errors
            cells = [curve.name, title, ", ".join(f"{s:,}" for s in curve.steps), f"{a:.3f} ± {a_error:.3f}"]
            cells += [f"{b:.3f}", f"{c:.2f} ± {c_error:.2f}", f"{law.residual:.4f}", f"{law(PAPER_STEPS):.3f}"]
            cells += [f"{PAPER[metric]:.3f}", f"{step:.3f}", f"{step * PAPER_STEPS / 3600:.0f}"]
            rows.append(cells)
    parts = ("# VBPC: what more steps would give", written.about(__doc__), "![law](law.svg)")
    return "\n\n".join([*parts, written.table([*head, "hours here"], rows, left=3)]) + "\n"


def read(path: Path, blocks: int) -> list[Curve]:
    """Read a study's runs, a curve for each width; several seeds are averaged."""
    with path.open() as file:
        rows = [{key: float(value) for key, value in row.items() if value} for row in csv.DictReader(file)]
    found = []
    for width in sorted({row["network.width"] for row in rows}):
        mine = [row for row in rows if row["network.width"] == width and "nll" in row]
        steps = sorted({row["coreset.steps"] for row in mine})
        means = {
            key: np.array([np.mean([row[key] for row in mine if row["coreset.steps"] == s]) for s in steps])
            for key in ("seconds", "nll", "accuracy")
        }
        counts = np.array(steps, dtype=int)
        found.append(Curve(blocks, int(width), counts, means["seconds"], means["nll"], 1 - means["accuracy"]))
    return found


def fit(steps: np.ndarray, values: np.ndarray) -> Law:
    """Fit the law by least squares."""
    bounds = ([0.0, 0.0, 0.05], [np.inf, np.inf, 3.0])
    start = (0.9 * values.min(), values[0] - values.min() + 1e-3, 0.5)
    found, covariance = curve_fit(_law, steps.astype(float), values, p0=start, bounds=bounds, maxfev=100_000)
    residual = float(np.sqrt(np.mean((values - _law(steps.astype(float), *found)) ** 2)))
    return Law(found, np.sqrt(np.diag(covariance)), residual)


def _law(steps: np.ndarray, a: float, b: float, c: float) -> np.ndarray:
    return np.asarray(a + b * (steps / 1000) ** -c)


def draw(curves: list[Curve], laws: dict[tuple[str, str], Law]) -> None:
    """Draw the runs and their laws, a row for each metric, against steps and against seconds."""
    figure = Figure(figsize=(8, 6), layout="constrained")
    grid = figure.subplots(2, 2, sharey="row", sharex="col")
    for row, (metric, title) in zip(grid, METRICS.items(), strict=True):
        for number, curve in enumerate(curves):
            _line(row, curve, getattr(curve, metric), laws[curve.name, metric], f"C{number}")
        row[0].set_ylabel(f"{title} of validation rows")
        row[0].set_yscale("log")
    grid[0, 0].legend(frameon=False, fontsize=8)
    grid[1, 0].set_xlabel("outer steps")
    grid[1, 1].set_xlabel("seconds of one thread, student and scoring with it")
    figure.savefig(OUT / "law.svg", metadata={"Date": None})


def _line(row: "list[Axes]", curve: Curve, values: np.ndarray, law: Law, colour: str) -> None:
    dense = np.geomspace(curve.steps[0], curve.steps[-1], 50)
    row[0].plot(dense, law(dense), color=colour, linewidth=1)
    row[0].plot(curve.steps, values, "o", color=colour, label=curve.name)
    row[1].plot(curve.seconds, values, "o-", color=colour, linewidth=1)
    for axes in row:
        axes.set_xscale("log")


if __name__ == "__main__":
    main()
