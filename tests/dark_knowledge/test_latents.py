"""The share of a teacher's functions that a latent keeps, beside the eigenvalues of the teacher's covariance."""

import pytest
import torch

from bdl_pipe.config import read, to_mapping
from bdl_pipe.dark_knowledge import embed
from bdl_pipe.dark_knowledge.functions import LatentConfig
from bdl_pipe.dark_knowledge.inputs import Generator, NoisyConfig
from bdl_pipe.seeds import Seed
from benchmarks.dark_knowledge_latents import explained, kept
from tests.dark_knowledge.test_functions import INPUTS, LATENT, Conjugate, learner, unit_vectors
from tests.dark_knowledge.test_losses import random
from tests.sgmcmc.cases import registered_linear

FEATURES = 6
linear = pytest.fixture(autouse=True)(registered_linear)


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
