"""``python -m pipeline add data/diamonds.csv --target price``: add a user's file or folder of images to params.yaml.

The data are inspected and described. A data set with a run of each method that suits it is written as an overlay,
params/data/<name>.yaml, and merged into params.yaml. Nothing is written if anything is wrong.
"""

import dataclasses
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bdl_pipe import config, offers
from bdl_pipe.data.config import DatasetConfig
from bdl_pipe.data.inspect.images import inspect_images, is_images
from bdl_pipe.data.inspect.profile import Profile
from bdl_pipe.data.inspect.table import inspect_table
from bdl_pipe.data.raw import Task
from bdl_pipe.data.size import Size
from bdl_pipe.data.sources.table import SplitBy
from bdl_pipe.data.split_rows import TRAIN_SHARE
from bdl_pipe.data.tables.read import Decimal, Thousands
from bdl_pipe.data.units import most_splits
from bdl_pipe.errors import DataError, UserError, short
from bdl_pipe.method import Method
from bdl_pipe.metrics import written
from bdl_pipe.offers import Timing
from bdl_pipe.registry import METHODS
from bdl_pipe.seeds import Seed

from .core import overlays
from .core.load import load
from .core.model import SECTIONS
from .prepared.preparation import check_splits

FOLDER: Final = Path("params/data")  # ``add`` writes one overlay for each data set into this folder.


@dataclasses.dataclass(frozen=True)
class Request:
    """The options of ``add``, as ``python -m pipeline add --help`` describes them; None or empty means not given."""

    path: Path
    target: Sequence[str] = ()
    task: Task | None = None
    methods: Sequence[str] = ()
    leave_out: Sequence[str] = ()
    size: int | None = None
    skip_broken: bool = False
    splits: int | None = None
    minutes: int = 10
    log: bool | None = None
    name: str | None = None
    calibration: float | None = None
    decimal: Decimal | None = None
    thousands: Thousands | None = None
    split_by: str | None = None

    @property
    def command(self) -> str:
        """Return the command line that makes the same overlay again."""
        words = ["python", "-m", "pipeline", "add", str(self.path)]
        words += [] if self.log is None else ["--log" if self.log else "--no-log"]
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            is_set = value is not None if field.name == "calibration" else bool(value)
            if is_set and field.name not in ("path", "log"):
                values = [] if value is True else value if isinstance(value, list | tuple) else [value]
                words += [f"--{field.name.replace('_', '-')}", *map(str, values)]
        return shlex.join(words)


def add(request: Request, dry_run: bool) -> str:
    """Describe the data, add them to params.yaml unless it is a dry run, and return the data set's name.

    Raises:
        UserError: the data cannot be used, or the name is taken.
    """
    params = load()
    name = request.name or re.sub(r"[^A-Za-z0-9_]+", "_", request.path.stem).strip("_").lower() or "data"
    overlays.require_free(name, params.datasets)
    if re.fullmatch(r"[A-Za-z0-9_-]+", name) is None:
        raise UserError(f"--name: must have only letters, digits, _ and -, got {short(name)}")
    if not request.path.exists():
        raise DataError(f"{request.path}: is missing")
    profile = _inspect(request)
    size = profile.size().recalibrated() if request.calibration is None else profile.size(request.calibration)
    address = Seed(params.seed).fold("prepare", name)
    units = None if profile.raw.ordered else profile.raw.train.units
    # the size's number of splits, or fewer if the groups of rows cannot make as many different ones
    most = size.splits if units is None else most_splits(units, size.splits, 1 - TRAIN_SHARE, rng=address)
    splits = request.splits or most
    chosen, slow = _chosen(request.methods, size, params.method_names), list[Method]()
    if not request.methods:
        chosen, slow = offers.worthwhile(chosen, size, 60 * request.minutes, splits)
    timing = offers.timing(chosen, size, 60 * request.minutes, splits)
    overlay = overlay_of(name, profile.dataset(request.log), size, chosen, splits, timing.paces)
    entry = config.read(DatasetConfig, overlay["datasets"][name], f"datasets.{name}")
    check_splits(profile.raw, entry, f"datasets.{name}", address)
    print(
        "\n".join([*profile.describe(), *_plans(name, entry, size, chosen, timing), *_left_out(slow, request.minutes)])
    )
    if dry_run:
        print("nothing was written (--dry-run)")
        return name
    path = FOLDER / f"{name}.yaml"
    comments = [f"{name}: {profile.rows:,} rows of {request.path}", f"made by: {request.command}"]
    overlays.add(name, path, overlay, comments)
    print(f"Added to params.yaml (details: {path}). Next: `make repro`. To undo: `python -m pipeline remove {name}`.")
    return name


def _inspect(request: Request) -> Profile:
    """Inspect a table or images.

    Raises:
        UserError: the data cannot be used, or an option does not fit them.
    """
    path, images = request.path, is_images(request.path)
    rule = f"is for tables; leave it out, since the classes of {path} are its folders, or its y"
    of_tables = ("target", "leave_out", "log", "task", "decimal", "thousands", "split_by")
    for option in of_tables if images else ("size", "skip_broken"):
        if getattr(request, option):
            why = rule if images else f"is for folders of images; leave it out for {path}"
            raise UserError(f"--{option.replace('_', '-')}: {why}")
    if images:
        return inspect_images(path, request.size, request.skip_broken)
    if not request.target:
        raise UserError(f"--target: is missing; name the column of {path} to predict")
    form = {"decimal": request.decimal, "thousands": request.thousands}
    by = _split_by(request.split_by)
    return inspect_table(path, request.target, request.task, request.leave_out, split_by=by, **form)  # type: ignore[arg-type]


def _split_by(text: str | None) -> SplitBy | None:
    """Read ``date:COLUMN`` or ``group:COLUMN``."""
    if text is None:
        return None
    kind, _, column = text.partition(":")
    if kind not in ("date", "group") or not column:
        raise UserError(f"--split-by: must be date:COLUMN or group:COLUMN, got {short(text)}")
    return SplitBy(**{kind: column})


def _chosen(names: Sequence[str], size: Size, usable: Collection[str]) -> list[Method]:
    """Return the methods to compare: the methods in ``names``, or all if ``names`` is empty.

    Args:
        usable: the methods that have a section in params.yaml, which a plugin's method may lack.

    Raises:
        UserError: a method is unknown, or is not offered for this task or this number of rows.
    """
    offered = {method.name: method for method in offers.offered(size) if method.name in usable}
    for name in names:
        if name not in offered:
            rows = f"{size.rows:,} {'rows' if size.image is None else 'images'}"
            others = f" ({', '.join(offered)})" if name in METHODS else config.nearest(name, offered)
            rule = f"is not among the methods for {size.task} of {rows}{others}"
            raise UserError(f"--methods: {short(name)} {rule}")
    return [method for name, method in offered.items() if not names or name in names]


def _plans(name: str, dataset: DatasetConfig, size: Size, chosen: Sequence[Method], timing: Timing) -> list[str]:
    """Describe how targets are fitted, and the methods, splits and time of the comparison."""
    lines = []
    if size.task == "regression":
        auto = "log-transformed or not, decided on each training split (force with --log / --no-log)"
        scale = {"auto": auto, "log": "log-transformed"}.get(dataset.targets, "not log-transformed")
        lines.append(f"  targets: {scale}. Scores stay in the original units.")
        if size.calibration:
            rows = f"{100 * size.calibration:.3g} % of the training rows are held out to recalibrate the intervals"
            lines.append(f"  calibration: {rows} (switch off with --calibration 0)")
    splits = "1 split" if dataset.splits == 1 else f"{dataset.splits} splits"
    inputs = f"{size.width} numbers a row" if size.image is None else "×".join(map(str, size.image)) + " pixels"
    methods = "1 method" if len(chosen) == 1 else f"{len(chosen)} methods"
    lines.append(f"{name}: {methods}, {splits}; a network sees {inputs}")
    slowed = [f"{key} {100 * pace:.0f} %" for key, pace in timing.paces.items() if pace < 1]
    lines.append(
        f"  about {written.seconds(round(timing.seconds, -1))} with every method; fewer with --methods or --minutes"
    )
    return [*lines, *([f"  steps cut to finish in time: {', '.join(slowed)}"] if slowed else [])]


def _left_out(methods: Sequence[Method], minutes: int) -> list[str]:
    """Return the line that names the methods without enough time."""
    if not methods:
        return []
    names, least = ", ".join(method.name for method in methods), f"{100 * offers.LEAST:.0f} %"
    in_time = f"in {minutes} minutes" if minutes > 1 else "in a minute"
    return [f"  left out: {names}; {in_time} they would run less than {least} of their steps (--minutes, --methods)"]


def overlay_of(
    name: str,
    own: dict[str, Any],
    size: Size,
    chosen: Sequence[Method],
    splits: int | None = None,
    paces: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Return the overlay: the data set, a run of each chosen method, and their upstream runs.

    Args:
        own: the keys of the data set's entry that depend on the data: ``source``, ``normalise`` and ``targets``.
        paces: see :class:`bdl_pipe.offers.Timing`.
    """
    dataset = size.dataset(own, splits)
    overlay: dict[str, Any] = {"datasets": {name: dataset}, **{section: {} for section in SECTIONS.values()}}
    upstream = offers.upstream(chosen, size)
    sizes = {key: dataclasses.replace(size, pace=pace) for key, pace in (paces or {}).items()}

    def artifact(key: str) -> str:
        """Return the artifact of an upstream run, or the prepared data if ``key`` is empty."""
        return f"{upstream[key][1].kind}/{name}-{key}" if key else f"prepare/{name}"

    for key, (method, above) in upstream.items():
        run = {"dataset": name, "method": method.name, "seeds": above.seeds, "input": artifact("")}
        overlay[SECTIONS[above.kind]][f"{name}-{key}"] = {**run, "override": above.override(sizes.get(key, size))}
    for method, default in offers.defaults(chosen):
        run = {"dataset": name, "method": method.name, "setting": "auto", "seeds": 1}
        run["input"] = artifact(default.upstream)
        override = default.override(sizes.get(default.upstream or method.name, size))
        overlay["runs"][f"{name}-{method.name}"] = {**run, **({"override": override} if override else {})}
    return {section: entries for section, entries in overlay.items() if entries}
