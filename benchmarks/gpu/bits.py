"""Does a fit on a GPU repeat itself, bit for bit? Every method in every stage, at the smallest size, on ``cuda``.

    python -m benchmarks.gpu.bits OUT.jsonl --part 0 --parts 4

The cases are the conformance tests' cases. Each is fitted twice from one seed, then killed at a checkpoint and
resumed. It predicts the validation rows twice; the predictions are also compared with the same fit's predictions on the
CPU. For each case one line of JSON has whether the bits are the same and the largest difference of a stored number
over the largest number of its tensor, or the error.
"""

import argparse
import json
import time
import traceback
from pathlib import Path
from typing import Any

import torch

from bdl_pipe.artifacts import State, from_bytes, to_bytes
from bdl_pipe.evaluation import EvaluateConfig, score_all
from bdl_pipe.posterior import Predictor
from bdl_pipe.registry import posterior_of
from bdl_pipe.seeds import Seed
from pipeline.work.process import repeat_bits
from tests.cases import CASES, Case
from tests.resuming import Killed, Watched
from tests.test_conformance import config_of, data_of, inputs_of, make

ROWS = EvaluateConfig(15, 7, 10, 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--part", type=int, default=0)
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[""], help="cases that have one of these in their names")
    parser.add_argument("--as-torch-does", action="store_true", help="without repeat_bits")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if not chosen.as_torch_does:
        repeat_bits(chosen.device)
    cases = [case for case in CASES if any(o in str(case) for o in chosen.only)][chosen.part :: chosen.parts]
    for case in cases:
        row: dict[str, Any] = {"case": str(case)}
        start = time.perf_counter()
        try:
            row |= told(case, chosen.device)
        except Exception as error:  # an error in one case must not stop the others
            ours = [f for f in traceback.extract_tb(error.__traceback__) if "bdl_pipe" in f.filename]
            row["error"] = f"{type(error).__name__}: {error}"[:500]
            row["at"] = " < ".join(f"{Path(f.filename).name}:{f.lineno}" for f in reversed(ours[-5:]))
        row["seconds"] = round(time.perf_counter() - start, 2)
        with chosen.out.open("a") as file:
            file.write(json.dumps(row) + "\n")


def told(case: Case, device: str) -> dict[str, Any]:
    """Fit, fit again, kill and resume, predict twice."""
    data, rng = data_of(case.task).on(device), Seed(7).fold("member", 0)
    inputs, config = inputs_of(case), config_of(case)

    def fit(report: Watched) -> State:
        return from_bytes(to_bytes(case.stage.fit_one(data, inputs, config, rng=rng, report=report)))

    watched = Watched()
    first, second = fit(watched), fit(Watched())
    row: dict[str, Any] = {"twice": far(first, second)}
    if watched.asked:
        report = Watched((watched.asked + 1) // 2)
        try:
            fit(report)
        except Killed:
            row["resumed"] = far(first, fit(Watched(kept=report.kept)))
    if case.kind == "student":
        asked = [means(first, case, device) for _ in range(2)]
        row["predicted twice"] = distance(*asked)
        row["on the CPU, same state"] = distance(asked[0], means(first, case, "cpu"))
        fitted = Predictor(posterior_of(first, device), data.transform, data.classes)
        score_all(fitted, data.validation, ROWS, Seed(1), device, ood={"same": data.validation}, transfer={})
    host = from_bytes(to_bytes(make(case, rng, Watched())))
    row["fitted on the CPU"] = far(first, host)
    return row


def means(state: State, case: Case, device: str) -> torch.Tensor:
    rows = data_of(case.task).tensors("validation", device)[0]
    return posterior_of(state, device).predict(rows, rng=Seed(1)).mean.detach().cpu()


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """Return the largest difference over the largest number; 0 for equal bits alone."""
    if torch.equal(a, b):
        return 0.0
    return float((a.double() - b.double()).abs().max() / b.double().abs().max().clamp(min=1e-30)) or 1e-30


def far(first: State, second: State) -> float | str:
    """Return the largest :func:`distance` of the tensors of two states."""
    if first.tensors.keys() != second.tensors.keys():
        return "other tensors"
    pairs = [(v, second.tensors[k]) for k, v in first.tensors.items()]
    if any(a.shape != b.shape for a, b in pairs):
        return "other shapes"
    return max((distance(a, b) for a, b in pairs if a.numel()), default=0.0)


if __name__ == "__main__":
    main()
