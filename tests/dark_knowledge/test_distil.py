"""The plain student's fit: its fixed point end to end, both modes, resumption, Algorithm 1's order."""

import dataclasses
import re

import numpy as np
import pytest
import torch
from scipy import stats

from bdl_pipe.artifacts import State
from bdl_pipe.config import merge, read, to_mapping
from bdl_pipe.dark_knowledge import distil, teachers
from bdl_pipe.data.examples import Examples
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.errors import ConfigError
from bdl_pipe.networks import MlpConfig
from bdl_pipe.posterior import NetworkDraws, NetworkSpec
from bdl_pipe.progress import Silent
from bdl_pipe.seeds import Seed
from bdl_pipe.sgmcmc.method import average
from bdl_pipe.sgmcmc.sampler import NetworkChains
from tests.cases import DARK_KNOWLEDGE
from tests.resuming import resumed, same_bits
from tests.sgmcmc import cases

DATA = {"classification": cases.images(), "regression": cases.table()}
tasks = pytest.mark.parametrize("task", list(DATA))
HEADS = {"name": "heads", "heads": 3, "draws_per_step": 2}
ONLINE = {
    "name": "online",
    "target": cases.SECTION["target"],
    "sampler": cases.SECTION["sampler"],
    "burn_in": 7,
    "chains": 2,
    "chain_steps": 3,
    "average": 0.5,
}
SECTION = DARK_KNOWLEDGE | {"optimiser": {"name": "adam", "lr": 1e-2, "schedule": "cosine", "weight_decay": 1e-4}}


def config(kind: str = "offline", **override) -> distil.DarkKnowledgeConfig:
    section = merge(SECTION, {"mode": ONLINE} if kind == "online" else {})
    return read(distil.DarkKnowledgeConfig, merge(section, override), "methods.dark_knowledge")


def chains(data: FitData, task: str, count: int = 2, draws: int = 3, scale: float = 1.5) -> list[State]:
    """Chains of independent random networks, which disagree much."""
    likelihood = "categorical" if task == "classification" else "gaussian"
    spec = NetworkSpec(MlpConfig("mlp", (6,)), data.input_shape, data.outputs, likelihood, 0.3)
    weights = [
        [{k: scale * v for k, v in spec.build(Seed(c).fold(d)).state_dict().items()} for d in range(draws)]
        for c in range(count)
    ]
    return [NetworkDraws.of(spec, w).state() for w in weights]


def fit(task: str, mode: str, report=None) -> State:
    inputs = {"teacher": chains(DATA[task], task)} if mode == "offline" else {}
    return distil.student(DATA[task], inputs, config(mode), rng=Seed(0), report=report or Silent())


def test_a_resumed_online_student_has_the_same_bits():
    """Its chains continue, too; the conformance test resumes the offline student."""
    again = resumed(lambda report: fit("regression", "online", report), from_step=23)
    assert same_bits(again, fit("regression", "online"))


@tasks
@pytest.mark.parametrize("kernel", [{"name": "sgld"}, {"name": "sghmc", "friction": 0.1}])
def test_the_online_teacher_follows_algorithm_1(task, kernel):
    """At each student step the draws are the positions of plain chains after 3 more steps; nothing else is stored."""
    data, mode = DATA[task], config("online", mode={"sampler": {"kernel": kernel}}).mode
    living = teachers.LivingChains(data, mode, Seed(5))
    x, _ = data.tensors("train")
    rngs = [Seed(5).fold("chain", c) for c in range(2)]
    plain = NetworkChains([data] * 2, mode.target, mode.sampler, rngs, mode.burn_in)
    expected = dict(plain.steps(plain.begin(), 0, mode.burn_in + 12))
    for step in range(4):
        predictive = living.predictive(step, x)
        state = expected[mode.burn_in + 3 * (step + 1)]
        assert torch.equal(living.state()["position"], state["position"])
        each = plain.target.network.outputs(state["position"], x)
        torch.testing.assert_close(predictive.mean, plain.target.spec.predictive(each).mean)
        torch.testing.assert_close(predictive.variance, plain.target.spec.predictive(each).variance)
    assert living.state().keys() == state.keys() | {"done"}


def test_offline_draws_are_uniform():
    """χ² test over 6 draws and 3,000 steps, at a false-alarm rate of 1e-6."""
    spec = NetworkSpec(MlpConfig("mlp", (1,)), (1,), 1, "gaussian")
    zero = {k: torch.zeros(6, *v.shape) for k, v in spec.build(Seed(0)).state_dict().items()}
    posterior = NetworkDraws(spec, zero | {"head.bias": torch.arange(6.0)[:, None]})  # draw k outputs k
    stored = teachers.StoredDraws(posterior, Seed(1))
    counts = torch.stack([stored.predictive(t, torch.zeros(1, 1)).mean[0, 0] for t in range(3000)]).long().bincount()
    assert stats.chisquare(counts).pvalue > 1e-6 and len(counts) == 6


def test_weight_decay_enters_the_gradient():
    """One SGD step by hand: w − ρ (∇ mean L̂ + γ w), with autograd's gradient of the same loss."""
    data, inputs = DATA["classification"], {"teacher": chains(DATA["classification"], "classification")}
    one = config(steps=1, optimiser={"name": "sgd", "lr": 0.1, "schedule": "constant", "weight_decay": 0.5})
    stored = teachers.StoredDraws(distil.average(inputs["teacher"]), Seed(0).fold("teacher"))
    learner = distil.PlainStudent(data, one.network, stored, Seed(0).fold("start"))
    task = distil.Distillation(data, stored, learner, one, Seed(0))
    before = [p.detach().clone() for p in task.parameters()]
    gradients = torch.autograd.grad(task.loss(0), task.parameters())
    state = distil.student(data, inputs, one, rng=Seed(0), report=Silent())
    for old, gradient, new in zip(before, gradients, state.tensors.values(), strict=True):
        torch.testing.assert_close(new[0], old - 0.1 * (gradient + 0.5 * old))


@tasks
def test_the_average_of_weights_is_the_mean_over_the_last_steps(task):
    """By hand: the students of 4, 5 and 6 steps without an average; the mean differs from the last student."""

    def student(**changes):
        online = {"mode": ONLINE, "optimiser": {"schedule": "constant"}, "steps": 6}
        return distil.student(DATA[task], {}, config(**merge(online, changes)), rng=Seed(0), report=Silent()).tensors

    each = [student(steps=steps, mode={"average": None}) for steps in (4, 5, 6)]
    mean = student()
    for name, value in mean.items():
        torch.testing.assert_close(value, torch.stack([weights[name] for weights in each]).mean(0))
    assert any(not torch.allclose(value, each[-1][name], atol=1e-3) for name, value in mean.items())


@pytest.mark.parametrize(
    ("section", "given", "message"),
    [
        ({}, {}, "input must be teacher/<run> or student/<run> for the mode offline, got 'the data alone'"),
        ({}, {"teacher": "regression", "student": "regression"}, "got 'teacher and student'"),
        ({"mode": ONLINE}, {"teacher": "regression"}, "input must be prepare/<data set> for the mode online"),
        ({}, {"student": "classification"}, "input must be of inputs"),
        ({}, {"student": "sgd"}, "input must be a posterior of regression with 1 outputs, got 'regression with 2'"),
    ],
)
def test_a_wrong_input_is_refused(section, given, message):
    teachers_of = {kind: chains(DATA[task], task, 1) for kind, task in given.items() if task in DATA}
    if given.get("student") == "sgd":
        two = dataclasses.replace(DATA["regression"], train=Examples(np.zeros((4, 2)), np.zeros((4, 2))))
        teachers_of = {"student": chains(two, "regression", 1)}
    with pytest.raises(ConfigError, match="^" + re.escape(message) if message.startswith("input") else message):
        distil.student(DATA["regression"], teachers_of, config(**section), rng=Seed(0), report=Silent())


@pytest.mark.parametrize("student", [{"name": "plain"}, HEADS])
def test_a_student_may_start_at_a_draw(student):
    """After a negligible step it equals a draw of the teacher; a head of another size is fresh; draws vary by seed."""
    teacher = chains(DATA["classification"], "classification")
    draws, started = average(teacher).weights, set()
    section = {"steps": 1, "optimiser": {"lr": 1e-12, "weight_decay": 0.0}, "network": {"hidden": [6]}}
    settings = config(**section, student=student, start="draw")
    for seed in range(8):
        data, inputs = DATA["classification"], {"teacher": teacher}
        weights = distil.student(data, inputs, settings, rng=Seed(seed), report=Silent()).tensors
        if student["name"] == "plain":
            weights = {name: value[0] for name, value in weights.items()}
        fitting = {name: value for name, value in weights.items() if value.shape == draws[name][0].shape}
        same = [{n for n, v in fitting.items() if torch.allclose(v, draws[n][s], atol=1e-9)} for s in range(6)]
        (drawn,) = [s for s, names in enumerate(same) if any(name.endswith("weight") for name in names)]
        assert same[drawn] == {name for name in weights if student["name"] == "plain" or name.startswith("trunk.")}
        started.add(drawn)
    assert len(started) > 1


def test_a_start_at_a_draw_is_refused_without_draws_of_the_same_network():
    inputs = {"teacher": chains(DATA["classification"], "classification")}
    rule = "start must be fresh unless the teacher is a set of networks of the student's architecture, got 'draw'"
    with pytest.raises(ConfigError, match="^" + re.escape(rule)):
        other = config(start="draw", network={"hidden": [7]})
        distil.student(DATA["classification"], inputs, other, rng=Seed(0), report=Silent())


def test_a_fresh_start_is_left_out_of_the_mapping():
    """Students recorded before the key existed must keep their bytes."""
    assert "start" not in to_mapping(config()) and to_mapping(config(start="draw"))["start"] == "draw"
