"""Augmentation and minibatches: they are reproducible, each operation does what its name says, rows have their law."""

import math

import pytest
import torch

from bdl_pipe.data.augment import OPERATIONS, AugmentConfig, augment
from bdl_pipe.data.fitdata import FitData, Minibatches, distinct, epoch_order, with_replacement
from bdl_pipe.errors import ConfigError
from bdl_pipe.seeds import Seed
from tests.case_files import cases_of

cases = cases_of(__file__)

STRENGTHS = {"flip": 0.5, "brightness": 0.25, "colour": 0.25, "crop": 1.25, "pad_crop": 4.0, "rotate": 15.0}
STRENGTHS |= {"translate": 0.125, "cutout": 0.25, "noise": 0.1}


def only(name: str, strength: float | None = None) -> AugmentConfig:
    return AugmentConfig("all", {name: STRENGTHS[name] if strength is None else strength})


def images(count: int = 8, side: int = 8, channels: int = 2) -> torch.Tensor:
    return torch.rand(count, channels, side, side, generator=Seed(5).generator(), dtype=torch.float64)


@pytest.mark.parametrize("name", STRENGTHS)
def test_equal_seeds_give_equal_images_and_gradients_equal_finite_differences(name: str) -> None:
    first, second, other = (augment(images(), only(name), Seed(0).fold(i)) for i in (1, 1, 2))
    assert torch.equal(first, second)
    assert not torch.equal(first, other) and not torch.equal(first, images())
    assert torch.autograd.gradcheck(lambda x: augment(x, only(name), Seed(3)), images(2, 4).requires_grad_())


def test_no_operations_or_zero_strengths_leave_the_images_unchanged() -> None:
    off = AugmentConfig("all", dict.fromkeys(STRENGTHS, 0.0))
    for config in (AugmentConfig("one"), AugmentConfig("all"), off):
        assert torch.equal(augment(images(), config, Seed(0)), images())


def test_the_choice_one_applies_a_single_operation_to_each_batch() -> None:
    config = AugmentConfig("one", {k: v for k, v in STRENGTHS.items() if k != "noise"})
    drawn = set()
    for seed in range(60):
        rng, augmented = Seed(seed), augment(images(), config, Seed(seed))
        matches = [name for name in OPERATIONS if torch.equal(augmented, augment(images(), only(name), rng))]
        assert len(matches) == 1
        drawn.add(matches[0])
    assert drawn == set(OPERATIONS)


def test_flip_mirrors_about_half_of_the_images() -> None:
    """512 fair coins: outside 256 ± 68 (six standard deviations) with probability 2e-9."""
    source = images(512, 4)
    augmented = augment(source, only("flip"), Seed(0))
    mirrored = (augmented == source.flip(-1)).flatten(1).all(1)
    assert ((augmented == source).flatten(1).all(1) ^ mirrored).all()
    assert abs(int(mirrored.sum()) - 256) < 68


def test_brightness_shifts_whole_images_within_its_range() -> None:
    shift = (augment(images(200), only("brightness"), Seed(0)) - images(200)).flatten(1)
    torch.testing.assert_close(shift, shift[:, :1].expand_as(shift))
    assert shift.abs().max() <= 0.25 and shift.abs().max() > 0.2


def test_rotation_by_90_degrees_is_a_quarter_turn() -> None:
    """A draw of ±r degrees scaled so that the first image turns by exactly 90."""
    probe = torch.rand(1, generator=Seed(0).fold("rotate").generator(), dtype=torch.float64)
    degrees = 90 / float(2 * probe - 1)
    augmented = augment(images(1), AugmentConfig("all", {"rotate": abs(degrees)}), Seed(0))
    source = images(1)
    turns = [source.rot90(k, (2, 3)) for k in (1, -1)]
    assert any(torch.allclose(augmented, turn, atol=1e-9) for turn in turns)


def test_translate_moves_a_dot_by_at_most_its_share() -> None:
    dot = torch.zeros(100, 1, 33, 33, dtype=torch.float64)
    dot[:, :, 16, 16] = 1
    augmented = augment(dot, only("translate"), Seed(0)).sum(1)
    mass, place = augmented.sum((1, 2)), torch.arange(33, dtype=torch.float64)
    rows, columns = (augmented.sum(2) @ place) / mass - 16, (augmented.sum(1) @ place) / mass - 16
    torch.testing.assert_close(mass, torch.ones(100).double())
    limit = 0.125 * 33
    for moved in (rows, columns):
        assert moved.abs().max() <= limit + 1e-9 and moved.abs().max() > 0.9 * limit


def test_crop_zooms_about_the_centre() -> None:
    """The second moment of a blob scales by zoom²; the drawn zooms fill [1/1.25, 1.25].

    Interpolation blurs the blob by up to a percent.
    """
    axis = torch.linspace(-1, 1, 65, dtype=torch.float64)
    blob = torch.exp(-50 * (axis[:, None] ** 2 + axis**2)).expand(200, 1, 65, 65)
    augmented = augment(blob, only("crop"), Seed(0))[:, 0]
    spread = lambda x: (x.sum(1) @ axis**2 / x.sum((1, 2))).sqrt()  # noqa: E731
    zoom = spread(augmented) / spread(blob[:, 0])
    assert 0.99 / 1.25 <= zoom.min() < 0.85 and 1.2 < zoom.max() <= 1.01 * 1.25


def windows(image: torch.Tensor, pad: int) -> torch.Tensor:
    """All (2·pad + 1)² windows of one zero-padded image [c, h, w], by plain slices."""
    channels, height, width = image.shape
    padded = image.new_zeros(channels, height + 2 * pad, width + 2 * pad)
    padded[:, pad : pad + height, pad : pad + width] = image
    places = [(i, j) for i in range(2 * pad + 1) for j in range(2 * pad + 1)]
    return torch.stack([padded[:, i : i + height, j : j + width] for i, j in places])


def test_pad_crop_cuts_every_window_with_equal_probability() -> None:
    """4,050 cuts in 81 places: chi² with 80 degrees of freedom exceeds 153 with probability 2e-6; seed fixed."""
    image = images(1, 8, 3)[0] + 0.1
    augmented = augment(image.expand(4050, -1, -1, -1), only("pad_crop"), Seed(0))
    equal = (augmented[:, None] == windows(image, 4)).flatten(2).all(2)  # [cut, place]
    assert (equal.sum(1) == 1).all()
    counts = equal.sum(0).double()
    chi2 = ((counts - 50).square() / 50).sum()
    assert 30 < chi2 < 153  # below 30 with probability 3e-8: too even to be random
    favoured = counts.clone()
    favoured[40] += 80  # the centre, as if a share of the images stayed in place
    assert ((favoured - favoured.mean()).square() / favoured.mean()).sum() > 153


def test_pad_crop_and_flip_give_windows_or_their_mirror_images() -> None:
    """As for residual networks: each of 500 images is one of its 81 windows or their mirror images, about half each."""
    source = images(500, 6, 3) + 0.1
    augmented = augment(source, AugmentConfig("all", {"flip": 0.5, "pad_crop": 4.0}), Seed(0))
    mirrored = 0
    for image, cut in zip(source, augmented, strict=True):
        plain, turned = ((windows(x, 4) == cut).flatten(1).all(1).any() for x in (image, image.flip(-1)))
        assert plain or turned
        mirrored += bool(turned and not plain)
    assert abs(mirrored - 250) < 68  # six standard deviations


def test_cutout_zeroes_at_most_the_area_of_its_square() -> None:
    augmented = augment(torch.ones(100, 1, 16, 16), only("cutout"), Seed(0))
    holes = (augmented == 0).sum((1, 2, 3))
    assert set(augmented.unique().tolist()) == {0.0, 1.0}
    assert holes.max() == 16 and holes.min() >= 1


def test_noise_has_the_given_standard_deviation() -> None:
    """200,000 draws: the relative error of their standard deviation is 0.0016; six of them is 0.0095."""
    noise = augment(torch.zeros(500, 1, 20, 20), only("noise"), Seed(0))
    assert float(noise.std()) == pytest.approx(0.1, rel=0.0095)
    assert math.isclose(float(noise.mean()), 0, abs_tol=6 * 0.1 / math.sqrt(200_000))


@cases("refused", "operations message")
def test_unknown_operations_and_strengths_out_of_range_are_refused(operations: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        AugmentConfig("all", operations)


Z = 5.0


def test_an_epoch_visits_each_row_once_in_an_order_of_its_own() -> None:
    orders = [epoch_order(12, epoch, Seed(0)) for epoch in range(3)]
    assert all(sorted(order.tolist()) == list(range(12)) for order in orders)
    assert not torch.equal(orders[0], orders[1]) and not torch.equal(epoch_order(12, 0, Seed(1)), orders[0])
    assert torch.equal(epoch_order(12, 2, Seed(0)), orders[2])


@pytest.mark.parametrize(("size", "count"), [(3, 3), (10, 10), (99, 10), (None, 10)])
def test_distinct_draws_repeat_no_row_and_take_at_most_all_rows(size: int | None, count: int) -> None:
    chosen = distinct(10, size, Seed(0).generator())
    assert len(set(chosen.tolist())) == len(chosen) == count


@pytest.mark.parametrize(("draw", "repeats"), [(distinct, False), (with_replacement, True)])
def test_each_row_is_drawn_with_the_same_probability(draw: object, repeats: bool) -> None:
    """8 rows, 20,000 draws of 4: a row is drawn 10,000 times; a law that never draws the last row would be seen."""
    rows, size, times = 8, 4, 20_000
    generator = Seed(0).generator()
    drawn = torch.stack([draw(rows, size, generator) for _ in range(times)])  # type: ignore[operator]
    counts = torch.bincount(drawn.flatten(), minlength=rows).double()
    expected = times * size / rows
    # the count of a row in one draw: once with probability 1/2, or binomial with 4 trials of 1/8
    variance = times * (0.25 if not repeats else size * (1 / 8) * (7 / 8))
    assert float((counts - expected).abs().max()) < Z * variance**0.5
    assert abs(times * size / (rows - 1) - expected) > 2 * Z * variance**0.5
    assert any(len(set(row.tolist())) < size for row in drawn) is repeats
    assert len(draw(5, 9, generator)) == 5, "at most as many rows as exist"


def test_minibatches_are_slices_of_the_order_of_their_epoch() -> None:
    batches = Minibatches(10, 3, Seed(4))
    assert batches.per_epoch == 3 and len(Minibatches(10, 99, Seed(4))(4)) == 10
    for epoch in range(2):
        order = epoch_order(10, epoch, Seed(4))
        for place in range(3):
            assert torch.equal(batches(3 * epoch + place), order[3 * place : 3 * place + 3])


def test_drawn_rows_are_training_rows_without_repetition(tiny: dict[str, FitData]) -> None:
    for data in tiny.values():
        inputs, targets = data.tensors("train")
        everything = {(x.numpy().tobytes(), y.numpy().tobytes()) for x, y in zip(inputs, targets, strict=True)}
        rows, theirs = data.drawn(5, Seed(0))
        drawn = {(x.numpy().tobytes(), y.numpy().tobytes()) for x, y in zip(rows, theirs, strict=True)}
        assert len(rows) == len(theirs) == len(drawn) == 5
        assert drawn <= everything
        again, _ = data.drawn(5, Seed(0))
        torch.testing.assert_close(again, rows, rtol=0, atol=0)
        other, _ = data.drawn(5, Seed(1))
        assert not torch.equal(other, rows)
        rows, _ = data.drawn(None, Seed(0))  # all rows once, in another order
        assert not torch.equal(rows, inputs)
        torch.testing.assert_close(rows.sort(0).values, inputs.sort(0).values, rtol=0, atol=0)
