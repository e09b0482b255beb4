"""Chains from a log density: the loop that runs them, and :func:`sample` for a user's own density."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, final

import torch
from jaxtyping import Float
from torch import Tensor

from ..artifacts import State
from ..data.minibatches import Minibatches
from ..errors import ConfigError, Diverged, require
from ..progress import Report
from ..seeds import Seed
from .kernel import Chains, ChainState, Density, Kernel, Positions
from .schedules import ConstantStep, Schedule, Setting, StepSizes, Thinning

_LOOK_EVERY: Final = 100  # steps between checks that positions are finite
_RETRY_STEPS: Final = 200  # the most steps of a retry at a smaller step size
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

    Every random number of step t is addressed by t, so chains resumed from (t, state) have the same bits as chains that
    were never stopped.

    Args:
        density_at: step -> the density of the step's minibatch. It may be called again for a step.
        burn_in: the number of steps in which the kernel may adapt its parameters.
        setting: the number that determines the step sizes. None: the factor of ``step_sizes``. Chains that diverge are
            rerun from ``state`` at a half, a quarter, … of the setting, for at most 200 steps; the error names the
            largest value at which they do not diverge.

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
            last = last_finite(step_sizes)
            where = f"at step {last + 1}" if last < stop else f"before step {done}"
            size = step_sizes.at(min(last, done - 1))
            if setting is None and isinstance(step_sizes, StepSizes):
                setting = Setting.of(step_sizes, "step_size")
            advice = _advice(setting, lambda sizes: last_finite(sizes) == stop, stop - first)
            raise Diverged(f"a chain diverged {where}, at the step size {size:.3g}: {advice}")
        yield done, now


def _finite(state: ChainState) -> bool:
    return bool(torch.isfinite(state["position"]).all())


def _advice(setting: Setting | None, lasts: Callable[[Schedule], bool], steps: int) -> str:
    """Return advice: the largest half, quarter, … of the setting at which chains stay finite for ``steps`` steps."""
    if setting is None:
        return "lower the step sizes"
    value = setting.value
    for _ in range(_HALVINGS):
        value /= 2
        if lasts(setting.schedule(value)):
            return f"lower {setting.key} from {setting.value:g} to {value:g}, at which {steps} steps did not diverge"
    return f"lower {setting.key} from {setting.value:g} to less than {value:g}, at which a chain diverged, too"


def kept_steps(thinning: Thinning, step_sizes: Schedule) -> list[int]:
    """Return the steps after which a position is kept: the thinning's steps without the exploration steps.

    Raises:
        ConfigError: no step is left.
    """
    kept = [t for t in range(1, thinning.steps + 1) if thinning.keeps(t) and step_sizes.samples(t - 1)]
    if not kept:
        raise ConfigError("thinning.every", "must keep a step outside of exploration", thinning.every)
    return kept


def kept_draws(
    begin: Callable[[], ChainState],
    moves: Callable[[ChainState, int], _Moves],
    thinning: Thinning,
    step_sizes: Schedule,
    report: Report,
    *,
    device: torch.device | str,
    every: int = 1,
    metrics: Callable[[], dict[str, float]] = dict,
) -> Float[Tensor, "draw chain weight"]:
    """Run chains from their last checkpoint, if there is one, and return the kept positions.

    Args:
        begin: returns the initial state.
        moves: (state, number of finished steps) -> the steps from there on, as :func:`run` yields them.
        device: the device of the chains.
        every: the number of steps between reports and checkpoints.
        metrics: returns metrics to report beside the acceptance.

    Raises:
        ConfigError: no position would be kept.
        Diverged: a position became NaN or infinite.
    """
    kept, last, total = {*kept_steps(thinning, step_sizes)}, report.load(), thinning.steps
    if last is None:
        first, state, draws = 0, begin(), list[Tensor]()
    else:
        saved = {name: value.to(device) for name, value in last.tensors.items()}
        first, draws, state = int(last.config["step"]), list(saved.pop("draws")), saved
    for done, now in moves(state, first):
        if done in kept:
            draws.append(now["position"])
        if done % every == 0 or done == total:
            report(done, total, metrics() | acceptance(now, done))
            if report.due():
                so_far = torch.stack(draws) if draws else now["position"].new_zeros(0, *now["position"].shape)
                tensors = {name: value.clone() for name, value in now.items()}
                report.save(State(tensors | {"draws": so_far}, {"step": done}))
    return torch.stack(draws)


def acceptance(state: ChainState, done: int) -> dict[str, float]:
    """Return the mean share of accepted proposals among ``done``; empty for a kernel without acceptance."""
    return {"acceptance": float(state["accepted"].mean()) / done} if "accepted" in state else {}


def density_of(log_density: Callable[[Positions], Float[Tensor, " chain"]]) -> Density:
    """Return a log density of several chains with its gradient, by automatic differentiation.

    Args:
        log_density: positions [chain, weight] -> log p(θ) [chain], up to a constant. A chain's value must depend on its
            own position alone.
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
    """An unbiased estimate of a density at each step: ``at`` maps a step to its density."""

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
        batch: M; if it is N or more, all rows are used.
        rng: the seed address of the minibatches.
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
    """Return draws from a law, given its log density.

    Args:
        log_density: positions [chain, weight] -> log p [chain], up to a constant; or :func:`minibatch_density`.
        start: the initial positions of the chains, [chain, weight].
        kernel: a kernel of :mod:`bdl_pipe.sgmcmc.kernels`.
        step_size: the step size in the kernel's units, or a schedule of step sizes.
        steps: the number of steps.
        burn_in: the number of first steps to drop.
        every: the number of steps between kept steps after burn-in.
        temperature: T; the law is p^{1/T}.
        rng: the seed address of all random numbers.

    Raises:
        Diverged: a position became NaN or infinite.
        ConfigError: the kernel needs the density of all data and ``log_density`` has minibatches, or a number is out of
            range.
    """
    if isinstance(log_density, Noisy):
        rule = "must take minibatches, as sgld, psgld, sghmc and sgnht do"
        require(not kernel.accepts, "kernel", rule, kernel.name)
        density_at = log_density.at
    else:
        whole = density_of(log_density)
        density_at = lambda step: whole  # noqa: E731, a function of one line
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
