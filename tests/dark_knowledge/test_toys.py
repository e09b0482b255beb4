"""References by Hamiltonian Monte Carlo and the toy problems: densities, stored references, divergences, the page."""

import math

import numpy as np
import pytest
import torch

from bdl_pipe import artifacts
from bdl_pipe.predictive import Categorical, Gaussian
from bdl_pipe.seeds import Seed
from bdl_pipe.sgmcmc.target import NetworkTarget
from benchmarks import dark_knowledge_toys as page
from benchmarks.references import hmc
from benchmarks.toys.methods import ROWS
from benchmarks.toys.problems import PROBLEMS, Problem

problems = pytest.mark.parametrize("name", list(PROBLEMS))


def test_the_density_by_hand_and_its_gradient_match_the_library() -> None:
    problem = PROBLEMS["regression"]()
    spec = problem.target.spec(problem.data)
    target = NetworkTarget(spec, [problem.data.rows("train", "cpu")] * 3, 1.5)
    positions = target.start([Seed(chain) for chain in range(3)])
    value, gradient = hmc.perceptron(target, *problem.data.tensors("train"))(positions)
    expected, slope = target.whole()(positions)
    torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-3)
    torch.testing.assert_close(gradient, slope, rtol=1e-4, atol=1e-3)
    assert float((gradient - slope + 0.1 * positions).abs().max()) > 0.01  # another prior precision would fail


def test_a_short_run_returns_finite_outputs_and_facts_and_thins_its_draws(monkeypatch) -> None:
    """The outputs of 3 chains of 4 draws at 5 inputs; ``thinned`` keeps every second draw of each chain."""
    problem = PROBLEMS["classification"]()
    settings = hmc.Settings(chains=3, leapfrogs=2, burn_in=3, draws=4)
    outputs, about = hmc.sample(problem.data, problem.target, problem.inputs[:5], settings, Seed(0))
    assert outputs.shape == (3, 4, 5, 2) and bool(outputs.isfinite().all())
    assert 0 <= about["accepted"] <= 1 and len(about["step_sizes"]) == 3 and about["target"]["prior_precision"] == 1.0
    monkeypatch.setattr(hmc, "KEPT", 6)
    assert torch.equal(hmc.thinned(outputs), outputs[:, 1::2].flatten(0, 1))


@problems
def test_the_stored_reference_has_converged_and_covers_the_grid(name: str) -> None:
    problem = PROBLEMS[name]()
    state = page.reference(problem)
    about = state.config
    assert about["r_hat"] <= 1.05 and about["ess_bulk"] >= 400 and 0.6 < about["accepted"] < 0.95
    assert state.tensors["mean"].shape == (len(problem.grid),)
    assert 0 < problem.inside.sum() < len(problem.grid)


def test_a_reference_of_other_rows_is_refused(monkeypatch) -> None:
    problem = PROBLEMS["regression"]()
    problem.data.train.inputs[3] += 1e-9
    with pytest.raises(ValueError, match=r"regression\.safetensors: must be of the training rows at hand"):
        page.reference(problem)


def truth_of(problem: Problem) -> artifacts.State:
    count = len(problem.grid)
    if problem.name == "classification":
        p = torch.linspace(0.1, 0.9, count)
        return artifacts.State({"mean": p, "sd": 0 * p}, {})
    draws = torch.linspace(-1, 1, count).expand(2, -1)
    return artifacts.State({"mean": draws[0], "sd": 0 * draws[0], "draws": draws}, {})


def test_divergences_of_classes_and_of_a_gaussian_equal_values_by_hand() -> None:
    problem = PROBLEMS["classification"]()
    half = Categorical(torch.full((1, len(problem.grid), 2), math.log(0.5)))
    p = np.linspace(0.1, 0.9, len(problem.grid))
    line = page.line(problem, truth_of(problem), half, 40, 1.0)
    assert line.divergence == pytest.approx(p * np.log(2 * p) + (1 - p) * np.log(2 * (1 - p)), abs=1e-6)
    problem = PROBLEMS["regression"]()
    variance = problem.target.spec(problem.data).noise_variance
    mean = torch.linspace(-1, 1, len(problem.grid))[None, :, None] + 0.3
    line = page.line(problem, truth_of(problem), Gaussian(mean, torch.full_like(mean, variance)), 40, 1.0)
    assert line.divergence == pytest.approx(np.full(len(problem.grid), 0.09 / (2 * variance)), rel=1e-5)


@problems
def test_the_page_has_a_line_for_each_row_and_the_picture_is_drawn(name: str, tmp_path, monkeypatch) -> None:
    problem = PROBLEMS[name]()
    truth, count = page.reference(problem), len(problem.grid)
    monkeypatch.setattr(page, "OUT", tmp_path)
    one = page.Line(np.linspace(0, 1, count), np.zeros(count), np.ones(count), 40, 2.0)
    measured = dict.fromkeys(ROWS[name], one)
    text = page.page(problem, truth, measured)
    assert all(f"| {row} | " in text for row in ROWS[name]) and text.count("| 40 | 2 |") == len(ROWS[name])
    page.draw(problem, truth, {"SGLD": one})  # two panels: the reference's and a row's
    assert (tmp_path / f"{name}.png").stat().st_size > 10_000


def test_the_students_page_has_the_mean_over_seeds_and_its_standard_error(monkeypatch) -> None:
    problem = PROBLEMS["regression"]()
    truth, ones = page.reference(problem), np.ones(len(problem.grid))
    fitted = lambda _, __, seed, names: {name: page.Line((1 + seed) * ones, ones, ones, 40, 2.0) for name in names}  # noqa: E731
    monkeypatch.setattr(page, "lines", fitted)
    text = page.students(problem, truth, 3)  # KL 1, 2, 3: an sd of 1 or an error of .5 (n seeds taken as 4) would fail
    assert "| student 1-10-2, online | 2.000 ± 0.577 | 2.000 ± 0.577 | 2.000 ± 0.577 |" in text
    assert text.count("\n| student ") == 4 and "50 heads" not in text
