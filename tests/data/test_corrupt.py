"""Properties of every corruption: names, shapes, seeds, batches, grey images, severities; blurs against dense sums."""

import numpy as np
import pytest

from bdl_pipe.data import corrupt as package
from bdl_pipe.data.corrupt import NAMES, blur, corrupt, filters
from bdl_pipe.data.corrupt.streams import Streams
from bdl_pipe.errors import ConfigError, DataError
from bdl_pipe.seeds import Seed
from tests.case_files import cases_of

from .pictures import pictures

cases = cases_of(__file__)

RANDOM = {
    *("gaussian_noise", "shot_noise", "impulse_noise", "speckle_noise", "glass_blur", "motion_blur"),
    *("snow", "frost", "fog", "elastic_transform", "spatter"),
}
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
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 40, 31), (3, 64, 64)])
def test_corrupted_images_of_any_size_keep_their_shape(name: str, shape: tuple[int, int, int]) -> None:
    images = pictures(4, *shape)
    for severity in (1, 5):
        corrupted = corrupt(images, name, severity, Seed(0))
        assert (corrupted.shape, corrupted.dtype) == (images.shape, np.uint8)
    if min(shape[1:]) > 8:  # on 8×8 pixels a blur is a quarter as wide and changes less than a grey level
        assert (corrupted != images).any()


@pytest.mark.parametrize("name", GREY)
@pytest.mark.parametrize("severity", [1, 5])
def test_a_grey_image_is_corrupted_as_an_image_of_three_equal_channels(name: str, severity: int) -> None:
    grey = pictures(5, 1, 28, 28)
    one = corrupt(grey, name, severity, Seed(0)).astype(float)
    three = corrupt(np.repeat(grey, 3, axis=1), name, severity, Seed(0)).astype(float)
    luma = np.einsum("nchw,c->nhw", three, [0.299, 0.587, 0.114])[:, None]
    assert np.abs(one - luma).max() <= 1.01  # each channel is rounded separately
    if name not in ("frost", "spatter", "saturate"):
        np.testing.assert_array_equal(three, np.broadcast_to(one, three.shape))


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


def dense(image: np.ndarray, kernel: np.ndarray, mode: str) -> np.ndarray:
    """Σ_ij k_ij x[p + (i, j)] in float64, by loops."""
    reach = len(kernel) // 2
    padded = np.pad(image.astype(float), reach, mode=mode)  # type: ignore[call-overload]
    height, width = image.shape
    total = np.zeros((height, width))
    for i in range(len(kernel)):
        for j in range(len(kernel)):
            total += kernel[i, j] * padded[i : i + height, j : j + width]
    return total


def bell(sigma: float, reach: int) -> np.ndarray:
    line = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * sigma**2))
    return np.outer(line, line) / line.sum() ** 2


@pytest.mark.parametrize("size", [28, 32, 64])
@pytest.mark.parametrize(("severity", "sigma"), [(1, 0.4), (2, 0.6), (3, 0.7), (4, 0.8), (5, 1.0)])
def test_gaussian_blur_equals_a_dense_gaussian_sum(size: int, severity: int, sigma: float) -> None:
    image = pictures(1, 1, size, size)
    scaled = sigma * size / 32
    expected = dense(image[0, 0], bell(scaled, int(4 * scaled + 0.5)), "edge")
    blurred = corrupt(image, "gaussian_blur", severity, Seed(0))[0, 0]
    assert np.abs(blurred - expected).max() < 0.51
    wrong = dense(image[0, 0], bell(1.3 * scaled, 8), "edge")
    assert np.abs(blurred - wrong).max() > 3


def impulse(severity: int) -> np.ndarray:
    image = np.zeros((1, 1, 32, 32), np.uint8)
    image[0, 0, 16, 16] = 255
    return corrupt(image, "defocus_blur", severity, Seed(0))[0, 0].astype(int)


def test_defocus_blur_spreads_a_point_over_a_disc() -> None:
    cross = np.zeros((5, 5), int)
    cross[2, 1:4] = cross[1:4, 2] = 51  # radius 1: five pixels of 255/5
    np.testing.assert_array_equal(impulse(4)[14:19, 14:19], cross)
    assert impulse(4).sum() == 255
    square = np.zeros((5, 5), int)
    square[1:4, 1:4] = 28  # radius 1.5: nine pixels of 255/9 = 28.3
    np.testing.assert_array_equal(impulse(5)[14:19, 14:19], square)
    for severity, sigma in ((1, 0.4), (2, 0.5), (3, 0.6)):  # radius below 1: one pixel, smoothed over 3×3
        weights = np.exp(-np.array([1, 0, 1]) / (2 * sigma**2))
        square = np.rint(255 * np.outer(weights, weights) / weights.sum() ** 2)
        np.testing.assert_array_equal(impulse(severity)[15:18, 15:18], square.astype(int))


def test_defocus_blur_of_a_picture_equals_a_dense_sum() -> None:
    image = pictures(1, 1)
    expected = dense(image[0, 0], blur.disc(1.5, 0.1), "reflect")
    assert np.abs(corrupt(image, "defocus_blur", 5, Seed(0))[0, 0] - expected).max() < 0.51


def test_a_kernel_for_larger_images_keeps_its_sum_and_widens_in_proportion() -> None:
    kernel = blur.disc(1.5, 0.1)
    np.testing.assert_allclose(blur.resized(kernel, 1.0), kernel, atol=1e-12)

    def spread(k: np.ndarray) -> float:
        offsets = np.arange(len(k)) - len(k) // 2
        return float((k.sum(1) * offsets**2).sum())

    tripled = blur.resized(kernel, 3.0)
    assert spread(tripled) == pytest.approx(9 * (spread(kernel) + 1 / 12) - 1 / 12)  # a pixel's variance is 1/12
    for scale in (0.875, 2.0, 7.0):
        assert blur.resized(kernel, scale).sum() == pytest.approx(1)


def test_motion_blur_is_a_one_sided_gaussian_along_its_direction() -> None:
    image = np.zeros((3, 1, 41, 41), np.float32)
    image[:, :, 20, 20] = 1
    blurred = filters.motion(image, 6.0, 2.0, np.array([0.0, 90.0, 30.0]))[:, 0]
    weights = np.exp(-(np.arange(13) ** 2) / 8)
    weights /= weights.sum()
    np.testing.assert_allclose(blurred[0, 20, 20:7:-1], weights, atol=1e-5)
    np.testing.assert_allclose(blurred[1, 20:7:-1, 20], weights, atol=1e-5)
    rows, columns = np.mgrid[:41, :41] - 20
    mean = (weights * np.arange(13)).sum()
    assert -(blurred[2] * rows).sum() == pytest.approx(mean * np.sin(np.pi / 6), abs=0.3)  # taps land on whole pixels
    assert -(blurred[2] * columns).sum() == pytest.approx(mean * np.cos(np.pi / 6), abs=0.3)
    np.testing.assert_allclose(blurred.sum((1, 2)), 1, atol=1e-5)


@pytest.mark.parametrize(("severity", "sigma"), [(1, 1.0), (2, 1.5), (3, 2.0), (4, 2.0), (5, 2.5)])
def test_motion_blur_moves_light_by_the_mean_of_its_kernel_near_the_horizontal(severity: int, sigma: float) -> None:
    image = np.zeros((200, 1, 32, 32), np.uint8)
    image[:, :, 16, 16] = 255
    blurred = corrupt(image, "motion_blur", severity, Seed(0))[:, 0].astype(float) / 255
    rows, columns = np.mgrid[:32, :32] - 16
    up, leftward = -(blurred * rows).sum((1, 2)), -(blurred * columns).sum((1, 2))
    taps = np.arange(13)
    weights = np.exp(-(taps**2) / (2 * sigma**2))
    # taps land on whole pixels: tap i lands within half a pixel of i, and nearer in the mean over directions
    assert np.hypot(up, leftward).mean() == pytest.approx((weights * taps).sum() / weights.sum(), rel=0.15)
    angle = np.rad2deg(np.arctan2(up, leftward))
    assert np.abs(angle).max() < 50
    assert severity == 1 or angle.min() < -35 < 35 < angle.max()


@pytest.mark.parametrize(("severity", "zooms"), [(1, 7), (2, 12), (3, 16), (4, 21), (5, 26)])
def test_zoom_blur_flattens_a_slope_about_the_centre(severity: int, zooms: int) -> None:
    """Each zoom z turns a slope 1 into 1/z exactly, and leaves the centre where it was."""
    slope = np.linspace(0, 1, 33, dtype=np.float32)
    image = np.broadcast_to(slope, (1, 1, 33, 33)).copy()
    blurred = blur.zoom_blur(image, zooms, Streams(Seed(0), range(1)))[0, 0]
    factor = (1 + sum(1 / (1 + k / 100) for k in range(zooms))) / (zooms + 1)
    np.testing.assert_allclose(blurred, np.broadcast_to(0.5 + factor * (slope - 0.5), (33, 33)), atol=1e-5)
    largest = (1.06, 1.11, 1.15, 1.20, 1.25)[severity - 1]
    assert 1 + (zooms - 1) / 100 == pytest.approx(largest)
    levels = (255 * image).round().astype(np.uint8)
    assert np.abs(corrupt(levels, "zoom_blur", severity, Seed(0))[0, 0] - 255 * blurred).max() < 1.1


def test_glass_blur_draws_each_inner_pixel_from_a_block_of_four_pixels() -> None:
    """Severity 1, which does not smooth. The pixel and its neighbours above, left and above left: 1/4 each.

    |z| < 5 for each source (6e-7 each).
    """
    rows, columns = np.mgrid[:32, :32]
    image = np.stack([8 * rows, 8 * columns, 0 * rows]).astype(np.uint8)
    blurred = corrupt(np.repeat(image[None], 40, axis=0), "glass_blur", 1, Seed(0)).astype(int)
    down, right = blurred[:, 0] // 8 - rows, blurred[:, 1] // 8 - columns
    inner = np.s_[:, 2:, 2:]
    total = down[inner].size
    for shift in ((0, 0), (0, -1), (-1, 0), (-1, -1)):
        count = ((down[inner] == shift[0]) & (right[inner] == shift[1])).sum()
        assert abs(count - total / 4) / np.sqrt(total * 3 / 16) < 5
    assert not down[:, :2].any() and not right[:, :, :2].any()
    assert (blurred % 8 == 0).all()


def test_glass_blur_reaches_twice_as_far_after_two_rounds_or_at_twice_the_size() -> None:
    def reach(size: int, severity: int) -> int:
        rows = np.broadcast_to(np.arange(size, dtype=np.float32)[:, None] / size, (8, 1, size, size))
        strength = (0.0, 1, 2 if severity == 4 else 1)
        blurred = blur.glass_blur(rows.copy(), strength, Streams(Seed(0), range(8)))
        return round(float((rows - blurred).max() * size))

    assert (reach(32, 1), reach(32, 4), reach(64, 1)) == (1, 2, 2)
