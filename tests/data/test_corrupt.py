"""Properties of every corruption: names, shapes, seeds, independence of the batch, grey images, severities."""

import numpy as np
import pytest

from bdl_pipe.data import corrupt as package
from bdl_pipe.data.corrupt import NAMES, corrupt
from bdl_pipe.errors import ConfigError, DataError
from bdl_pipe.seeds import Seed

from .pictures import pictures

RANDOM = {
    *("gaussian_noise", "shot_noise", "impulse_noise", "speckle_noise", "glass_blur", "motion_blur"),
    *("snow", "frost", "fog", "elastic_transform", "spatter"),
}
# corruptions whose distance to the clean image grows with their strength
STEADY = (
    *("gaussian_noise", "shot_noise", "impulse_noise", "speckle_noise", "defocus_blur", "gaussian_blur", "zoom_blur"),
    *("fog", "brightness", "contrast", "pixelate", "jpeg_compression"),
)
GREY = sorted(set(NAMES) - {"gaussian_noise", "shot_noise", "impulse_noise", "speckle_noise", "jpeg_compression"})


def distance(images: np.ndarray, name: str, severity: int) -> float:
    return float(np.abs(corrupt(images, name, severity, Seed(0)).astype(int) - images).mean())


def test_the_names_are_fifteen_corruptions_and_four_extra_corruptions() -> None:
    assert len(set(NAMES)) == 19
    assert NAMES[15:] == ("speckle_noise", "gaussian_blur", "spatter", "saturate")


@pytest.mark.parametrize("name", NAMES)
def test_a_corrupted_image_does_not_depend_on_its_batch_or_on_chunks(name: str, monkeypatch) -> None:
    images = pictures(7, 3, 28, 28)
    before = images.copy()
    for severity in (1, 5):
        whole = corrupt(images, name, severity, Seed(5))
        np.testing.assert_array_equal(whole, corrupt(images, name, severity, Seed(5)))
        np.testing.assert_array_equal(whole[4:5], corrupt(images[4:5], name, severity, Seed(5), first=4))
        np.testing.assert_array_equal(whole[2:], corrupt(images[2:], name, severity, Seed(5), first=2))
        with monkeypatch.context() as patch:
            patch.setattr(package, "_CHUNK", 2 * 3 * 28 * 28)
            np.testing.assert_array_equal(whole, corrupt(images, name, severity, Seed(5)))
    np.testing.assert_array_equal(images, before)


@pytest.mark.parametrize("name", NAMES)
def test_random_corruptions_depend_on_the_seed_and_on_the_index_of_the_image(name: str) -> None:
    images = np.repeat(pictures(1, 3), 2, axis=0)
    first, second = corrupt(images, name, 5, Seed(0))
    other = corrupt(images, name, 5, Seed(1))[0]
    assert bool((first != second).any()) == bool((first != other).any()) == (name in RANDOM)


def test_severities_draw_independently() -> None:
    """Correlation of 3,072 residuals: |r|·√n < 5, false alarm 6e-7; one shared stream has r = 1."""
    images = np.full((1, 3, 32, 32), 128, np.uint8)
    residuals = [corrupt(images, "gaussian_noise", s, Seed(0)).astype(float).ravel() for s in (1, 2)]
    assert abs(np.corrcoef(*residuals)[0, 1]) * np.sqrt(images.size) < 5


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 17, 23), (3, 40, 31), (3, 64, 64)])
def test_corrupted_images_of_any_size_keep_their_shape(name: str, shape: tuple[int, int, int]) -> None:
    images = pictures(4, *shape)
    for severity in (1, 5):
        found = corrupt(images, name, severity, Seed(0))
        assert (found.shape, found.dtype) == (images.shape, np.uint8)
    if min(shape[1:]) > 8:  # on 8×8 pixels a blur is a quarter as wide and changes less than a grey level
        assert (found != images).any()


@pytest.mark.parametrize("name", GREY)
@pytest.mark.parametrize("severity", [1, 2, 3, 4, 5])
def test_a_grey_image_is_corrupted_as_an_image_of_three_equal_channels(name: str, severity: int) -> None:
    grey = pictures(5, 1, 28, 28)
    one = corrupt(grey, name, severity, Seed(0)).astype(float)
    three = corrupt(np.repeat(grey, 3, axis=1), name, severity, Seed(0)).astype(float)
    luma = np.einsum("nchw,c->nhw", three, [0.299, 0.587, 0.114])[:, None]
    assert np.abs(one - luma).max() <= 1.01  # each channel is rounded separately
    if name not in ("frost", "spatter", "saturate"):
        np.testing.assert_array_equal(three, np.broadcast_to(one, three.shape))


@pytest.mark.parametrize("name", STEADY)
@pytest.mark.parametrize("channels", [1, 3])
def test_distortion_grows_with_severity(name: str, channels: int) -> None:
    images = pictures(24, channels)
    distances = [distance(images, name, severity) for severity in (1, 2, 3, 4, 5)]
    assert all(np.diff(distances) > 0), distances


@pytest.mark.parametrize("name", ["motion_blur", "glass_blur", "snow", "frost"])
def test_the_last_severity_distorts_more_than_the_first(name: str) -> None:
    images = pictures(24, 3)
    assert distance(images, name, 5) > 1.2 * distance(images, name, 1)


def test_unknown_names_and_severities_are_refused() -> None:
    images = pictures(1, 1)
    with pytest.raises(ConfigError, match=r"^corruption must be one of gaussian_noise, .* got 'gausian_noise'$"):
        corrupt(images, "gausian_noise", 1, Seed(0))
    for severity in (0, 6, True):
        with pytest.raises(ConfigError, match=rf"^severity must be 1, 2, 3, 4 or 5, got {severity}$"):
            corrupt(images, "fog", severity, Seed(0))


@pytest.mark.parametrize(
    "images",
    [
        np.zeros((2, 3, 32, 32), np.float32),
        np.zeros((2, 2, 32, 32), np.uint8),
        np.zeros((2, 1, 7, 32), np.uint8),
        np.zeros((3, 32, 32), np.uint8),
    ],
)
def test_an_array_that_is_no_batch_of_images_is_refused(images: np.ndarray) -> None:
    with pytest.raises(DataError, match=r"uint8 \[image, 1 or 3, height >= 8, width >= 8\], got"):
        corrupt(images, "fog", 1, Seed(0))


def test_an_empty_batch_stays_empty() -> None:
    assert corrupt(np.zeros((0, 1, 28, 28), np.uint8), "snow", 3, Seed(0)).shape == (0, 1, 28, 28)
