"""The stored predictions by draw, against posteriors whose draws are known."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.special
import scipy.stats
import torch

import bdl_pipe
from bdl_pipe import scores
from bdl_pipe.data.examples import Examples
from bdl_pipe.data.transform import Transform
from bdl_pipe.errors import DataError
from bdl_pipe.evaluation import EvaluateConfig, score_clean
from bdl_pipe.evaluation.gathered import MOST_DRAWS, MOST_ROWS
from bdl_pipe.metrics import stored
from bdl_pipe.posterior import Predictor
from bdl_pipe.seeds import Seed
from tests.test_docs import plugin_files
from tests.test_evaluation import PLAIN, Linear

SETTINGS = EvaluateConfig(calibration_bins=15, batch=64, joint_pairs=0)
ROWS, DRAWS = 700, 40
INPUTS = np.random.default_rng(0).normal(size=(ROWS, 2)).astype(np.float32)
WEIGHTS = torch.randn(DRAWS, 2, 3, generator=Seed(0).generator())
KEPT = np.linspace(0, DRAWS - 1, MOST_DRAWS).round().astype(int)


def table(folder: Path, weights: torch.Tensor, transform: Transform, targets: np.ndarray) -> stored.Stored:
    """Evaluate a posterior, store its tables as a stage stores them, and read them."""
    folder.mkdir(exist_ok=True)
    posterior = Linear(weights, gaussian=targets.ndim == 2)
    clean = score_clean(Predictor(posterior, transform), Examples(INPUTS, targets), SETTINGS, Seed(1))
    for name in clean.tables.keys() & {"predictions", "draws"}:
        pq.write_table(scores.of_fit(clean.tables[name], 2, 1), folder / f"{name}.parquet", use_dictionary=False)
    ((at, fit),) = stored.read(folder / "predictions.parquet")
    assert at == (2, 1)
    return fit


def test_classification_stores_the_log_probabilities_of_evenly_spaced_draws(tmp_path: Path) -> None:
    """Against a dense softmax in float64, within float16's half unit in the last place, 2^-11, and float32's errors."""
    fit = table(tmp_path, WEIGHTS, PLAIN, np.arange(ROWS) % 3)
    assert fit.draws is not None and fit.draws.log_probs.shape == (MOST_DRAWS, MOST_ROWS, 3)
    assert len({*fit.draws.rows.tolist()}) == MOST_ROWS and sorted(fit.draws.rows) == fit.draws.rows.tolist()
    outputs = np.einsum("bf,sfo->sbo", INPUTS.astype(np.float64), WEIGHTS.double().numpy()[KEPT])
    dense = scipy.special.log_softmax(outputs, axis=-1)[:, fit.draws.rows]
    np.testing.assert_allclose(fit.draws.log_probs, dense, rtol=2**-11, atol=1e-6)
    assert (fit.labels[fit.draws.rows] == fit.draws.rows % 3).all()
    others = table(tmp_path, WEIGHTS[:2], PLAIN, np.arange(ROWS) % 3).draws
    assert others is not None and (others.rows == fit.draws.rows).all() and len(others.log_probs) == 2


def test_regression_stores_the_log_density_of_each_draw_in_original_units(tmp_path: Path) -> None:
    wide = replace(PLAIN, shift=torch.tensor([3.0]), scale=torch.tensor([2.0]))
    targets = np.random.default_rng(1).normal(size=(ROWS, 1))
    fit = table(tmp_path, WEIGHTS[..., :1], wide, targets)
    assert fit.draws is not None and fit.draws.log_probs.shape == (MOST_DRAWS, MOST_ROWS)
    means = 3 + 2 * np.einsum("bf,sf->sb", INPUTS.astype(np.float64), WEIGHTS[..., 0].double().numpy()[KEPT])
    dense = scipy.stats.norm.logpdf(targets[:, 0], means, 2.0)[:, fit.draws.rows]
    np.testing.assert_allclose(fit.draws.log_probs, dense, rtol=1e-5)


def test_the_metric_of_the_docs_equals_the_gap_between_mixture_and_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against float64 over all draws of a posterior of 32 draws, on the stored rows."""
    added: dict[str, Any] = {}
    monkeypatch.setattr(bdl_pipe, "register_metric", lambda name, function, **_: added.update({name: function}))
    exec(plugin_files()["plugins/one_draw.py"], {})
    fit = table(tmp_path, WEIGHTS[:MOST_DRAWS], PLAIN, np.arange(ROWS) % 3)
    rows = np.asarray(fit.draws.rows)
    outputs = np.einsum("bf,sfo->sbo", INPUTS.astype(np.float64), WEIGHTS[:MOST_DRAWS].double().numpy())
    probs = scipy.special.softmax(outputs, axis=-1)[:, rows, rows % 3]
    gain = np.log(probs.mean(0)).mean() - np.log(probs).mean()
    assert added["gain_of_averaging"](fit) == pytest.approx(gain, rel=1e-3) and gain > 0.1
    alone = table(tmp_path / "alone", WEIGHTS[:1], PLAIN, np.arange(ROWS) % 3)
    assert added["gain_of_averaging"](alone) is None
    assert alone.draws is None and not (tmp_path / "alone/draws.parquet").exists()


def test_fits_of_one_run_may_have_different_numbers_of_draws(tmp_path: Path) -> None:
    parts = dict[str, list[pa.Table]]()
    for seed, draws in enumerate((3, 1, 5)):
        posterior, rows = Linear(WEIGHTS[:draws]), Examples(INPUTS, np.arange(ROWS) % 3)
        tables = score_clean(Predictor(posterior, PLAIN), rows, SETTINGS, Seed(1)).tables
        for name in tables.keys() & {"predictions", "draws"}:
            parts.setdefault(name, []).append(scores.of_fit(tables[name], 0, seed))
    for name, tables in parts.items():
        pq.write_table(pa.concat_tables(tables), tmp_path / f"{name}.parquet", use_dictionary=False)
    shapes = [fit.draws and fit.draws.log_probs.shape for _, fit in stored.read(tmp_path / "predictions.parquet")]
    assert shapes == [(3, MOST_ROWS, 3), None, (5, MOST_ROWS, 3)]


def test_a_file_of_draws_without_its_columns_is_refused(tmp_path: Path) -> None:
    table(tmp_path, WEIGHTS, PLAIN, np.arange(ROWS) % 3)
    pq.write_table(pa.table({"split": [2], "seed": [1], "row": [0]}), tmp_path / "draws.parquet")
    with pytest.raises(DataError, match=r"^predictions by draw must have the columns row and log_probs, got split"):
        list(stored.read(tmp_path / "predictions.parquet"))
