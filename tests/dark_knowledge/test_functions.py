"""Students of several functions: exact joints on a conjugate model, fixed points, the share that a latent keeps."""

import numpy as np
import pytest
import torch

from bdl_pipe.config import merge, read, to_mapping
from bdl_pipe.dark_knowledge import distil, embed, functions, regression_loss, teachers
from bdl_pipe.dark_knowledge.functions import LatentConfig
from bdl_pipe.dark_knowledge.inputs import Generator, NoisyConfig
from bdl_pipe.data.examples import Examples
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.data.transform import Transform
from bdl_pipe.errors import ConfigError
from bdl_pipe.posterior import NetworkDraws, NetworkSpec
from bdl_pipe.predictive import Gaussian
from bdl_pipe.progress import Silent
from bdl_pipe.registry import posterior_of
from bdl_pipe.seeds import Seed
from benchmarks.dark_knowledge_latents import explained, kept
from tests.cases import DARK_KNOWLEDGE
from tests.dark_knowledge.test_losses import minimise, random
from tests.sgmcmc.cases import Linear, registered_linear

INPUTS, TOLERANCE = 4, 2e-3  # of a minimum that is found in float32
DRAWS = 2 * (INPUTS + 1)
LATENT = {"name": "latent", "dimension": INPUTS, "draws": 6, "probe": 40, "draws_per_step": DRAWS}
HEADS = {"name": "heads", "heads": DRAWS, "draws_per_step": DRAWS}
linear = pytest.fixture(autouse=True)(registered_linear)


def unit_vectors(task: str = "regression", outputs: int = 1) -> FitData:
    """Rows whose inputs are the unit vectors."""
    classes = task == "classification"
    targets = np.arange(INPUTS) % outputs if classes else np.zeros((INPUTS, outputs))
    rows, transform = Examples(np.eye(INPUTS), targets), Transform("table", torch.zeros(INPUTS), torch.ones(INPUTS))
    return FitData(task, rows, rows, transform, tuple("abcdefg"[:outputs]) if classes else ())


class Conjugate:
    """Bayesian linear regression y = wᵀx + b + N(0, .25), w, b ~ N(0, I/2), given 3 rows of unit vectors.

    The functions' values at the unit vectors are correlated through b. ``draws``, and ``teacher``, are 2d equally
    weighted weights, which have exactly the posterior's mean and covariance.
    """

    noise = 0.25

    def __init__(self) -> None:
        rows = torch.eye(INPUTS, dtype=torch.float64)[torch.tensor([0, 0, 1])]
        features, self.at = (torch.cat([x, torch.ones(len(x), 1)], 1) for x in (rows, torch.eye(INPUTS).double()))
        covariance = torch.linalg.inv(2 * torch.eye(INPUTS + 1) + features.T @ features / self.noise)
        weights = covariance @ features.T @ random(3, seed=3) / self.noise
        self.mean, self.covariance = self.at @ weights, self.at @ covariance @ self.at.T
        root = (INPUTS + 1) ** 0.5 * torch.linalg.cholesky(covariance).T
        self.draws = torch.cat([weights + root, weights - root])  # [draw, weight]
        spec, draws = NetworkSpec(Linear(), (INPUTS,), 1, "gaussian", self.noise), self.draws.float()
        self.teacher = NetworkDraws(spec, {"head.weight": draws[:, None, :-1], "head.bias": draws[:, -1:]})


@pytest.mark.parametrize("noise", [Conjugate.noise, 0.0])
def test_the_fixed_point_of_the_regression_loss_equals_the_exact_predictive(noise: float) -> None:
    """Of a student with a mean and a variance for each input; with 1/λ_n = 0 in eq. 11 only Var f is left."""
    model = Conjugate()
    mean, log_variance = (torch.zeros(INPUTS, 1, dtype=torch.float64, requires_grad=True) for _ in range(2))
    answers = (model.draws @ model.at.T)[..., None]  # [draw, input, output]
    minimise(
        lambda: sum(regression_loss(mean, log_variance, f, noise).sum() for f in answers) / DRAWS, [mean, log_variance]
    )
    torch.testing.assert_close(mean.detach()[:, 0], model.mean, rtol=0, atol=1e-7)
    expected = model.covariance.diagonal() + noise
    torch.testing.assert_close(log_variance.detach().exp()[:, 0], expected, rtol=1e-6 if noise else 1e-5, atol=0)


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


class Sampled:
    """A posterior of f ~ N(0, 1), the same at all inputs; a prediction takes two draws; the noise variance is .5."""

    def predict(self, inputs: torch.Tensor, *, rng: Seed) -> Gaussian:
        values = torch.randn(2, 1, 1, generator=rng.generator()).expand(2, len(inputs), 1)
        return Gaussian(values, torch.full_like(values, 0.5))


def test_a_sampled_teacher_draws_anew_at_each_step_and_has_fixed_functions() -> None:
    """A student of one function learns from new draws, whose variance becomes its own; of several, from one set."""
    teacher, inputs = teachers.StoredPosterior(Sampled(), unit_vectors(), Seed(0)), torch.eye(INPUTS)[:1]
    each = [teacher.predictive(step, inputs) for step in range(50)]
    assert len({float(one.mean) for one in each}) == 50 and {float(one.draw_variance[0]) for one in each} == {0.5}
    fixed = teacher.functions(inputs, torch.arange(2))
    assert torch.equal(fixed.draw_mean, teacher.functions(inputs, torch.arange(2)).draw_mean)


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
    learned = learner(unit_vectors(), model.teacher, {**LATENT, "dimension": 2})
    learned._coefficients = torch.cat([torch.ones(DRAWS, 1), latents], 1)
    student = at_the_minimum(learned)
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
    student = at_the_minimum(learner(unit_vectors("classification", 3), classes(), LATENT | {"dimension": 3}))
    _, factor, _ = student.affine(torch.eye(INPUTS))
    assert len(factor) == 1  # the functions span no more
    both = (factor[0], random(3, INPUTS, seed=1).float().T)
    direction, slope = ((part - part.mean(-1, keepdim=True)).flatten() for part in both)
    torch.testing.assert_close(direction.outer(direction), slope.outer(slope), rtol=0, atol=TOLERANCE)


def test_latents_come_in_pairs_and_differ_between_seeds() -> None:
    data, inputs, teacher = unit_vectors(), torch.eye(INPUTS), {"teacher": [Conjugate().teacher.state()]}
    posterior = posterior_of(distil.student(data, teacher, settings(LATENT, steps=3), rng=Seed(0), report=Silent()))
    whole, (mean, factor, _) = posterior.predict(inputs, rng=Seed(4)), posterior.affine(inputs)
    torch.testing.assert_close(whole.mean, mean)
    deviations = (whole.draw_mean - mean).flatten(1)
    assert torch.linalg.matrix_rank(deviations) == min(LATENT["draws"] // 2, len(factor))
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
    rule = "input must have at least two draws for a student of several functions, got 1"
    with pytest.raises(ConfigError, match=rule):
        distil.student(unit_vectors(), {"student": [one]}, settings(student), rng=Seed(0), report=Silent())


FEATURES = 6


class Law:
    """A linear-Gaussian teacher f = φ(x)ᵀw, w ~ N(0, C), at 40 inputs; its draws have exactly the covariance C."""

    def __init__(self) -> None:
        self.features = random(40, FEATURES, seed=5)
        root = random(FEATURES, FEATURES, seed=6) * 0.6 ** torch.arange(FEATURES)
        weights = FEATURES**0.5 * root.T
        self.values = torch.cat([weights, -weights]) @ self.features.T  # [draw, input]
        covariance = self.features @ root @ root.T @ self.features.T  # between inputs, in closed form
        self.sizes = torch.linalg.eigvalsh(covariance).flip(0)[:FEATURES]

    def bound(self, dimension: int) -> float:
        """The share of the trace that the largest eigenvalues have."""
        return float(self.sizes[:dimension].sum() / self.sizes.sum())


@pytest.mark.parametrize("dimension", [1, 2, 4])
def test_the_latents_keep_the_largest_share_of_the_trace(dimension: int) -> None:
    """Other latents of this dimension, and latents of probe inputs at a few places only, keep less."""
    law = Law()
    latents = embed(law.values[..., None], dimension)
    assert kept(law.values, latents) == pytest.approx(law.bound(dimension), abs=1e-9)
    other = embed(random(len(law.values), 40, 1, seed=7), dimension)
    narrow = embed(law.values[:, :2, None], dimension)
    assert max(kept(law.values, other), kept(law.values, narrow)) < law.bound(dimension) - 1e-3


def test_a_share_takes_the_least_dimension_that_keeps_it() -> None:
    law = Law()
    for dimension in range(1, FEATURES + 1):
        below, above = law.bound(dimension) - 1e-6, law.bound(dimension) + 1e-6
        assert embed(law.values[..., None], FEATURES, below).shape[1] == dimension
        assert embed(law.values[..., None], FEATURES, min(above, 1.0)).shape[1] == min(dimension + 1, FEATURES)
    assert embed(law.values[..., None], 2, 1.0).shape[1] == 2  # no more than the largest dimension
    constant = torch.ones(3, 4, 1)
    assert embed(constant, 2, 0.5).shape == embed(constant, 2).shape == (3, 0)


def test_a_fitted_latent_at_the_fixed_point_explains_what_its_latents_keep() -> None:
    law = Law()
    latents = embed(law.values[..., None], 3)
    mean = law.values.mean(0)
    factor = latents.T @ (law.values - mean) / len(latents)
    fitted = mean + latents @ factor
    assert explained(law.values, fitted) == pytest.approx(law.bound(3), abs=1e-9)
    assert explained(law.values, mean + latents @ (0.5 * factor)) < law.bound(3) - 0.1


def test_probe_rows_are_training_rows_without_noise_each_once() -> None:
    data = unit_vectors()
    generator = Generator(NoisyConfig("noisy_training", 0.5), data)
    rows = generator.draw_rows(3, Seed(1))
    assert torch.equal(rows.sum(1), torch.ones(3)) and torch.equal(rows.amax(1), torch.ones(3))
    assert len(rows.unique(dim=0)) == 3
    assert torch.equal(generator.draw_rows(99, Seed(1)).sum(0), torch.ones(INPUTS))  # all rows, and no more


def test_a_student_with_probes_at_rows_has_the_latents_of_the_closed_form() -> None:
    """The span of the latents, compared by projections, as signs are free; probes with repeats give another span."""
    model = Conjugate()
    values = (model.draws @ model.at.T).float()
    expected = embed(values[..., None], 2)

    def projection(latents: torch.Tensor) -> torch.Tensor:
        return latents @ latents.T / len(latents)

    at_rows = learner(unit_vectors(), model.teacher, {**LATENT, "dimension": 2, "probe_at": "rows"})
    of_rows = at_rows._coefficients[:, 1:]
    torch.testing.assert_close(projection(of_rows), projection(expected), rtol=0, atol=1e-4)
    drawn = learner(unit_vectors(), model.teacher, {**LATENT, "dimension": 2, "probe": 6})._coefficients[:, 1:]
    assert float((projection(drawn) - projection(expected)).abs().max()) > 1e-2


def test_the_old_settings_of_a_latent_are_stored_as_before() -> None:
    assert to_mapping(read(LatentConfig, LATENT, "student")) == LATENT
