"""A rule for the prior of the noise, which appendix C.5 of the last layers' paper leaves open: chosen, then judged.

    python -m benchmarks.vbll_prior     # writes results/vbll/prior.csv and .md; goes on from the rows of the CSV

The prior is an inverse Wishart of ν degrees of freedom and scale mI. The paper has (1, 1) in regression, and says that
the two "must be more carefully selected" in generative classification, that it has "not established effective rules of
thumb", and that the dependence on them is weak. Here a rule is one formula in T, the number of training rows. With
standardised targets m = cT adds about c to the noise variance, whatever T is; ν = cT are cT imagined rows of the noise.

Tables are those of results/your_data with at most 7,000 rows, whole rows alone, with categories as 0 and 1. A split has
at most 300 training rows. Columns and targets are standardised by them. Every fit has a trunk of one layer of 50, 400
steps of Adam at a rate of 0.01 on batches of 100 rows, and gradients clipped at 1.

Rules, fixed in the commit before a row was computed. *Choice*: of the candidates, the one with the least NLL of the
validation rows (at most 300), the mean over the seen tables and two splits each; test rows of seen tables are not
used. *Judgement*: on the unseen tables, which had no part in the choice, three splits each, the difference of the NLL
of test rows (at most 1,000) from the paper's prior, and from that of params.yaml. A difference is the mean over tables
± its standard error over tables, and is established if it is more than the 97.5 % quantile of Student's t, of one
degree of freedom less than tables, times its error (two-sided test at 5 %; four tests).
"""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
import torch
from scipy.stats import t as student_t

from bdl_pipe.last_layer import Generative, Regression
from bdl_pipe.seeds import Seed
from benchmarks import stored_rows
from benchmarks.vbll_settings import Split, fitted, nll
from benchmarks.written import about, error, table, write
from benchmarks.your_data.fetch import read
from benchmarks.your_data.tables import BY_NAME, TABLES, Table, Task

OUT: Final = Path(__file__).resolve().parent.parent / "results" / "vbll"
CSV: Final = OUT / "prior.csv"
COLUMNS: Final = ("part", "task", "table", "split", "rule", "NLL")
LARGEST, TRAIN, VALIDATION, TEST, WIDTH = 7_000, 300, 300, 1_000, 50
SPLITS: Final = {"choice": 2, "judgement": 3}
Rule = Callable[[int], float]
RULES: Final[dict[Task, dict[str, Rule]]] = {  # task -> a rule of m (regression) or ν (classes) at T rows
    "regression": {
        **{f"m = {m:g}": lambda rows, m=m: m for m in (1.0, 20.0, 100.0)},  # type: ignore[misc]
        **{f"m = {c:g} T": lambda rows, c=c: c * rows for c in (0.03, 0.1, 0.3, 1.0)},  # type: ignore[misc]
    },
    "classification": {
        **{f"ν = {n:g}": lambda rows, n=n: n for n in (1.0, 32.0, 128.0)},  # type: ignore[misc]
        **{f"ν = {c:g} T": lambda rows, c=c: c * rows for c in (0.1, 0.3, 1.0, 3.0)},  # type: ignore[misc]
    },
}
OTHERS: Final[dict[Task, dict[str, str]]] = {  # what the chosen rule is compared with; the paper prints no ν of classes
    "regression": {"m = 1": "the paper's prior", "m = 20": "that of params.yaml"},
    "classification": {"ν = 1": "the weakest candidate", "ν = 128": "that of params.yaml"},
}
Rows = list[dict[str, str]]


def main() -> None:
    """Compute the rows that the CSV lacks, then write the page."""
    torch.set_num_threads(1)
    start, stored = time.process_time(), stored_rows.read(CSV)
    for part in SPLITS:
        for task in RULES:
            rules = list(RULES[task]) if part == "choice" else judged(stored, task)
            for of in tables(task, seen=part == "choice"):
                for number, rule in ((number, rule) for number in range(SPLITS[part]) for rule in rules):
                    key = (part, task, of.name, str(number), rule)
                    if any(tuple(row[name] for name in COLUMNS[:-1]) == key for row in stored):
                        continue
                    value = measured(of, number, rule, test=part == "judgement")
                    stored.append(dict(zip(COLUMNS, (*key, str(value)), strict=True)))
                    stored_rows.write(CSV, COLUMNS, stored)
                print(part, of.name, flush=True)
    page(stored, start)


def tables(task: Task, *, seen: bool) -> Iterator[Table]:
    return (of for of in TABLES if of.task == task and of.seen == seen and of.rows <= LARGEST)


@cache
def columns(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and targets of a table's whole rows."""
    of = BY_NAME[name]
    frame = read(of).drop(columns=list(of.leave_out)).dropna()
    inputs = pd.get_dummies(frame.drop(columns=of.target), dtype=float).to_numpy(np.float64)
    target = frame[of.target]
    return inputs, target.to_numpy(np.float64) if of.task == "regression" else pd.factorize(target, sort=True)[0]


def split(of: Table, number: int, *, test: bool) -> Split:
    """Return training rows, and validation rows or, with ``test``, test rows, which share no row with either."""
    inputs, targets = columns(of.name)
    order = Seed(number).fold("split", of.name).numpy().permutation(len(inputs))
    ends = np.minimum((TRAIN, TRAIN + VALIDATION), (0.5 * len(order), 0.7 * len(order))).astype(int)
    train, validation, rest = np.split(order, ends)
    scale = inputs[train].std(0)
    inputs = ((inputs - inputs[train].mean(0)) / np.where(scale > 0, scale, 1)).clip(-10, 10)
    if of.task == "regression":
        targets = ((targets - targets[train].mean()) / targets[train].std())[:, None]
    x, y = torch.tensor(inputs, dtype=torch.float32), torch.tensor(targets)
    y = y.float() if of.task == "regression" else y.long()
    held = rest[:TEST] if test else validation
    return Split(x[train], y[train], x[held], y[held])


def measured(of: Table, number: int, rule: str, *, test: bool) -> float:
    """Fit once, and return the NLL of the held-out rows."""
    rows = split(of, number, test=test)
    value = RULES[of.task][rule](len(rows.inputs))
    layer: Regression | Generative
    options: dict[str, Any] = {"prior_variance": 1.0, "rng": Seed(number)}
    if of.task == "regression":
        layer = Regression(WIDTH, 1, covariance="dense", wishart_dof=1.0, wishart_scale=value, **options)
    else:
        classes = int(columns(of.name)[1].max()) + 1
        counts = torch.bincount(rows.targets, minlength=classes).float()
        layer = Generative(WIDTH, classes, class_counts=counts, wishart_dof=value, wishart_scale=1.0, **options)
    trunk = fitted(rows, layer, WIDTH, number)
    with torch.no_grad():
        return nll(layer.predict(trunk(rows.test_inputs)), rows.test_targets)


def mean_of_choice(stored: Rows, task: Task, rule: str) -> float:
    values = [float(row["NLL"]) for row in stored if (row["part"], row["task"], row["rule"]) == ("choice", task, rule)]
    return float(np.mean(values))


def judged(stored: Rows, task: Task) -> list[str]:
    """Return the chosen rule and the others."""
    chosen = min(RULES[task], key=lambda rule: mean_of_choice(stored, task, rule))
    return list(dict.fromkeys([chosen, *OTHERS[task]]))


def by_table(stored: Rows, task: Task, rule: str) -> dict[str, float]:
    """Return the mean over splits of the NLL of test rows of each unseen table."""
    here = [row for row in stored if (row["part"], row["task"], row["rule"]) == ("judgement", task, rule)]
    return {name: float(np.mean([float(r["NLL"]) for r in here if r["table"] == name])) for name in names(here)}


def names(rows: Rows) -> list[str]:
    return list(dict.fromkeys(row["table"] for row in rows))


def difference(values: Sequence[float]) -> str:
    """Return the mean over tables ± its standard error, with a note if it is not established."""
    mean, spread = float(np.mean(values)), float(np.std(values, ddof=1) / len(values) ** 0.5)
    clear = abs(mean) > student_t.ppf(0.975, len(values) - 1) * spread
    return error(mean, spread, 3) + ("" if clear else ", not established")


def page(stored: Rows, start: float) -> None:
    """Write the page from the stored rows."""
    parts = [about(__doc__)]
    for task, rules in RULES.items():
        choice = [[rule, f"{mean_of_choice(stored, task, rule):.3f}"] for rule in rules]
        chosen, seen = judged(stored, task)[0], ", ".join(of.name for of in tables(task, seen=True))
        parts += [f"## {task.capitalize()}", f"*Choice*, on {seen}: **{chosen}**."]
        parts.append(table(["rule", "NLL of validation rows"], choice))
        figures = {rule: by_table(stored, task, rule) for rule in judged(stored, task)}
        cells = [[name, *(f"{figures[rule][name]:.3f}" for rule in figures)] for name in figures[chosen]]
        parts += ["*Judgement*: the NLL of test rows of unseen tables.", table(["table", *figures], cells)]
        for other, title in OTHERS[task].items():
            if other == chosen:
                parts.append(f"{chosen} is {title}.")
            else:
                each = [figures[chosen][name] - figures[other][name] for name in figures[chosen]]
                parts.append(f"{chosen} less {other}, {title}: {difference(each)}.")
    title, command = "A rule for the prior of the noise", "python -m benchmarks.vbll_prior"
    write(OUT / "prior.md", title, command, parts, start)


if __name__ == "__main__":
    main()
