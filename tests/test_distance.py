"""Distances to a reference: closed forms, SciPy's quadrature, and the rows that a stored reference belongs to."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from bdl_pipe import artifacts, evaluation, metrics
from bdl_pipe.data.examples import Examples
from bdl_pipe.data.transform import Transform
from bdl_pipe.errors import ArtifactError
from bdl_pipe.evaluation import references
from bdl_pipe.evaluation.references import Distances, Reference, distances
from bdl_pipe.posterior import Predictor
from bdl_pipe.predictive import Gaussian
from bdl_pipe.seeds import Seed
from tests.test_evaluation import SETTINGS, Linear

PLAIN = Transform("table", torch.zeros(2), torch.ones(2), shift=torch.tensor([1.0]), scale=torch.tensor([3.0]))


def gaussians(means: list[list[float]], variances: list[float]) -> Gaussian:
    """A mixture of draws at each row: means [draw][row], a variance for each draw."""
    mean = torch.tensor(means, dtype=torch.float64)[..., None]
    return Gaussian(mean, torch.tensor(variances, dtype=torch.float64)[:, None, None].expand_as(mean))


def test_distances_of_two_gaussians_equal_the_closed_forms() -> None:
    """KL = log(s/σ) + (σ² + d²)/(2s²) − 1/2 with s the other's; TV of equal variances is 2Φ(d/2σ) − 1."""
    shifts = [0.0, 0.5, 4.0]
    for sd, other in ((1.0, 1.0), (0.3, 0.9), (1.0, 0.4)):
        distance, variation = distances(gaussians([[0.0] * 3], [sd**2]), gaussians([shifts], [other**2]))
        exact = [math.log(other / sd) + (sd**2 + d**2) / (2 * other**2) - 0.5 for d in shifts]
        assert distance.tolist() == pytest.approx(exact, abs=1e-8)
        swapped = [math.log(sd / other) + (other**2 + d**2) / (2 * sd**2) - 0.5 for d in shifts]
        assert sd == other or distance.tolist() != pytest.approx(swapped, rel=0.1)
        if sd == other:
            assert variation.tolist() == pytest.approx([2 * stats.norm.cdf(d / 2) - 1 for d in shifts], abs=5e-4)


def test_distances_of_mixtures_equal_scipys_quadrature() -> None:
    """Two rows, one of them with well separated components; the other predictive has variances of its own."""
    p, q = gaussians([[-2.0, 0.1], [1.5, 0.2]], [0.04, 0.04]), gaussians([[-1.8, 0.0], [1.0, 0.5]], [0.3, 0.1])
    distance, variation = distances(p, q)
    for row in range(2):

        def density(mixture: Gaussian, y: float, row: int = row) -> float:
            each = stats.norm.pdf(y, mixture.draw_mean[:, row, 0], mixture.draw_variance[:, row, 0].sqrt())
            return float(each.mean())

        def term(y: float) -> float:
            return density(p, y) * math.log(density(p, y) / density(q, y))

        exact, _ = integrate.quad(term, -3.5, 3, points=[-2, 1.5], limit=400)
        total, _ = integrate.quad(lambda y: abs(density(p, y) - density(q, y)) / 2, -8, 8, points=[-2, 1.5], limit=400)
        assert float(distance[row]) == pytest.approx(exact, abs=1e-6)
        assert float(variation[row]) == pytest.approx(total, abs=1e-3)
    assert float(distances(p, p)[0].abs().max()) < 1e-12 and float(distances(p, p)[1].max()) < 1e-11


def test_scores_are_means_and_a_median_over_rows_and_one_draw_has_no_sd_ratio() -> None:
    reference = Reference(torch.tensor([[-1.0, -1.0, -2.0], [1.0, 1.0, 2.0]], dtype=torch.float64), 0.25, {})
    gathered = Distances(reference)
    for rows in (slice(0, 1), slice(1, 3)):  # in batches
        gathered.add(rows, gaussians([[-2.0, -3.0, -2.0][rows], [2.0, 3.0, 2.0][rows]], [0.25, 0.25]))
    scores = gathered.scores()
    each, total = distances(reference.predictive(), gaussians([[-2.0, -3.0, -2.0], [2.0, 3.0, 2.0]], [0.25, 0.25]))
    assert scores["reference_kl"] == (pytest.approx(float(each.mean())), 3) and float(each[2]) < 1e-12
    assert scores["reference_tv"][0] == pytest.approx(float(total.mean()))
    assert scores["reference_sd_ratio"] == (pytest.approx(2.0), 3)  # the median of 2, 3 and 1; their mean is 2 as well
    one = Distances(reference)
    one.add(slice(0, 3), gaussians([[0.0, 0.0, 0.0]], [1.0]))
    assert one.scores().keys() == {"reference_kl", "reference_tv"}
    assert Distances(None).scores() == {}


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """A reference of five rows, in a folder in place of the library's."""
    random = Seed(3).numpy()
    test = Examples(random.normal(size=(5, 2)), random.normal(size=(5, 1)))
    reference = Reference(torch.tensor(random.normal(size=(40, 5))), 0.1, {"dataset": "d", "split": 0})
    (tmp_path / f"d-0{references.SUFFIX}").write_bytes(artifacts.to_bytes(reference.state(test, PLAIN)))
    read = references.stored.__wrapped__
    monkeypatch.setattr(references, "stored", lambda: read(tmp_path))
    return test, reference, tmp_path


def changed(values: np.ndarray) -> np.ndarray:
    other = values.copy()
    other[2, 0] += 1e-9
    return other


def test_a_reference_is_found_only_for_its_own_rows_and_transform(stored) -> None:
    test, reference, _ = stored
    references_of = references.find(test, PLAIN)
    assert references_of is not None and references_of.noise_variance == 0.1 and references_of.about["dataset"] == "d"
    assert float((references_of.draws - reference.draws).abs().max()) < 2e-3  # half precision
    rounded = replace(PLAIN, std=PLAIN.std * (1 + 1e-7))
    assert references.find(test, rounded) is not None  # the rounding of another processor
    inputs, targets = Examples(changed(test.inputs), test.targets), Examples(test.inputs, changed(test.targets))
    assert [references.find(rows, PLAIN) for rows in (inputs, targets, test.cut(4)[0])] == [None] * 3
    for other in ({"scale": 2 * PLAIN.scale}, {"smooth": True}, {"shift": None, "scale": None}):
        assert references.find(test, replace(PLAIN, **other)) is None, other


def test_evaluation_scores_the_distance_in_transformed_units(stored) -> None:
    """The posterior has functions and a noise of its own; the targets' original units are three times as wide."""
    test, _, _ = stored
    weights = torch.tensor(Seed(5).numpy().normal(size=(7, 2, 1)))
    fitted = Predictor(Linear(weights, gaussian=True), PLAIN)
    scores = evaluation.score_clean(fitted, test, SETTINGS, Seed(0)).metrics
    reference = references.find(test, PLAIN)
    assert reference is not None
    outputs = torch.einsum("bf,sfo->sbo", torch.tensor(test.inputs, dtype=torch.float32).double(), weights)
    expected, _ = distances(reference.predictive(), Gaussian(outputs, torch.ones_like(outputs)))
    assert scores["reference_kl"] == (pytest.approx(float(expected.mean()), rel=1e-5), 5)
    ratio = outputs[..., 0].std(0, correction=0) / reference.draws.std(0, correction=0)
    assert scores["reference_sd_ratio"][0] == pytest.approx(float(ratio.median()), rel=1e-5)
    other = Examples(changed(test.inputs), test.targets)
    assert not {n for n in evaluation.score_clean(fitted, other, SETTINGS, Seed(0)).metrics if "reference" in n}


def test_the_error_names_a_damaged_reference(stored) -> None:
    test, _, folder = stored
    (folder / f"d-1{references.SUFFIX}").write_bytes(b"12345678{}")
    with pytest.raises(ArtifactError, match=r"d-1\.safetensors: is truncated"):
        references.find(test, PLAIN)


@pytest.mark.parametrize("split", range(5))
def test_the_stored_chains_of_boston_agree_and_have_the_known_nll(split: int) -> None:
    """Each split's chains agree, and have the NLL that another sampler of the same posterior had."""
    state = artifacts.from_bytes((references.HERE / f"boston-{split}{references.SUFFIX}").read_bytes())
    about = state.config
    assert about["r_hat"] <= 1.05 and about["ess_bulk"] >= 100 and about["ess_tail"] >= 50
    assert 0.6 < about["accepted"] < 0.95 and about["target"]["prior_precision"] == 2.0
    assert about["noise_variance"] == 0.1 and about["rows_fitted"] == 455
    assert about["nll"] == pytest.approx((2.357, 2.395, 2.332, 2.354, 2.517)[split], abs=0.02)
    assert state.tensors["draws"].shape == (400, 51)
    assert metrics.METRICS["reference_kl"].better == -1
