"""Scores of each coreset method against its outer steps, on a GPU: what ``benchmarks.gpu.page`` fits laws to.

    python -m pipeline apply params/coresets.yaml
    BDL_DEVICE=cuda python -m benchmarks.gpu.coreset_law OUT.jsonl --experts fashion_mnist-bpc_w-ipc10-sgmcmc
    BDL_DEVICE=cuda python -m benchmarks.gpu.coreset_law OUT.jsonl fashion_mnist-bpc_w-ipc10-sgmcmc:100

An argument is an entry of ``runs`` that is made from a coreset, and so a protocol, with the seconds that it may take.
As in a search, its coreset is distilled from the training rows alone, split 0, one seed; the protocol is fitted to that
coreset and scored on the validation rows. Each number of outer steps, 25, 50, 100, ..., is a fit of its own; before one
begins that would not end in time, the ladder stops. ``KEY@N:SECONDS`` takes experts of N whole epochs in place of the
parts of one, with starts after 0 ... 19 of them, as published. With ``--experts`` the experts of the arguments are
trained and kept, and nothing is distilled.
"""

import argparse
import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import torch

from bdl_pipe.artifacts import State, read_state, write_state
from bdl_pipe.coresets.bpc.experts import Experts
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.posterior import Predictor
from bdl_pipe.progress import Silent
from bdl_pipe.registry import posterior_of
from bdl_pipe.search import validation_nll
from pipeline.core.load import load
from pipeline.core.model import Run
from pipeline.core.settings import Settings
from pipeline.search import branch_of, load_data, make_upstream
from pipeline.search.trial import Branch, Upstream
from pipeline.work.process import repeat_bits

FIRST, PUBLISHED_STARTS = 25, 20
WHOLE = Path("work/experts")  # experts of whole epochs, one file per seed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("runs", nargs="+", metavar="RUN[@N][:SECONDS]")
    parser.add_argument("--experts", action="store_true")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1], help="of the experts of whole epochs")
    parser.add_argument("--most", type=int, default=1_000_000, help="outer steps")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    repeat_bits(Settings.read().device)
    for argument in chosen.runs:
        name, _, seconds = argument.partition(":")
        key, _, whole = name.partition("@")
        epochs = int(whole or 0)
        if chosen.experts:
            for row in experts(key, epochs, chosen.seeds):
                write(chosen.out, row)
        else:
            ladder(key, epochs, float(seconds), chosen.most, chosen.out)


def write(out: Path, row: dict[str, Any]) -> None:
    with out.open("a") as file:
        file.write(json.dumps(row) + "\n")


def branch(key: str) -> tuple[Branch, FitData, Settings]:
    """Return the inputs of a run, from its coreset on, and the training rows."""
    read, settings = load(), Settings.read()
    run = read.run("student", key)
    method = read.run("coreset", run.sources["coreset"]).method.name
    found = branch_of(read, method, run.spec.dataset, key, settings)
    return found, load_data(found, read, settings), settings


def whole_epochs(run: Run, epochs: int) -> Any:
    """Return the config of experts with their start and every whole epoch."""
    return dataclasses.replace(run.config, epochs=epochs, snapshots=epochs, snapshots_per_epoch=1, keep_start=True)


def experts(key: str, epochs: int, seeds: list[int]) -> list[dict[str, Any]]:
    """Train the experts that a run's coreset descends from, and return the validation NLL after each epoch."""
    found, data, settings = branch(key)
    (run,) = found.upstream
    if not epochs:
        make_upstream(found, data, load(), settings)
        return []
    rows = []
    for seed in seeds:
        start, rng = time.perf_counter(), found.rng(run).fold(seed)
        state = run.stage.fit_one(data, {}, whole_epochs(run, epochs), rng=rng, report=Silent())
        seconds = time.perf_counter() - start
        WHOLE.mkdir(parents=True, exist_ok=True)
        write_state(WHOLE / f"{epochs}-{seed}", state)
        for epoch, nll in losses(state, data):
            rows.append({"expert": seed, "epoch": epoch, "nll": nll, "seconds": seconds})
    return rows


def losses(state: State, data: FitData) -> list[tuple[int, float]]:
    """Return the mean −log p of the validation rows after each epoch."""
    kept = Experts([state], data)
    images, targets = data.tensors("validation", data.device)
    found = []
    for epoch in range(kept.epochs + 1):
        with torch.no_grad():
            logits = kept.network.outputs(kept.weights(0, epoch)[None], images)[0]
        found.append((epoch, float(torch.nn.functional.cross_entropy(logits, targets))))
    return found


def ladder(key: str, epochs: int, seconds: float, most: int, out: Path) -> None:
    """Distil with 25, 50, 100, ... outer steps until the time is up."""
    end = time.perf_counter() + seconds
    found, data, settings = branch(key)
    if epochs:
        (run,) = found.upstream
        upstream: Upstream = {
            (run.kind, run.key): [read_state(path.with_suffix("")) for path in sorted(WHOLE.glob(f"{epochs}-*.json"))]
        }
    else:
        upstream = make_upstream(found, data, load(), settings)
    first, steps, step, rest = found.runs[0], FIRST, 0.0, 0.0
    while steps <= most and time.perf_counter() + 1.1 * steps * step + rest < end:
        configs = [with_steps(run.config, steps, epochs) for run in found.runs]
        start = time.perf_counter()
        coreset = found.make(data, upstream, configs, Silent())
        distilled = time.perf_counter() - start
        step = distilled / steps
        fitted = found.finish(coreset, data, configs, upstream)
        nll, accuracy = score(found, fitted, data)
        rest = time.perf_counter() - start - distilled
        row = {"run": key, "method": first.method.name, "ipc": first.config.ipc, "experts": epochs, "steps": steps}
        write(out, row | {"nll": nll, "accuracy": accuracy, "seconds": distilled, "protocol": rest})
        steps *= 2


def with_steps(config: Any, steps: int, epochs: int) -> Any:
    """Return a config with another number of outer steps; a protocol's, which has none, as it is."""
    if hasattr(config, "coreset"):
        return dataclasses.replace(config, coreset=dataclasses.replace(config.coreset, steps=steps))
    if hasattr(config, "start_epochs"):
        starts = {"start_epochs": PUBLISHED_STARTS} if epochs else {}
        return dataclasses.replace(config, outer=dataclasses.replace(config.outer, steps=steps), **starts)
    return config


def score(found: Branch, fitted: State, data: FitData) -> tuple[float, float]:
    """Return the mean −log p, as a search scores it, and the accuracy on the validation rows."""
    predictor = Predictor(posterior_of(fitted, data.device), data.transform, data.classes)
    targets, hits = torch.tensor(data.validation.targets, device=data.device), 0.0
    for rows, made in predictor.batches(data.validation.inputs, rng=found.predictions, device=data.device):
        hits += float((made.mean.argmax(1) == targets[rows]).sum())
    return validation_nll(fitted, data, found.predictions), hits / len(targets)


if __name__ == "__main__":
    main()
