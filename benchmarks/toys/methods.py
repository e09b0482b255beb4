"""The rows of the toy problems' tables: a point, samplers, a short run of Hamiltonian Monte Carlo, students.

A row is a function of the problem and of the rows before it. It returns states of posteriors: one for each chain, or
one student. :data:`ROWS` lists the rows; a new student is a line there. All samplers take the same number of gradients,
from fresh networks, at the same rate in units of the mean loss (a cycle begins at four times the rate). No other rate
was tried.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import torch

from bdl_pipe.artifacts import State
from bdl_pipe.config import read, to_mapping
from bdl_pipe.dark_knowledge import distil
from bdl_pipe.posterior import NetworkDraws
from bdl_pipe.progress import Silent
from bdl_pipe.seeds import Seed
from bdl_pipe.sgmcmc.method import SgmcmcConfig, teacher
from bdl_pipe.sgmcmc.target import NetworkTarget
from benchmarks.toys.problems import Problem

Made = Mapping[str, Sequence[State]]  # row -> states
Row = Callable[..., list[State]]  # of a problem and the rows before it; seed, where it is not the first

CHAINS: Final = 4
STEPS: Final = 10_000  # gradients of a chain
RATE: Final = 0.02
LEAPFROGS: Final = 100
_SCALED: Final = {"name": "scaled", "rate": RATE}
_CYCLES: Final = {**_SCALED, "rate": 4 * RATE, "cycle": 1000, "exploration": 0.3}  # cycle: in epochs, one step each
_HMC: Final = {"name": "hmc", "leapfrogs": LEAPFROGS, "jitter": 0.2, "acceptance": 0.8}
PLAIN: Final = {"name": "plain"}
HEADS: Final = {"name": "heads", "heads": 50, "draws_per_step": 10}
LATENT: Final = {"name": "latent", "dimension": 8, "draws": 200, "probe": 200, "draws_per_step": 10}
_BY_SGLD: Final = {"kernel": {"name": "sgld"}, "step_size": _SCALED, "batch": None}
_BY_HMC: Final = {"kernel": {**_HMC, "leapfrogs": 10}, "step_size": _SCALED, "batch": None}
ALGORITHM_1: Final = {"sampler": _BY_SGLD, "chains": 1, "chain_steps": 1, "average": None}
AVERAGED: Final = {"sampler": _BY_HMC, "chains": 20, "chain_steps": 1, "average": 0.5}


def point(problem: Problem, made: Made) -> list[State]:
    """Return the mode that Adam finds from one fresh network."""
    spec, data = problem.target.spec(problem.data), problem.data
    target = NetworkTarget(spec, [data.rows("train", "cpu")], problem.target.prior_precision)
    place, density = target.start([Seed(0).fold("point")]), target.whole()
    adam = torch.optim.Adam([place], 1e-2)
    for _ in range(3000):
        place.grad = -density(place)[1] / target.rows
        adam.step()
    return [NetworkDraws(spec, target.network.named(place.detach())).state()]


def chains(
    problem: Problem,
    made: Made,
    kernel: Mapping[str, Any],
    step_size: Mapping[str, Any] = _SCALED,
    batch: int | None = None,
    steps: int = STEPS,
    seed: int = 0,
) -> list[State]:
    """Return the chains of one kernel; the first fifth is burn-in, 200 of its draws are kept."""
    section = {
        "target": to_mapping(problem.target),
        "sampler": {"kernel": kernel, "step_size": step_size, "batch": batch},
        "thinning": {"steps": steps, "burn_in": steps // 5, "every": max(1, steps // 250)},
        "diagnostics": {"rows": 20, "max_rhat": 1.05, "min_ess": 100.0},
        "student": {"max_draws": None},
    }
    config, rng = read(SgmcmcConfig, section, "sgmcmc"), Seed(seed).fold("chains", problem.name)
    rngs = [rng.fold(number) for number in range(CHAINS)]
    return teacher([problem.data] * CHAINS, [{}] * CHAINS, config, rngs=rngs, report=Silent())


def student(
    problem: Problem,
    made: Made,
    hidden: Sequence[int],
    online: Mapping[str, Any] | None = None,
    kind: Mapping[str, Any] = PLAIN,
    seed: int = 0,
) -> list[State]:
    """Return a student of the row ``SGLD``, or with ``online`` of its own chains; inputs fill the grid's box."""
    mode: dict[str, Any] = {"name": "offline", "max_draws": None}
    if online is not None:
        mode = {"name": "online", "target": to_mapping(problem.target), "burn_in": STEPS // 5, **online}
    section = {
        "network": {"name": "mlp", "hidden": list(hidden)},
        "student": kind,
        "mode": mode,
        "inputs": {"name": "uniform_box", "margin": 0.4},
        "batch": 100,
        "steps": STEPS - STEPS // 5,
        "optimiser": {"name": "adam", "lr": 1e-2, "schedule": "one_cycle", "warmup": 0.3, "weight_decay": 0.0},
    }
    config = read(distil.DarkKnowledgeConfig, section, "dark_knowledge")
    inputs = {} if online is not None else {"teacher": list(made["SGLD"])}
    rng = Seed(seed).fold("student", online is not None)
    return [distil.student(problem.data, inputs, config, rng=rng, report=Silent())]


SAMPLERS: Final[dict[str, Row]] = {
    "point (the mode)": point,
    "SGLD": partial(chains, kernel={"name": "sgld"}),
    "SGLD, 5 rows a step": partial(chains, kernel={"name": "sgld"}, batch=5),
    "preconditioned SGLD": partial(chains, kernel={"name": "psgld"}),
    "SGHMC": partial(chains, kernel={"name": "sghmc"}),
    "SGNHT": partial(chains, kernel={"name": "sgnht"}),
    "cyclical SGHMC": partial(chains, kernel={"name": "sghmc"}, step_size=_CYCLES),
    "HMC, short": partial(chains, kernel=_HMC, steps=STEPS // LEAPFROGS),
}
ROWS: Final[dict[str, dict[str, Row]]] = {  # problem -> row -> how it is made
    "regression": {
        **SAMPLERS,
        "student 1-10-2, offline": partial(student, hidden=[10]),
        "student 1-10-2, online": partial(student, hidden=[10], online=ALGORITHM_1),
        "student 1-100-2, offline": partial(student, hidden=[100]),
        "student 1-100-2, online": partial(student, hidden=[100], online=ALGORITHM_1),
        "student 1-100-2, online, 20 chains of HMC, averaged": partial(student, hidden=[100], online=AVERAGED),
        "student 1-100, 50 heads": partial(student, hidden=[100], kind=HEADS),
        "student 1-100, latent of 8": partial(student, hidden=[100], kind=LATENT),
    },
    "classification": {
        **SAMPLERS,
        "student 2-10-2, offline": partial(student, hidden=[10]),
        "student 2-100-2, offline": partial(student, hidden=[100]),
        "student 2-10-10-2, offline": partial(student, hidden=[10, 10]),
        "student 2-10-10-2, online": partial(student, hidden=[10, 10], online=ALGORITHM_1),
        "student 2-10-10-2, online, 20 chains of HMC, averaged": partial(student, hidden=[10, 10], online=AVERAGED),
        "student 2-10-10, 50 heads": partial(student, hidden=[10, 10], kind=HEADS),
        "student 2-10-10, latent of 8": partial(student, hidden=[10, 10], kind=LATENT),
    },
}
