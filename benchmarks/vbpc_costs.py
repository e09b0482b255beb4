"""VBPC's tables of cost beside ours, as ratios: table 11 (the cost of distilling) and 12 (the cost of predicting).

``params/paper/vbpc-table1.yaml`` has the settings, for CIFAR-10 at ten images a class; only the network's width is an
argument, for a CPU. Images are noise of CIFAR-10's size. Table 11: the seconds of an outer step times the setting's
steps; all methods but VBPC also need ten experts, for which we take a network's seconds per image times their epochs.
Table 12: the seconds of a step of fitting times the setting's steps, and the seconds of predicting 10,000 images,
measured on a part of them; the chains keep 4 x 50 draws. The paper's figures (Lee, Lee & Lee 2025) were measured on an
RTX 3090; its experts take 5 hours for each method.

    python -m pipeline paper vbpc:table11      # or: python -m benchmarks.vbpc_costs --table 11 --width 32
    python -m pipeline paper vbpc:table12

Prints one JSON line for each method, then a table. Methods run one after another in one process; a step is a median.
"""

import argparse
import json
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from bdl_pipe import config
from bdl_pipe.artifacts import State
from bdl_pipe.coresets.shared.init import balanced
from bdl_pipe.progress import Silent
from bdl_pipe.registry import METHODS, posterior_of
from bdl_pipe.seeds import Seed
from benchmarks.coresets import Clock, noise
from pipeline.core.params_files import read_params

SETTINGS = Path(__file__).parents[1] / "params/paper/vbpc-table1.yaml"
IPC, TRAINED, TESTED, EXPERTS, SHAPE = 10, 50_000, 10_000, 10, (3, 32, 32)
PAPER_11 = {"bpc_cd": 5 + 8.5, "bpc_rkl": 5 + 9, "fbpc": 5 + 10.5, "bpc_fkl": 5 + 12, "vbpc": 5.5}  # hours
PAPER_12 = {"coreset_sgmcmc": 165, "vbpc": 20}  # seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", type=int, choices=(11, 12), required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--width", type=int, default=32, help="of the network; the paper's setting has 128")
    parser.add_argument("--steps", type=int, default=3, help="steps that are timed, of which the first is not counted")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = torch.cuda.get_device_name() if options.device != "cpu" else platform.machine()
    print(json.dumps({"torch": torch.__version__, "device": device, "threads": options.threads}), flush=True)
    settings = read_params(SETTINGS)
    rows = (distilling if options.table == 11 else predicting)(settings, options)
    print("\n" + " | ".join(f"{name:>16}" for name in rows[0]))
    for row in rows:
        print(" | ".join(f"{value:16.4g}" if isinstance(value, float) else f"{value:>16}" for value in row.values()))


def read(settings: Mapping[str, Any], kind: str, run: str, width: int, **changes: Any) -> tuple[str, Any]:
    """Return a run's method and its config, with a network of ``width`` and ``changes``."""
    entry = settings[kind][run]
    section = config.merge(settings["methods"][entry["method"]], entry.get("override", {}))
    if "network" in section:
        changes = config.merge({"network": {"width": width}}, changes)
    return entry["method"], config.read(
        METHODS[entry["method"]].config, config.merge(section, changes), f"methods.{entry['method']}"
    )


def distilling(settings: Mapping[str, Any], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the rows of table 11."""
    data, few = noise(1024, SHAPE, options.device), noise(256, SHAPE, options.device)
    starts = [settings["methods"][name] for name in PAPER_11 if name != "vbpc"]
    needed = max(m["start_epochs"] + m.get("inner", {}).get("ahead", 0) for m in starts)
    name, sgd = read(settings, "trajectories", "cifar10-experts", options.width, epochs=needed, snapshots=needed)
    began = time.perf_counter()
    expert = METHODS[name].stages["trajectory"].fit_one(few, {}, sgd, rng=Seed(0), report=Silent())
    image = (time.perf_counter() - began) / (needed * len(few.train))
    experts = EXPERTS * settings["methods"]["sgd"]["epochs"] * TRAINED * image / 3600
    print(json.dumps({"experts, hours": float(f"{experts:.4g}")}), flush=True)
    rows = []
    for which, hours in PAPER_11.items():
        key, inner = f"cifar10-{which}-ipc10", "coreset" if which == "vbpc" else "outer"
        steps = settings["methods"][which][inner]["steps"]
        name, made = read(settings, "coresets", key, options.width, ipc=IPC, **{inner: {"steps": options.steps}})
        clock = Clock()
        METHODS[name].stages["coreset"].fit_one(
            data, {} if which == "vbpc" else {"trajectory": [expert]}, made, rng=Seed(1), report=clock
        )
        ours = steps * clock.seconds() / 3600 + (0 if which == "vbpc" else experts)
        row = {"method": which, "s a step": clock.seconds(), "steps": steps, "hours": ours, "paper, hours": hours}
        rows.append(row)
        print(json.dumps({k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in row.items()}), flush=True)
    return _over_vbpc(rows, "hours")


def predicting(settings: Mapping[str, Any], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the rows of table 12."""
    data = noise(1024, SHAPE, options.device)
    coreset = balanced(data, IPC, 1.0, rng=Seed(0)).state(data, {})
    rows = []
    runs = {"coreset_sgmcmc": "cifar10-bpc_rkl-ipc10", "vbpc": "cifar10-vbpc-ipc10"}
    kept = settings["methods"]["coreset_sgmcmc"]["thinning"]
    every, few = kept["every"], 10 * options.steps
    for which, hours in PAPER_12.items():
        part = {"thinning": {"steps": 2 * few, "burn_in": few, "every": 1}} if which == "coreset_sgmcmc" else {}
        part |= {"student": {"steps": few}} if which == "vbpc" else {"diagnostics": {"min_ess": 1}}
        name, made = read(settings, "runs", runs[which], options.width, **part)
        clock = Clock()
        state = METHODS[name].stages["student"].fit_one(data, {"coreset": [coreset]}, made, rng=Seed(1), report=clock)
        if which == "vbpc":
            steps, draws, stored = settings["runs"][runs[which]]["override"]["student"]["steps"], 1, 1
        else:
            steps, draws, stored = (
                kept["steps"],
                (kept["steps"] - kept["burn_in"]) // every * made.chains,
                few * made.chains,
            )
        fit = steps * clock.seconds()
        predict = seconds_of_images(state, options.device) * TESTED * draws / stored
        row = {"method": which, "draws": draws, "fit, s": fit, "predict, s": predict, "seconds": fit + predict}
        rows.append(row | {"paper, seconds": hours})
        print(json.dumps({k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in row.items()}), flush=True)
    return _over_vbpc(rows, "seconds")


def seconds_of_images(state: State, device: str, count: int = 250) -> float:
    """Return the seconds of predicting an image."""
    posterior, inputs = posterior_of(state, device), torch.zeros((count, 3, 32, 32), device=device)
    clock = Clock()
    for step in range(3):
        posterior.predict(inputs).mean.sum()
        clock(step, 3)
    return clock.seconds() / count


def _over_vbpc(rows: list[dict[str, Any]], what: str) -> list[dict[str, Any]]:
    vbpc = next(row for row in rows if row["method"] == "vbpc")
    return [
        row | {"over VBPC": row[what] / vbpc[what], "paper's": row[f"paper, {what}"] / vbpc[f"paper, {what}"]}
        for row in rows
    ]


if __name__ == "__main__":
    main()
