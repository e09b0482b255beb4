"""Students of several functions: exact joints on a conjugate model, fixed points, shared latents, their errors."""

import dataclasses
from collections.abc import Iterator
from typing import Literal

import numpy as np
import pytest
import torch

from bdl_pipe import networks
from bdl_pipe.artifacts import State
from bdl_pipe.config import merge, read
from bdl_pipe.dark_knowledge import distil, functions, teachers
from bdl_pipe.data.examples import Examples
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.data.transform import Transform
from bdl_pipe.errors import ConfigError
from bdl_pipe.posterior import NetworkDraws, NetworkSpec
from bdl_pipe.predictive import Gaussian
from bdl_pipe.progress import Silent
from bdl_pipe.registry import posterior_of
from bdl_pipe.seeds import Seed
from tests.cases import DARK_KNOWLEDGE
from tests.dark_knowledge.test_losses import minimise, random

INPUTS, TOLERANCE = 4, 2e-3  # of a minimum that is found in float32
DRAWS = 2 * (INPUTS + 1)
LATENT = {"name": "latent", "dimension": INPUTS, "draws": 6, "probe": 40, "draws_per_step": DRAWS}
HEADS = {"name": "heads", "heads": DRAWS, "draws_per_step": DRAWS}


@dataclasses.dataclass(frozen=True)
class Linear:
    """A network without hidden layers: on unit vectors it can be any function."""

    name: Literal["linear_of_tests"] = "linear_of_tests"


@pytest.fixture(autouse=True)
def linear() -> Iterator[None]:
    networks.register_network(Linear, lambda config, shape, generator: (torch.nn.Identity(), shape[0]))
    yield
    networks.NETWORKS._remove("linear_of_tests")


def unit_vectors(task: str = "regression", outputs: int = 1) -> FitData:
    """Rows whose inputs are the unit vectors."""
    inputs = np.eye(INPUTS)
    transform = Transform("table", torch.zeros(INPUTS), torch.ones(INPUTS))
    if task == "classification":
        rows = Examples(inputs, np.arange(INPUTS) % outputs)
        return FitData("classification", rows, rows, transform, tuple("abcdefg"[:outputs]))
    rows = Examples(inputs, np.zeros((INPUTS, outputs)))
    return FitData("regression", rows, rows, transform)


class Conjugate:
    """Bayesian linear regression y = wᵀx + b + N(0, .25), w, b ~ N(0, I/2), given 3 rows of unit vectors.

    The functions' values at the unit vectors are correlated through b. ``teacher`` holds 2d equally weighted draws,
    which have exactly the posterior's mean and covariance.
    """

    noise = 0.25

    def __init__(self) -> None:
        rows = torch.eye(INPUTS, dtype=torch.float64)[torch.tensor([0, 0, 1])]
        features, at = (torch.cat([x, torch.ones(len(x), 1)], 1) for x in (rows, torch.eye(INPUTS, dtype=rows.dtype)))
        targets = random(3, seed=3)
        covariance = torch.linalg.inv(2 * torch.eye(INPUTS + 1) + features.T @ features / self.noise)
        weights = covariance @ features.T @ targets / self.noise
        self.mean, self.covariance = at @ weights, at @ covariance @ at.T
        root = (INPUTS + 1) ** 0.5 * torch.linalg.cholesky(covariance).T
        draws = torch.cat([weights + root, weights - root]).float()  # [draw, weight]
        spec = NetworkSpec(Linear(), (INPUTS,), 1, "gaussian", self.noise)
        self.teacher = NetworkDraws(spec, {"head.weight": draws[:, None, :-1], "head.bias": draws[:, -1:]})


def settings(student: dict, **override) -> distil.DarkKnowledgeConfig:
    section = merge(DARK_KNOWLEDGE, {"network": {"name": "linear_of_tests"}, "student": student})
    section = merge(section, {"inputs": {"noise": 0.0}, **override})
    return read(distil.DarkKnowledgeConfig, section, "methods.dark_knowledge")


def learner(data: FitData, posterior: NetworkDraws, student: dict) -> distil.FunctionStudent:
    return distil.FunctionStudent(data, teachers.StoredDraws(posterior, Seed(0)), settings(student), Seed(0))


def at_the_minimum(student: distil.FunctionStudent) -> functions.StudentFunctions:
    """The student at the least loss of all draws at all unit vectors."""
    minimise(lambda: student.loss(0, torch.eye(INPUTS)), list(student.network.parameters()))
    return student.posterior({name: value.detach() for name, value in student.network.state_dict().items()})


@dataclasses.dataclass
class Sampled:
    """A posterior of f ~ N(0, 1), the same at all inputs; a prediction takes two draws; the noise variance is .5."""

    def predict(self, inputs: torch.Tensor, *, rng: Seed) -> Gaussian:
        values = torch.randn(2, 1, 1, generator=rng.generator()).expand(2, len(inputs), 1)
        return Gaussian(values, torch.full_like(values, 0.5))

    def state(self) -> State:
        return State()

    @classmethod
    def from_state(cls, state: State, device: torch.device | str = "cpu") -> "Sampled":
        return cls()


def test_a_sampled_teacher_has_its_second_moment_over_many_steps_only() -> None:
    """Over 4,000 steps E y² is 1.5 within 5 standard errors (false alarms: 6e-7); of two fixed functions it is not."""
    teacher = teachers.StoredPosterior(Sampled(), unit_vectors(), Seed(0))
    inputs = torch.eye(INPUTS)[:1]
    each = [teacher.predictive(step, inputs) for step in range(4000)]
    second = torch.stack([one.variance + one.mean.square() for one in each]).mean()
    assert abs(float(second) - 1.5) < 5 * (2 / 8000) ** 0.5
    fixed = teacher.functions(inputs, torch.arange(2))
    assert torch.equal(fixed.draw_mean, teacher.functions(inputs, torch.arange(2)).draw_mean)
    assert abs(float(fixed.variance + fixed.mean.square()) - 1.5) > 5 * (2 / 8000) ** 0.5


def test_a_student_with_all_latents_has_the_exact_joint() -> None:
    model = Conjugate()
    student = at_the_minimum(learner(unit_vectors(), model.teacher, LATENT))
    mean, factor, log_variance = student.affine(torch.eye(INPUTS))
    joint = factor[..., 0].T @ factor[..., 0]
    torch.testing.assert_close(mean[:, 0].double(), model.mean, rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(joint.double(), model.covariance, rtol=0, atol=TOLERANCE)
    assert log_variance is not None
    torch.testing.assert_close(log_variance.exp(), torch.full((INPUTS, 1), model.noise), rtol=0, atol=TOLERANCE)
    assert float((joint - joint.diagonal().diag()).abs().max()) > 0.02  # a product of marginals would fail


def test_fewer_latents_keep_the_marginals_and_the_largest_part_of_the_covariance() -> None:
    model = Conjugate()
    latents = functions.embed(model.teacher.predict(torch.eye(INPUTS)).draw_mean, 2)
    made = learner(unit_vectors(), model.teacher, {**LATENT, "dimension": 2})
    made._coefficients = torch.cat([torch.ones(DRAWS, 1), latents], 1)
    student = at_the_minimum(made)
    mean, factor, log_variance = student.affine(torch.eye(INPUTS))
    sizes, directions = torch.linalg.eigh(model.covariance)
    kept = directions[:, -2:] @ sizes[-2:].diag() @ directions[:, -2:].T
    assert factor.shape[0] == 2 and log_variance is not None
    torch.testing.assert_close((factor[..., 0].T @ factor[..., 0]).double(), kept, rtol=0, atol=TOLERANCE)
    total = factor[..., 0].square().sum(0) + log_variance.exp()[:, 0]
    torch.testing.assert_close(total.double(), model.covariance.diagonal() + model.noise, rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(mean[:, 0].double(), model.mean, rtol=0, atol=TOLERANCE)


def test_heads_equal_the_draws_and_have_their_joint_covariance() -> None:
    model = Conjugate()
    student = at_the_minimum(learner(unit_vectors(), model.teacher, HEADS))
    predictive = student.predict(torch.eye(INPUTS), rng=Seed(0))
    expected = model.teacher.predict(torch.eye(INPUTS))
    torch.testing.assert_close(predictive.draw_mean, expected.draw_mean, rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(predictive.draw_variance, expected.draw_variance, rtol=0, atol=TOLERANCE)
    centred = predictive.draw_mean[..., 0] - predictive.mean[:, 0]
    torch.testing.assert_close((centred.T @ centred / len(centred)).double(), model.covariance, rtol=0, atol=TOLERANCE)


def classes(draws: int = 6) -> NetworkDraws:
    """Draws whose logits are an affine function of one coordinate of mean 0 and variance 1."""
    spec = NetworkSpec(Linear(), (INPUTS,), 3, "categorical")
    place = torch.linspace(-1, 1, draws)
    place = place / place.square().mean().sqrt()
    weights = random(3, INPUTS).float() + place[:, None, None] * random(3, INPUTS, seed=1).float()
    return NetworkDraws(spec, {"head.weight": weights, "head.bias": torch.zeros(draws, 3)})


def test_one_latent_is_exact_if_the_class_logits_are_affine_in_one_coordinate() -> None:
    """B Bᵀ of centred logits is compared, since the sign of B is free; the functions span one dimension."""
    data, teacher = unit_vectors("classification", 3), classes()
    student = at_the_minimum(learner(data, teacher, LATENT | {"dimension": 3}))
    inputs = torch.eye(INPUTS)
    _, factor, _ = student.affine(inputs)
    assert len(factor) == 1  # the functions span no more
    centred = factor[0] - factor[0].mean(-1, keepdim=True)
    slope = random(3, INPUTS, seed=1).float().T
    slope = slope - slope.mean(-1, keepdim=True)
    torch.testing.assert_close(
        centred.flatten().outer(centred.flatten()), slope.flatten().outer(slope.flatten()), rtol=0, atol=TOLERANCE
    )


@pytest.mark.parametrize("student", [LATENT, HEADS], ids=["latent", "heads"])
def test_a_draw_is_the_same_function_in_all_batches(student: dict) -> None:
    data = unit_vectors()
    posterior = posterior_of(
        distil.student(
            data, {"teacher": [Conjugate().teacher.state()]}, settings(student, steps=3), rng=Seed(0), report=Silent()
        )
    )
    inputs = torch.eye(INPUTS)
    whole = posterior.predict(inputs, rng=Seed(4))
    first, rest = (posterior.predict(part, rng=Seed(4)) for part in (inputs[:1], inputs[1:]))
    torch.testing.assert_close(whole.draw_mean, torch.cat([first.draw_mean, rest.draw_mean], 1))
    if student is LATENT:
        mean, factor, _ = posterior.affine(inputs)
        torch.testing.assert_close(whole.mean, mean)  # latents come in pairs
        left = whole.draw_mean - mean
        assert torch.linalg.matrix_rank(left.flatten(1)) == min(LATENT["draws"] // 2, len(factor))
        assert not torch.equal(posterior.predict(inputs, rng=Seed(5)).draw_mean, whole.draw_mean)


def test_latents_have_mean_zero_and_identity_covariance() -> None:
    latents = functions.embed(random(12, 7, 2), 5)
    torch.testing.assert_close(latents.mean(0), torch.zeros(5, dtype=latents.dtype), rtol=0, atol=1e-12)
    torch.testing.assert_close(latents.T @ latents / 12, torch.eye(5, dtype=latents.dtype), rtol=0, atol=1e-12)
    assert functions.embed(random(3, 7, 2), 5).shape == (3, 2)  # three functions span a plane


@pytest.mark.parametrize("student", [LATENT, HEADS], ids=["latent", "heads"])
def test_a_teacher_of_one_draw_is_refused(student: dict) -> None:
    model = Conjugate().teacher
    one = NetworkDraws(model.spec, {name: value[:1] for name, value in model.weights.items()}).state()
    with pytest.raises(
        ConfigError, match=r"input must have at least two draws for a student of several functions, got 1"
    ):
        distil.student(unit_vectors(), {"student": [one]}, settings(student), rng=Seed(0), report=Silent())
