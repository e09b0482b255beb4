"""results/decisions/botorch.md: our loop beside BoTorch's, from the same first points, in batches of four.

    pip install 'bdl-pipe[botorch]' && python -m benchmarks.decisions.against_botorch 5

Ten random evaluations, then 24 in batches of four; BoTorch has SingleTaskGP and qLogEI. The table has the mean regret
at the end with its standard error over seeds, and the difference of each agent's log10 regret from BoTorch's, paired by
seed; a regret below 1e-6 counts as 1e-6. Nothing was tuned. :mod:`.nine` has single evaluations and the settings of
VBLL for few rows.
"""

import platform
import sys
import time
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any, Final

import numpy as np

from bdl_decisions import DecisionConfig, decide
from bdl_decisions.functions import FUNCTIONS
from bdl_pipe import read_config
from bdl_pipe.files import write_bytes
from bdl_pipe.registry import METHODS
from bdl_pipe.seeds import own_settings

from . import botorch_rules as botorch_rules  # registers its rules

OUT: Final = Path("results/decisions/botorch.md")
_GP: Final = {"method": "gp", **METHODS["gp"].few_rows}
AGENTS: Final[Mapping[str, dict[str, Any]]] = {
    "botorch_logei": {"rule": "botorch_logei"},
    "uniform": {"rule": "uniform"},
    "gp_ei": {"rule": "expected_improvement", **_GP},
    "vbll_ei": {"rule": "expected_improvement", "method": "vbll", "pace": 0.3},
    "vbll": {"rule": "thompson", "method": "vbll", "pace": 0.3},
    "ensemble_ei": {"rule": "expected_improvement", "method": "ensemble", "pace": 0.1},
}


def table(seeds: int) -> list[str]:
    """Play the agents, and return the lines of a table; differences are from BoTorch."""
    reference, *_ = AGENTS
    lines = [
        "| function | agent | regret | log10 regret less BoTorch's | seconds a search |",
        "|---|---|---:|---:|---:|",
    ]
    for name in FUNCTIONS:
        task = {"name": "optimisation", "function": name, "evaluations": 24, "batch": 4}
        entry = read_config(DecisionConfig, {"task": task, "agents": dict(AGENTS)}, f"decisions.{name}")
        rival = np.zeros(seeds)
        for agent in AGENTS:
            began = time.process_time()
            with own_settings(1):
                curves = [decide(entry, name, agent, seed, 0).tensors["regret"] for seed in range(seeds)]
            last = np.array([float(curve[-1, 1]) for curve in curves])
            logs = np.log10(last.clip(1e-6))
            rival = logs if agent == reference else rival
            by = logs - rival
            error = [values.std(ddof=1) / np.sqrt(seeds) for values in (last, by)]
            difference = "" if agent == reference else f"{by.mean():+.2f} ± {error[1]:.2f}"
            seconds = (time.process_time() - began) / seeds
            lines.append(f"| {name} | {agent} | {last.mean():.3g} ± {error[0]:.2g} | {difference} | {seconds:.1f} |")
            print(lines[-1], flush=True)
    return lines


def main(seeds: int) -> None:
    """Play the agents, and write the page."""
    text = (
        f"`benchmarks/decisions/against_botorch.py`, {date.today()}, one core of "
        f"{platform.processor() or platform.machine()}; {seeds} seeds. Ten random evaluations, then 24 in batches of "
        "four. BoTorch has SingleTaskGP and qLogEI. The regret at the end, and its log10 less BoTorch's, paired by "
        "seed: below 0 is better. Differences below two standard errors are not established. Nothing was tuned."
    )
    write_bytes(OUT, "\n".join(["# Our loop beside BoTorch's", "", text, "", *table(seeds), ""]).encode())


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
