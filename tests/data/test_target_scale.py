"""The choice between targets and their logarithms: left-out densities by refitting, and data whose scale is known."""

import numpy as np
import pytest
import torch
from scipy.stats import norm

from bdl_pipe.data import split_rows
from bdl_pipe.data.split_rows import left_out_density, logarithms_fit_better


def test_the_left_out_density_equals_fits_without_each_row() -> None:
    random = np.random.default_rng(0)
    rows, targets = random.normal(size=(12, 3)), random.normal(5, 2, size=(12, 2))
    ridge, errors = np.diag([1.0, 1.0, 1.0, 1e-8]), []
    phi = np.concatenate([rows, np.ones((12, 1))], axis=1)
    for i in range(12):
        rest = np.arange(12) != i
        weights = np.linalg.solve(phi[rest].T @ phi[rest] + ridge, phi[rest].T @ targets[rest])
        errors.append(targets[i] - phi[i] @ weights)
    spread = np.sqrt(np.mean(np.square(errors), axis=0))
    truth = np.mean(norm.logpdf(errors, scale=spread).sum(axis=1))
    assert left_out_density(rows, targets) == pytest.approx(truth, rel=1e-9)


@pytest.mark.parametrize("count", [300, 3_000])
def test_the_scale_on_which_the_targets_were_generated_is_chosen(count: int) -> None:
    """In 40 draws on each scale, the wrong scale is never chosen."""
    for seed in range(40):
        random = np.random.default_rng(seed)
        rows = random.normal(size=(count, 4))
        linear = (rows @ [1.0, -0.5, 0.2, 0.0])[:, None]
        noise = random.normal(size=(count, 1))
        assert logarithms_fit_better(torch.from_numpy, rows, np.exp(linear + 0.5 * noise))
        assert not logarithms_fit_better(torch.from_numpy, rows, 5 + linear + 0.5 * noise)


def test_many_rows_are_thinned_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_rows, "_ROWS", 100)
    seen = []
    monkeypatch.setattr(split_rows, "left_out_density", lambda rows, targets: seen.append(len(rows)) or 0.0)
    logarithms_fit_better(torch.from_numpy, np.zeros((1_000, 2)), np.full((1_000, 1), 2.0))
    assert seen == [100, 100]
