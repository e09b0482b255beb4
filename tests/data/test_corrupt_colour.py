"""Brightness and saturation against the standard library's HSV; contrast against its formula."""

import colorsys

import numpy as np
import pytest

from bdl_pipe.data.corrupt import corrupt
from bdl_pipe.seeds import Seed

from .pictures import pictures

SEVERITIES = (1, 2, 3, 4, 5)


def with_grey_and_black() -> np.ndarray:
    images = pictures(2, 3)
    images[0, :, :4] = 90
    images[0, :, 4:6] = 0
    images[1, 1:, :4] = 0
    return images


def by_hsv(images: np.ndarray, saturation, value) -> np.ndarray:
    found = np.empty(images.shape)
    for i, image in enumerate(images):
        for row in range(image.shape[1]):
            for column in range(image.shape[2]):
                h, s, v = colorsys.rgb_to_hsv(*(image[:, row, column] / 255))
                found[i, :, row, column] = colorsys.hsv_to_rgb(h, saturation(s), value(v))
    return 255 * found


@pytest.mark.parametrize("severity", SEVERITIES)
def test_brightness_adds_to_the_value(severity: int) -> None:
    images, amount = with_grey_and_black(), (0.05, 0.1, 0.15, 0.2, 0.3)[severity - 1]
    expected = by_hsv(images, lambda s: s, lambda v: min(v + amount, 1))
    assert np.abs(corrupt(images, "brightness", severity, Seed(0)) - expected).max() < 0.51
    wrong = by_hsv(images, lambda s: s, lambda v: min(v + amount + 0.02, 1))
    assert np.abs(corrupt(images, "brightness", severity, Seed(0)) - wrong).max() > 2


@pytest.mark.parametrize("severity", SEVERITIES)
def test_saturate_multiplies_and_adds_to_the_saturation(severity: int) -> None:
    images = with_grey_and_black()
    times, plus = ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2))[severity - 1]
    expected = by_hsv(images, lambda s: min(s * times + plus, 1), lambda v: v)
    assert np.abs(corrupt(images, "saturate", severity, Seed(0)) - expected).max() < 0.51


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("severity", SEVERITIES)
def test_contrast_draws_each_channel_to_its_mean(channels: int, severity: int) -> None:
    images, share = pictures(3, channels, 28, 28), (0.75, 0.5, 0.4, 0.3, 0.15)[severity - 1]
    for image, found in zip(images, corrupt(images, "contrast", severity, Seed(0)), strict=True):
        for x, y in zip(image.astype(float), found, strict=True):
            assert np.abs(y - (share * x + (1 - share) * x.mean())).max() < 0.51


def test_grey_images_have_no_saturation_to_change_until_some_is_added() -> None:
    images = pictures(2, 1)
    for severity in (1, 2, 3):
        np.testing.assert_array_equal(corrupt(images, "saturate", severity, Seed(0)), images)
    for severity, added in ((4, 0.1), (5, 0.2)):
        expected = images * (0.299 + 0.701 * (1 - added))  # red of that saturation, by its luma
        assert np.abs(corrupt(images, "saturate", severity, Seed(0)) - expected).max() < 0.51
