"""Each coreset against the images that it was distilled from, on validation rows: is its distillation worth anything?

    python -m benchmarks.pages.coreset_starts fashion_mnist-frepo-ipc10-nn fashion_mnist-bpc_fkl-ipc10-sgmcmc

An argument is an entry of ``runs`` that is made from a coreset, and so a protocol. As in a search, its coreset is
distilled from the training rows alone, split 0, one seed; the protocol is fitted to that coreset, and to the random
rows of each class that it started from, with the same seed. Two processes share the runs. Written:
``results/coresets/starts.md``, the NLL in nats and the accuracy of both on validation rows.
"""

import argparse
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch

from bdl_pipe.artifacts import State
from bdl_pipe.coresets.shared.init import balanced
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.posterior import Predictor
from bdl_pipe.progress import Silent
from bdl_pipe.registry import posterior_of
from benchmarks import written
from pipeline.core.load import load
from pipeline.core.settings import Settings
from pipeline.search import branch_of, load_data, make_upstream
from pipeline.search.trial import Branch, Upstream
from pipeline.stages import report

OUT = Path("results/coresets/starts.md")
HEAD = ("Run", "Start NLL", "Coreset NLL", "Start acc. %", "Coreset acc. %", "Better", "Distilled in")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--processes", type=int, default=2)
    chosen = parser.parse_args()
    read, settings = load(), Settings.read()
    with ProcessPoolExecutor(chosen.processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        rows = list(pool.map(measured, chosen.runs))
    facts = {key: value for key, value in report.facts(read, settings).items() if value not in ("—", 0)}  # used ones
    told = (
        "\nValidation rows, one seed: the random rows that each coreset started from, and what was distilled from them."
    )
    table = written.table(HEAD, rows)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(written.page("Coresets and their starts", told, facts, table))
    print(table)


def prepared(key: str) -> tuple[Branch, FitData, Upstream]:
    """Make the inputs of a run's coreset, from training rows alone."""
    read, settings = load(), Settings.read()
    run = read.run("student", key)
    method = read.run("coreset", run.sources["coreset"]).method.name
    found = branch_of(read, method, run.spec.dataset, key, settings)
    data = load_data(found, read, settings)
    return found, data, make_upstream(found, data, read, settings)


def measured(key: str) -> tuple[str, ...]:
    """Return a row of the table."""
    torch.set_num_threads(1)
    chain, data, upstream = prepared(key)
    configs, first = [r.config for r in chain.runs], chain.runs[0]
    clock = time.perf_counter()
    distilled = chain.make(data, upstream, configs, Silent())
    seconds = time.perf_counter() - clock
    numbers = first.config
    scale = numbers.coreset.label_scale if hasattr(numbers, "coreset") else 1.0
    address = chain.rng(first).fold("start")
    start = balanced(data, numbers.ipc, scale, rng=address).state(
        data, {"coreset": first.method.name, "ipc": numbers.ipc}
    )
    scores = [score(chain, chain.finish(made, data, configs, upstream), data) for made in (start, distilled)]
    (start_nll, start_accuracy), (nll, accuracy) = scores
    better = "yes" if nll < start_nll and accuracy > start_accuracy else "no"
    return (
        key,
        f"{start_nll:.3f}",
        f"{nll:.3f}",
        f"{100 * start_accuracy:.1f}",
        f"{100 * accuracy:.1f}",
        better,
        f"{seconds:.0f} s",
    )


def score(chain: Branch, fitted: State, data: FitData) -> tuple[float, float]:
    """Return the mean NLL in nats and the accuracy on the validation rows."""
    predictor = Predictor(posterior_of(fitted), data.transform, data.classes)
    targets = torch.from_numpy(data.validation.targets)
    nll = hits = 0.0
    for rows, predictive in predictor.batches(data.validation.inputs, rng=chain.predictions):
        log_probs = predictive.log_probs
        nll -= float(log_probs.gather(1, targets[rows].unsqueeze(1)).sum())
        hits += float((log_probs.argmax(1) == targets[rows]).sum())
    return nll / len(targets), hits / len(targets)


if __name__ == "__main__":
    main()
