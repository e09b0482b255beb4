"""Size, time and NLL of the approximate posteriors in table 1 of the inducing-weight paper, on Fashion-MNIST.

Ritter, Kukla, Zhang & Li 2021 count the numbers of matrix-normal, k-tied and rank-1 posteriors (table 1) and leave them
out of their experiments, since none stores fewer numbers than one network. Here they are fitted beside FFG-W, FFG-U and
Ensemble-U, each with the weights, caps, rate, draws and KL weight of ``params.yaml`` and of
``params/inducing-convnet.yaml``. Nothing was searched for the new ones. Smaller than there, to fit in minutes: the
first 4,000 training rows of ``fashion_small``, a ConvNet of width 8, 6 epochs, the KL's weight rising in epochs 2 to 4.
All 10,000 test images are scored.

    python -m benchmarks.inducing_rivals --keep FOLDER       # writes results/inducing/rivals.md

``--keep`` holds one file for each fit, and fits only those that have none. Seconds are of one thread's processor.

Rules, fixed before a test row was scored: three seeds; an error is the standard error of the mean over seeds; a
difference from FFG-W is established if it is more than 4.3 of its standard errors (two-sided t-test at 5 % with two
degrees of freedom; no correction for the number of rows).
"""

import argparse
import dataclasses
import hashlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch

from bdl_pipe.config import merge, read
from bdl_pipe.data.catalog import load_dataset
from bdl_pipe.data.config import DatasetConfig
from bdl_pipe.data.examples import Examples
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.data.split_rows import fit_data
from bdl_pipe.evaluation import EvaluateConfig, score_classification
from bdl_pipe.metrics.cost import stored_bytes, stored_parameters
from bdl_pipe.posterior import Predictor
from bdl_pipe.progress import Silent
from bdl_pipe.registry import METHODS, posterior_of
from bdl_pipe.seeds import Seed
from bdl_pipe.yaml_files import read_yaml
from benchmarks import written
from benchmarks.written import mean_and_error
from pipeline.core import provenance, records
from pipeline.core.load import typed

OUT: Final = Path("results/inducing/rivals.md")
ROWS, SEEDS, LIMIT = 4_000, (0, 1, 2), 4.3
SMALLER: Final = {
    "network": {"name": "convnet", "width": 8, "norm": "instance", "pool": "average"},
    "training": {"epochs": 6},
    "annealing": {"start": 2.0, "end": 4.0},
}
FORMS: Final[dict[str, tuple[str, dict[str, Any]]]] = {  # title -> method, changes
    "FFG-W": ("ffg_w", {}),
    "matrix-normal": ("matrix_normal_w", {}),
    "k-tied, k = 2": ("k_tied_w", {}),
    "rank-1, one component": ("rank1_w", {"weights": {"members": 1}}),
    "rank-1, 5 components": ("rank1_w", {}),
    "FFG-U": ("ffg_u", {}),
    "Ensemble-U": ("ensemble_u", {}),
}
HEAD: Final = [
    *("posterior", "parameters", "bytes", "accuracy %", "NLL", "ECE %"),
    *("NLL − FFG-W's", "fit, s", "5 draws of 1,000 images, s"),
]
Scores = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, required=True, help="a folder")
    keep: Path = parser.parse_args().keep
    torch.set_num_threads(1)
    provenance.commit()  # the code of this commit fits; the answer is cached
    keep.mkdir(parents=True, exist_ok=True)
    data, test = rows()
    scores: dict[str, list[Scores]] = {title: [] for title in FORMS}
    for seed in SEEDS:
        for title, (method, changes) in FORMS.items():
            path = keep / f"{title.replace(' ', '_')}-{seed}.json"
            if not path.exists():
                path.write_text(json.dumps(measured(method, section(method, changes), data, test, seed)))
            scores[title].append(json.loads(path.read_text()))
            print(json.dumps({"posterior": title, "seed": seed} | scores[title][-1]), flush=True)
    OUT.write_text(page(scores, digest(data, test)))


def rows() -> tuple[FitData, Examples]:
    """Return the training rows and the test rows."""
    raw, params = load_dataset("fashion_mnist"), typed(read_yaml(Path("params.yaml")))
    config: DatasetConfig = params.datasets["fashion_small"]
    data, _ = fit_data(raw, config, rng=Seed(0).fold("rows"))
    assert raw.test is not None
    first = Examples(data.train.inputs[:ROWS], data.train.targets[:ROWS])
    return dataclasses.replace(data, train=first), raw.test


def section(method: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a method's hyperparameters: the files' for Fashion-MNIST, made smaller."""
    base, overlay = read_yaml(Path("params.yaml")), read_yaml(Path("params/inducing-convnet.yaml"))
    run = overlay["runs"].get(f"fashion_mnist-{method}", {})
    here = merge(base["methods"], overlay["methods"])[method]
    return merge(merge(merge(here, run.get("override", {})), SMALLER), changes)


def measured(method: str, hyperparameters: Mapping[str, Any], data: FitData, test: Examples, seed: int) -> Scores:
    """Fit once, and return scores on the test rows, the size and the seconds."""
    config = read(METHODS[method].config, hyperparameters, f"methods.{method}")
    began = time.process_time()
    state = METHODS[method].stages["student"].fit_one(data, {}, config, rng=Seed(seed).fold(method), report=Silent())
    fitted = time.process_time()
    predictor = Predictor(posterior_of(state), data.transform, data.classes)
    scores = score_classification(predictor, test, EvaluateConfig(15, 250, 0), Seed(seed).fold("predict"))
    seconds = {"fit": fitted - began, "predict": (time.process_time() - fitted) * 1_000 / len(test)}
    sizes = {"parameters": stored_parameters(state), "bytes": stored_bytes(state)}
    return {name: float(value) for name, (value, _) in scores.items()} | sizes | seconds


def digest(data: FitData, test: Examples) -> str:
    """Hash all rows, inputs and targets."""
    hashed = hashlib.sha256()
    for part in (data.train, test):
        hashed.update(part.inputs.tobytes())
        hashed.update(part.targets.tobytes())
    return hashed.hexdigest()[:16]


def page(scores: Mapping[str, list[Scores]], of_data: str) -> str:
    """Return the page."""
    facts = {
        "commit": provenance.commit(),
        "params": provenance.digest({title: section(*form) for title, form in FORMS.items()}),
        "data": of_data,
        "device": f"{records.device_name('cpu')}, one thread, torch {torch.__version__}",
        "seconds in all": f"{sum(s['fit'] + 10 * s['predict'] for seeds in scores.values() for s in seeds):.0f}",
    }
    cells = [row(title, seeds, scores["FFG-W"]) for title, seeds in scores.items()]
    return written.page("Table 1's posteriors: size, time and NLL", __doc__, facts, written.table(HEAD, cells))


def row(title: str, seeds: list[Scores], baseline: list[Scores]) -> list[str]:
    """Return the cells of a posterior's row."""
    figures = {name: mean_and_error([s[name] for s in seeds]) for name in seeds[0]}
    difference, error = mean_and_error([s["nll"] - b["nll"] for s, b in zip(seeds, baseline, strict=True)])
    verdict = "" if abs(difference) > LIMIT * error else " (not established)"
    return [
        title,
        f"{figures['parameters'][0]:,.0f}",
        f"{figures['bytes'][0]:,.0f}",
        "{:.2f} ± {:.2f}".format(*(100 * value for value in figures["accuracy"])),
        "{:.4f} ± {:.4f}".format(*figures["nll"]),
        "{:.2f} ± {:.2f}".format(*(100 * value for value in figures["ece"])),
        "" if seeds is baseline else f"{difference:+.4f} ± {error:.4f}{verdict}",
        "{:.1f} ± {:.1f}".format(*figures["fit"]),
        "{:.2f} ± {:.2f}".format(*figures["predict"]),
    ]


if __name__ == "__main__":
    main()
