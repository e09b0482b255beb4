"""Tables 1 and 4 of the last layers' paper, with trunk and layer trained together from random weights.

    python -m benchmarks.vbll_scratch 1 4      # the tables to fit; goes on from the rows of results/vbll/scratch-*.csv
    python -m benchmarks.vbll_scratch          # writes results/vbll/scratch.md from these rows

Stand-ins for CIFAR-10 and CIFAR-100, whose orders are compared and not their values. *Table 1*: seven classes of
Fashion-MNIST. The other three classes are the near set (for CIFAR-100), MNIST is the far set (for SVHN). Fit i has fold
i of held-out classes, those of params/near-ood.yaml. *Table 4*: 100 pairs of a garment and a digit. Both other sets,
Fashion-MNIST (for CIFAR-10) and MNIST (for SVHN), hold half of each image's kind, so that both are near.

All rows of a table have the same training rows, a ConvNet of width 8, AdamW with one cycle, batches of 64 and the same
number of epochs. Hyperparameters of methods are those of params.yaml and params/images.yaml; SNGP keeps group norm and
max pool, since it bounds the norms of its layers. The softmax is averaged over 50 draws, the paper's rule with another
number. The KL weight of BNN is 1, the bound, where the paper has 50.

Rules, fixed in the commit before a test row was scored. The rate of each row is the one of RATES with the least NLL on
3,000 validation rows, for fit 0; a row at the end of RATES is named. Three fits each; ± is the standard error of the
mean over fits. A difference from DNN is of the same fits, and is established if it is more than 4.3 of its standard
errors (two-sided t-test at 5 % with two degrees of freedom; no correction for the number of rows). The score of the
unfamiliar is the largest probability, and for G-VBLL the layer's feature density (MAP: the refitted densities).
"""

import argparse
import hashlib
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import torch

from bdl_pipe.artifacts import State
from bdl_pipe.config import merge, read
from bdl_pipe.data.catalog import Named
from bdl_pipe.data.config import DatasetConfig
from bdl_pipe.data.examples import Examples
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.data.split_rows import fit_data
from bdl_pipe.evaluation import EvaluateConfig, ood_scores, score_classification
from bdl_pipe.metrics import detection
from bdl_pipe.posterior import Predictor
from bdl_pipe.progress import Silent
from bdl_pipe.registry import METHODS, posterior_of
from bdl_pipe.seeds import Seed
from bdl_pipe.yaml_files import read_yaml
from benchmarks import stored_rows
from benchmarks.written import about, error, mean_and_error, table, write
from pipeline.core.load import typed
from pipeline.prepared.other_sets import test_rows, to_shape, without_classes

OUT: Final = Path(__file__).resolve().parent.parent / "results" / "vbll"
COLUMNS: Final = ("row", "fit", "rate", "name", "value")
RATES: Final = (3e-3, 1e-2, 3e-2)
FITS, LIMIT, VALIDATION = (0, 1, 2), 4.3, 3_000
NETWORK: Final = {"name": "convnet", "width": 8, "norm": "instance", "pool": "average"}
DRAWN: Final = {"predictive": "sampled", "draws": 50}
METHOD: Final = {  # the row of the tables -> method
    "DNN": "deterministic",
    "SNGP": "sngp",
    "D-VBLL": "d_vbll",
    "G-VBLL": "g_vbll",
    "BNN": "bnn",
    "D-VBLL BNN": "d_vbll_bnn",
    "G-VBLL BNN": "g_vbll_bnn",
}
PLACES: Final = (2, 4, 4, 3, 3)  # digits of the columns
PRINTED: Final = OUT.parent.parent / "src" / "bdl_report" / "papers" / "vbll.csv"
VERDICTS: Final = """The signs of the differences from DNN. *Not the paper's*: its difference is below two errors.
*Not established*: ours is not. Else both are established, and have the same sign (*seen*) or not (*opposite*)."""
EVALUATE: Final = EvaluateConfig(15, 250, 0)


@dataclass(frozen=True)
class Table:
    """A printed table and its stand-in.

    Attributes:
        rows: the number of training rows that remain for a fit is 60,000 or 20,000 less these validation rows.
        held_out: the held-out classes of each fit; none: all classes are seen.
        far, near: the columns for SVHN and for the other CIFAR.
    """

    source: str
    normalise: Literal["published", "train"]
    validation: int
    epochs: int
    held_out: tuple[tuple[int, ...], ...]
    far: str
    near: str


FOLDS: Final = ((9, 0, 3), (2, 7, 4), (1, 8, 5))
TABLES: Final = {
    "1": Table("fashion_mnist", "published", 48_000, 10, FOLDS, "mnist5k", "held_out"),
    "4": Table("fashion_digits", "train", 10_000, 6, ((), (), ()), "mnist5k", "fashion_mnist"),
}
Rows = list[dict[str, str]]


@dataclass(frozen=True)
class Data:
    """The rows of a fit: for training, the first validation rows, test rows, and images of the other sets."""

    fit: FitData
    validation: Examples
    test: Examples
    others: Mapping[str, np.ndarray]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", help="1, 4 or both; none: only the page")
    asked: list[str] = parser.parse_args().tables
    if wrong := sorted(set(asked) - set(TABLES)):
        parser.error(f"tables must be of {', '.join(TABLES)}, got {' '.join(wrong)}")
    torch.set_num_threads(1)
    for of_table in asked:
        stored = stored_rows.read(file_of(of_table))
        for row in METHOD:
            fit_row(of_table, row, stored)
    if not asked:
        page({of_table: stored_rows.read(file_of(of_table)) for of_table in TABLES})


def fit_row(of_table: str, row: str, stored: Rows) -> None:
    """Choose the row's rate by validation rows of fit 0, then score every fit at this rate; skip what is stored."""
    tried = dict[float, State]()
    for rate in RATES:
        if not has(stored, row, 0, rate, "validation NLL"):
            tried[rate], seconds = fitted(of_table, row, 0, rate)
            nll = validated(of_table, row, tried[rate])
            add(of_table, stored, (row, 0, rate), {"validation NLL": nll, "seconds": seconds})
    rate = chosen_rate(stored, row)
    for number in FITS:
        if not has(stored, row, number, rate, "NLL"):
            if number == 0 and rate in tried:
                values = scored(of_table, row, number, tried[rate])
            else:
                state, seconds = fitted(of_table, row, number, rate)
                values = scored(of_table, row, number, state) | ({"seconds": seconds} if number else {})
            add(of_table, stored, (row, number, rate), values)


def has(stored: Rows, row: str, number: int, rate: float, name: str) -> bool:
    key = (row, str(number), str(rate), name)
    return any((line["row"], line["fit"], line["rate"], line["name"]) == key for line in stored)


def add(of_table: str, stored: Rows, key: tuple[str, int, float], values: Mapping[str, float]) -> None:
    """Add figures of a fit to the rows, and write the CSV."""
    stored += [dict(zip(COLUMNS, (*map(str, key), name, str(value)), strict=True)) for name, value in values.items()]
    stored_rows.write(file_of(of_table), COLUMNS, stored)
    print(of_table, *key, {name: round(value, 4) for name, value in values.items()}, flush=True)


def section(row: str, of_table: Table, rate: float) -> dict[str, Any]:
    """Return a row's hyperparameters: the files' for Fashion-MNIST, with the tables' network, rate and epochs."""
    methods = merge(read_yaml(Path("params.yaml"))["methods"], read_yaml(Path("params/images.yaml"))["methods"])
    method = "sgd" if row == "DNN" else METHOD[row]
    training: dict[str, Any] = {"epochs": of_table.epochs, "batch": 64, "optimiser": {"lr": rate, "warmup": 0.2}}
    changes = {"network": {"width": 8} if row == "SNGP" else NETWORK}
    changes |= training | {"snapshots": 1} if row == "DNN" else {"training": training}
    if row in ("D-VBLL", "D-VBLL BNN"):
        changes["layer"] = DRAWN
    return merge(methods[method], changes)


@cache
def data_of(of_table: str, number: int) -> Data:
    """Return the rows of a fit."""
    t, sources = TABLES[of_table], typed(read_yaml(Path("params.yaml")))
    base: DatasetConfig = sources.datasets["fashion_small"]
    config = replace(base, source=Named(t.source), normalise=t.normalise, validation=t.validation)
    raw, others = config.source.read(), dict[str, np.ndarray]()
    shape = raw.train.inputs.shape[1:]
    if t.held_out[number]:
        raw, out = without_classes(raw, t.held_out[number], "held_out")
        others["held_out"] = out.inputs
        config = replace(config, validation=t.validation * len(raw.classes) // 10)
    for name in {t.far, t.near} - {"held_out"}:
        others[name] = to_shape(test_rows(Named(name).read()).inputs, shape)
    data, _ = fit_data(raw, config, rng=Seed(number).fold("rows", of_table))
    few = Examples(data.validation.inputs[:VALIDATION], data.validation.targets[:VALIDATION])
    assert raw.test is not None
    return Data(data, few, raw.test, others)


def fitted(of_table: str, row: str, number: int, rate: float) -> tuple[State, float]:
    """Fit once, from random weights; return the state and the processor's seconds."""
    data, rng = data_of(of_table, number).fit, Seed(number).fold("fit", f"table {of_table}", row)
    hyperparameters, began = section(row, TABLES[of_table], rate), time.process_time()
    method = METHODS["sgd" if row == "DNN" else METHOD[row]]
    config: object = read(method.config, hyperparameters, f"methods.{method.name}")
    stage = method.stages["trajectory" if row == "DNN" else "student"]
    state = stage.fit_one(data, {}, config, rng=rng, report=Silent())
    if row == "DNN":
        plain = METHODS["deterministic"]
        config = read(plain.config, {}, "methods.deterministic")
        state = plain.stages["student"].fit_one(data, {"trajectory": [state]}, config, rng=rng, report=Silent())
    return state, time.process_time() - began


def predictor_of(of_table: str, row: str, number: int, state: State) -> tuple[Predictor, Seed]:
    data, rng = data_of(of_table, number).fit, Seed(number).fold("predict", f"table {of_table}", row)
    return Predictor(posterior_of(state), data.transform, data.classes), rng


def validated(of_table: str, row: str, state: State) -> float:
    """Return the NLL of validation rows of fit 0."""
    predictor, rng = predictor_of(of_table, row, 0, state)
    return score_classification(predictor, data_of(of_table, 0).validation, EVALUATE, rng)["nll"][0]


def scored(of_table: str, row: str, number: int, state: State) -> dict[str, float]:
    """Return the figures of the table's columns, the AUROC by every score of the unfamiliar, and training rows."""
    data, (predictor, rng) = data_of(of_table, number), predictor_of(of_table, row, number, state)
    scores = {name: value for name, (value, _) in score_classification(predictor, data.test, EVALUATE, rng).items()}
    values = {"accuracy": 100 * scores["accuracy"], "ECE": scores["ece"], "NLL": scores["nll"]}
    inside = unfamiliar(predictor, data.test.inputs, rng)
    for name, images in data.others.items():
        outside = unfamiliar(predictor, images, rng)
        for score, familiar in inside.items():
            values[f"AUROC {name}, {score}"] = detection(familiar, outside[score])["auroc"]
    return values | {"rows": float(len(data.fit.train))}


def unfamiliar(predictor: Predictor, images: np.ndarray, rng: Seed) -> dict[str, np.ndarray]:
    parts = [ood_scores(predictive) for _, predictive in predictor.batches(images, EVALUATE.batch, rng=rng)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def file_of(of_table: str) -> Path:
    return OUT / f"scratch-table{of_table}.csv"


def chosen_rate(stored: Rows, row: str) -> float:
    """Return the rate with the least NLL of validation rows; the least of equal ones."""
    tried = {rate: values_of(stored, row, "validation NLL", rate)[0] for rate in RATES}
    return min(RATES, key=lambda rate: tried[rate] if math.isfinite(tried[rate]) else math.inf)


def values_of(stored: Rows, row: str, name: str, rate: float) -> list[float]:
    """Return a figure of each fit at a rate, in their order."""
    here = [line for line in stored if (line["row"], line["name"], line["rate"]) == (row, name, str(rate))]
    return [float(line["value"]) for line in sorted(here, key=lambda line: int(line["fit"]))]


def columns(of_table: str, row: str) -> dict[str, str]:
    """Return title -> the name of the figure, for a row of a table."""
    score = {"G-VBLL": "feature_density", "G-VBLL BNN": "feature_density", "G-VBLL-MAP": "refit_density"}
    sets = {"far": TABLES[of_table].far, "near": TABLES[of_table].near}
    found = {} if row == "G-VBLL-MAP" else {"accuracy %": "accuracy", "ECE": "ECE", "NLL": "NLL"}
    return found | {
        f"AUROC {name}, {where}": f"AUROC {name}, {score.get(row, 'max_prob')}" for where, name in sets.items()
    }


def page(stored: Mapping[str, Rows]) -> None:
    """Write the page from the stored rows; a row whose fits are not all stored is named and left out."""
    start, parts = time.process_time(), [about(__doc__)]
    for of_table, rows in stored.items():
        titles, printed = list(columns(of_table, "DNN")), printed_cells(of_table)
        cells, differences, verdicts, missing = [], [], [], []
        figures: dict[str, dict[str, list[float]]] = {}
        for row in (*list(METHOD)[:4], "G-VBLL-MAP", *list(METHOD)[4:]):
            fit = row.removesuffix("-MAP")
            names = {line["name"] for line in rows if line["row"] == fit and line["fit"] == str(FITS[-1])}
            if "NLL" not in names:
                missing.append(row)
                continue
            rate = chosen_rate(rows, fit)
            ours = {title: values_of(rows, fit, name, rate) for title, name in columns(of_table, row).items()}
            figures[row] = ours
            end = ", an end" if rate in (RATES[0], RATES[-1]) else ""
            seconds = statistics.mean(values_of(rows, fit, "seconds", rate))
            each = [
                error(*mean_and_error(ours[title]), PLACES[n]) if title in ours else "–" for n, title in indexed(titles)
            ]
            cells.append([row, *each, f"{rate:g}{end}", f"{seconds:.0f}"])
            if row != "DNN":
                plain = figures["DNN"]
                less = [difference(ours[t], plain[t], PLACES[n]) if t in ours else "–" for n, t in indexed(titles)]
                differences.append([row, *less])
                same = [
                    verdict(ours[t], plain[t], printed[row, n], printed["DNN", n]) if t in ours else "–"
                    for n, t in indexed(titles)
                ]
                verdicts.append([row, *same])
        of, counts = TABLES[of_table], values_of(rows, "DNN", "rows", chosen_rate(rows, "DNN"))
        about = f"Of {of.source}, {of.epochs} epochs of {', '.join(f'{count:,.0f}' for count in counts)} rows; "
        digest = hashlib.sha256(data_of(of_table, 0).fit.train.inputs.tobytes()).hexdigest()[:12]
        total = sum(float(line["value"]) for line in rows if line["name"] == "seconds")
        about += f"SHA-256 of the training images of fit 0: {digest}; {total:.0f} s of fits, at all rates."
        if missing:
            about += f" Rows whose fits are not all there: {', '.join(missing)}."
        parts += [f"## Table {of_table}", about, table(["row", *titles, "rate", "fit, s"], cells)]
        parts += ["Differences from DNN:", table(["row", *titles], differences)]
        parts += [VERDICTS, table(["row", *titles], verdicts)]
    title = "Tables 1 and 4, trained from random weights"
    write(OUT / "scratch.md", title, "python -m benchmarks.vbll_scratch", parts, start)


def indexed(titles: Sequence[str]) -> list[tuple[int, str]]:
    return list(enumerate(titles))


def printed_cells(of_table: str) -> dict[tuple[str, int], tuple[float, float]]:
    """Return (row, number of the column) -> the paper's mean and error."""
    near = {"1": "CIFAR100", "4": "CIFAR10"}[of_table]
    places = {"accuracy": 0, "ece": 1, "nll": 2, "SVHN": 3, near: 4}
    lines = [line for line in stored_rows.read(PRINTED) if line["table"] == f"table{of_table}"]
    cells = {}
    for line in lines:
        place = places[line["metric"].rpartition(":")[2]]
        cells[line["method"], place] = (float(line["value"]), float(line["error"]))
    return cells


def verdict(
    ours: Sequence[float], plain: Sequence[float], paper: tuple[float, float], paper_plain: tuple[float, float]
) -> str:
    """Return whether our difference from DNN has the sign of the paper's, if both are established."""
    theirs = paper[0] - paper_plain[0]
    if abs(theirs) <= 2 * math.hypot(paper[1], paper_plain[1]):
        return "not the paper's"
    if "not established" in difference(ours, plain, 4):
        return "not established"
    return "seen" if (theirs > 0) == (mean_and_error(ours)[0] > mean_and_error(plain)[0]) else "opposite"


def difference(ours: Sequence[float], plain: Sequence[float], places: int) -> str:
    """Return the mean of paired differences ± its standard error, with a note if it is not established."""
    mean, spread = mean_and_error([a - b for a, b in zip(ours, plain, strict=True)])
    return f"{mean:+.{places}f} ± {spread:.{places}f}" + ("" if abs(mean) > LIMIT * spread else ", not established")


if __name__ == "__main__":
    main()
