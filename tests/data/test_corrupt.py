"""Properties of every corruption: names, shapes, seeds, independence of the batch, grey images, severities."""

import numpy as np
import pytest

from bdl_pipe.data import corrupt as package
from bdl_pipe.data.corrupt import NAMES, corrupt
from bdl_pipe.errors import ConfigError, DataError
from bdl_pipe.seeds import Seed
from tests.case_files import cases_of

from .pictures import pictures

cases = cases_of(__file__)

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
    assert len(set(NAMES)) == 19 and NAMES[15:] == ("speckle_noise", "gaussian_blur", "spatter", "saturate")
    assert corrupt(np.zeros((0, 1, 28, 28), np.uint8), "snow", 3, Seed(0)).shape == (0, 1, 28, 28), "an empty batch"


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
        corrupted = corrupt(images, name, severity, Seed(0))
        assert (corrupted.shape, corrupted.dtype) == (images.shape, np.uint8)
    if min(shape[1:]) > 8:  # on 8×8 pixels a blur is a quarter as wide and changes less than a grey level
        assert (corrupted != images).any()


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


@cases("refused", "dtype shape name severity message")
def test_unknown_names_and_severities_and_other_arrays_are_refused(
    dtype: str, shape: list[int], name: str, severity: int, message: str
) -> None:
    with pytest.raises((ConfigError, DataError), match=message):
        corrupt(np.zeros(shape, dtype), name, severity, Seed(0))
