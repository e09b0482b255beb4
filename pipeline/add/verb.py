"""A file of one's own into a comparison: ``python -m pipeline add data/diamonds.csv --target price``.

Or a folder of images: ``python -m pipeline add data/photos``. It is looked at, what was found is said, and a data set
with a run of each method is written as an overlay, ``params/data/<name>.yaml``, and merged into params.yaml. Nothing is
written where anything is wrong.
"""

import argparse
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from bdl_pipe.errors import DataError, UserError, brief, short

from ..core import params
from ..verbs import apply
from . import numbers
from .cost import estimate
from .look import Look, look
from .numbers import METHODS, Size, needed
from .pictures import Pictures, is_pictures
from .pictures import look as look_at_pictures

FOLDER: Final = Path("params/data")
SECTIONS: Final = {
    "sgd": "trajectories",
    "iterates": "trajectories",
    "sgld": "teachers",
    "vbpc": "coresets",
    "random_coreset": "coresets",
}
_SEEDS: Final = {"sgd": 3, "iterates": 1, "sgld": 3, "vbpc": 1, "random_coreset": 1}
_KINDS: Final = {
    "sgd": "trajectory",
    "iterates": "trajectory",
    "sgld": "teacher",
    "vbpc": "coreset",
    "random_coreset": "coreset",
}
_CATEGORIES: Final = 20
_SHOWN: Final = 8


def main(args: argparse.Namespace) -> int:
    """Look at ``args.path`` and add it.

    Raises:
        UserError: the file cannot be used, or the name is taken.
    """
    params.load()
    name = args.name or _slug(args.path)
    _require_free(name)
    _require_watched(args.path)
    found = _look(args)
    plain = size_of(found, args.calibration)
    chosen = _chosen(args.methods, plain)
    seconds = estimate(plain, chosen)
    pace = min(1.0, 60 * args.minutes / seconds)
    size = replace(plain, pace=pace)
    dataset = _table(found, args.log) if isinstance(found, Look) else _images(found)
    log = dataset["targets"] == "log"
    overlay = made(name, dataset, size, chosen, splits=args.splits, calibration=args.calibration)
    for line in told(name, found, size, chosen, log=log, seconds=seconds * pace):
        print(line)
    if args.dry_run:
        print("nothing was written (--dry-run)")
        return 0
    place = FOLDER / f"{name}.yaml"
    command = _command(args)
    apply.write(place, overlay, [f"{name}: {found.rows:,} rows of {args.path}", f"made by: {command}"])
    try:
        apply.apply(place)
    except UserError:
        place.unlink()
        raise
    print(f"written to {place} and merged into params.yaml; now: make repro")
    print(f"undone by: python -m pipeline remove {name}")
    return _tune(name, args.tune) if args.tune else 0


def _command(args: argparse.Namespace) -> str:
    """Write the command line that makes the same overlay again."""
    words = ["python", "-m", "pipeline", "add", str(args.path)]
    given = {key: value for key, value in vars(args).items() if key not in ("verb", "path", "dry_run", "tune")}
    if given.pop("log") is False:
        words.append("--no-log")
    elif args.log:
        words.append("--log")
    for key, value in given.items():
        if value not in (None, [], 0):
            values = [] if value is True else value if isinstance(value, list) else [value]
            words += [f"--{key.replace('_', '-')}", *map(str, values)]
    return shlex.join(words)


def _tune(name: str, samples: int) -> int:
    """Search every method on what was added, and merge what is found."""
    from ..search import tune

    return tune.tune(tune.ALL, dataset=name, samples=samples, apply=True)


def size_of(found: Look | Pictures, calibration: float = 0) -> Size:
    """Return what the numbers follow from."""
    if isinstance(found, Look):
        return Size(found.task, found.rows, found.width, calibration=calibration)
    fewest, tested = min(found.classes.values()), found.test_rows > 0
    width = math.prod(found.shape)
    return Size(
        "classification", found.rows, width, calibration=calibration, image=found.shape, fewest=fewest, tested=tested
    )


def told(
    name: str, found: Look | Pictures, size: Size, chosen: Sequence[str], *, log: bool, seconds: float
) -> list[str]:
    """Say what was found and what will run, a line each."""
    lines = _told_table(found, log) if isinstance(found, Look) else _told_images(found)
    if found.classes:
        shares = [f"{label} {count:,}" for label, count in found.classes.items()]
        lines.append(f"  {len(found.classes)} classes: {_listed(shares)}")
    splits = "1 split" if size.splits == 1 else f"{size.splits} splits"
    seen = f"{size.width} numbers a row" if size.image is None else "×".join(map(str, size.image)) + " pixels"
    lines.append(f"{name}: {len(chosen)} methods, {splits}; a network sees {seen}")
    lines.append(f"  about {_minutes(seconds)} with every method; fewer with --methods or --minutes")
    return lines


def _told_table(found: Look, log: bool) -> list[str]:
    kinds = {kind: [n for n, k in found.columns.items() if k == kind] for kind in ("number", "category", "date")}
    lines = [f"{found.path}: {found.rows:,} rows, {len(found.columns)} columns to predict {', '.join(found.targets)}"]
    lines += [f"  {kind}: {_listed(names)}" for kind, names in kinds.items() if names]
    if found.without_target:
        lines.append(f"  left out: {found.without_target:,} rows without a target")
    lines += [f"  left out: column {column}, {why}" for column, why in found.left_out.items()]
    lines += [f"  note: {remark}" for remark in found.remarks]
    if not found.classes:
        said = "their logarithms are fitted (skewed; --no-log fits them as they are)" if log else "fitted as they are"
        lines.append(f"  targets: {said}; densities are in their own units")
    return lines


def _told_images(found: Pictures) -> list[str]:
    channels, height, width = found.shape
    colour = "grey" if channels == 1 else "colour"
    tests = f" and {found.test_rows:,} test images" if found.test_rows else ""
    lines = [f"{found.path}: {found.rows:,} {colour} images of {height}×{width} pixels{tests}"]
    return lines + [f"  note: {remark}" for remark in found.remarks]


def _look(args: argparse.Namespace) -> Look | Pictures:
    """Look at a table or at images.

    Raises:
        UserError: it cannot be used, or an option does not fit it.
    """
    if is_pictures(args.path):
        given = {"--target": args.target, "--leave-out": args.leave_out, "--log": args.log, "--task": args.task}
        for option, value in given.items():
            if value:
                raise UserError(f"{option}: is for tables; the classes of {args.path} are its folders, or its y")
        return look_at_pictures(args.path, args.size, args.skip_broken)
    for option, value in {"--size": args.size, "--skip-broken": args.skip_broken}.items():
        if value:
            raise UserError(f"{option}: is for folders of images, not for {args.path}")
    if not args.target:
        raise UserError(f"--target: is missing; name the column of {args.path} that is predicted")
    return look(args.path, args.target, args.task, args.leave_out, _CATEGORIES)


def _table(found: Look, log: bool | None) -> dict[str, Any]:
    """Make what a data set of a table has of its own."""
    source: dict[str, Any] = {"name": "table", "path": str(found.path), "target": list(found.targets)}
    source |= {"task": found.task, "columns": dict(found.columns), "categories": _CATEGORIES}
    form = {key: value for key, value in vars(found.form).items() if value != getattr(type(found.form)(), key)}
    source |= {"csv": form} if form else {}
    source |= {"skip_without_target": True} if found.without_target else {}
    scaling = "standardise" if found.task == "regression" else "none"
    return {
        "source": source,
        "normalise": "robust",
        "targets": "log" if (found.log if log is None else log) else scaling,
    }


def _images(found: Pictures) -> dict[str, Any]:
    return {"source": found.source, "normalise": "train", "targets": "none"}


def made(
    name: str,
    own: Mapping[str, Any],
    size: Size,
    chosen: Sequence[str],
    *,
    splits: int | None = None,
    calibration: float = 0,
) -> dict[str, Any]:
    """Make the overlay: the data set, what its runs are made from, and a run of each method.

    Args:
        own: what the data set has of its own: ``source``, ``normalise`` and ``targets``.
    """
    dataset: dict[str, Any] = {
        **own,
        "whiten": False,
        "validation": 0.2 if size.rows < 50_000 else 0.1,
        "fit_rows": "train_and_validation",
        "splits": splits or size.splits,
        "ood": [],
        "corrupted_images": 0,
        "corruptions": "made",
        **({"calibration": calibration} if calibration else {}),
    }
    overlay: dict[str, Any] = {
        "datasets": {name: dataset},
        "trajectories": {},
        "teachers": {},
        "coresets": {},
        "runs": {},
    }
    for above in SECTIONS:
        if above in needed(chosen, size):
            overlay[SECTIONS[above]][f"{name}-{above}"] = _above(name, above, size)
    for method in chosen:
        entry = METHODS[method]
        source_of = f"{_KINDS[entry.above]}/{name}-{entry.above}" if entry.above else f"prepare/{name}"
        row = {"dataset": name, "method": method, "setting": "auto", "seeds": 1, "input": source_of}
        changes = entry.numbers(size)
        overlay["runs"][f"{name}-{method}"] = {**row, **({"override": changes} if changes else {})}
    return {section: rows for section, rows in overlay.items() if rows}


def _above(name: str, above: str, size: Size) -> dict[str, Any]:
    start = f"trajectory/{name}-sgd" if above == "iterates" and not size.small else f"prepare/{name}"
    made_by = getattr(numbers, above)(size)
    method = "sgd" if SECTIONS[above] == "trajectories" else above
    return {"dataset": name, "method": method, "seeds": _SEEDS[above], "input": start, "override": made_by}


def _chosen(asked: Sequence[str] | None, size: Size) -> list[str]:
    """List the methods of the comparison.

    Raises:
        UserError: one is unknown, or is not for this task or so many rows.
    """
    fitting = [name for name, entry in METHODS.items() if size.task in entry.tasks and entry.fits(size)]
    what = "rows" if size.image is None else "images"
    for name in asked or ():
        if name not in fitting:
            why = f"is not among the methods for {size.task} of {size.rows:,} {what}"
            raise UserError(f"--methods: {short(name)} {why} ({', '.join(fitting)})")
    return [name for name in fitting if not asked or name in asked]


def _slug(path: Path) -> str:
    """Make a key of params.yaml of a file's name."""
    slug = re.sub(r"[^A-Za-z0-9_]+", "_", path.stem).strip("_").lower()
    return slug or "data"


def _require_free(name: str) -> None:
    raw: Mapping[str, Any] = params.read_yaml(Path("params.yaml"))
    if name in raw.get("datasets", {}):
        cure = f"choose another with --name, or first: python -m pipeline remove {name}"
        raise UserError(f"--name: params.yaml has a data set {short(name)} already; {cure}")
    if re.fullmatch(r"[A-Za-z0-9_-]+", name) is None:
        raise UserError(f"--name: must be of letters, digits, _ and - alone, got {short(name)}")


def _require_watched(path: Path) -> None:
    """Refuse what is not there, with the place where DVC would watch it."""
    if not path.exists():
        raise DataError(f"{path}: is missing")


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return brief(", ".join(names[:_SHOWN])) + more


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
