"""``python -m pipeline study params/study/FAMILY-NAME.yaml``: metrics against hyperparameters, by Ray Tune.

The file has a grid; its points are all combinations of the grid's values. With a ``base`` they are the base and the
points that differ from it in one axis. An *axis* is one dotted key of the method's config, or several keys with ``+``
between that get the same value; a key without a section lies in the section of the first: ``weights.rows+cols``.

Each seed of each point is fitted on the training rows of split 0 and scored on its validation rows; test rows are not
read. The results are ``results/<family>/<name>.csv`` (every fit), ``.svg`` (the figure) and ``.md`` (the table, and
where it comes from). The data are prepared in a folder of the study, ``work/study/<family>-<name>``; DVC has no part
in it.
"""

import csv
import io
import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import matplotlib
from matplotlib.figure import Figure

from bdl_pipe import config
from bdl_pipe.config import nearest
from bdl_pipe.errors import ConfigError, UserError, require
from bdl_pipe.files import write_bytes
from bdl_pipe.scores import Estimate, estimate
from bdl_pipe.yaml_files import read_yaml

from ..core import places, provenance, records
from ..core.load import load, typed
from ..core.model import Params
from ..core.settings import Settings
from . import METRICS, branch_of, data_hash, opened
from .trial import SEED, Branch, Ended

RESULTS: Final = Path("results")
_FILE: Final = re.compile(r"([A-Za-z0-9_]+)-([A-Za-z0-9_-]+)")
_TOP: Final = "study"  # It stands for the file in the paths of its keys.
Scalar = bool | int | float | str | None
Point = Mapping[str, Scalar]  # axis -> value


@dataclass(frozen=True)
class Panel:
    """A column of the figure.

    Attributes:
        x: the axis from left to right.
        lines: the axis whose values are lines; null: one line.
        at: the value of every other axis; left out if the study has a base.
    """

    x: str
    lines: str | None = None
    at: dict[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True)
class StudyConfig:
    """A file of ``params/study``, checked.

    Attributes:
        method, dataset: as in params.yaml; hyperparameters of the first run of ``method`` vary.
        overlay: on params.yaml, as ``apply`` takes it.
        grid: axis -> its values.
        seeds: the number of fits of each point; they differ from the method's first run on.
        metrics: the metrics of the figure, from top to bottom.
        figure: its columns, from left to right.
        names: axis -> its name in the figure and the table.
        run: the run whose branch is studied; null: the first on the data set in which the method takes part.
        base: axis -> the one of its values from which the others depart; empty: every combination is tried.
    """

    method: str
    dataset: str
    overlay: dict[str, Any]
    grid: dict[str, tuple[Scalar, ...]]
    seeds: int
    metrics: tuple[str, ...]
    figure: tuple[Panel, ...]
    names: dict[str, str] = field(default_factory=dict)
    run: str | None = None
    base: dict[str, Scalar] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(self.seeds >= 1, "seeds", "must be >= 1", self.seeds)
        for name in ("grid", "metrics", "figure"):
            require(len(getattr(self, name)) > 0, name, "must not be empty")
        taken: list[str] = []
        for axis, values in self.grid.items():
            keys = keys_of(axis)
            require(all(keys) and SEED not in keys, f"grid.{axis}", f"must be keys with + between, none of them {SEED}")
            twice = next((key for key in keys if key in taken or keys.count(key) > 1), None)
            require(twice is None, f"grid.{axis}", "must not vary a key twice", twice)
            texts = {*map(written, values)}
            require(len(texts) == len(values) > 0, f"grid.{axis}", "must list values, none of them twice", values)
            taken += keys
        if self.base:
            self._check_chosen(self.base, list(self.grid), "base")
        known = f"must be an axis ({', '.join(self.grid)})"
        for axis in self.names:
            require(axis in self.grid, f"names.{axis}", known)
        for i, panel in enumerate(self.figure):
            for name, shown in (("x", panel.x), ("lines", panel.lines)):
                require(shown is None or shown in self.grid, f"figure[{i}].{name}", known, shown)
            require(panel.lines != panel.x, f"figure[{i}].lines", "must be another axis than x", panel.lines)
            if self.base:
                require(not (panel.lines or panel.at), f"figure[{i}]", "must have x alone: the base has the others")
            else:
                others = [axis for axis in self.grid if axis not in (panel.x, panel.lines)]
                self._check_chosen(panel.at, others, f"figure[{i}].at")

    def points(self) -> list[Point]:
        """List every point; the last axis varies fastest, or the base is first."""
        if not self.base:
            return [dict(zip(self.grid, values, strict=True)) for values in itertools.product(*self.grid.values())]
        base = {axis: self.base[axis] for axis in self.grid}
        around = [base | {axis: value} for axis, values in self.grid.items() for value in values]
        return [base, *(point for point in around if point != base)]

    def samples(self) -> list[dict[str, Any]]:
        """List what Ray Tune tries: each point with each seed, as dotted keys of the method's config."""
        return [{**values_of(point), SEED: seed} for point in self.points() for seed in range(self.seeds)]

    def title(self, axis: str) -> str:
        """Return an axis's name in the figure and the table."""
        return self.names.get(axis, axis)

    def _check_chosen(self, chosen: Point, axes: list[str], path: str) -> None:
        others = ", ".join(axes) or "no axis"
        require(sorted(chosen) == sorted(axes), path, f"must have a value of {others}", list(chosen))
        for axis, value in chosen.items():
            listed = ", ".join(map(written, self.grid[axis]))
            require(value in self.grid[axis], f"{path}.{axis}", f"must be one of {listed}", value)


@dataclass(frozen=True)
class Study:
    """A study.

    Attributes:
        config: the file at ``path``, ``<family>-<title>.yaml``.
        params: params.yaml with the file's overlay.
        metrics: the scores of every fit.
    """

    branch: Branch
    config: StudyConfig
    path: Path
    params: Params
    metrics: tuple[str, ...]


def study(file: Path, *, max_concurrent: int | None = None, resume: bool = False) -> int:
    """Fit every seed of every point, and write the results.

    Args:
        max_concurrent: the largest number of fits at once.
        resume: continue a study that was stopped.

    Raises:
        UserError: the file, params.yaml or the stopped study do not allow it.
    """
    settings = Settings.read()
    asked = plan(file, settings)
    name, samples = file.stem, asked.config.samples()
    with (
        places.rooted(places.WORK / "study" / name),
        opened(name, asked.branch, samples, asked.params, settings, resume) as session,
    ):
        from . import tuner

        fits = tuner.run(session, *tuner.points(samples, max_concurrent))
        files = write(asked, fits, facts(asked, fits, session.settings))
    for path in files:
        print(f"written: {path}")
    return 0


def plan(path: Path, settings: Settings) -> Study:
    """Read and check the file, params.yaml with its overlay, and every point of the grid.

    Raises:
        UserError: the first key that breaks its rule, with its path, the rule and the value.
    """
    if not _FILE.fullmatch(path.stem):
        raise UserError(f"{path}: must be called <family>-<name>.yaml; the results are called after it")
    base, file = load().raw, read_yaml(path)
    try:
        asked = config.read(StudyConfig, file, _TOP)
        params = typed(config.merge(base, asked.overlay))
        branch = branch_of(params, asked.method, asked.dataset, asked.run, settings, params.evaluate)
        task = params.datasets[asked.dataset].task
        for i, metric in enumerate(asked.metrics):
            rule = f"must be one of {task}{nearest(metric, METRICS[task])}"
            require(metric in METRICS[task], f"metrics[{i}]", rule, metric)
        for point in asked.points():
            branch.configs(values_of(point))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.path.removeprefix(f'{_TOP}.')}", error.rule, error.value) from None
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    return Study(branch, asked, path, params, METRICS[task])


def facts(study: Study, fits: Sequence[Ended], settings: Settings) -> dict[str, Any]:
    """Collect where the figures come from."""
    import torch

    return {
        "command": f"python -m pipeline study {study.path}",
        "params": f"{study.path} on params.yaml, sha256 {provenance.digest(study.params.raw)}",
        "seed": study.branch.seed,
        "commit": provenance.commit(),
        "data sha256": data_hash(study.branch)[:16],
        "device": records.device_name(settings.device),
        "threads of a trial": settings.threads,
        "torch": torch.__version__,
        "fits": len(fits),
        "seconds of trials": round(sum(fit.seconds for fit in fits), 1),
    }


def write(study: Study, fits: Sequence[Ended], about: Mapping[str, Any]) -> list[Path]:
    """Write the fits, then the figure, then the page that shows it: a page is never without its figure."""
    family, _, title = study.path.stem.partition("-")
    place = RESULTS / family / title
    place.parent.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*study.config.grid, SEED, *study.metrics, "seconds"])
    for point in study.config.points():
        for fit in of(fits, point):
            scores = [fit.scores.get(name, "") for name in study.metrics]
            writer.writerow([*map(written, point.values()), fit.sampled[SEED], *scores, f"{fit.seconds:.2f}"])
    files = {
        place.with_suffix(".csv"): text.getvalue().encode(),
        place.with_suffix(".svg"): draw(study, fits),
        place.with_suffix(".md"): page(title, study, fits, about).encode(),
    }
    for path, blob in files.items():
        write_bytes(path, blob)
    return list(files)


def page(title: str, study: Study, fits: Sequence[Ended], about: Mapping[str, Any]) -> str:
    """Return the figure, a table with a row for each point, and where they come from, as Markdown."""
    asked = study.config
    rows = [["Point", "fits", *study.metrics], ["---", *["---:"] * (1 + len(study.metrics))]]
    for point in asked.points():
        found = of(fits, point)
        changed = {axis: value for axis, value in point.items() if not asked.base or value != asked.base[axis]}
        label = ", ".join(f"{asked.title(axis)} {written(value)}" for axis, value in changed.items())
        count = f"{sum(bool(fit.scores) for fit in found)} of {len(found)}"
        rows.append([label or "base", count, *(_mean(mean_of(found, name)) for name in study.metrics)])
    what = "mean ± standard error over the seeds that did not diverge"
    return "\n".join(
        [
            f"# {title}: {asked.method} on {asked.dataset}\n",
            f"Scores of validation rows of split 0, which no fit has seen; {what}. Test rows were not read.\n",
            f"![{title}]({title}.svg)\n",
            *(f"| {' | '.join(row)} |" for row in rows),
            "\n| | |\n|---|---|",
            *(f"| {key} | {value} |" for key, value in about.items()),
            "",
        ]
    )


def draw(study: Study, fits: Sequence[Ended]) -> bytes:
    """Draw an SVG file: a row for each metric, a column for each panel, means with standard errors over seeds."""
    asked, blob = study.config, io.BytesIO()
    wide, high = len(asked.figure), len(asked.metrics)
    with matplotlib.rc_context({"svg.hashsalt": study.path.stem}):
        figure = Figure(figsize=(1 + 3 * wide, 1 + 2 * high), layout="constrained")
        grid = figure.subplots(high, wide, sharex="col", sharey="row", squeeze=False)
        for i, j in itertools.product(range(high), range(wide)):
            panel, axes = asked.figure[j], grid[i, j]
            for line in asked.grid[panel.lines] if panel.lines else (None,):
                at = {**asked.base, **panel.at, **({panel.lines: line} if panel.lines else {})}
                found = [of(fits, {**at, panel.x: value}) for value in asked.grid[panel.x]]
                means = [mean_of(several, asked.metrics[i]) for several in found]
                heights = [mean.mean if mean else math.nan for mean in means]
                errors = [mean.error or 0.0 if mean else math.nan for mean in means]
                axes.errorbar([*map(written, asked.grid[panel.x])], heights, errors, marker="o", label=written(line))
            grid[i, 0].set_ylabel(asked.metrics[i])
            grid[0, j].set_title(", ".join(f"{asked.title(axis)} = {written(v)}" for axis, v in panel.at.items()))
            grid[-1, j].set_xlabel(asked.title(panel.x))
            if panel.lines:
                axes.legend(title=asked.title(panel.lines))
        figure.savefig(blob, format="svg", metadata={"Date": None})
    return blob.getvalue()


def keys_of(axis: str) -> tuple[str, ...]:
    """Split an axis into its keys: ``weights.rows+cols`` -> (``weights.rows``, ``weights.cols``)."""
    first, *others = (part.strip() for part in axis.split("+"))
    section = first.rpartition(".")[0]
    return (first, *(f"{section}.{key}" if section and key and "." not in key else key for key in others))


def values_of(point: Point) -> dict[str, Scalar]:
    """Write a point as dotted keys of the method's config."""
    return {key: value for axis, value in point.items() for key in keys_of(axis)}


def written(value: Scalar) -> str:
    """Write a value as YAML does."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def of(fits: Iterable[Ended], point: Point) -> list[Ended]:
    """List the fits of a point, by seed."""
    values = values_of(point).items()
    same = [fit for fit in fits if values <= fit.sampled.items()]
    return sorted(same, key=lambda fit: int(fit.sampled[SEED]))


def mean_of(fits: Sequence[Ended], metric: str) -> Estimate | None:
    """Estimate the mean of a metric over the seeds whose score is finite."""
    scores = (fit.scores.get(metric, math.nan) for fit in fits)
    return estimate([score for score in scores if math.isfinite(score)])


def _mean(found: Estimate | None) -> str:
    """Write a mean with its standard error."""
    if found is None:
        return "—"
    return f"{found.mean:.4f}" + (f" ± {found.error:.4f}" if found.error is not None else "")
