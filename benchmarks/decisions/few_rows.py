"""VBLL fitted to few rows without noise, one setting changed at a time. python -m benchmarks.decisions.few_rows

Each fit sees random points of a function of the unit cube; 500 other points judge it: the root mean square error in
standard deviations of the function, and the root mean square of z, the error in standard deviations of the function's
posterior without the noise, which should be 1. Numbers are means over two seeds.
"""

import platform
import time
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any, Final

import numpy as np

from bdl_decisions.agents import Agent
from bdl_decisions.functions import FUNCTIONS
from bdl_pipe import config
from bdl_pipe.files import write_bytes
from bdl_pipe.registry import METHODS
from bdl_pipe.seeds import Seed, own_settings

OUT: Final = Path("results/decisions/few_rows.md")
CELLS: Final = [(function, rows) for function in ("branin", "hartmann3") for rows in (30, 60)]
SEEDS, POINTS = 2, 500
_LEARNED: Final = {"training": {"early_stopping": None, "noise": "learned"}}
_EXACT: Final = config.merge(_LEARNED, {"layer": {"posterior": "exact"}})
SETTINGS: Final[Mapping[str, dict[str, Any]]] = {
    "defaults": {"method": "vbll", "pace": 0.3},
    "learned noise, all steps": {"method": "vbll", "pace": 0.3, "override": _LEARNED},
    "and the exact posterior": {"method": "vbll", "pace": 0.3, "override": _EXACT},
    "and ten times the steps": {"method": "vbll", "pace": 3.0, "override": _EXACT},
    "`few_rows`": {"method": "vbll", "override": METHODS["vbll"].few_rows["override"]},
    "`few_rows` with the prior variance 1": {
        "method": "vbll",
        "override": config.merge(METHODS["vbll"].few_rows["override"], {"layer": {"prior_variance": 1.0}}),
    },
    "`gp` with `few_rows`": {"method": "gp", "override": METHODS["gp"].few_rows["override"]},
}


def errors(agent: Agent, function: str, rows: int, seed: int) -> tuple[float, float]:
    """Return the root mean square error and z of a fit."""
    of = FUNCTIONS[function]
    known, new = (
        Seed(seed).fold(part).numpy().random((n, of.columns)) for part, n in (("known", rows), ("new", POINTS))
    )
    belief = agent.fit(known, -of.value(known), (), Seed(seed))
    assert belief is not None
    mean, deviation = (part[0, 0].numpy() for part in belief.parts(new[None], Seed(0)))
    error = mean + of.value(new)
    return float(np.sqrt(np.square(error).mean()) / of.value(new).std()), float(
        np.sqrt(np.square(error / deviation).mean())
    )


def main() -> None:
    """Fit all settings, and write the page."""
    lines = [
        "# VBLL fitted to few rows",
        "",
        f"`benchmarks/decisions/few_rows.py`, {date.today()}, one core of "
        f"{platform.processor() or platform.machine()}: random points of a function; {POINTS} other points, {SEEDS} "
        "seeds. The root mean square error in standard deviations of the function, and the root mean square of z, the "
        "error in standard deviations of the posterior.",
        "",
        f"| settings | {' | '.join(f'{function}, {rows} points' for function, rows in CELLS)} | seconds a fit |",
        f"|---|{'---|' * len(CELLS)}---:|",
    ]
    for name, settings in SETTINGS.items():
        began, agent = time.process_time(), Agent("thompson", **settings)
        with own_settings(1):
            found = [np.mean([errors(agent, *cell, seed) for seed in range(SEEDS)], 0) for cell in CELLS]
        seconds = (time.process_time() - began) / len(CELLS) / SEEDS
        shown = " | ".join(f"{error:.3f}, z {z:.1f}" for error, z in found)
        lines.append(f"| {name} | {shown} | {seconds:.1f} |")
        print(lines[-1], flush=True)
    write_bytes(OUT, ("\n".join(lines) + "\n").encode())


if __name__ == "__main__":
    main()
