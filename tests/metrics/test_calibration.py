"""Calibration against torchmetrics, against hand-made bins and against labels drawn from the predictions."""

import numpy as np
import pytest
import torch
from torchmetrics.functional.classification import multiclass_calibration_error

from bdl_pipe import metrics
from bdl_pipe.predictive import Categorical
from bdl_pipe.seeds import Seed


def predictions(batch: int, sharpen: float = 1.0) -> tuple[Categorical, torch.Tensor]:
    """Labels are drawn from the unsharpened probabilities: calibrated at ``sharpen`` = 1."""
    random = Seed(3).generator()
    logits = 1.5 * torch.randn(batch, 5, generator=random, dtype=torch.float64)
    targets = torch.multinomial(logits.softmax(-1), 1, generator=random)[:, 0]
    return Categorical((sharpen * logits).log_softmax(-1)[None]), targets


@pytest.mark.parametrize("bins", [1, 10, 15])
def test_ece_is_torchmetrics(bins: int) -> None:
    predictive, targets = predictions(2000, sharpen=2.0)
    oracle = multiclass_calibration_error(predictive.mean, targets, num_classes=5, n_bins=bins, norm="l1")
    assert metrics.bins_of(predictive, targets, bins).ece() == pytest.approx(float(oracle), abs=1e-6)


def test_ece_sees_overconfidence_and_not_noise() -> None:
    """With n = 200,000 a calibrated ECE of 15 bins is about .002 by noise; sharpening makes ten times that."""
    calibrated, targets = predictions(200_000)
    sharpened, _ = predictions(200_000, sharpen=2.0)
    assert metrics.bins_of(calibrated, targets, 15).ece() < 0.01 < 0.05 < metrics.bins_of(sharpened, targets, 15).ece()


def test_bins_by_hand() -> None:
    probs = torch.tensor([[0.5, 0.5], [0.6, 0.4], [0.9, 0.1], [0.3, 0.7], [1.0, 0.0]], dtype=torch.float64)
    targets = torch.tensor([0, 1, 0, 1, 0])
    table = metrics.bins_of(Categorical(probs.log()[None]), targets, 2).table()  # (0, .5], (.5, 1]
    assert table["count"].tolist() == [1, 4]
    assert table["confidence"] == pytest.approx([0.5, (0.6 + 0.9 + 0.7 + 1.0) / 4])
    assert table["accuracy"] == pytest.approx([1.0, 0.75])
    assert (table["lower"].tolist(), table["upper"].tolist()) == ([0, 0.5], [0.5, 1])


def test_bins_of_parts_add_up_to_the_whole() -> None:
    predictive, targets = predictions(1000)
    parts = [
        metrics.bins_of(Categorical(predictive.draw_log_probs[:, rows]), targets[rows], 15)
        for rows in (slice(0, 10), slice(10, 600), slice(600, 1000))
    ]
    whole, merged = metrics.bins_of(predictive, targets, 15), parts[0] + parts[1] + parts[2]
    np.testing.assert_array_equal(merged.count, whole.count)
    assert merged.ece() == pytest.approx(whole.ece(), rel=1e-12)
