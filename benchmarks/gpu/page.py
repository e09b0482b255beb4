"""results/gpu: the output of the programs of ``benchmarks/gpu``, as tables and a page.

    python -m benchmarks.gpu.page                                            # the page, from the tables
    python -m benchmarks.gpu.page --collect "NVIDIA H100" d2f3e88 FOLDER     # first add what lies in a folder

``FOLDER`` has the files that the programs wrote. The last outcome of each stage and the last scores of each run count.
For a coreset method with at least four numbers of steps the law y = a + b (steps/1000)^−c is fitted to its scores as in
``benchmarks/pages/vbpc_law.py``; the errors are the fit's.
"""

import argparse
import json
import math
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import stored_rows
from benchmarks.pages.vbpc_law import fit
from benchmarks.written import table

OUT = Path("results/gpu")
CPU = Path("results/comparison/metrics.json")
TABLES = {"stages": "stages.jsonl", "scores": "scores.jsonl", "bits": "bits-*.jsonl", "law": "law-*.jsonl"}
LEGEND = (
    "Each number is the largest difference over the largest number of its tensor. "
    "Inducing weights and Gaussian weights draw on their device, so that a CPU has other draws of the same posterior."
)
CLOSE = 1e-5
SAME = (
    "Inducing weights and Gaussian weights draw on their device: the GPU has other draws of the same posterior. "
    "Such scores of few draws vary: five addresses of draws on a CPU move that FPR95 of `fashion_mnist-ffg_u` between "
    "0.44 and 0.80, and forty move the joint gap of `boston-ffg_w` on its last split between −1.65 and −0.02. "
    "The ECE of 100 rows jumps by up to 0.02 where a confidence rounds into another bin; two of 380 of `g_vbll` do, "
    "and all its other scores are within 4e-6."
)
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collect", nargs=3, metavar=("DEVICE", "COMMIT", "FOLDER"))
    chosen = parser.parse_args()
    if chosen.collect:
        collect(*chosen.collect)
    (OUT / "README.md").write_text(page())


def page() -> str:
    """Return the page of the stored tables."""
    text = (OUT / "head.md").read_text().rstrip() + "\n"
    for title, part in (
        ("Stages", stages()),
        ("Scores", scores()),
        ("The same fits", same_fits()),
        ("Bits", bits()),
        ("Coresets", laws()),
    ):
        text += f"\n## {title}\n\n{part}\n"
    return text


def collect(device: str, commit: str, folder: str) -> None:
    """Add the rows of a folder to the tables."""
    for name, pattern in TABLES.items():
        rows = read(name)
        for path in sorted(Path(folder).rglob(pattern)):
            found = [json.loads(line) for line in path.read_text().splitlines()]
            rows += [{"device": device, "commit": commit, **row} for row in found]
        if rows:
            columns = dict.fromkeys(key for row in rows for key in row)
            stored_rows.write(OUT / f"{name}.csv", columns, rows)


def read(name: str) -> list[Row]:
    return stored_rows.read(OUT / f"{name}.csv")


def stages() -> str:
    last: dict[str, Row] = {}
    for row in read("stages"):
        if row["rc"] == "0" or last.get(row["stage"], row)["rc"] != "0":
            last[row["stage"]] = row
    kinds = defaultdict[str, list[Row]](list)
    for name, row in last.items():
        kinds[name.partition("@")[0]].append(row)
    rows = []
    for kind, of in kinds.items():
        seconds = sorted(float(row["seconds"]) for row in of if row["rc"] == "0")
        rest = [row["stage"].partition("@")[2] for row in of if row["rc"] != "0"]
        span = f"{seconds[0]:.0f} to {seconds[-1]:.0f}" if seconds else "—"
        rows.append([kind, str(len(of)), str(len(seconds)), span, ", ".join(rest) or "—"])
    return table(("Stage kind", "Stages", "Ended with 0", "Seconds", "Out of time"), rows)


def scores() -> str:
    """Compare each run's mean with the stored CPU run's, in units of the error over seeds where there are several."""
    values = defaultdict[tuple[str, str], dict[str, list[float]]](lambda: defaultdict(list))
    for row in read("scores"):
        values[row["run"], row["metric"]][row["commit"]].append(float(row["value"]))
    stored, rows = json.loads(CPU.read_text()), []
    for run in dict.fromkeys(key for key, _ in values):
        cells = [run]
        for metric, digits in (("accuracy", 4), ("nll", 4), ("ece", 4)):
            found = list(values[run, metric].values())[-1]
            mean, there = float(np.mean(found)), stored[run][metric]
            error = f" ± {np.std(found, ddof=1) / math.sqrt(len(found)):.{digits}f}" if len(found) > 1 else ""
            cells += [f"{mean:.{digits}f}{error}", f"{mean - there:+.{digits}f}"]
        for metric in ("fit_seconds", "seconds_per_1000"):
            cells.append(f"{float(np.mean(list(values[run, metric].values())[-1])):.3g}")
        rows.append(cells)
    head = ("Run", "Accuracy", "− CPU's", "NLL", "− CPU's", "ECE", "− CPU's", "Fit, s", "1,000 rows, s")
    return table(head, rows)


def same_fits() -> str:
    """Tell how far the scores of fits made on a CPU are from the CPU's when a GPU evaluates them."""
    seen = read("same_fits")
    far = [row for row in seen if float(row["difference"]) > CLOSE]
    runs, scores_in_all = {row["run"] for row in seen}, sum(int(row["scores"]) for row in seen)
    own = sorted({row["run"] for row in far})
    text = (
        f"The fits of all {len(runs)} runs of the stored CPU run, evaluated on an NVIDIA H100 at commit "
        f"{seen[0]['commit']} (torch 2.11; the CPU's scores: torch 2.13): {scores_in_all:,} scores without costs. "
        f"The scores of {len(runs) - len(own)} runs are within {CLOSE:.0e} of the CPU's "
        "(over the larger of 1 and the score). The others, with their largest difference:"
    )
    cells = [[row["run"], row["set"], row["of"], row["GPU"], row["CPU"]] for row in far]
    return f"{text}\n\n{table(('Run', 'Rows', 'Score', 'GPU', 'CPU'), cells)}\n\n{SAME}"


def bits() -> str:
    rows, seen = [], read("bits")
    commits = list(dict.fromkeys(row["commit"] for row in seen))
    for case in dict.fromkeys(row["case"] for row in seen):
        mine = {row["commit"]: row for row in seen if row["case"] == case}
        first = mine.get(commits[0], {})
        differs = first.get("error") or any(float(first.get(k) or 0) for k in ("twice", "resumed"))
        if differs or float(first.get("on the CPU, same state") or 0) > 1e-5:
            cells = [case]
            for commit in commits:
                row = mine.get(commit, {})
                cells += [row["error"].partition(":")[0] if row.get("error") else number(row.get("twice"))]
                cells += [number(row.get("resumed"))]
            rows.append([*cells, number(first.get("on the CPU, same state"))])
    head = ["Case", *[f"{what}, {commit}" for commit in commits for what in ("Twice", "Resumed")], "Read on the CPU"]
    told = {row[0] for row in rows}
    rest = [row for row in seen if row["case"] not in told and row["commit"] == commits[0]]
    most = max(float(row["on the CPU, same state"] or 0) for row in rest)
    text = f"{len(rest)} other cases have equal bits; read on the CPU their predictions are within {most:.0e}. "
    return text + f"{LEGEND}\n\n{table(head, rows)}"


def number(text: str | None) -> str:
    if not text:
        return "—"
    return "equal" if float(text) == 0 else f"{float(text):.0e}"


def laws() -> str:
    curves = defaultdict[tuple[str, str, str], list[Row]](list)
    for row in read("law"):
        curves[row["method"], row["ipc"], row["experts"]].append(row)
    rows = []
    for (method, ipc, experts), of in sorted(curves.items(), key=lambda item: (int(item[0][1]), item[0])):
        steps = np.array([int(row["steps"]) for row in of])
        seconds = sorted(float(row["seconds"]) / int(row["steps"]) for row in of)[len(of) // 2]
        name = f"{method}, {experts} whole epochs" if experts != "0" else method
        cells = [name, ipc, ", ".join(map(str, steps)), f"{1e3 * seconds:.0f}"]
        for values in (
            np.array([float(row["nll"]) for row in of]),
            100 * (1 - np.array([float(row["accuracy"]) for row in of])),
        ):
            cells += [", ".join(f"{value:.3g}" for value in values), law(steps, values)]
        rows.append(cells)
    head = ("Method", "ipc", "Outer steps", "ms a step", "NLL", "its law", "Errors, %", "their law")
    return table(head, rows)


def law(steps: np.ndarray, values: np.ndarray) -> str:
    """Word the fit: a, b and c with their errors; none where the scores do not fall, or are fewer than four."""
    if len(steps) < 4:
        return "too few"
    if values[-1] >= values[0]:
        return "does not fall"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = fit(steps, values)
    (a, b, c), (a_error, _, c_error) = found.values, found.errors
    if not a_error < 0.5 * values[-1]:
        return "a not determined"
    return f"{a:.3g} ± {a_error:.2g} + {b:.2g} (steps/1000)^−({c:.2f} ± {c_error:.2f})"


if __name__ == "__main__":
    main()
