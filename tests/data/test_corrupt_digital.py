"""Digital corruptions, noise and weather against loops, Pillow, HSV, laws and flat pictures.

Every |z| < 5 is a false alarm in 6e-7 of runs.
"""

import colorsys
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from bdl_pipe.data.corrupt import corrupt, digital, filters, noise, weather
from bdl_pipe.data.corrupt.streams import Streams
from bdl_pipe.data.corrupt.strengths import STRENGTHS
from bdl_pipe.seeds import Seed

from .pictures import flat, pictures

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


ROUNDING = 1 / 12 / 255**2  # the variance that whole grey levels add


def residuals(name: str, severity: int, value: int, number: int = 32) -> np.ndarray:
    images = flat(number, 3, value)
    return (corrupt(images, name, severity, Seed(9)).astype(float) - value).ravel() / 255


def variance_z(values: np.ndarray, expected: float, excess: float = 0.0, rounding: float = ROUNDING) -> float:
    """How many standard errors the sample variance is from ``expected`` (``excess``: the law's kurtosis − 3)."""
    return (values.var() / (expected + rounding) - 1) / np.sqrt((2 + excess) / len(values))


SIGMAS = {"gaussian_noise": (0.04, 0.06, 0.08, 0.09, 0.10), "speckle_noise": (0.06, 0.1, 0.12, 0.16, 0.2)}


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize(("name", "value"), [("gaussian_noise", 128), ("speckle_noise", 64), ("speckle_noise", 128)])
def test_noise_has_the_deviations_of_cifar_10_c(name: str, value: int, severity: int) -> None:
    """Wrong: the deviations of ImageNet-C, a little more noise, and speckle noise that does not depend on the value."""
    sigma, scale = SIGMAS[name][severity - 1], value / 255 if name == "speckle_noise" else 1
    values = residuals(name, severity, value)
    assert abs(variance_z(values, (sigma * scale) ** 2)) < 5
    assert abs(variance_z(values, ((sigma + 0.005) * scale) ** 2)) > 5
    if name == "speckle_noise":
        assert abs(variance_z(values, sigma**2)) > 50
    else:
        assert abs(values.mean()) * np.sqrt(len(values)) / sigma < 5
        assert abs(variance_z(values, (0.08, 0.12, 0.18, 0.26, 0.38)[severity - 1] ** 2)) > 50


@pytest.mark.parametrize("photons", [500, 250, 100, 75, 50])
@pytest.mark.parametrize("level", [0.2, 0.5])
def test_shot_noise_has_the_variance_of_counted_photons(photons: int, level: float) -> None:
    """Var = x/c before rounding: c is the same at every brightness, which noise of constant variance cannot imitate."""
    images = np.full((32, 3, 32, 32), level, np.float32)
    noisy = noise.shot_noise(images, photons, Streams(Seed(9), range(32))).astype(float).ravel()
    assert abs(variance_z(noisy, level / photons, 1 / (level * photons), rounding=0)) < 5
    assert abs(noisy.mean() - level) / np.sqrt(level / photons / len(noisy)) < 5
    assert abs(variance_z(noisy, 0.3 / photons, rounding=0)) > 5
    np.testing.assert_allclose(noisy * photons, np.rint(noisy * photons), atol=1e-3)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_shot_noise_has_the_photon_counts_of_cifar_10_c(severity: int) -> None:
    """Grey levels of 1/255 hide some of the variance x/c: within 5 %, where the next severity differs by 25 %."""
    photons = (500, 250, 100, 75, 50)[severity - 1]
    assert residuals("shot_noise", severity, 128).var() == pytest.approx(128 / 255 / photons + ROUNDING, rel=0.05)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_impulse_noise_replaces_its_share_half_by_black_half_by_white(severity: int) -> None:
    values = residuals("impulse_noise", severity, 128)
    shares, total = (0.01, 0.02, 0.03, 0.05, 0.07), len(values)
    black, white = (values < -0.5).sum(), (values > 0.49).sum()
    assert (values == 0).sum() == total - black - white

    def z(count: int, share: float) -> float:
        return (count - total * share) / np.sqrt(total * share * (1 - share))

    for count in (black, white):
        assert abs(z(count, shares[severity - 1] / 2)) < 5
        assert abs(z(count, shares[severity - 1])) > 5  # wrong: the whole share for each


def test_black_stays_black_under_noise_that_scales_with_the_value() -> None:
    for name in ("shot_noise", "speckle_noise"):
        assert not residuals(name, 5, 0).any()


FOG = ((0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75))


def plasma_by_loops(noise: list[np.ndarray], decay: float) -> np.ndarray:
    """Diamond–square on a torus, one point at a time; ``noise``: per octave [3, side, side] in (−1, 1)."""
    size = 2 ** len(noise)
    z, step, amplitude = np.zeros((size, size)), size, 1.0
    for octave in noise:
        half = step // 2
        for i in range(0, size, step):
            for j in range(0, size, step):
                corners = [z[(i + a) % size, (j + b) % size] for a in (0, step) for b in (0, step)]
                z[i + half, j + half] = np.mean(corners) + amplitude * octave[0, i // step, j // step]
        for i in range(0, size, step):
            for j in range(0, size, step):
                for kind, (a, b) in enumerate(((i, j + half), (i + half, j)), start=1):
                    around = [(a + half, b), (a - half, b), (a, b + half), (a, b - half)]
                    middle = np.mean([z[p % size, q % size] for p, q in around])
                    z[a, b] = middle + amplitude * octave[kind, i // step, j // step]
        step, amplitude = half, amplitude / decay**2
    z -= z.min()
    return z / z.max()


@pytest.mark.parametrize("decay", [1.75, 3.0])
def test_plasma_equals_the_diamond_square_algorithm_by_loops(decay: float) -> None:
    streams, again = Streams(Seed(3), range(2)), Streams(Seed(3), range(2))
    noise = [again.uniform(-1.0, 1.0, 3, side, side) for side in (1, 2, 4, 8)]
    for image, plasma in enumerate(weather.plasma_fractal(streams, 13, decay)):
        np.testing.assert_allclose(plasma, plasma_by_loops([n[image].astype(float) for n in noise], decay), atol=1e-5)


@pytest.mark.parametrize("severity", [1, 2, 3, 4, 5])
def test_fog_ranges_from_the_dimmed_picture_to_its_brightest_value(severity: int) -> None:
    """Where the plasma is 0 the picture is x·m/(m + t), where it is 1 it is (x + t)·m/(m + t)."""
    thickness = FOG[severity - 1][0]
    foggy = corrupt(flat(20, 1, 128), "fog", severity, Seed(0))
    share = (128 / 255) / (128 / 255 + thickness)
    assert np.abs(foggy.min((1, 2, 3)) - 128 * share).max() < 0.51
    assert np.abs(foggy.max((1, 2, 3)) - 128.0).max() < 0.51
    assert not corrupt(flat(1, 3, 0), "fog", severity, Seed(0)).any()


def test_frost_is_a_weighted_sum_of_the_picture_and_a_bluish_texture() -> None:
    for severity, (kept, weight) in enumerate(((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)), start=1):
        texture = corrupt(flat(6, 3, 0), "frost", severity, Seed(0)).astype(float)
        over = corrupt(flat(6, 3, 100), "frost", severity, Seed(0)).astype(float)
        assert np.abs(over - texture - 100 * kept).max() <= 1  # the texture does not depend on the picture below it
        peaks = texture.max((2, 3))
        assert np.abs(peaks - 255 * weight * np.array([0.85, 0.93, 1.0])).max() < 0.51
        assert 0.4 < texture[:, 2].mean() / (255 * weight) < 0.65


@pytest.mark.parametrize("severity", [1, 2, 3, 4, 5])
def test_snow_only_brightens_and_is_symmetric_under_a_half_turn(severity: int) -> None:
    kept = (0.95, 0.9, 0.9, 0.85, 0.8)[severity - 1]
    images = pictures(12, 3)
    assert (corrupt(images, "snow", severity, Seed(0)).astype(int) >= images).all()
    night = corrupt(flat(12, 3, 0), "snow", severity, Seed(0))
    np.testing.assert_array_equal(night, night[..., ::-1, ::-1])
    least = 255 * (1 - kept) / 2  # the paler picture where no flake falls
    assert night.min() >= np.floor(least)
    assert severity == 5 or night.min() <= np.ceil(least)


@pytest.mark.parametrize("severity", [1, 2, 3])
def test_water_adds_pale_turquoise_light(severity: int) -> None:
    images = flat(60, 3, 60)
    added = corrupt(images, "spatter", severity, Seed(0)).astype(float) - 60
    assert added.min() >= 0
    wet = added[:, 1] > 20
    assert wet.any()
    np.testing.assert_allclose(added[:, 0][wet] / added[:, 1][wet], 175 / 238, atol=0.04)
    np.testing.assert_array_equal(added[:, 1], added[:, 2])
    assert added[:, 1].max() <= 0.5 * 238 + 1  # strength a half


@pytest.mark.parametrize("severity", [4, 5])
def test_mud_covers_some_pixels_with_brown_and_keeps_the_others(severity: int) -> None:
    images = flat(60, 3, 200)
    spattered = corrupt(images, "spatter", severity, Seed(0)).astype(float)
    cover = (200 - spattered) / (200 - np.array([63, 42, 20])[:, None, None])  # the mask, from each channel
    assert np.abs(cover - cover[:, :1]).max() < 0.01
    assert ((cover[:, 0] == 0) | (cover[:, 0] > 0.79)).all()
    assert 0.001 < (cover[:, 0] > 0).mean() < 0.2


def test_water_grows_with_severity_and_the_share_of_mud_does_not_depend_on_size() -> None:
    def share(severity: int, size: int) -> float:
        images = flat(60, 3, 60, size)
        return float((corrupt(images, "spatter", severity, Seed(0)) != images).mean())

    assert share(1, 32) < share(2, 32) < share(3, 32)
    assert share(5, 64) == pytest.approx(share(5, 32), rel=0.25)


def test_histogram_equalisation_equals_a_hand_computation() -> None:
    """Four pixels 0, 0, 1, 3: half at the lowest; of the other two, one at or below 1, both at or below 3."""
    equalised = weather._equalised(np.array([[[0, 0], [1, 3]], [[7, 7], [7, 7]]], np.uint8))
    np.testing.assert_array_equal(equalised[0], [[0, 0], [128, 255]])
    np.testing.assert_array_equal(equalised[1], 0)  # an image of one level becomes 0
