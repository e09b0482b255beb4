import numpy as np
import pytest
import torch

from bdl_pipe.data.normalise import PAPER, channel_moments, fit_transform
from bdl_pipe.errors import DataError

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (11, 3, 6, 5), dtype=np.uint8)
LABELS = np.arange(11, dtype=np.int64)


def test_channel_moments_against_numpy_in_float64() -> None:
    mean, std = channel_moments(IMAGES)
    values = IMAGES.astype(np.float64) / 255
    np.testing.assert_allclose(mean, values.mean(axis=(0, 2, 3)), rtol=1e-13)
    np.testing.assert_allclose(std, values.std(axis=(0, 2, 3)), rtol=1e-12)


def test_training_constants_standardise_images() -> None:
    t = fit_transform(IMAGES, LABELS, kind="image", normalise="train", whiten=False, source="x")
    out = t.inputs(IMAGES)
    torch.testing.assert_close(out.mean(dim=(0, 2, 3)), torch.zeros(3), atol=1e-6, rtol=0)
    torch.testing.assert_close(out.std(dim=(0, 2, 3), correction=0), torch.ones(3), atol=1e-6, rtol=0)


def test_table_columns_targets_and_a_constant_column() -> None:
    x, y = RNG.normal(3, 5, (50, 3)), RNG.normal(-7, 2, (50, 2))
    x[:, 1] = 4.0
    t = fit_transform(x, y, kind="table", normalise="train", whiten=False, source="x")
    assert t.inputs(x)[:, 1].abs().max() == 0
    torch.testing.assert_close(t.targets(y).mean(dim=0), torch.zeros(2), atol=1e-6, rtol=0)
    torch.testing.assert_close(t.targets(y).std(dim=0, correction=0), torch.ones(2), atol=1e-6, rtol=0)


def test_no_normalisation() -> None:
    x, y = RNG.normal(3, 5, (9, 2)), RNG.normal(-7, 2, (9, 1))
    t = fit_transform(x, y, kind="table", normalise="none", whiten=False, source="x", scaling="none")
    np.testing.assert_array_equal(t.inputs(x).numpy(), x.astype(np.float32))
    np.testing.assert_array_equal(t.targets(y).numpy(), y.astype(np.float32))


def test_targets_are_centred_by_these_rows_and_keep_their_unit() -> None:
    x, y = RNG.normal(3, 5, (50, 3)), RNG.normal(-7, 2, (50, 2))
    t = fit_transform(x, y, kind="table", normalise="none", whiten=False, source="x", scaling="centre")
    np.testing.assert_allclose(t.targets(y).numpy(), y - y.mean(axis=0), atol=1e-6)
    assert t.scale is not None and t.scale.tolist() == [1.0, 1.0]
    np.testing.assert_array_equal(t.inputs(x).numpy(), x.astype(np.float32))  # targets and inputs are two choices


def test_a_constant_target_can_be_centred() -> None:
    t = fit_transform(
        np.ones((9, 1)),
        np.full((9, 1), 4.0),
        kind="table",
        normalise="train",
        whiten=False,
        source="t",
        scaling="centre",
    )
    assert t.targets(np.array([[4.0], [5.0]])).tolist() == [[0.0], [1.0]]


def test_paper_constants_are_used_whatever_the_rows() -> None:
    t = fit_transform(IMAGES, LABELS, kind="image", normalise="paper", whiten=False, source="cifar10")
    assert t.mean.tolist() == [0.4914, 0.4822, 0.4465] and t.std.tolist() == [0.2470, 0.2435, 0.2616]
    assert all(len(m) == len(s) for m, s in PAPER.values())


def test_paper_constants_that_do_not_exist() -> None:
    with pytest.raises(DataError, match="npz: normalise must be train or none"):
        fit_transform(IMAGES, LABELS, kind="image", normalise="paper", whiten=False, source="npz")


def test_a_target_constant_among_the_training_rows() -> None:
    with pytest.raises(DataError, match=r"a\.csv: the target is constant in the training rows"):
        y = np.ones((9, 1))
        fit_transform(np.ones((9, 1)), y, kind="table", normalise="train", whiten=False, source="t", origin="a.csv")
