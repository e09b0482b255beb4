"""Chains from a log density: the loop that moves them, and :func:`sample` for a density of the user's own."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, final

import torch
from jaxtyping import Float
from torch import Tensor

from ..data.minibatches import Minibatches
from ..errors import ConfigError, Diverged, require
from ..seeds import Seed
from .kernel import Chains, ChainState, Density, Kernel, Positions
from .schedules import ConstantStep, Schedule, Setting, StepSizes, Thinning

_LOOK_EVERY: Final = 100  # steps, for positions that are not finite
_RETRY_STEPS: Final = 200  # at most, of a retry at a smaller step size
_HALVINGS: Final = 10
_Moves = Iterator[tuple[int, ChainState]]  # (steps done, state)


@torch.no_grad()
def run(
    kernel: Kernel,
    density_at: Callable[[int], Density],
    state: ChainState,
    step_sizes: Schedule,
    chains: Chains,
    *,
    first: int,
    steps: int,
    temperature: float = 1.0,
    burn_in: int = 0,
    setting: Setting | None = None,
) -> _Moves:
    """Yield (steps done, state) after each of the steps ``first`` … ``steps − 1``.

    Every random number of step t is addressed by t, so chains that go on from (t, state) have the bits of chains that
    were never stopped.

    Args:
        density_at: step -> the density that this step sees, of its minibatch. It may be asked for a step again.
        burn_in: steps in which the kernel may adapt itself.
        setting: the number that the step sizes follow from; null: the factor of ``step_sizes``. Chains that diverge
            start again from ``state`` at a half, a quarter, … of it, for at most 200 steps; the error names the largest
            at which these do not diverge.

    Raises:
        Diverged: a position became NaN or infinite.
    """

    def moves(sizes: Schedule, stop: int) -> _Moves:
        now = state
        for step in range(first, stop):
            heat = temperature if sizes.samples(step) else 0.0
            now = kernel.step(now, density_at(step), chains.at(step), sizes.at(step), heat, adapt=step < burn_in)
            yield step + 1, now

    stop = min(steps, first + _RETRY_STEPS)

    def last_finite(sizes: Schedule) -> int:
        return next((done - 1 for done, now in moves(sizes, stop) if not _finite(now)), stop)

    for done, now in moves(step_sizes, steps):
        if (done % _LOOK_EVERY == 0 or done == steps) and not _finite(now):
            found = last_finite(step_sizes)
            where = f"at step {found + 1}" if found < stop else f"before step {done}"
            size = step_sizes.at(min(found, done - 1))
            if setting is None and isinstance(step_sizes, StepSizes):
                setting = Setting.of(step_sizes, "step_size")
            advice = _advice(setting, lambda sizes: last_finite(sizes) == stop, stop - first)
            raise Diverged(f"a chain diverged {where}, at the step size {size:.3g}: {advice}")
        yield done, now


def _finite(state: ChainState) -> bool:
    return bool(torch.isfinite(state["position"]).all())


def _advice(setting: Setting | None, lasts: Callable[[Schedule], bool], steps: int) -> str:
    """Say how far to lower the setting: to the largest of its halves at which the chains last for ``steps`` steps."""
    if setting is None:
        return "lower the step sizes"
    value = setting.value
    for _ in range(_HALVINGS):
        value /= 2
        if lasts(setting.schedule(value)):
            return f"lower {setting.key} from {setting.value:g} to {value:g}, at which {steps} steps did not diverge"
    return f"lower {setting.key} from {setting.value:g} to less than {value:g}, at which a chain diverged, too"


def kept_steps(thinning: Thinning, step_sizes: Schedule) -> list[int]:
    """Return after how many steps a position is kept: those of the thinning, less those that explore.

    Raises:
        ConfigError: none is left.
    """
    kept = [t for t in range(1, thinning.steps + 1) if thinning.keeps(t) and step_sizes.samples(t - 1)]
    if not kept:
        raise ConfigError("thinning.every", "must leave a step that does not explore", thinning.every)
    return kept


def acceptance(state: ChainState, done: int) -> dict[str, float]:
    """Return the mean share of ``done`` proposals that were accepted; nothing of a kernel that accepts all."""
    return {"acceptance": float(state["accepted"].mean()) / done} if "accepted" in state else {}


def density_of(log_density: Callable[[Positions], Float[Tensor, " chain"]]) -> Density:
    """Return a log density of several chains with its gradient, by automatic differentiation.

    Args:
        log_density: positions [chain, weight] -> log p(θ) [chain], up to a constant; a chain's value depends on its own
            position alone.
    """

    def density(positions: Positions) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            leaf = positions.detach().requires_grad_()
            value = log_density(leaf)
            (gradient,) = torch.autograd.grad(value.sum(), leaf)
        return value.detach(), gradient

    return density


@final
@dataclass(frozen=True)
class Noisy:
    """An unbiased estimate of a density at each step: ``at`` is step -> the density that this step sees."""

    at: Callable[[int], Density]


def minibatch_density(
    log_prior: Callable[[Positions], Float[Tensor, " chain"]],
    log_likelihood: Callable[..., Float[Tensor, " chain"]],
    data: tuple[Tensor, ...],
    batch: int,
    rng: Seed,
) -> Noisy:
    """Return log p(θ) + (N/M) Σ log p(y_i | x_i, θ) over the minibatch of each step, the same for all chains.

    Args:
        log_prior: positions [chain, weight] -> [chain].
        log_likelihood: (positions, *rows) -> the sum over these rows, [chain].
        data: tensors of N rows each.
        batch: M; N or more: all rows.
        rng: the address of the minibatches.
    """
    rows = len(data[0])
    batches = Minibatches(rows, batch, rng, data[0].device)

    def density_at(step: int) -> Density:
        index = batches(step)
        part = tuple(tensor[index] for tensor in data)
        return density_of(lambda positions: log_prior(positions) + rows / len(index) * log_likelihood(positions, *part))

    return Noisy(density_at)


def sample(
    log_density: Callable[[Positions], Float[Tensor, " chain"]] | Noisy,
    start: Positions,
    kernel: Kernel,
    step_size: float | Schedule,
    *,
    steps: int,
    burn_in: int = 0,
    every: int = 1,
    temperature: float = 1.0,
    rng: Seed,
) -> Float[Tensor, "chain draw weight"]:
    """Return draws of a law that is given by its log density.

    Args:
        log_density: positions [chain, weight] -> log p [chain], up to a constant; or :func:`minibatch_density`.
        start: where the chains begin, [chain, weight].
        kernel: one of :mod:`bdl_pipe.sgmcmc.kernels`.
        step_size: in the kernel's units, for all steps or for each.
        steps, burn_in, every: of ``steps`` steps those of burn-in are dropped, and every ``every``-th after is kept.
        temperature: T: the law is p^{1/T}.
        rng: the address of all random numbers.

    Raises:
        Diverged: a position became NaN or infinite.
        ConfigError: the kernel needs the density of all data, and there are minibatches; a number is out of range.
    """
    if isinstance(log_density, Noisy):
        rule = "must take minibatches, as sgld, psgld, sghmc and sgnht do"
        require(not kernel.accepts, "kernel", rule, kernel.name)
        density_at = log_density.at
    else:
        density_at = _always(density_of(log_density))
    schedule = step_size if isinstance(step_size, Schedule) else ConstantStep(step_size)
    chains, thinning = Chains.of(rng, len(start)), Thinning(steps, burn_in, every)
    kept, draws = {*kept_steps(thinning, schedule)}, []
    state = kernel.init(start, chains.at(0), temperature)
    moves = run(
        kernel, density_at, state, schedule, chains, first=0, steps=steps, temperature=temperature, burn_in=burn_in
    )
    for done, at in moves:
        if done in kept:
            draws.append(at["position"])
    return torch.stack(draws, 1)


def _always(density: Density) -> Callable[[int], Density]:
    return lambda step: density
