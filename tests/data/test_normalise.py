"""Constants of training rows against NumPy, whitening by singular values, and the choice of logarithms by refitting."""

import numpy as np
import pytest
import torch
from scipy.stats import norm

from bdl_pipe.data import split_rows
from bdl_pipe.data.normalise import channel_moments, fit_zca, moments
from bdl_pipe.data.split_rows import left_out_densities, logarithms_fit_better
from bdl_pipe.data.transform import Transform
from bdl_pipe.errors import DataError
from tests.preparing import transform_of

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (11, 3, 6, 5), dtype=np.uint8)
LABELS = np.arange(11, dtype=np.int64)


def test_channel_moments_equal_numpy_in_float64() -> None:
    mean, std = channel_moments(IMAGES)
    values = IMAGES.astype(np.float64) / 255
    np.testing.assert_allclose(mean, values.mean(axis=(0, 2, 3)), rtol=1e-13)
    np.testing.assert_allclose(std, values.std(axis=(0, 2, 3)), rtol=1e-12)


def test_tables_are_standardised_centred_or_unchanged() -> None:
    """A constant column becomes zero; a constant target can be centred, and not standardised."""
    x, y = RNG.normal(3, 5, (50, 3)), RNG.normal(-7, 2, (50, 2))
    x[:, 1] = 4.0
    t = transform_of(x, y, normalise="train")
    assert t.inputs(x)[:, 1].abs().max() == 0
    torch.testing.assert_close(t.targets(y).mean(dim=0), torch.zeros(2), atol=1e-6, rtol=0)
    torch.testing.assert_close(t.targets(y).std(dim=0, correction=0), torch.ones(2), atol=1e-6, rtol=0)
    unchanged = transform_of(x, y, normalise="none", scaling="none")
    np.testing.assert_array_equal(unchanged.inputs(x).numpy(), x.astype(np.float32))
    np.testing.assert_array_equal(unchanged.targets(y).numpy(), y.astype(np.float32))
    constant = np.full((50, 1), 4.0)
    centred = transform_of(x, constant, normalise="train", scaling="centre")
    assert centred.targets(np.array([[4.0], [5.0]])).tolist() == [[0.0], [1.0]]
    with pytest.raises(DataError, match=r"a\.csv: the target is constant in the training rows"):
        transform_of(x, constant, normalise="train", origin="a.csv")


def correlated_images(rows: int, seed: int = 0) -> np.ndarray:
    """Smooth colour images: neighbouring pixels and channels correlate, as in photographs."""
    noise = np.random.default_rng(seed).normal(size=(rows, 3, 6, 6))
    smooth = noise + np.roll(noise, 1, 2) + np.roll(noise, 1, 3) + noise.mean(axis=1, keepdims=True)
    return np.clip(128 + 30 * smooth, 0, 255).astype(np.uint8)


@pytest.fixture(scope="module")
def fitted():
    images = correlated_images(400)
    mean, std = channel_moments(images)
    flat = ((images.astype(np.float64) / 255 - mean[:, None, None]) / std[:, None, None]).reshape(400, -1)
    return images, mean, std, flat, fit_zca(images, mean, std)


def test_the_whitened_covariance_is_s_over_s_plus_ridge(fitted) -> None:
    _, _, _, flat, white = fitted
    covariance = np.cov(flat, rowvar=False, bias=True)
    _, singular, vectors = np.linalg.svd(covariance)  # not by eigh, which the tested code uses
    ridge = 0.1 * np.trace(covariance) / len(covariance)
    expected = vectors.T @ np.diag(singular / (singular + ridge)) @ vectors
    whitened = (flat - white.centre.numpy()) @ white.matrix.numpy()
    np.testing.assert_allclose(np.cov(whitened, rowvar=False, bias=True), expected, atol=1e-10)
    no_ridge = vectors.T @ np.diag(np.ones_like(singular)) @ vectors
    assert np.abs(expected - no_ridge).max() > 0.1  # the control: a forgotten ridge would be seen


def test_the_inverse_undoes_whitening_to_1e_9(fitted) -> None:
    _, _, _, flat, white = fitted
    assert white.matrix.dtype == white.inverse.dtype == white.centre.dtype == torch.float64
    identity = white.matrix @ white.inverse
    torch.testing.assert_close(identity, torch.eye(len(identity), dtype=torch.float64), atol=1e-9, rtol=0)
    back = (torch.from_numpy(flat) - white.centre) @ white.matrix @ white.inverse + white.centre
    torch.testing.assert_close(back, torch.from_numpy(flat), atol=1e-9, rtol=0)


def test_moments_do_not_depend_on_the_size_of_chunks(fitted, monkeypatch: pytest.MonkeyPatch) -> None:
    images, mean, std, _, _ = fitted
    whole = moments(images, mean, std)
    monkeypatch.setattr("bdl_pipe.data.normalise._CHUNK", 37)
    for a, b in zip(whole, moments(images, mean, std), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)


def test_a_transform_restored_from_its_state_whitens_images_and_back(fitted) -> None:
    images, mean, std, flat, white = fitted
    whitening = Transform("image", torch.from_numpy(mean), torch.from_numpy(std), white)
    transform = Transform.from_state(whitening.state())
    assert transform.whitening is not None and transform.whitening.matrix.dtype == torch.float64
    expected = ((torch.from_numpy(flat) - white.centre) @ white.matrix).reshape(images.shape)
    torch.testing.assert_close(transform.inputs(images), expected.float(), atol=2e-4, rtol=0)
    intensities = torch.from_numpy(images).double() / 255
    back = transform.inverse_inputs(transform.inputs(images)).double()
    torch.testing.assert_close(back, intensities, atol=1e-4, rtol=0)


def test_the_left_out_densities_equal_fits_without_each_row() -> None:
    random = np.random.default_rng(0)
    rows, targets = random.normal(size=(12, 3)), random.normal(5, 2, size=(12, 2))
    ridge, errors = np.diag([1.0, 1.0, 1.0, 1e-8]), []
    phi = np.concatenate([rows, np.ones((12, 1))], axis=1)
    for i in range(12):
        rest = np.arange(12) != i
        weights = np.linalg.solve(phi[rest].T @ phi[rest] + ridge, phi[rest].T @ targets[rest])
        errors.append(targets[i] - phi[i] @ weights)
    spread = np.sqrt(np.mean(np.square(errors), axis=0))
    truth = norm.logpdf(errors, scale=spread).sum(axis=1)
    np.testing.assert_allclose(left_out_densities(rows, targets), truth, rtol=1e-9)


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


def test_logarithms_need_a_gain_above_its_error() -> None:
    """Values of 100 ± 1 are as good on either scale: of 300 draws t > 1 in 16 % at most, and the gain is > 0 in half.

    P(more than 75 of 300) with a share of .16 is 1e-5.
    """
    random = np.random.default_rng(0)
    chosen, gained = 0, 0
    for _ in range(300):
        rows = random.normal(size=(100, 2))
        values = 100 + random.normal(size=(100, 1))
        chosen += logarithms_fit_better(torch.from_numpy, rows, values)
        of_logs = left_out_densities(rows, np.log(values)) - np.log(values[:, 0])
        gained += of_logs.mean() > left_out_densities(rows, values).mean()
    assert chosen <= 75 < gained


def test_many_rows_are_thinned_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_rows, "_ROWS", 100)
    seen = []
    monkeypatch.setattr(split_rows, "left_out_densities", lambda rows, _: seen.append(len(rows)) or np.zeros(len(rows)))
    logarithms_fit_better(torch.from_numpy, np.zeros((1_000, 2)), np.full((1_000, 1), 2.0))
    assert seen == [100, 100]
