"""results/dark_knowledge/pbp.md: probabilistic backpropagation beside SGLD, its student and one network, on boston.

    python -m benchmarks.pbp             # a few minutes of CPU time; continues where it was stopped
    python -m benchmarks.pbp --page      # the page from the stored scores

All have the network 13-50-1 with rectified units (the student and the one network have a second output, for the
variance) and the twenty standard splits, with all training rows. Settings are fixed before; test rows are scored once
and choose nothing. The first five splits are those of params.yaml; the others were added, with the same settings, when
these had been scored, since PBP's paper has twenty. ``pbp`` has the values of params.yaml, which are the paper's. The
network is the first of ``boston-sgd``. The chains have the posterior of ``boston-chains`` and SGLD's steps of
params/students.yaml (four chains of 5,500 steps). The student is ``boston-student`` with these chains.

NLL is in the target's own units. An error is the standard error over the splits. A difference is paired by split, and
is called not established if it is below twice its error. The four methods differ in prior and likelihood, too: the
chains have the noise variance 0.1 of the standardised targets, the network predicts a variance for each input.
"""

import argparse
import csv
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch

from bdl_pipe import artifacts
from bdl_pipe.artifacts import State
from bdl_pipe.config import read
from bdl_pipe.data import sources
from bdl_pipe.data.examples import Examples
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.data.split_rows import fit_data, uci_splits
from bdl_pipe.method import Inputs, Kind
from bdl_pipe.posterior import Predictor
from bdl_pipe.progress import Report, Silent
from bdl_pipe.registry import METHODS, posterior_of
from bdl_pipe.seeds import Seed
from bdl_pipe.sgmcmc.method import average
from benchmarks import stored_rows, written
from benchmarks.written import mean_and_error
from pipeline.core import provenance, records
from pipeline.core.load import load
from pipeline.core.model import Params
from pipeline.prepared.preparation import rows_sha256

OUT: Final = Path(__file__).resolve().parents[1] / "results" / "dark_knowledge"
STORED, PAGE = OUT / "pbp.csv", OUT / "pbp.md"
KEPT: Final = Path("work/pbp")  # checkpoints
COLUMNS: Final = ("method", "split", "nll", "rmse", "cpu_seconds", "commit", "data", "device")
SAMPLING: Final[Mapping[str, Mapping[str, Any]]] = {
    "sampler": {"kernel": {"name": "sgld"}, "step_size": {"name": "constant", "value": 4.0e-5}, "batch": 91},
    "thinning": {"steps": 5500, "burn_in": 1500, "every": 80},
}
CHAINS, SPLITS = 4, 20
METRICS: Final = ("nll", "rmse")
TITLES: Final = {
    "pbp": "probabilistic backpropagation, 40 epochs",
    "sgld": "SGLD, 4 chains",
    "student": "student of these chains",
    "network": "one network",
}
PRINTED: Final = (  # each paper's NLL and RMSE; Korattikara et al. print the log-likelihood, on splits of their own
    ("PBP, Hernández-Lobato & Adams 2015, 20 splits", "2.574 ± 0.089", "3.014 ± 0.180"),
    ("SGLD, Korattikara et al. 2015", "2.306", "–"),
    ("its student, Korattikara et al. 2015", "2.350", "–"),
)


class Kept(Report):
    """Prints the progress of a fit and keeps its last checkpoint in a file."""

    def __init__(self, name: str) -> None:
        self._path, self._name = KEPT / f"{name}.safetensors", name

    def __call__(self, step: int, total: int, metrics: Mapping[str, float] | None = None) -> None:
        print(f"{self._name}: {step} of {total}, {dict(metrics or {})}", flush=True)

    def due(self) -> bool:
        return True

    def save(self, state: State) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_bytes(artifacts.to_bytes(state))

    def load(self) -> State | None:
        return artifacts.from_bytes(self._path.read_bytes()) if self._path.exists() else None


def splits(params: Params) -> tuple[list[FitData], list[Examples], str]:
    """Return the rows of each split's final fit, its test rows, and the hash of all rows."""
    config = params.datasets["boston"]
    raw, data, tests = sources.load(config.source), list[FitData](), list[Examples]()
    for number, (train, test) in enumerate(uci_splits(len(raw.train), SPLITS)):
        part, test_rows = (Examples(raw.train.inputs[of], raw.train.targets[of]) for of in (train, test))
        data.append(
            fit_data(replace(raw, train=part), config, rng=Seed(params.seed).fold("prepare", "boston"), split=number)[0]
        )
        tests.append(test_rows)
    return data, tests, rows_sha256(raw.train)


def pbp(data: Mapping[int, FitData]) -> list[State]:
    """Fit ``pbp`` to several splits at once."""
    rngs = [Seed(0).fold("pbp", number) for number in data]
    config = read(METHODS["pbp"].config, METHODS["pbp"].settings, "methods.pbp")
    fit_many = METHODS["pbp"].stages["student"].fit_many
    assert fit_many is not None
    report = Kept(f"pbp-{min(data)}-{max(data)}")
    return fit_many(list(data.values()), [{}] * len(data), config, rngs=rngs, report=report)


def chains(data: FitData, params: Params, rng: Seed) -> list[State]:
    """Run the chains of SGLD."""
    config = params.run("teacher", "boston-chains").config
    sampler, thinning = (read(type(getattr(config, key)), of, key) for key, of in SAMPLING.items())
    fit_many = METHODS["sgmcmc"].stages["teacher"].fit_many
    assert fit_many is not None
    config, rngs = replace(config, sampler=sampler, thinning=thinning), [rng.fold(chain) for chain in range(CHAINS)]
    return fit_many([data] * CHAINS, [{}] * CHAINS, config, rngs=rngs, report=Silent())


def fit(kind: Kind, key: str, data: FitData, inputs: Inputs, params: Params, rng: Seed) -> State:
    """Fit a run of params.yaml."""
    run = params.run(kind, key)
    return METHODS[run.method.name].stages[kind].fit_one(data, inputs, run.config, rng=rng, report=Silent())


def scored(state: State, data: FitData, test: Examples) -> dict[str, float]:
    """Return NLL and RMSE on the test rows."""
    predictive = Predictor(posterior_of(state), data.transform).predict(test.inputs, rng=Seed(0))
    targets = torch.tensor(test.targets)
    rmse = float((predictive.mean - targets).square().mean().sqrt())
    return {"nll": -float(predictive.log_prob(targets).mean()), "rmse": rmse}


def rows(done: set[tuple[str, int]]) -> Iterator[dict[str, Any]]:
    """Yield the scores of each method and split that is not in ``done``."""
    params = load()
    data, tests, digest = splits(params)
    about = {
        "commit": provenance.commit(),
        "data": digest,
        "device": f"{records.device_name('cpu')}, {torch.get_num_threads()} thread, torch {torch.__version__}",
    }
    if missing := {number: of for number, of in enumerate(data) if ("pbp", number) not in done}:
        clock = time.process_time()
        states_of = pbp(missing)
        seconds_each = (time.process_time() - clock) / len(missing)  # since the last start, if it was stopped
        for number, state in zip(missing, states_of, strict=True):
            score = scored(state, data[number], tests[number])
            yield {"method": "pbp", "split": number, **score, "cpu_seconds": seconds_each, **about}
    for number, (of, test) in enumerate(zip(data, tests, strict=True)):
        if ("network", number) in done:
            continue
        rng, clock = Seed(0).fold("beside pbp", number), time.process_time()
        trajectory = fit("trajectory", "boston-sgd", of, {}, params, rng.fold("network"))
        network = fit("student", "boston-deterministic", of, {"trajectory": [trajectory]}, params, rng)
        ends = [time.process_time()]
        drawn = chains(of, params, rng.fold("sgld"))
        ends.append(time.process_time())
        student = fit("student", "boston-student", of, {"teacher": drawn}, params, rng.fold("student"))
        ends.append(time.process_time())
        states = {"sgld": average(drawn).state(), "student": student, "network": network}  # the network is stored last
        seconds = {"network": ends[0] - clock, "sgld": ends[1] - ends[0], "student": ends[2] - ends[1]}
        for name, state in states.items():
            yield {"method": name, "split": number, **scored(state, of, test), "cpu_seconds": seconds[name], **about}


def page(stored: Sequence[Mapping[str, str]]) -> str:
    """Return the page as Markdown."""
    text = ["# Probabilistic backpropagation on boston", __doc__.split("\n\n", 2)[2].strip()]
    scores = {name: {row["split"]: row for row in stored if row["method"] == name} for name in TITLES}
    table = list[list[str]]()
    for name, title in TITLES.items():
        columns = {key: [float(row[key]) for row in scores[name].values()] for key in (*METRICS, "cpu_seconds")}
        cells = [written.error(*mean_and_error(columns[key]), digits=3) for key in METRICS]
        table.append([title, str(len(scores[name])), *cells, f"{statistics.mean(columns['cpu_seconds']):.1f}"])
    table += [[f"*printed:* {title}", "", nll, rmse, "–"] for title, nll, rmse in PRINTED]
    text += [written.table(["method", "splits", "NLL", "RMSE", "CPU s a split"], table), "## Differences"]
    text.append("`pbp` minus another method, paired by split; negative: `pbp` is better.")
    table = []
    for name, title in list(TITLES.items())[1:]:
        cells = []
        for key in METRICS:
            both = [split for split in scores[name] if split in scores["pbp"]]
            mean, error = mean_and_error([float(scores["pbp"][s][key]) - float(scores[name][s][key]) for s in both])
            cells.append(f"{mean:+.3f} ± {error:.3f}" + ("" if abs(mean) > 2 * error else ", not established"))
        table.append([title, *cells])
    text.append(written.table(["other", "NLL", "RMSE"], table))
    facts = {key: ", ".join(dict.fromkeys(row[key] for row in stored)) for key in ("commit", "data", "device")}
    text.append(written.listed(facts))
    return "\n\n".join(text) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", action="store_true", help="write the page from the stored scores")
    torch.set_num_threads(1)
    if not parser.parse_args().page:
        kept = stored_rows.read(STORED)
        if not kept:
            STORED.write_text(",".join(COLUMNS) + "\n")
        for row in rows({(row["method"], int(row["split"])) for row in kept}):
            print(row, flush=True)
            with open(STORED, "a", newline="") as file:
                csv.DictWriter(file, COLUMNS, lineterminator="\n").writerow(row)
    stored = sorted(stored_rows.read(STORED), key=lambda row: int(row["split"]))
    PAGE.write_text(page(stored))


if __name__ == "__main__":
    main()
