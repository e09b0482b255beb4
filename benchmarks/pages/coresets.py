"""results/coresets: every coreset of this folder's runs under each protocol, as a page, with curves and pictures.

Run ``python -m benchmarks.pages.coresets`` in a project folder with an up-to-date report. It fits and predicts nothing.

- ``README.md``: the report's tables, their origin, and the coreset in each row of each picture.
- ``coresets.csv``: the cells, one figure a row.
- ``<dataset>-<protocol>.svg``: the NLL against the seconds of distillation. Coresets of one method and size that differ
  in their number of outer steps are joined by a line, from shorter to longer distillation.
- ``<dataset>-ipc<n>.png``: a row for each coreset, a column for each class, with the image of the largest label there.
- ``starts.md``: each method against the images that it started from, by ``benchmarks.pages.coreset_starts``.
- ``cost.md``: seconds of an outer step, ratios and bytes, by ``benchmarks/coresets.py``.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import cycle
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

from bdl_pipe import artifacts
from bdl_pipe.scores import Quantity
from bdl_report import CoresetInfo, columns, cross, page, tables
from bdl_report.pictures import png
from benchmarks import written
from pipeline.core.load import load
from pipeline.core.settings import Settings
from pipeline.stages import report

OUT = Path("results/coresets")
NLL = columns.Column("NLL", Quantity("nll"))
BIG = 3  # screen pixels per image pixel, on each axis


def main() -> None:
    """Write the page from the report of this folder."""
    read = load()
    table = tables.gather(report.infos(read))
    parts = table.by_dataset().values()
    crosses = [(part, found) for part in parts if (found := cross.of(part))]
    OUT.mkdir(parents=True, exist_ok=True)
    cross.write_csv(table, OUT / "coresets.csv")
    text = list[str]()
    for part, found in crosses:
        text.append(page.markdown([cross.headline(part, found)]).strip())
        text += [f"![{name}]({name})" for name in curves(part, found)]
        text += pictures(part)
    facts = report.facts(read, Settings.read())
    (OUT / "README.md").write_text(written.page("Coresets under each protocol", __doc__, facts, *text))


def curves(table: tables.Table, rows: Sequence[cross.Row]) -> Iterator[str]:
    """Draw the NLL against seconds, a figure for each protocol; yield the files' names."""
    for protocol in dict.fromkeys(cross.protocols(table).values()):
        lines: dict[tuple[str, int], list[tuple[float, float]]] = {}
        for row in rows:
            score = row.scores(table, protocol, NLL)[0]
            if score and row.coreset.ipc and row.coreset.seconds and row.place == 0 and math.isfinite(score.mean):
                lines.setdefault((row.coreset.method, row.coreset.ipc), []).append((row.coreset.seconds, score.mean))
        if not lines:
            continue
        figure = Figure(figsize=(7, 4.2), layout="constrained")
        axes = figure.subplots()
        methods = sorted({method for method, _ in lines} - {cross.START})
        colours = dict(zip(methods, cycle([f"C{i}" for i in range(10)]), strict=False))
        for (method, ipc), points in sorted(lines.items()):
            style = {1: "o--"}.get(ipc, "s-")
            if method == cross.START:
                axes.axhline(
                    points[0][1], color="0.6", linestyle=style[1:], linewidth=1, label=f"random, {ipc} a class"
                )
            else:
                seconds, scores = zip(*sorted(points), strict=True)
                axes.plot(seconds, scores, style, color=colours[method], label=f"{method}, {ipc} a class")
        axes.set(
            xscale="log", xlabel="seconds of distillation, with experts", ylabel="NLL of test rows", title=protocol
        )
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.legend(fontsize=7, ncols=2, frameon=False, bbox_to_anchor=(1.01, 1), loc="upper left")
        name = f"{table.dataset}-{protocol}.svg"
        figure.savefig(OUT / name, metadata={"Date": None})
        yield name


def pictures(table: tables.Table) -> Iterator[str]:
    """Draw the coresets of each size side by side; yield the page's text on each file."""
    there = [c for c in table.coresets().values() if (c.path / artifacts.MANIFEST).is_file()]
    for ipc in sorted({c.ipc for c in there if c.ipc}):
        alike = [c for c in there if c.ipc == ipc]
        name = f"{table.dataset}-ipc{ipc}.png"
        (OUT / name).write_bytes(png(np.concatenate([_row(c) for c in alike], axis=1)))
        rows = ", ".join(c.key.removeprefix(f"{table.dataset}-") for c in alike)
        yield f"![{name}]({name})\n\nRows, from the top: {rows}."


def _row(coreset: CoresetInfo) -> np.ndarray:
    """Put a coreset's images side by side [c, h, w], for each class the image with the largest label there."""
    state = artifacts.load(coreset.path, "coreset").state("0-0").tensors
    raw, labels = state["raw"].float().numpy(), state["labels"].float().numpy()
    shown = [
        np.pad(raw[labels[:, k].argmax()], ((0, 0), (0, 1), (0, 1)), constant_values=1.0)
        for k in range(labels.shape[1])
    ]
    return np.concatenate(shown, axis=2).repeat(BIG, 1).repeat(BIG, 2)


if __name__ == "__main__":
    main()
