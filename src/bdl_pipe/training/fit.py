"""Fits of learners, one at a time or several as one batched model.

:func:`fit_epochs` fits a :class:`~bdl_pipe.training.learner.Learner` to each of several data sets of one shape. Several
learners (such as one for each split of a table) are trained as one batched model (``vmapped``), because a step of a
small network is mostly overhead. Each model keeps its own batches, noise, gradient norm and number of epochs, so its
weights equal the weights of a separate fit, up to rounding.

With early stopping, a first fit on the training rows alone is scored on the validation rows by the negative
log-likelihood; a second fit, on all rows, runs for the best-scored number of epochs (Harrison, Willes & Snoek 2023,
appendix G.2). If the learning rate has a schedule, the first fit is a series of fits of rising lengths up to half of
the epochs, each with the whole schedule and scored at its end (ours): in the middle of a schedule the rate is too high
for a fair score. If the score is still improving at half of the epochs, the second fit runs all of them. The noise
variance of regression may also be estimated (:meth:`Learner.estimated`; ours): on the validation rows at the best
epoch, or on training rows after the fit. Test rows are never used.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from .. import distributed
from ..artifacts import State, under
from ..config import read
from ..data.fitdata import FitData
from ..errors import require
from ..method import Inputs
from ..networks import NetworkConfig
from ..posterior import NetworkSpec
from ..progress import Phase, Report
from ..seeds import Seed
from .epochs import Build, EpochRun, Model, named
from .learner import FitResult, TrainingConfig, Weights
from .loop import run_steps
from .snapshots import SnapshotPolicy, snapshot

_LAST: Final = SnapshotPolicy()  # the last weights alone
_NONE: Final = SnapshotPolicy(0)
_FINAL: Final = "final"  # prefix of the phases that fit all rows


def fit_epochs(
    build: Build | Sequence[Build],
    data: Sequence[FitData],
    config: TrainingConfig,
    *,
    rngs: Sequence[Seed],
    report: Report,
    keep: SnapshotPolicy = _LAST,
) -> list[FitResult]:
    """Fit one learner to each of ``data``, which must all have the same shape and number of rows.

    Args:
        build: makes a new learner for a data set, given the seed address of its weights; or one function for each
            model.
        rngs: the seed address of each model.
        keep: the snapshots and moments to keep, and the number of epochs to run beyond the chosen one.

    Raises:
        Diverged: a loss became NaN or infinite.
    """
    members = range(len(data))
    models = list(zip([build] * len(data) if callable(build) else build, data, rngs, strict=True))
    searched = [(one, rows.search or rows, rng.fold("search")) for one, rows, rng in models]
    choosing = config.early_stopping is not None and all(len(rows.validation) > 0 for _, rows, _ in searched)
    epochs, held = [config.epochs] * len(data), list[dict[str, Tensor]]([{}] * len(data))
    if choosing:
        last = distributed.broadcast_from_rank0(report.load)
        if last is not None and last.config["phase"].startswith(_FINAL):
            epochs = last.tensors["chosen"].tolist()
            held = [under(f"held.{m}.", last.tensors) for m in members]
        elif config.optimiser.schedule == "constant":
            averaged = config.early_stopping is not None and config.early_stopping.averaged
            parts = replace(_NONE, parts_per_epoch=keep.parts_per_epoch) if averaged else _NONE
            search = EpochRun(searched, config, epochs, keep=parts, scored=True)
            run_steps(search, config.optimiser, search.steps, Phase(report, "search", 0, 2 * search.steps))
            epochs, held = search.best_epochs(), search.held
        else:
            epochs, held = _best_lengths(searched, config, report, last)
    carried = {"chosen": torch.tensor(epochs)} | named("held", held)
    epochs = [chosen + keep.extra_epochs for chosen in epochs]
    results = dict[int, FitResult]()
    # A schedule spans a fit, so that with one only models of equally many epochs are fitted together. After a kill,
    # the groups before the group of the last checkpoint are fitted again.
    constant = config.optimiser.schedule == "constant"
    lengths = sorted(set(epochs))
    for some in [list(members)] if constant else [[m for m in members if epochs[m] == length] for length in lengths]:
        run = EpochRun([models[m] for m in some], config, [epochs[m] for m in some], keep=keep, scored=False)
        done = run.steps if choosing else 0  # the fit for early stopping counts as much as the final fit
        name = _FINAL if len(some) == len(data) else f"{_FINAL}-{epochs[some[0]]}"
        run_steps(run, config.optimiser, run.steps, Phase(report, name, done, done + run.steps, carried))
        for i, m in enumerate(some):
            noise = run.training_noise(i) if config.noise == "training" else held[m]
            snapshots = [run.probe.with_estimated(past, noise) for past in run.snapshots[i]]
            results[m] = FitResult(snapshots, epochs[m], run.losses[i], run.moments[i])
    return [results[m] for m in members]


def _best_lengths(
    models: Sequence[Model], config: TrainingConfig, report: Report, last: State | None
) -> tuple[list[int], list[dict[str, Tensor]]]:
    """Fit each model at rising lengths until its score gets worse; return the best lengths and the held-out estimates.

    A model gets all epochs if its longest length has the best score (it keeps the estimates of that length), or if no
    score is finite.

    Args:
        last: the last checkpoint, if any.
    """
    assert config.early_stopping is not None
    every = config.early_stopping.lengths(config.epochs)
    names, count = [f"search-{length}" for length in every], len(models)
    best, chosen = torch.full((count,), torch.inf, dtype=torch.float64), torch.full((count,), config.epochs)
    rising, held = torch.ones(count, dtype=torch.bool), list[dict[str, Tensor]]([{}] * count)
    reached = "" if last is None else last.config["phase"]
    first = names.index(reached) if reached in names else 0
    if last is not None and first:
        best, chosen, rising = (last.tensors[f"tried.{name}"] for name in ("best", "chosen", "rising"))
        held = [under(f"tried.held.{m}.", last.tensors) for m in range(count)]
    for number, length in list(enumerate(every))[first:]:
        some = rising.nonzero().flatten().tolist()
        if not some:
            break
        carried = {"tried.best": best, "tried.chosen": chosen, "tried.rising": rising} | named("tried.held", held)
        run = EpochRun([models[m] for m in some], config, [length] * len(some), keep=_NONE, scored=True)
        done, total = (epochs * run.steps // length for epochs in (sum(every[:number]), sum(every) + config.epochs))
        run_steps(run, config.optimiser, run.steps, Phase(report, names[number], done, total, carried))
        best, chosen, rising = best.clone(), chosen.clone(), torch.zeros_like(rising)
        for i, m in enumerate(some):
            score, estimates = run.best(i)
            if score < best[m]:
                best[m], chosen[m], rising[m], held[m] = score, length, True, estimates
    return chosen.where(~rising, config.epochs).tolist(), held


def last_snapshot(inputs: Inputs, network: NetworkConfig, training: TrainingConfig, data: FitData) -> Weights | None:
    """Return the last snapshot of the trajectory in ``inputs``; None if there is no trajectory.

    If the head predicts means and log-variances, only the rows of the means are returned.

    Raises:
        ConfigError: the trajectory has another network; or early stopping is set, although the trajectory was trained
            on the validation rows.
    """
    trained = last_network(inputs, network, training, data, "training.early_stopping")
    if trained is None:
        return None
    spec, last = trained
    means = {name: last[name][: spec.outputs] for name in ("head.weight", "head.bias")}
    return last | means


def last_network(
    inputs: Inputs, network: NetworkConfig, training: TrainingConfig, data: FitData, key: str
) -> tuple[NetworkSpec, Weights] | None:
    """Return :func:`last_snapshot` with the whole head, and the network's spec.

    ``key`` is the config key of ``early_stopping``, for errors.

    Raises:
        ConfigError: see :func:`last_snapshot`.
    """
    if not inputs.get("trajectory"):
        return None
    (trajectory,) = inputs["trajectory"]
    spec = read(NetworkSpec, trajectory.config["spec"], "spec")
    require(spec.network == network, "network", f"must be the trajectory's ({spec.network})", network)
    rule = "must be null with a trajectory as input, which was trained on the validation rows"
    require(training.early_stopping is None, key, rule, training.early_stopping)
    assert (spec.input_shape, spec.outputs) == (data.input_shape, data.outputs), "one data set"
    return spec, snapshot(trajectory, -1)
