"""Searches of one method or of all on a data set: ``python -m pipeline tune all --dataset D --samples N``.

All are searched one after the other, with as many trials each: what others are made from first, then the posteriors.
With ``--apply`` each winner is merged before the next search begins, so that a posterior is searched on networks whose
numbers were found. A search that was stopped goes on with ``--resume``; those that were done stay done. With
``BDL_SEARCHES`` another machine goes on, too, from the params.yaml that the first one left.
"""

import argparse
import socket
from typing import Final

from bdl_pipe.config import nearest
from bdl_pipe.errors import UserError

from ..core import places
from ..core.load import load
from ..core.model import FIT_KINDS, Params
from ..core.settings import Settings
from ..core.storage import Place, opened
from ..tracking import provenance
from . import tune
from .branch import is_unfinished

ALL: Final = "all"


def main(args: argparse.Namespace) -> int:
    """Search one method, or every one that declares something to search.

    Raises:
        UserError: there is no such data set, none of its methods declares anything, or a search was stopped and
            ``--resume`` is not asked for, or the other way round.
    """
    if args.method != ALL:
        return tune.main(args)
    methods = searched(load(), args.dataset)
    if vars(args).get("run"):
        raise UserError("--run: is for the search of one method, not of all")
    settings = Settings.read()
    here = Place(None, str(places.STATE / "tune"))
    place = opened("BDL_SEARCHES", settings.searches) if settings.searches else here
    record = f"{ALL}-{args.dataset}.json"
    done = _begin(place, record, args.samples, args.resume)
    for number, method in enumerate(methods, start=1):
        if method in done:
            continue
        print(f"{method}: {number} of {len(methods)} searches on {args.dataset}")
        unfinished = is_unfinished(places.STATE / "tune" / f"{method}-{args.dataset}")
        resume = unfinished or (None if args.resume else False)  # what another machine left is known by its identity
        tune.main(argparse.Namespace(**{**vars(args), "method": method, "resume": resume}))
        done.append(method)
        _write(place, record, args.samples, done)
    place.remove(record)
    return 0


def searched(params: Params, dataset: str) -> list[str]:
    """List the methods of a data set's runs that declare something to search, what others are made from first.

    Raises:
        UserError: there is no such data set, or no such method.
    """
    if dataset not in params.datasets:
        raise UserError(f"{dataset}: is not a data set{nearest(dataset, params.datasets)}")
    wanted = {
        (r.kind, r.key) for run in params.of("student") if run.spec.dataset == dataset for r in params.lineage(run)
    }
    runs = [run for kind in FIT_KINDS for run in params.of(kind) if (run.kind, run.key) in wanted]
    methods = list(dict.fromkeys(run.method.name for run in runs if run.method.search))
    if not methods:
        raise UserError(f"{dataset}: no method of its runs declares anything to search")
    return methods


def _begin(place: Place, record: str, samples: int, resume: bool) -> list[str]:
    """Return the methods that have been searched."""
    where, found = f"{place.path}/{record}", place.read(record)
    if found is None:
        if resume:
            raise UserError(f"{where}: there is no unfinished search of all methods; leave out --resume")
        _write(place, record, samples, [])
        return []
    if not resume:
        raise UserError(f"{where}: holds unfinished searches; go on with --resume, or remove the file")
    if found["samples"] != samples:
        raise UserError(f"--samples: must be {found['samples']}, as in the searches that were done, got {samples}")
    is_elsewhere = found.get("host", socket.gethostname()) != socket.gethostname()
    if is_elsewhere and found["params"] != provenance.digest(load().raw):
        raise UserError(f"params.yaml: is not the one that the searches on {found['host']} left; copy it from there")
    return list(found["done"])


def _write(place: Place, record: str, samples: int, done: list[str]) -> None:
    about = {"samples": samples, "done": done, "host": socket.gethostname(), "params": provenance.digest(load().raw)}
    place.write(record, about)
