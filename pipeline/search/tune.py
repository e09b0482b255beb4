"""A search: ``python -m pipeline tune METHOD --dataset D --samples N``; Ray Tune, ASHA and Optuna.

Over ``Method.search``, by the negative log-likelihood of *validation* rows: every trial fits on the
training rows alone, and so does what the method is made from (a teacher of a final fit has seen
validation rows, so another one is made here, once). The numbers in force are the first sample, so
the winner is never worse than they are, on those rows. With ``--scheduler pbt`` the samples are a
population, whose numbers change on the way; the best one's last numbers are then fitted from the
start, and so are the numbers in force. The winner is written as an overlay on the rows that
were searched, ``params/tuned/<method>-<dataset>.yaml``; ``--apply`` merges it into params.yaml.

A data set's split 0 is searched. Where there are several splits, its validation rows are test rows
of others: a warning says so.
"""

import argparse
import dataclasses
import datetime
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bdl_pipe import config
from bdl_pipe.errors import UserError

from ..core import overlays, places
from ..core.load import load
from ..core.model import SECTIONS, Params
from ..core.settings import Settings
from ..tracking import provenance
from . import ray_tune, turn
from .branch import Branch, begin, branch_of, data_hash, finish, load_data, make_upstream, tracked
from .storage import shared
from .trial import DIVERGED, MILESTONES, nested, rounded

OVERLAYS: Final = Path("params/tuned")


@dataclass(frozen=True)
class Search(Branch):
    """A search: a branch, and the space of the numbers that are tried.

    Attributes:
        space: dotted key -> (low, high, scale).
        present: the numbers in force.
        scheduler: ``asha`` or ``pbt``.
    """

    samples: int
    scheduler: str
    space: Mapping[str, tuple[float, float, str]]
    present: Mapping[str, float]

    def identity(self, data: str) -> str:
        """Hash everything that a trial's score depends on."""
        return provenance.digest([*self.facts(), dict(self.space), self.samples, self.scheduler, data])


def main(args: argparse.Namespace) -> int:
    """Search, write the overlay, and with ``--apply`` merge it."""
    settings = Settings.read()
    params = load()
    scheduler = vars(args).get("scheduler") or ray_tune.ASHA
    if scheduler == ray_tune.PBT and vars(args).get("max_concurrent"):
        raise UserError("--max-concurrent: is not for pbt, whose samples all live until the end, and take turns")
    search = plan(params, args.method, args.dataset, args.samples, vars(args).get("run"), settings, scheduler)
    settings = settings.of("tune", search.method.name)
    data = load_data(search, params, settings)
    folder = places.STATE / "tune" / search.name
    identity = search.identity(data_hash(search))
    away = shared(settings, search.name, identity)
    at_once = vars(args).get("max_concurrent")
    with turn.taken(folder, away):
        begun = begin(folder, identity, search.name, args.resume, away)
        tags = {**search.tags, "stage": "tune", "seed": search.chain.seed}
        with ray_tune.ray_of(settings), tracked(f"tune {search.name}", tags, begun, folder, identity, away):
            upstream = make_upstream(search, data, params, settings)
            kept = ray_tune.Kept(folder, settings, away)
            scores = ray_tune.search(search, data, upstream, kept, at_once)
            population: Sequence[ray_tune.Score] = ()
            if scheduler == ray_tune.PBT:
                population, points = scores, finalists(search, scores)
                scores = ray_tune.search(search, data, upstream, kept.below("finals"), at_once, points)
        try:
            path = conclude(search, scores, population)
        finally:  # where all diverged, too: to go on would change nothing
            finish(folder, identity, away)
    if args.apply:
        for line in overlays.apply(path):
            print(f"params.yaml: {line}")
    else:
        print(f"python -m pipeline apply {path}   # to use it")
    return 0


def plan(
    params: Params,
    method: str,
    dataset: str,
    samples: int,
    key: str | None,
    settings: Settings,
    scheduler: str = ray_tune.ASHA,
) -> Search:
    """Find the runs that a search of ``method`` on ``dataset`` makes: of the run ``key``, or of the first it is in.

    Raises:
        UserError: there is no such method, data set or run, or nothing to search, or nothing for a population.
    """
    methods = {run.method.name: run.method for run in params.runs.values()}
    if dataset in params.datasets and method in methods and not methods[method].search:
        known = ", ".join(sorted(name for name, m in methods.items() if m.search))
        raise UserError(f"{method}: declares nothing to search (methods that do: {known or 'none'})")
    branch = branch_of(params, method, dataset, key, "tune", settings)
    space = branch.method.search
    searched = next(run for run in branch.chain.runs if run.method.name == method)
    if scheduler == ray_tune.PBT:
        if searched.stage.from_checkpoint is None:
            raise UserError(f"{method}: cannot be judged before its end, so a population learns nothing: asha")
        if samples < ray_tune.LEAST:
            raise UserError(
                f"--samples: must be >= {ray_tune.LEAST}, since a quarter goes on as another, got {samples}"
            )
    numbers = config.to_mapping(searched.config)
    present = {key: _at(numbers, key, int if scale == "integer" else float) for key, (*_, scale) in space.items()}
    fields = {f.name: getattr(branch, f.name) for f in dataclasses.fields(branch)}
    return Search(**fields, samples=samples, scheduler=scheduler, space=space, present=present)


def finalists(search: Search, population: Sequence[ray_tune.Score]) -> list[Mapping[str, float]]:
    """Return the numbers in force and the last ones of a population's best, each of which is fitted from the start.

    Raises:
        UserError: no sample was finished.
    """
    best = min(_finished(search, population), key=lambda s: s.nll)
    return [best.sampled, *([search.present] if ray_tune.is_inside(search) else [])]


def conclude(search: Search, scores: Sequence[ray_tune.Score], population: Sequence[ray_tune.Score] = ()) -> Path:
    """Write the winner's overlay, and say how it compares.

    Args:
        scores: of numbers that were the same from the start.
        population: of numbers that changed on the way, from which those of ``scores`` come.

    Raises:
        UserError: no sample was finished.
    """
    finished = _finished(search, scores)
    best = min(finished, key=lambda s: s.nll)
    winner = {key: rounded(value) for key, value in best.sampled.items()}
    today = datetime.datetime.now(datetime.UTC).date()
    comments = [
        f"python -m pipeline tune {search.method.name} --dataset {search.dataset} --samples {search.samples}"
        + (f" --scheduler {search.scheduler}" if population else ""),
        f"validation nll {best.nll:.5g}{_against(search, finished)}; {len(finished)} of {len(scores)} samples finished",
        f"run {search.run.key}, split 0, one seed a sample; commit {provenance.commit()}, {today}",
    ]
    if population:
        reached = min(s.nll for s in _finished(search, population))
        comments.append(f"a population of {len(population)}, whose numbers changed on the way, reached {reached:.5g}")
    path = OVERLAYS / f"{search.name}.yaml"
    overlays.write(path, overlay_of(search, winner), comments)
    print(f"{path}:", *comments[1:], *(f"{k} = {v:g}" for k, v in winner.items()), sep="\n  ")
    return path


def _finished(search: Search, scores: Sequence[ray_tune.Score]) -> list[ray_tune.Score]:
    finished = [s for s in scores if s.milestone == MILESTONES and s.nll < DIVERGED]
    if not finished:
        raise UserError(f"{search.name}: none of {len(scores)} samples gave a finite likelihood")
    return finished


def overlay_of(search: Search, winner: Mapping[str, float]) -> dict[str, Any]:
    """Write the searched runs' overrides: other runs and data sets keep their numbers."""
    overlay: dict[str, Any] = {}
    for run in search.chain.runs:
        if run.method.name == search.method.name:
            overlay.setdefault(SECTIONS[run.kind], {})[run.key] = {"override": nested(winner)}
    return overlay


def _against(search: Search, finished: Sequence[ray_tune.Score]) -> str:
    present = [s.nll for s in finished if ray_tune.same(s.sampled, search.present)]
    return f" (present numbers: {present[0]:.5g})" if present else ""


def _at(mapping: Mapping[str, Any], dotted: str, kind: type[float]) -> float:
    value: Any = mapping
    for key in dotted.split("."):
        value = value[key]
    return math.nan if value is None else kind(value)  # null lies in no range
