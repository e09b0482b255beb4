"""The methods that suit a data set's size, their upstream runs, and the time that all of them take.

Every registered method with a ``default`` is offered, including methods of plugins.
"""

import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import torch

from . import networks
from .config import variant
from .data.size import Section, Size
from .errors import UserError, require
from .method import Default, Method, StageSpec, Upstream
from .registry import METHODS
from .seeds import Seed, own_settings
from .training.adam import Adam

_BLOCKS, _TIMED = 8, 5  # timed blocks of steps, and the steps of each
LEAST: Final = 0.05  # The smallest pace: fits of fewer steps would not be informative.
_PER_STAGE: Final = 1.5  # seconds to start a stage, read its data and write its result
_SEARCHED: Final = 1.6  # early stopping's search and fit together take at most this multiple of the fit's time
_BY_LENGTHS: Final = 1.9  # the same multiple if all lengths of a schedule are tried
_BINNED: Final = 3.5  # the multiple for a network with bins, which has twice the steps (``Size.binned``)


def offered(size: Size) -> list[Method]:
    """List the methods that can predict the task, and are affordable and defined at the size."""
    return [m for m, default in defaults(METHODS.values()) if size.task in m.tasks and default.suits(size)]


def automatic(size: Size, *, weighted: bool = False) -> tuple[Method, str]:
    """Return the method for a user who names none, and why: of the methods that say so themselves, the cheapest.

    Args:
        weighted: whether the rows have weights, which the method must use.

    Raises:
        UserError: no method says so.
    """
    some = [m for m in offered(size) if m.default is not None and m.default.automatic(size)]
    some = [m for m in some if m.weighs_rows or not weighted]
    if not some:
        raise UserError("method must be a name of bdl_pipe.METHODS for these rows, got auto")
    chosen = min(some, key=lambda method: method.default.cost if method.default else 0.0)
    return chosen, chosen.default.automatic(size) if chosen.default else ""


def defaults(methods: Iterable[Method]) -> list[tuple[Method, Default]]:
    """List the methods that have a default, as pairs (method, default)."""
    return [(method, method.default) for method in methods if method.default is not None]


def upstream(methods: Iterable[Method], size: Size) -> dict[str, tuple[Method, Upstream]]:
    """Return the upstream runs of ``methods``, with the seeds that these need: key -> (method, run).

    Raises:
        ConfigError: a default names a key that no method's ``upstream`` has.
    """
    runs = {key: (method, run) for method in METHODS.values() for key, run in method.upstream.items()}
    users = defaultdict[str, list[StageSpec]](list)
    for user, default in defaults(methods):
        if key := default.upstream:
            require(key in runs, "default.upstream", f"must be one of {', '.join(runs)}", key)
            users[key] += user.stages.values()
    return {key: (method, run.of(users[key])) for key, (method, run) in runs.items() if key in users}


@dataclass(frozen=True)
class Timing:
    """The time that a comparison takes.

    Attributes:
        seconds: the time of the whole comparison at these paces, on this machine.
        paces: key of an upstream run, or name of a method without one -> the factor of its number of steps.
        whole: the seconds of the same keys at a pace of 1.
    """

    seconds: float
    paces: Mapping[str, float]
    whole: Mapping[str, float]


def worthwhile(
    methods: Iterable[Method], size: Size, budget: float, splits: int | None = None
) -> tuple[list[Method], list[Method]]:
    """Return the methods that get a pace above :data:`LEAST` within ``budget`` seconds, and the other methods.

    The methods with the longest fits are left out first, until all others get such a pace.
    """
    kept, out, step = list(methods), list[Method](), step_seconds(size)
    while True:
        times = timing(kept, size, budget, splits, step)
        poor = [key for key, pace in times.paces.items() if pace <= LEAST]
        if not poor:
            return kept, out
        worst = max(poor, key=times.whole.__getitem__)
        dropped = [method for method, default in defaults(kept) if (default.upstream or method.name) == worst]
        kept, out = [method for method in kept if method not in dropped], [*out, *dropped]


def timing(
    methods: Iterable[Method],
    size: Size,
    budget: float = math.inf,
    splits: int | None = None,
    step: float | None = None,
) -> Timing:
    """Divide ``budget`` seconds among the methods, by their costs and the time of a plain step on this machine.

    Each method gets the same time; a method that needs more runs fewer steps. A method and its upstream run have the
    same pace, and an upstream run gets the time of all methods that use it. Methods without steps, such as closed forms
    and trees, run in full. No pace is below :data:`LEAST`, whatever the budget.

    Args:
        splits: the number of splits. None means the default number for the size.
        step: the seconds of a plain step. None: they are measured.
    """
    chosen = defaults(methods)
    above = upstream([method for method, _ in chosen], size)
    unit = size.steps(2_000) * (step or step_seconds(size)) * (splits or size.splits)
    fixed = _PER_STAGE * (len(above) + 2 * len(chosen))  # Each chosen method is fitted and evaluated.
    slow = replace(size, pace=size.pace / 2)
    parts: list[tuple[str, Default | Upstream]] = [(key, run) for key, (_, run) in above.items()]
    parts += [(default.upstream or method.name, default) for method, default in chosen]
    cost, count, stepped = defaultdict[str, float](float), Counter[str](), set[str]()
    for key, part in parts:
        cost[key] += part.cost * unit * _longer(part.override(size), size)
        count[key] += isinstance(part, Default)
        stepped |= {key} if part.override(size) != part.override(slow) else set()
    many = {key: max(1, count[key]) for key in cost}  # methods that share the time of an upstream run
    fixed += sum(cost[key] for key in cost if key not in stepped)
    remaining, sharing, paces = budget - fixed, sum(many[key] for key in stepped), dict.fromkeys(cost, 1.0)
    for key in sorted(stepped, key=lambda key: cost[key] / many[key]):
        seconds = remaining * many[key] / sharing
        paces[key] = min(1.0, max(LEAST, seconds / max(cost[key], 1e-9)))
        remaining, sharing = remaining - paces[key] * cost[key], sharing - many[key]
    return Timing(fixed + sum(paces[key] * cost[key] for key in stepped), paces, cost)


def _longer(section: Section, size: Size) -> float:
    """Return the multiple of a fit's time that the fit and the search of its number of epochs take together."""
    parts = [part for part in section.values() if isinstance(part, dict) and "training" in part]
    if parts:
        return sum(_longer(part, size) for part in parts)  # a method that fits others has their sections
    training = section.get("training", section)
    if training.get("early_stopping") is None:
        return _SEARCHED if size.small else 1.0  # few rows: nearly all methods search
    binned = _BINNED if section.get("network", {}).get("bins") else 1.0
    return binned * (_SEARCHED if training["optimiser"]["schedule"] == "constant" else _BY_LENGTHS)


def step_seconds(size: Size) -> float:
    """Time one training step of the default network: forward, backward and AdamW's update.

    It runs on one thread, as a fit does. The fastest of several blocks counts, so that other work on the machine does
    not shorten the fits.
    """
    shape = size.image or (size.width,)
    kinds = {name: entry.config for name, entry in networks.NETWORKS.items()}
    network = networks.build(variant(kinds, size.network, "network"), shape, 2, rng=Seed(0))
    optimiser = Adam([{"params": list(network.parameters())}], lr=1e-3, weight_decay=1e-2, decoupled=True, fused=True)
    rows, blocks = torch.randn(size.batch, *shape, generator=Seed(0).generator()), list[float]()
    with own_settings(1):
        for _ in range(_BLOCKS):
            start = time.perf_counter()
            for _ in range(_TIMED):
                optimiser.zero_grad()
                network(rows).square().mean().backward()
                optimiser.step()
            blocks.append(time.perf_counter() - start)
    return min(blocks) / _TIMED
