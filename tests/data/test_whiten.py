"""ZCA in float64, against a dense computation that shares no code with it."""

import numpy as np
import pytest
import torch

from bdl_pipe.data.normalise import channel_moments
from bdl_pipe.data.transform import Transform
from bdl_pipe.data.whiten import fit_zca, moments


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


def test_whitened_covariance_is_s_over_s_plus_ridge(fitted) -> None:
    _, _, _, flat, white = fitted
    covariance = np.cov(flat, rowvar=False, bias=True)
    _, singular, vectors = np.linalg.svd(covariance)  # not eigh, which the code under test uses
    ridge = 0.1 * np.trace(covariance) / len(covariance)
    expected = vectors.T @ np.diag(singular / (singular + ridge)) @ vectors
    whitened = (flat - white.centre.numpy()) @ white.matrix.numpy()
    np.testing.assert_allclose(np.cov(whitened, rowvar=False, bias=True), expected, atol=1e-10)
    no_ridge = vectors.T @ np.diag(np.ones_like(singular)) @ vectors
    assert np.abs(expected - no_ridge).max() > 0.1  # the test can tell a forgotten ridge


def test_inverse_undoes_the_transform_to_1e_9(fitted) -> None:
    _, _, _, flat, white = fitted
    assert white.matrix.dtype == white.inverse.dtype == white.centre.dtype == torch.float64
    identity = white.matrix @ white.inverse
    torch.testing.assert_close(identity, torch.eye(len(identity), dtype=torch.float64), atol=1e-9, rtol=0)
    back = (torch.from_numpy(flat) - white.centre) @ white.matrix @ white.inverse + white.centre
    torch.testing.assert_close(back, torch.from_numpy(flat), atol=1e-9, rtol=0)


def test_chunks_do_not_matter(fitted, monkeypatch: pytest.MonkeyPatch) -> None:
    images, mean, std, _, _ = fitted
    whole = moments(images, mean, std)
    monkeypatch.setattr("bdl_pipe.data.whiten._CHUNK", 37)
    for a, b in zip(whole, moments(images, mean, std), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)


def test_through_the_transform_and_its_state(fitted) -> None:
    images, mean, std, flat, white = fitted
    made = Transform("image", torch.from_numpy(mean), torch.from_numpy(std), white)
    transform = Transform.from_state(made.state())
    assert transform.whitening is not None and transform.whitening.matrix.dtype == torch.float64
    expected = ((torch.from_numpy(flat) - white.centre) @ white.matrix).reshape(images.shape)
    torch.testing.assert_close(transform.inputs(images), expected.float(), atol=2e-4, rtol=0)
    intensities = torch.from_numpy(images).double() / 255
    torch.testing.assert_close(transform.undo_inputs(transform.inputs(images)).double(), intensities, atol=1e-4, rtol=0)
