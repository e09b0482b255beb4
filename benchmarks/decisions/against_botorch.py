"""Our loop beside BoTorch's, from the same first points. python -m benchmarks.decisions.against_botorch [SEEDS [TABLE]]

Ten random evaluations, then 24 in batches of four. ``pip install 'bdl-pipe[botorch]'``. The table ``botorch`` has the
mean regret at the end with its standard error over seeds, and the difference of each agent's log10 regret from
BoTorch's, paired by seed; a regret below 1e-6 counts as 1e-6. The table ``few`` has the settings of VBLL for few rows,
beside uniform choices. The other table of the page stays as it is.
"""

import platform
import sys
import time
from collections.abc import Mapping, Sequence
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
_GP: Final = {"method": "gp", "override": dict(METHODS["gp"].few_rows)}
AGENTS: Final[Mapping[str, dict[str, Any]]] = {
    "botorch_logei": {"rule": "botorch_logei"},
    "uniform": {"rule": "uniform"},
    "gp_ei": {"rule": "expected_improvement", **_GP},
    "vbll_ei": {"rule": "expected_improvement", "method": "vbll", "pace": 0.3},
    "vbll": {"rule": "thompson", "method": "vbll", "pace": 0.3},
    "ensemble_ei": {"rule": "expected_improvement", "method": "ensemble", "pace": 0.1},
}
_VBLL: Final = {"method": "vbll", "updates": True, "override": dict(METHODS["vbll"].few_rows)}
FEW: Final[Mapping[str, dict[str, Any]]] = {
    "uniform": {"rule": "uniform"},
    "vbll_few_ei": {"rule": "expected_improvement", **_VBLL},
}
_HEAD: Final = (
    "# Our loop beside BoTorch's\n\nTen random evaluations, then 24. Each table has the regret at the end, and its "
    "log10 less that of the first agent, paired by seed: below 0 is better."
)
TABLES: Final = {
    "botorch": (AGENTS, tuple(FUNCTIONS), "Beside BoTorch", "Batches of four; BoTorch has SingleTaskGP and qLogEI"),
    "few": (
        FEW,
        ("branin", "hartmann3", "hartmann6", "ackley5"),
        "VBLL with settings for few rows",
        "The settings are those of `Maximise`. One evaluation at a time, with a refit after every four and an "
        "exact update of the last layer after each",
    ),
}


def table(agents: Mapping[str, dict[str, Any]], functions: Sequence[str], seeds: int) -> list[str]:
    """Play the agents, and return the lines of a table; differences are from the first agent."""
    reference, *_ = agents
    lines = [
        f"| function | agent | regret | log10 regret less {reference}'s | seconds a search |",
        "|---|---|---:|---:|---:|",
    ]
    for name in functions:
        task = {"name": "optimisation", "function": name, "evaluations": 24, "batch": 4}
        entry = read_config(DecisionConfig, {"task": task, "agents": dict(agents)}, f"decisions.{name}")
        rival = np.zeros(seeds)
        for agent in agents:
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


def main(seeds: int, name: str) -> None:
    """Play the agents of a table, and write its section of the page."""
    agents, functions, title, about = TABLES[name]
    text = (
        f"{about}: `benchmarks/decisions/against_botorch.py`, {date.today()}, one core of "
        f"{platform.processor() or platform.machine()}; {seeds} seeds. Differences below two standard errors are not "
        "established."
    )
    section = "\n".join([f"## {title}", "", text, "", *table(agents, functions, seeds)]) + "\n"
    head, *others = OUT.read_text("utf-8").split("\n## ") if OUT.exists() else [_HEAD]
    kept = {part.split("\n")[0]: f"## {part.rstrip()}\n" for part in others} | {title: section}
    write_bytes(OUT, "\n".join([head.rstrip() + "\n", *kept.values()]).encode())


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20, sys.argv[2] if len(sys.argv) > 2 else "botorch")
