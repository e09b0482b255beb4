"""The loop and Adam: schedules and updates against torch's own, exact resumption."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bdl_pipe.artifacts import State, to_bytes
from bdl_pipe.errors import Diverged
from bdl_pipe.progress import Silent
from bdl_pipe.seeds import Seed
from bdl_pipe.training.adam import Adam
from bdl_pipe.training.loop import (
    Objective,
    OptimiserConfig,
    checkpoint,
    learning_rate,
    make_optimiser,
    resume,
    run_steps,
)
from tests.resuming import Watched, killed

STEPS = 40
OPTIMISERS = [
    OptimiserConfig("adam", 0.1, "one_cycle", 0.3, weight_decay=0.01),
    OptimiserConfig("adamw", 0.1, "cosine", weight_decay=0.1),
    OptimiserConfig("sgd", 0.01, weight_decay=0.01, momentum=0.9, grad_clip_norm=0.5),
    OptimiserConfig("sgd", 0.01),
    OptimiserConfig("adam", 0.1, "step", milestones=(0.3, 0.8)),
    OptimiserConfig("lamb", 0.1, "cosine"),
    OptimiserConfig("sgd", 0.05, "linear", milestones=(0.25, 0.75), factor=0.2, momentum=0.5),
]
optimisers = pytest.mark.parametrize("config", OPTIMISERS, ids=lambda c: f"{c.name}-{c.schedule}-{c.momentum}")


class Regression(Objective):
    """Least squares with noise in every step; the parameters are a scalar and a channels-last tensor."""

    def __init__(self) -> None:
        start = torch.linspace(-1, 1, 2 * 3 * 2 * 2).reshape(2, 3, 2, 2)
        self.weight = start.contiguous(memory_format=torch.channels_last).requires_grad_()
        self.bias = torch.zeros(()).requires_grad_()
        self.seen = torch.zeros(())

    def parameters(self) -> list[Tensor]:
        return [self.weight, self.bias]

    def loss(self, step: int) -> Tensor:
        x = torch.randn(3, 2, 2, generator=Seed(0).fold("step", step).generator())
        return ((self.weight * x).sum((1, 2, 3)) + self.bias - 1).square().mean()

    def state(self) -> dict[str, Tensor]:
        return {"weight": self.weight.detach(), "bias": self.bias.detach(), "seen": self.seen}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            self.weight.copy_(state["weight"])
            self.bias.copy_(state["bias"])
        self.seen = state["seen"].clone()

    def after(self, step: int, loss: Tensor) -> dict[str, float]:
        self.seen = self.seen + loss
        return {"loss": float(loss)}


@optimisers
@pytest.mark.parametrize("stop", [13, STEPS])
def test_a_resumed_descent_has_the_same_bits(config: OptimiserConfig, stop: int) -> None:
    whole, half, rest = Regression(), Regression(), Regression()
    run_steps(whole, config, STEPS, Silent())
    state = killed(lambda report: run_steps(half, config, STEPS, report), stop)
    run_steps(rest, config, STEPS, Watched(kept=to_bytes(state)))
    assert all(torch.equal(v, rest.state()[k]) for k, v in whole.state().items())
    if stop < STEPS:
        assert not torch.equal(half.weight, whole.weight)


def test_each_step_is_reported_once_and_a_descent_without_its_optimisers_state_has_other_bits() -> None:
    """The second is the control of the test above."""
    config, whole, rest, report = OPTIMISERS[0], Regression(), Regression(), Watched()
    run_steps(whole, config, STEPS, report)
    assert report.steps == [(step, STEPS) for step in range(1, STEPS + 1)]
    assert all([*metrics] == ["loss"] for metrics in report.seen)
    state = killed(lambda report: run_steps(Regression(), config, STEPS, report), 13)
    kept = {k: v for k, v in state.tensors.items() if k.startswith("task.")}
    assert len(kept) < len(state.tensors)
    run_steps(rest, config, STEPS, Watched(kept=to_bytes(State(kept, state.config))))
    assert not torch.equal(whole.weight, rest.weight)


@optimisers
def test_restored_moments_keep_the_parameters_memory_order(config: OptimiserConfig) -> None:
    task = Regression()
    optimiser = make_optimiser(task.parameters(), config)
    task.loss(0).backward()
    optimiser.step()
    blob = to_bytes(checkpoint(task, optimiser, 1))
    other = Regression()
    fresh = make_optimiser(other.parameters(), config)
    assert resume(other, fresh, Watched(kept=blob)) == 1
    for old, new in zip(task.parameters(), other.parameters(), strict=True):
        assert optimiser.state[old].keys() == fresh.state[new].keys()
        for name, value in optimiser.state[old].items():
            if value is not None:
                assert torch.equal(value, fresh.state[new][name])
                assert value.stride() == fresh.state[new][name].stride()


@optimisers
def test_updates_match_torch_under_torchs_own_schedule(config: OptimiserConfig) -> None:
    ours, theirs = Regression(), Regression()
    run_steps(ours, config, STEPS, Silent())
    optimiser = torchs_optimiser(theirs.parameters(), config)
    schedule = torchs_schedule(optimiser, config, STEPS)
    for step in range(STEPS):
        optimiser.zero_grad()
        theirs.loss(step).backward()
        if config.grad_clip_norm is not None:
            norm = torch.stack([p.grad.square().sum() for p in theirs.parameters()]).sum().sqrt()
            for p in theirs.parameters():
                p.grad *= min(1.0, config.grad_clip_norm / (norm.item() + 1e-6))
        optimiser.step()
        schedule.step()
    torch.testing.assert_close(ours.weight, theirs.weight, atol=1e-5, rtol=1e-4)


def test_lamb_takes_adams_step_scaled_to_the_length_of_the_weights() -> None:
    """Against torch's Adam at rate 1: each of its steps is scaled to the tensor's length times the rate."""
    ours, theirs = Regression(), Regression()
    for each in (ours, theirs):
        each.bias.data.fill_(1.0)  # a tensor of zeros has no length
    run_steps(ours, OptimiserConfig("lamb", 0.05), STEPS, Silent())
    adam = torch.optim.Adam(theirs.parameters(), lr=1.0)
    for step in range(STEPS):
        adam.zero_grad()
        theirs.loss(step).backward()
        before = [p.detach().clone() for p in theirs.parameters()]
        adam.step()
        with torch.no_grad():
            for p, old in zip(theirs.parameters(), before, strict=True):
                p.copy_(old + 0.05 * old.norm() * (p - old) / (p - old).norm())
    torch.testing.assert_close(ours.weight, theirs.weight, atol=1e-3, rtol=1e-3)


def torchs_optimiser(parameters: list[Tensor], config: OptimiserConfig) -> torch.optim.Optimizer:
    """Return torch's own optimiser; for LAMB, which torch lacks, the optimiser of the loop."""
    if config.name == "lamb":
        optimiser = make_optimiser(parameters, config)
        assert isinstance(optimiser, torch.optim.Optimizer)
        return optimiser
    if config.name == "sgd":
        return torch.optim.SGD(parameters, config.lr, momentum=config.momentum, weight_decay=config.weight_decay)
    rule: Any = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[config.name]
    return rule(parameters, config.lr, weight_decay=config.weight_decay, fused=True)


def torchs_schedule(optimiser: torch.optim.Optimizer, config: OptimiserConfig, steps: int):
    if config.schedule == "cosine":
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    if config.schedule == "constant":
        return torch.optim.lr_scheduler.ConstantLR(optimiser, 1.0)
    if config.schedule == "step":
        at = [round(share * steps) for share in config.milestones]
        return torch.optim.lr_scheduler.MultiStepLR(optimiser, at, config.factor)
    if config.schedule == "linear":
        start, end = (round(share * steps) for share in config.milestones)
        flat = torch.optim.lr_scheduler.ConstantLR(optimiser, 1.0)
        down = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, config.factor, end - start)
        return torch.optim.lr_scheduler.SequentialLR(optimiser, [flat, down], [start])
    rising = round(config.warmup * steps)
    up = torch.optim.lr_scheduler.LinearLR(optimiser, 1 / 25, 1.0, rising)
    down = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps - rising)
    return torch.optim.lr_scheduler.SequentialLR(optimiser, [up, down], [rising])


@pytest.mark.filterwarnings("ignore:.*epoch parameter.*", "ignore:.*lr_scheduler.step.*")
@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("constant", {}),
        ("cosine", {}),
        *(("one_cycle", {"warmup": warmup}) for warmup in (0.1, 0.3, 0.5)),
        *(("step", {"milestones": at}) for at in ((0.3, 0.6, 0.8), (0.66666667,))),  # Ritter et al. 2021 (J.2)
        *(("linear", {"milestones": at, "factor": 0.01}) for at in ((0.25, 0.5), (0.05, 0.95), (0.5, 0.505))),
    ],
)
def test_learning_rates_match_torch(name: str, numbers: dict[str, Any]) -> None:
    config, steps = OptimiserConfig("sgd", 0.6, name, **numbers), 600  # type: ignore[arg-type]
    optimiser = torch.optim.SGD([torch.zeros(1)], lr=0.6)
    schedule = torchs_schedule(optimiser, config, steps)
    theirs = []
    for _ in range(steps):
        theirs.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        schedule.step()
    ours = [learning_rate(config, step, steps) for step in range(steps)]
    np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)


def test_the_rates_of_weight_averaging_match_a_hand_calculation() -> None:
    """Maddox et al. 2019: 300 epochs, averaged after 161; full rate for half of those, a line to .2 at nine tenths."""
    config = OptimiserConfig("sgd", 0.05, "linear", milestones=(80.5 / 300, 144.9 / 300), factor=0.2)
    rates = {0: 0.05, 80: 0.05, 81: 0.05 - 0.04 * 0.5 / 64.4, 112.7: 0.03, 144: 0.01 + 0.04 * 0.9 / 64.4, 145: 0.01}
    for epoch, rate in (rates | {161: 0.01, 299: 0.01}).items():
        assert learning_rate(config, round(10 * epoch), 3000) == pytest.approx(rate, rel=1e-9), epoch


def test_a_loss_that_is_not_finite_stops_the_run() -> None:
    with pytest.raises(Diverged, match=r"^the loss became (nan|inf) at step \d+: lower the learning rate$"):
        run_steps(Regression(), OptimiserConfig("sgd", 1e6), 100, Silent())


class Cliff(Regression):
    """A loss that at one step has an infinite slope, or a matrix without a Cholesky factor."""

    def __init__(self, step: int, factor: bool) -> None:
        super().__init__()
        self._step, self._factor = step, factor

    def loss(self, step: int) -> Tensor:
        loss = super().loss(step)
        if step != self._step:
            return loss
        if self._factor:
            return loss + torch.linalg.cholesky(self.bias * torch.ones(2, 2) - torch.eye(2)).sum()
        return loss + (self.bias - self.bias.detach()).sqrt()


class BesideAnother(Regression):
    """A loss that uses a leaf that is not trained, and does not use one of the trained parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.other, self.unused = torch.ones(()).requires_grad_(), torch.ones(2).requires_grad_()

    def parameters(self) -> list[Tensor]:
        return [*super().parameters(), self.unused]

    def loss(self, step: int) -> Tensor:
        return self.other * super().loss(step)


@optimisers
def test_a_leaf_that_is_not_trained_has_no_gradient_and_changes_no_weight(config: OptimiserConfig) -> None:
    alone, beside = Regression(), BesideAnother()
    for task in (alone, beside):
        run_steps(task, config, STEPS, Silent())
    assert beside.other.grad is None
    assert torch.equal(beside.unused.detach(), torch.ones(2))
    assert torch.equal(beside.weight, alone.weight)
    assert torch.equal(beside.bias, alone.bias)


def test_a_singular_matrix_or_a_parameter_of_nan_is_divergence() -> None:
    singular = "a matrix became singular, NaN or infinite at step 3: lower the learning rate"
    for task, message in (
        (Cliff(3, factor=True), singular),
        (Cliff(4, factor=False), "a parameter became NaN or infinite in the last step"),
    ):
        with pytest.raises(Diverged, match=f"^{message}"):
            run_steps(task, OPTIMISERS[3], 5, Silent())


def test_a_gradient_of_another_memory_order_moves_the_right_weights() -> None:
    """The fused kernel reads memory straight through: autograd must hand it gradients in the weights' order."""
    config = OptimiserConfig("adamw", lr=0.1, weight_decay=0.1)
    factor = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    start = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
    ours, theirs, wrong = (start.clone().requires_grad_() for _ in range(3))
    fused, plain = make_optimiser([ours], config), torch.optim.AdamW([theirs], lr=0.1, weight_decay=0.1, fused=False)
    assert fused.param_groups[0]["fused"], "contiguous weights on a CPU"
    careless = make_optimiser([wrong], config)
    for _ in range(3):
        for weights, optimiser in ((ours, fused), (theirs, plain)):
            optimiser.zero_grad()
            (weights.T * factor).square().sum().backward()
            optimiser.step()
        wrong.grad = (2 * wrong.detach().T * factor.square()).contiguous().T  # strides (1, 6), past autograd
        careless.step()
    torch.testing.assert_close(ours, theirs)
    assert not torch.allclose(wrong, theirs)


RULES = {False: torch.optim.Adam, True: torch.optim.AdamW}


def weights() -> list[Tensor]:
    """Return a matrix, a channels-last tensor, a scalar, and a tensor that never has a gradient."""
    rng = torch.Generator().manual_seed(0)
    image = torch.randn(2, 3, 2, 2, generator=rng).contiguous(memory_format=torch.channels_last)
    return [t.requires_grad_() for t in (torch.randn(5, 4, generator=rng), image, torch.zeros(()), torch.ones(3))]


def groups(parameters: list[Tensor]) -> list[dict[str, Any]]:
    return [{"params": parameters[:1]}, {"params": parameters[1:], "weight_decay": 0.0, "lr": 0.02}]


def moved(optimiser: Any, parameters: list[Tensor], steps: int = 25) -> list[Tensor]:
    """Take steps with a rate that changes; the second tensor has a gradient from the third step on."""
    rng = torch.Generator().manual_seed(1)
    for step in range(steps):
        optimiser.zero_grad()
        factor = torch.randn(5, 4, generator=rng)
        loss = (parameters[0] * factor).square().sum() + (parameters[2] - 1).square()
        if step >= 2:
            loss = loss + (parameters[1] - factor[0, 0]).abs().sum()
        loss.backward()
        optimiser.param_groups[0]["lr"] = 0.1 / (step + 1)
        optimiser.step()
    return parameters


@pytest.mark.parametrize("fused", [True, False, None])
@pytest.mark.parametrize("decoupled", [False, True])
def test_weights_and_optimiser_state_match_torch_bit_for_bit(decoupled: bool, fused: bool | None) -> None:
    ours, theirs, others = weights(), weights(), weights()
    mine = Adam(groups(ours), lr=0.1, weight_decay=0.1, decoupled=decoupled, fused=fused)
    torchs = RULES[decoupled](groups(theirs), lr=0.1, weight_decay=0.1, fused=fused)
    wrong = Adam(groups(others), lr=0.1, weight_decay=0.1, decoupled=not decoupled, fused=fused)
    for optimiser, parameters in ((mine, ours), (torchs, theirs), (wrong, others)):
        moved(optimiser, parameters)
    for our, their in zip(ours, theirs, strict=True):
        assert torch.equal(our, their)
        assert mine.state.get(our, {}).keys() == torchs.state.get(their, {}).keys()
        for name, value in torchs.state.get(their, {}).items():
            kept = mine.state[our][name]
            assert torch.equal(kept, value) and kept.stride() == value.stride() and kept.dtype == value.dtype
    assert not torch.equal(ours[0], others[0])
