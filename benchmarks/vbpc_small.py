"""What the pages results/vbpc/influence.md, privacy.md and inner.md share: data, fits, kept figures and the page.

Data are the prepared rows of ``fashion_small``, split 0: training and validation rows. Test rows are not read. Settings
are those of params.yaml with a network of width 16 and few outer steps (``--steps``). Figures are kept in a file of
JSON lines below ``work/benchmarks``, so that a script that is started again goes on after the last figure.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from bdl_pipe import config
from bdl_pipe.artifacts import State
from bdl_pipe.coresets.random_selection import RANDOM_CORESET, RandomCoresetConfig
from bdl_pipe.coresets.vbpc.method import VBPC, VbpcConfig
from bdl_pipe.coresets.vbpc.posterior import VbpcPosterior
from bdl_pipe.data.examples import Examples
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.method import Method
from bdl_pipe.progress import Silent
from bdl_pipe.seeds import Seed
from benchmarks import written
from pipeline.core.load import load
from pipeline.core.settings import Settings
from pipeline.prepared import folders
from pipeline.stages import report

OUT, KEPT = Path("results/vbpc"), Path("work/benchmarks")
NETWORK = {"name": "convnet", "width": 16, "blocks": 2, "norm": "instance", "pool": "average"}
SEEDS = (0, 1, 2)


def arguments(description: str | None) -> argparse.Namespace:
    """Parse the options that the scripts share, and take one thread."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prepared", type=Path, default=Path("work/prepare/fashion_small"))
    parser.add_argument("--steps", type=int, default=100, help="outer steps")
    torch.set_num_threads(1)
    return parser.parse_args()


def load_data(prepared: Path) -> FitData:
    return folders.load_fit(prepared, 0, final=False)


def training_rows(data: FitData, rows: np.ndarray) -> FitData:
    """Return the data with only some of its training rows."""
    return replace(data, train=Examples(data.train.inputs[rows], data.train.targets[rows]))


def balanced_rows(targets: np.ndarray, per_class: int, rng: Seed) -> np.ndarray:
    """Draw ``per_class`` distinct rows of each class; their numbers [row], in order."""
    generator = rng.numpy()
    drawn = [generator.choice(np.flatnonzero(targets == k), per_class, replace=False) for k in np.unique(targets)]
    return np.sort(np.concatenate(drawn))


def vbpc_config(steps: int, start: str = "random") -> VbpcConfig:
    section = yaml.safe_load(Path("params.yaml").read_text())["methods"]["vbpc"] | {"network": NETWORK}
    section["coreset"] |= {"steps": steps, "start": start}
    return config.read(VbpcConfig, section, "methods.vbpc")


def random_config(ipc: int) -> RandomCoresetConfig:
    section = yaml.safe_load(Path("params.yaml").read_text())["methods"]["random_coreset"]
    return config.read(RandomCoresetConfig, section | {"network": NETWORK, "ipc": ipc}, "methods.random_coreset")


def coreset_of(data: FitData, settings: VbpcConfig | RandomCoresetConfig, rng: Seed) -> State:
    method: Method = VBPC if isinstance(settings, VbpcConfig) else RANDOM_CORESET
    return method.stages["coreset"].fit_one(data, {}, settings, rng=rng.fold("coreset"), report=Silent())


def student_of(data: FitData, coreset: State, settings: VbpcConfig | RandomCoresetConfig, rng: Seed) -> VbpcPosterior:
    stage, inputs = VBPC.stages["student"], {"coreset": [coreset]}
    return VbpcPosterior.from_state(stage.fit_one(data, inputs, settings, rng=rng.fold("student"), report=Silent()))


class Figures:
    """Figures by key, kept in a file; a figure that is there is not measured again."""

    def __init__(self, name: str) -> None:
        KEPT.mkdir(parents=True, exist_ok=True)
        self._file = KEPT / f"{name}.jsonl"
        lines = self._file.read_text().splitlines() if self._file.exists() else []
        self._values: dict[str, Any] = {key: value for line in lines for key, value in json.loads(line).items()}

    def get(self, key: str, measure: Callable[[], Any]) -> Any:
        """Return the figure of a key; its processor seconds are kept beside it."""
        if key not in self._values:
            began = time.process_time()
            figure = {"value": measure(), "seconds": time.process_time() - began}
            with self._file.open("a") as file:
                file.write(json.dumps({key: figure}) + "\n")
            self._values[key] = figure
            print(f"{key}: {figure['seconds']:.0f} s", flush=True)
        return self._values[key]["value"]

    def seconds(self) -> float:
        return sum(figure["seconds"] for figure in self._values.values())


def mean_and_error(values: Sequence[float], digits: int = 3) -> str:
    """Return the mean over seeds ± its standard error."""
    return written.error(*written.mean_and_error(values), digits)


def write_page(name: str, title: str, about: str | None, parts: Sequence[str], seconds: float, steps: int) -> None:
    """Write ``results/vbpc/<name>.md`` with the page's provenance, and print its parts."""
    read = load()
    facts = report.facts(read, Settings.read())
    facts |= {"outer steps": steps, "seconds of one core": f"{seconds:.0f}", "torch": torch.__version__}
    facts = {key: value for key, value in facts.items() if value not in ("—", 0)}
    (OUT / f"{name}.md").write_text(written.page(title, about, facts, *parts))
    print("\n\n".join(parts))
