"""Many learners trained together against each learner alone; the choice of epochs; exact resumption."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bdl_pipe.artifacts import to_bytes
from bdl_pipe.data.examples import Examples
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.errors import ConfigError
from bdl_pipe.predictive import Gaussian, Predictive
from bdl_pipe.progress import Report, Silent
from bdl_pipe.seeds import Seed
from bdl_pipe.training.fit import fit_epochs
from bdl_pipe.training.learner import EarlyStopping, FitResult, Learner, NoiseRule, TrainingConfig
from bdl_pipe.training.loop import OptimiserConfig
from bdl_pipe.training.snapshots import SnapshotPolicy
from tests.conftest import make_tiny_table
from tests.resuming import Watched, killed

OPTIMISER = OptimiserConfig("adamw", 1e-2, weight_decay=0.1, grad_clip_norm=0.5)
CHOOSE = EarlyStopping(every=2, patience=None)
RNGS = [Seed(3).fold(m) for m in range(3)]


class Noisy(Learner):
    """A linear model whose weights are shaken while it is trained."""

    def __init__(self, rng: Seed, features: int = 4) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(features, 1, generator=rng.generator()))
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, inputs: Tensor, targets: Tensor, num_train: int, noise: dict[str, Tensor]) -> Tensor:
        return (inputs @ (self.weight + 0.1 * noise["shake"]) + self.bias - targets).square().mean()

    def predict(self, inputs: Tensor, *, rng: Seed) -> Gaussian:
        mean = (inputs @ self.weight + self.bias)[None]
        return Gaussian(mean, torch.full_like(mean, 0.5))

    def noise(self, steps: int, batch: int, generator: torch.Generator) -> dict[str, Tensor]:
        return {"shake": torch.randn(steps, *self.weight.shape, generator=generator)}

    def undecayed(self) -> set[str]:
        return {"bias"}


class Measured(Noisy):
    """Its noise is the mean squared error of the rows that it is estimated on."""

    def __init__(self, rng: Seed) -> None:
        super().__init__(rng)
        self.register_buffer("error", torch.zeros(()))

    def estimated(self, predicted: Sequence[tuple[Predictive, Tensor]]) -> tuple[float, dict[str, Tensor]]:
        error = torch.cat([(each.mean - targets).square() for each, targets in predicted]).mean()
        return float(error), {"error": error}


def table(seed: int, shift: float = 0.0) -> FitData:
    """80 training rows, 20 validation rows, and a search view of the first 60 training rows and the next 20."""
    whole = make_tiny_table()
    random = np.random.default_rng(seed)
    inputs = whole.train.inputs + random.normal(0, 0.1, whole.train.inputs.shape)
    targets = whole.train.targets + shift
    some, rest, every, none = (
        Examples(inputs[at], targets[at]) for at in (slice(60), slice(60, 80), slice(80), slice(0))
    )
    search = dataclasses.replace(whole, train=some, validation=rest)
    return dataclasses.replace(whole, train=every, validation=none, search=search)


def config(
    epochs: int = 6, early_stopping: EarlyStopping | None = None, optimiser: OptimiserConfig = OPTIMISER
) -> TrainingConfig:
    return TrainingConfig(epochs, 16, optimiser, early_stopping)


def fit(
    data: list[FitData], rngs: list[Seed], how: TrainingConfig, report: Report | None = None, snapshots: int = 1
) -> list[FitResult]:
    keep, report = SnapshotPolicy(snapshots), report or Silent()
    return fit_epochs(lambda _, rng: Noisy(rng), data, how, rngs=rngs, report=report, keep=keep)


def same(one: FitResult, other: FitResult, **tolerance: float) -> None:
    assert one.epochs == other.epochs and len(one.snapshots) == len(other.snapshots)
    for a, b in zip(one.snapshots, other.snapshots, strict=True):
        for name, value in a.items():
            torch.testing.assert_close(value, b[name], **(tolerance or {"atol": 0.0, "rtol": 0.0}))


@pytest.mark.parametrize("early_stopping", [None, CHOOSE], ids=["fixed", "chosen"])
@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_members_trained_together_end_where_each_ends_alone(early_stopping: EarlyStopping | None, name: str) -> None:
    schedule = "constant" if early_stopping else "cosine"
    optimiser = OptimiserConfig(name, 1e-2, schedule=schedule, weight_decay=0.1, grad_clip_norm=0.5)  # type: ignore[arg-type]
    data = [table(m, shift=20.0 * m) for m in range(3)]  # so different that a shared gradient norm would show
    training = config(early_stopping=early_stopping, optimiser=optimiser)
    together = fit(data, RNGS, training, snapshots=2)
    for m in range(3):
        (alone,) = fit([data[m]], [RNGS[m]], training, snapshots=2)
        same(together[m], alone, atol=2e-6, rtol=2e-5)
        assert abs(together[m].loss - alone.loss) < 1e-4 * alone.loss


def test_a_fit_of_one_learner_matches_a_plain_loop() -> None:
    data, rng = table(0), RNGS[0]
    (fitted,) = fit([data], [rng], config(epochs=3))
    model = Noisy(rng.fold("weights"))
    decayed = {"params": [model.weight], "weight_decay": 0.1}
    optimiser = torch.optim.AdamW([decayed, {"params": [model.bias], "weight_decay": 0.0}], lr=1e-2)
    inputs, targets = data.tensors("train")
    for epoch in range(3):
        at = rng.fold("epoch", epoch)
        order = torch.randperm(80, generator=at.generator())
        shakes = torch.randn(5, 4, 1, generator=at.fold("noise").generator())
        for rows, shake in zip(order.split(16), shakes, strict=True):
            optimiser.zero_grad()
            model(inputs[rows], targets[rows], 80, {"shake": shake}).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimiser.step()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(fitted.state[name], value, atol=1e-7, rtol=1e-6)


def test_the_chosen_epoch_has_the_best_score_on_the_search_view() -> None:
    data, rng = table(0), RNGS[0]
    (chosen,) = fit([data], [rng], config(40, EarlyStopping(every=4, patience=None), LOUD))
    scores = {}
    for epochs in range(4, 41, 4):
        (at,) = fit([data.search], [rng.fold("search")], config(epochs=epochs, optimiser=LOUD))
        model = Noisy(Seed(0)).eval()
        model.load_state_dict(at.state)
        inputs, targets = data.search.tensors("validation")
        scores[epochs] = -model.predict(inputs, rng=Seed(0)).log_prob(targets).mean().item()
    assert chosen.epochs == min(scores, key=scores.__getitem__)
    assert chosen.epochs not in (4, 40)  # neither end of the search, so that the choice shows
    (again,) = fit([data], [rng], config(epochs=chosen.epochs, optimiser=LOUD))
    same(chosen, again)  # the second fit sees all rows, from its own first weights


def test_with_averaged_scores_are_of_the_mean_of_the_epochs_iterates() -> None:
    """The mean of the three iterates of an epoch, by hand. Told apart: scores of the last iterate choose other epochs.

    The fit continues from a kill in the middle of an epoch with the same choice.
    """
    data, rng, keep = table(0), RNGS[0], SnapshotPolicy(3, parts_per_epoch=3)
    by_mean, by_last = dict[int, float](), dict[int, float]()
    inputs, targets = data.search.tensors("validation")
    for epochs in range(2, 31, 2):
        place, training = rng.fold("search"), config(epochs=epochs, optimiser=LOUD)
        (at,) = fit_epochs(lambda _, r: Noisy(r), [data.search], training, rngs=[place], report=Silent(), keep=keep)
        for scores, some in ((by_mean, at.snapshots), (by_last, at.snapshots[-1:])):
            model = Noisy(Seed(0)).eval()
            model.load_state_dict({name: torch.stack([s[name] for s in some]).mean(0) for name in some[0]})
            scores[epochs] = -model.predict(inputs, rng=Seed(0)).log_prob(targets).mean().item()
    best = min(by_mean, key=by_mean.__getitem__)
    assert best != min(by_last, key=by_last.__getitem__) and best != 30

    def fitted(report: Report, averaged: bool = True) -> FitResult:
        training = config(30, EarlyStopping(2, None, averaged), LOUD)
        return fit_epochs(lambda _, r: Noisy(r), [data], training, rngs=[rng], report=report, keep=keep)[0]

    parts = SnapshotPolicy(5, parts_per_epoch=5)  # as many as the whole fit has steps; the search has three
    fit_epochs(lambda _, r: Noisy(r), [data], config(4, CHOOSE), rngs=[rng], report=Silent(), keep=parts)
    with pytest.raises(ConfigError, match=r"^snapshots_per_epoch must be <= the steps of an epoch \(3\), got 5$"):
        training = config(4, EarlyStopping(2, None, averaged=True))
        fit_epochs(lambda _, r: Noisy(r), [data], training, rngs=[rng], report=Silent(), keep=parts)
    whole = fitted(Silent())
    assert whole.epochs == best != fitted(Silent(), averaged=False).epochs
    for stop in (1, 2, 3 * best - 1):  # steps; three are an epoch of the search
        rest = Watched(kept=to_bytes(killed(fitted, stop)))
        same(fitted(rest), whole)


@torch.no_grad()
@pytest.mark.parametrize("noise", ["validation", "training", "learned"])
def test_the_noise_is_of_validation_rows_at_the_best_epoch_or_of_training_rows(noise: NoiseRule) -> None:
    """The model of the validation rows has not seen them: a fit to the other rows alone, for the chosen epochs."""
    data, rng = table(0), RNGS[0]
    training = dataclasses.replace(config(20, EarlyStopping(2, None), LOUD), noise=noise)
    with torch.enable_grad():
        (learner,) = fit_epochs(lambda _, r: Measured(r), [data], training, rngs=[rng], report=Silent())
        (other,) = fit([data.search], [rng.fold("search")], config(epochs=learner.epochs, optimiser=LOUD))
    model, held = Measured(rng), noise == "validation"
    model.load_state_dict({**(other if held else learner).state, "error": torch.zeros(())})
    inputs, targets = data.search.tensors("validation") if held else data.tensors("train")
    error = (model.predict(inputs, rng=rng).mean - targets).square().mean()
    torch.testing.assert_close(learner.state["error"], error if noise != "learned" else torch.zeros(()))


@pytest.mark.parametrize("patience", [4, 8, 20])
def test_the_search_ends_when_patience_runs_out_and_not_before(patience: int) -> None:
    data, whole, patient = [table(0)], Watched(), Watched()
    fit(data, RNGS[:1], config(40, EarlyStopping(4, None), LOUD), whole)
    scores, best = scores_of(whole), 4
    for epoch in range(4, 41, 4):  # the rule, spelled out on the scores of the whole search
        if scores[epoch] < scores[best]:
            best = epoch
        if epoch - best >= patience:
            break
    (fitted,) = fit(data, RNGS[:1], config(40, EarlyStopping(4, patience), LOUD), patient)
    assert fitted.epochs == best
    assert len(patient.steps) == epoch * 3 + best * 5  # an epoch of the search has 3 steps, of the final fit 5


def test_a_member_out_of_patience_chooses_the_same_epoch_with_others_as_alone() -> None:
    data, training = [table(m, shift=7.0 * m) for m in range(3)], PATIENT
    together = fit(data, RNGS, training)
    alone = [fit([d], [r], training)[0] for d, r in zip(data, RNGS, strict=True)]
    run = max(m.epochs for m in alone) + 4  # epochs until the last of them is out of patience
    best = [m.epochs for m in fit(data, RNGS, config(run, EarlyStopping(1, None), training.optimiser))]
    assert best != [m.epochs for m in alone] and run < 40  # otherwise this test would show nothing
    assert [m.epochs for m in together] == [m.epochs for m in alone]
    for one, other in zip(together, alone, strict=True):
        same(one, other, atol=2e-6, rtol=2e-5)


class Climbing(Learner):
    """A weight that rises by ``slope`` in every step, is best at ``goal``, and has a loss of NaN beyond 10."""

    def __init__(self, slope: float, goal: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.register_buffer("about", torch.tensor([slope, goal]))

    def forward(self, inputs: Tensor, targets: Tensor, num_train: int, noise: dict[str, Tensor]) -> Tensor:
        return torch.where(self.weight > 10, torch.nan, -self.about[0] * self.weight)

    def predict(self, inputs: Tensor, *, rng: Seed) -> Gaussian:
        mean = (self.weight - self.about[1]).expand(1, len(inputs), 1)
        return Gaussian(mean, torch.ones_like(mean))


def test_a_member_whose_fit_has_ended_cannot_spoil_the_others() -> None:
    """Alone the first member stops long before its loss is NaN; with the second it would continue until it is NaN."""
    training = config(100, EarlyStopping(1, 3), OptimiserConfig("sgd", 0.1))
    builds = [lambda d, rng, s=slope, g=goal: Climbing(s, g) for slope, goal in ((1.0, 1.0), (0.2, 4.0))]
    data = [table(m) for m in range(2)]
    alone = [
        fit_epochs(b, [d], training, rngs=[r], report=Silent())[0] for b, d, r in zip(builds, data, RNGS, strict=False)
    ]
    together = fit_epochs(builds, data, training, rngs=RNGS[:2], report=Silent())
    assert [m.epochs for m in together] == [m.epochs for m in alone]
    first, second = (alone[1].epochs * 5 * rise for rise in (0.1, 0.02))  # how far each would come, in 5 steps an epoch
    assert first > 10 > second
    for one, other in zip(together, alone, strict=True):
        same(one, other, atol=2e-6, rtol=2e-5)


def test_validation_targets_choose_the_epochs_and_change_no_weight_otherwise() -> None:
    def fitted(factor: float) -> FitResult:
        data = table(0)
        assert data.search is not None
        scaled = Examples(data.search.validation.inputs, data.search.validation.targets * np.float32(factor))
        other = dataclasses.replace(data, search=dataclasses.replace(data.search, validation=scaled))
        return fit([other], RNGS[:1], config(early_stopping=CHOOSE))[0]

    one, near, far = (fitted(factor) for factor in (1.0, 1.01, -100.0))
    assert one.epochs == near.epochs != far.epochs  # the control: the epochs depend on these targets
    same(one, near)


@pytest.mark.slow
def test_a_killed_fit_of_patient_members_continues_with_the_same_bits_and_steps() -> None:
    """Kill the fit at every seventh step, and compare the resumed fit with the whole fit."""
    data, calm = [table(m, shift=7.0 * m) for m in range(3)], Watched()
    whole = fit(data, RNGS, PATIENT, calm, snapshots=3)
    epochs = [member.epochs for member in whole]
    assert min(epochs) + 4 < max(epochs) < PATIENT.epochs - 4  # each search ended by patience, at different epochs
    for stop in range(1, calm.asked + 1, 7):  # reaches every step of an epoch of three or of five steps
        rest = Watched(kept=to_bytes(killed(lambda report: fit(data, RNGS, PATIENT, report, snapshots=3), stop)))
        again = fit(data, RNGS, PATIENT, rest, snapshots=3)
        assert stop + rest.asked == calm.asked
        for one, other in zip(whole, again, strict=True):
            same(one, other)
            assert one.loss == other.loss


class Certain(Predictive):
    """A predictive in which every target has probability 1."""

    mean = variance = torch.zeros(0)

    def log_prob(self, targets: Tensor) -> Tensor:
        return torch.zeros(len(targets))

    def rescale(self, shift: Tensor, scale: Tensor) -> Predictive:
        return self


def test_a_score_of_zero_is_reported_and_an_absent_score_is_not() -> None:
    class Sure(Noisy):
        def predict(self, inputs: Tensor, *, rng: Seed) -> Predictive:
            return Certain()

    def reported(report: Any) -> Watched:
        fit_epochs(lambda _, rng: Sure(rng), [table(0)], config(early_stopping=CHOOSE), rngs=RNGS[:1], report=report)
        return report

    assert scores_of(reported(Watched())) == dict.fromkeys(range(2, 7), 0.0)
    for stop, first in ((2, 2), (8, 3)):  # with 3 steps an epoch: before and after the first score
        again = reported(Watched(kept=to_bytes(killed(reported, stop))))
        assert scores_of(again) == dict.fromkeys(range(first, 7), 0.0)


LOUD = OptimiserConfig("adamw", 1.0)
PATIENT = config(epochs=40, early_stopping=EarlyStopping(every=1, patience=4), optimiser=OptimiserConfig("adamw", 0.3))


def scores_of(report: Watched) -> dict[int, float]:
    """The validation scores of the search by epoch."""
    validated = [m for m in report.seen if "validation_nll" in m]
    return {int(m["epoch"]): m["validation_nll"] for m in validated if float(m["epoch"]).is_integer()}
