"""Pixelation by loops, JPEG against Pillow, elastic maps on coordinates; brightness, saturation and contrast by HSV."""

import colorsys
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from bdl_pipe.data.corrupt import corrupt, digital, filters
from bdl_pipe.data.corrupt.streams import Streams
from bdl_pipe.data.corrupt.strengths import STRENGTHS
from bdl_pipe.seeds import Seed

from .pictures import pictures

ELASTIC = ((0.0, 0.0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03))


def box(image: np.ndarray, size: int) -> np.ndarray:
    """Each new pixel is the mean of the old pixels whose centres it covers, or the nearest one if it covers none."""
    scale = len(image) / size
    weights = np.zeros((size, len(image)))
    for i in range(size):
        offsets = (np.arange(len(image)) + 0.5 - (i + 0.5) * scale) / max(scale, 1)
        weights[i] = (offsets > -0.5) & (offsets <= 0.5)
    weights /= weights.sum(1, keepdims=True)
    return np.rint(weights @ image @ weights.T)


@pytest.mark.parametrize("size", [28, 32])
@pytest.mark.parametrize(("severity", "share"), [(1, 0.95), (2, 0.9), (3, 0.85), (4, 0.75), (5, 0.65)])
def test_pixelate_equals_a_box_filter_down_and_up(size: int, severity: int, share: float) -> None:
    images = pictures(2, 3, size, size)
    pixelated = corrupt(images, "pixelate", severity, Seed(0))
    for image, done in zip(images.reshape(6, size, size), pixelated.reshape(6, size, size), strict=True):
        assert np.abs(done - box(box(image.astype(float), int(size * share)), size)).max() <= 1


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("severity", "quality"), [(1, 80), (2, 65), (3, 58), (4, 50), (5, 40)])
def test_jpeg_compression_equals_pillow_at_the_quality_of_its_severity(
    channels: int, severity: int, quality: int
) -> None:
    image = pictures(1, channels)[0]
    file = BytesIO()
    picture = Image.fromarray(image[0], "L") if channels == 1 else Image.fromarray(np.moveaxis(image, 0, -1), "RGB")
    picture.save(file, format="JPEG", quality=quality)
    expected = np.asarray(Image.open(file)).reshape(32, 32, channels)
    compressed = corrupt(image[None], "jpeg_compression", severity, Seed(0))[0]
    np.testing.assert_array_equal(np.moveaxis(compressed, 0, -1), expected)


def displaced(strength: tuple[float, float, float], size: int, number: int = 40) -> np.ndarray:
    """Where each inner pixel of the result came from, in pixels, minus its own place: [image, 2, i, j].

    Two pictures of coordinates show it; bilinear interpolation is exact on them away from the mirrored edges.
    """
    rows, columns = np.mgrid[:size, :size].astype(np.float32)
    images = np.stack([rows, columns])[None].repeat(number, 0)
    warped = digital.elastic_transform(images, strength, Streams(Seed(2), range(number)))
    inner = np.s_[:, :, size // 4 : -size // 4, size // 4 : -size // 4]
    return (warped - images)[inner].astype(float)


def residual(field: np.ndarray) -> np.ndarray:
    """The part of each image's displacement that no affine map explains."""
    number, _, height, width = field.shape
    rows, columns = np.mgrid[:height, :width]
    design = np.stack([rows.ravel(), columns.ravel(), np.ones(height * width)], 1)
    flat = field.reshape(number * 2, -1).T
    return flat - design @ np.linalg.lstsq(design, flat, rcond=None)[0]


def test_the_first_severity_of_elastic_transform_is_an_affine_map() -> None:
    field = displaced(ELASTIC[0], 32)
    assert np.abs(residual(field)).max() < 1e-3
    assert 0.5 < np.abs(field).max() < 3 * 0.08 * 32
    assert np.abs(residual(displaced(ELASTIC[4], 32))).max() > 0.5  # not affine
    assert STRENGTHS["elastic_transform"] == ELASTIC


@pytest.mark.parametrize("size", [32, 64])
def test_elastic_displacements_have_the_deviation_of_smoothed_noise_at_each_size(size: int) -> None:
    """sd = α·√(1/3)·Σk² at 32, by a kernel summed here; 40 images' mean is within 5 % or so, allowed 15 %."""
    share, blur, _ = ELASTIC[4]
    line = np.exp(-(np.arange(-3, 4) ** 2) / (2 * (32 * blur) ** 2))
    line /= line.sum()
    expected = 32 * share * np.sqrt(1 / 3) * (line**2).sum() * size / 32
    deviation = residual(displaced((share, blur, 0.0), size)).std()
    assert deviation == pytest.approx(expected, rel=0.15)


def test_the_deviation_that_smoothing_keeps_is_the_sum_of_the_squares_of_its_weights() -> None:
    """Of white noise, a sum with weights w keeps √Σw²; the weights are a column's times a row's."""
    for sigma in (0.4, 1.0, 2.5):
        line = np.exp(-(np.arange(-int(4 * sigma + 0.5), int(4 * sigma + 0.5) + 1) ** 2) / (2 * sigma**2))
        assert filters.kept_deviation(sigma) == pytest.approx(((line / line.sum()) ** 2).sum(), rel=1e-9)
    assert filters.kept_deviation(0.0) == 1


def test_folded_positions_equal_the_pads_of_numpy() -> None:
    line, positions = np.array([5.0, 1, 7, 3]), np.arange(-3, 7)
    mirrored = line[filters.mirrored(positions, 4).astype(int)]
    np.testing.assert_array_equal(mirrored, np.pad(line, 3, mode="reflect"))
    reflected = line[filters.reflected(positions, 4).astype(int)]
    np.testing.assert_array_equal(reflected, np.pad(line, 3, mode="symmetric"))


SEVERITIES = (1, 2, 3, 4, 5)


def with_grey_and_black() -> np.ndarray:
    images = pictures(2, 3)
    images[0, :, :4] = 90
    images[0, :, 4:6] = 0
    images[1, 1:, :4] = 0
    return images


def by_hsv(images: np.ndarray, saturation, value) -> np.ndarray:
    warped = np.empty(images.shape)
    for i, image in enumerate(images):
        for row in range(image.shape[1]):
            for column in range(image.shape[2]):
                h, s, v = colorsys.rgb_to_hsv(*(image[:, row, column] / 255))
                warped[i, :, row, column] = colorsys.hsv_to_rgb(h, saturation(s), value(v))
    return 255 * warped


@pytest.mark.parametrize("severity", SEVERITIES)
def test_brightness_adds_to_the_hsv_value(severity: int) -> None:
    images, amount = with_grey_and_black(), (0.05, 0.1, 0.15, 0.2, 0.3)[severity - 1]
    expected = by_hsv(images, lambda s: s, lambda v: min(v + amount, 1))
    assert np.abs(corrupt(images, "brightness", severity, Seed(0)) - expected).max() < 0.51
    wrong = by_hsv(images, lambda s: s, lambda v: min(v + amount + 0.02, 1))
    assert np.abs(corrupt(images, "brightness", severity, Seed(0)) - wrong).max() > 2


@pytest.mark.parametrize("severity", SEVERITIES)
def test_saturate_multiplies_and_increases_the_hsv_saturation(severity: int) -> None:
    images = with_grey_and_black()
    times, plus = ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2))[severity - 1]
    expected = by_hsv(images, lambda s: min(s * times + plus, 1), lambda v: v)
    assert np.abs(corrupt(images, "saturate", severity, Seed(0)) - expected).max() < 0.51


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("severity", SEVERITIES)
def test_contrast_pulls_each_channel_towards_its_mean(channels: int, severity: int) -> None:
    images, share = pictures(3, channels, 28, 28), (0.75, 0.5, 0.4, 0.3, 0.15)[severity - 1]
    for image, corrupted in zip(images, corrupt(images, "contrast", severity, Seed(0)), strict=True):
        for x, y in zip(image.astype(float), corrupted, strict=True):
            assert np.abs(y - (share * x + (1 - share) * x.mean())).max() < 0.51


def test_saturate_changes_grey_images_only_where_it_adds_saturation() -> None:
    images = pictures(2, 1)
    for severity in (1, 2, 3):
        np.testing.assert_array_equal(corrupt(images, "saturate", severity, Seed(0)), images)
    for severity, added in ((4, 0.1), (5, 0.2)):
        expected = images * (0.299 + 0.701 * (1 - added))  # red of that saturation, by its luma
        assert np.abs(corrupt(images, "saturate", severity, Seed(0)) - expected).max() < 0.51
