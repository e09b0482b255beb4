"""Answers to several threads at once equal the answers alone, by each way to ask: conformance has every posterior."""

import pickle
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from mlflow.pyfunc.model import PythonModelContext
from sklearn.exceptions import ConvergenceWarning
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bdl_pipe import BayesianRegressor, bayesianise
from bdl_pipe.errors import without_warnings
from bdl_pipe.programs import trace
from bdl_pipe.seeds import Seed, own_settings
from bdl_pipe.served_artifact import FittedPosterior
from tests.case_files import sections_of
from tests.threads import at_once

X = np.random.default_rng(0).normal(size=(120, 2)).astype(np.float32)
Y = X[:, 0] - X[:, 1] ** 2
ROWS = [X[start : start + 5] for start in range(0, 40, 5)]


@pytest.fixture(scope="module")
def fitted() -> BayesianRegressor:
    return BayesianRegressor("swag", pace=0.01, conformal="split", override={"draws": 4}).fit(X, Y)


@pytest.fixture(scope="module")
def posterior() -> Any:
    network = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
    loader = DataLoader(TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)[:, None]), batch_size=16)
    return bayesianise(network, "kfac_laplace", loader, config={"layers": "all", "predictive": "linearised"})


def asked(by: str, fitted: BayesianRegressor, posterior: Any, folder: Path) -> Callable[[np.ndarray], Any]:
    """Return the function that answers rows."""
    if by == "served":
        fitted.save(folder / "student")
        served = FittedPosterior()
        served.load_context(PythonModelContext({"student": str(folder / "student")}, {}))
        frames = lambda rows: pd.DataFrame(rows.astype(float), columns=["x0", "x1"])  # noqa: E731
        return lambda rows: served.predict(PythonModelContext({}, {}), frames(rows)).to_numpy(float)
    if by == "program":
        program = trace(fitted.fitted_.predictor(), torch.from_numpy(X[:9].astype(float)), rng=Seed(0)).traced.module()
        return lambda rows: torch.stack(program(torch.from_numpy(rows.astype(float)))).numpy()
    if by == "bayesianise":
        return lambda rows: posterior.predict(torch.from_numpy(rows)).mean.numpy()
    if by == "bayesianise, joint":
        targets = torch.zeros(1, 5, 1)
        return lambda rows: posterior.joint(torch.from_numpy(rows)[None]).log_prob(targets).numpy()
    if by == "joint":
        return lambda rows: fitted.joint(rows).log_prob(torch.zeros(1, 5, 1)).numpy()
    return lambda rows: np.asarray(getattr(fitted, by)(rows))


@pytest.mark.slow
@pytest.mark.parametrize(
    "by", ["predict", "predict_interval", "sample", "joint", "served", "program", "bayesianise", "bayesianise, joint"]
)
def test_answers_to_eight_threads_equal_the_answers_alone(
    by: str, fitted: BayesianRegressor, posterior: Any, tmp_path: Path
) -> None:
    answer = asked(by, fitted, posterior, tmp_path)
    alone = [answer(rows) for rows in ROWS]
    for number, answer_of in enumerate(at_once(answer, ROWS * 5)):
        np.testing.assert_array_equal(answer_of, alone[number % len(ROWS)], err_msg=f"answer {number}")


def test_a_copy_by_pickle_gives_the_same_answers(fitted: BayesianRegressor, posterior: Any) -> None:
    for model, rows in ((fitted, X), (posterior, torch.from_numpy(X))):
        copied = pickle.loads(pickle.dumps(model))
        np.testing.assert_array_equal(copied.predict_dist(rows).variance, model.predict_dist(rows).variance)


FITS, MODULES = (sections_of(__file__)[name] for name in ("fits", "modules"))
QUICK = ("vbll", "boosting", "module, swag")


def with_dropout() -> nn.Module:
    """Return a network of the user; all threads bayesianise this one."""
    return nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 1))


def fit_of(method: str, network: nn.Module, seed: int) -> dict[str, torch.Tensor]:
    """Fit a method to rows of an array or a loader, and return the posterior's tensors."""
    if method in MODULES:
        batches = zip(*(torch.from_numpy(values).split(8) for values in (X, Y[:, None])), strict=True)
        name, loader = method.removeprefix("module, "), list(batches)
        return dict(bayesianise(network, name, loader, random_state=seed, **MODULES[method]).state().tensors)
    model = BayesianRegressor(method, pace=0.01, random_state=seed, override=FITS[method]).fit(X, Y)
    return dict(model.fitted_.parts[0].posterior.tensors)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", [pytest.param(m, marks=[pytest.mark.soak] * (m not in QUICK)) for m in [*FITS, *MODULES]]
)
def test_fits_in_two_threads_have_the_bits_of_fits_one_after_another(method: str) -> None:
    network = with_dropout()
    one, other = (fit_of(method, network, seed) for seed in (0, 1))
    assert any(not torch.equal(value, other[name]) for name, value in one.items())
    fits = at_once(lambda seed: fit_of(method, network, seed), [0, 1, 0, 1], threads=2)
    for tensors, alone in zip(fits, [one, other] * 2, strict=True):
        assert tensors.keys() == alone.keys()
        assert all(torch.equal(tensors[name], value) for name, value in alone.items())


@pytest.mark.soak
def test_fits_of_all_these_methods_at_once_have_the_bits_of_fits_alone() -> None:
    network, asked = with_dropout(), [(method, seed) for method in [*FITS, *MODULES] for seed in (0, 1)]
    alone = [fit_of(method, network, seed) for method, seed in asked]
    fits = at_once(lambda each: fit_of(each[0], network, each[1]), asked)
    for (method, seed), tensors, meant in zip(asked, fits, alone, strict=True):
        assert all(torch.equal(tensors[name], value) for name, value in meant.items()), (method, seed)


def test_the_default_type_is_restored_after_the_last_of_overlapping_blocks() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        first, second = own_settings(1), own_settings(1)
        first.__enter__(), second.__enter__()
        first.__exit__(None, None, None)
        assert torch.get_default_dtype() == torch.float32, "the second block still computes"
        second.__exit__(None, None, None)
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_the_number_of_threads_is_restored_for_each_thread_and_for_new_threads() -> None:
    """OpenMP keeps a number for each thread; torch gives a new thread the number that any thread has set last."""
    number, seen = torch.get_num_threads(), dict[str, int]()
    threads_of = torch.get_num_threads
    try:
        with ThreadPoolExecutor(1) as other, ThreadPoolExecutor(1) as new, ThreadPoolExecutor(1) as later:
            other.submit(torch.set_num_threads, 2).result()
            assert other.submit(threads_of).result() == 2  # a thread that has asked keeps its number
            torch.set_num_threads(3)
            first, second, third = (own_settings(1) for _ in range(3))
            first.__enter__(), other.submit(second.__enter__).result(), new.submit(third.__enter__).result()
            seen |= {"inside": threads_of(), "other inside": other.submit(threads_of).result()}
            with own_settings(1):
                pass
            seen |= {"after a block in a block": threads_of()}
            first.__exit__(None, None, None)
            new.submit(third.__exit__, None, None, None).result()
            seen |= {"after": threads_of(), "new after": new.submit(threads_of).result()}
            seen |= {"other still inside": other.submit(threads_of).result()}
            other.submit(second.__exit__, None, None, None).result()
            seen |= {"other after": other.submit(threads_of).result(), "later": later.submit(threads_of).result()}
    finally:
        torch.set_num_threads(number)
    inside = dict.fromkeys(["inside", "other inside", "other still inside", "after a block in a block"], 1)
    assert seen == {**inside, "after": 3, "new after": 3, "other after": 2, "later": 3}


def test_one_thread_at_a_time_ignores_warnings_and_the_filters_are_restored() -> None:
    """Blocks of two threads that overlap would leave a filter: each restores the list that it found."""
    before, entered = list(warnings.filters), threading.Event()

    def other() -> None:
        with without_warnings(ConvergenceWarning):
            entered.set()

    with ThreadPoolExecutor(1) as threads:
        with without_warnings(ConvergenceWarning):
            waits = threads.submit(other)
            assert not entered.wait(0.1), "two threads are inside"
        waits.result(timeout=60)
    assert entered.is_set() and warnings.filters == before
