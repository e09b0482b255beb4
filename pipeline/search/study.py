"""``python -m pipeline study params/study/FAMILY-NAME.yaml``: metrics against hyperparameters, by Ray Tune.

Each seed of each point of the grid is fitted on the training rows of split 0 and scored on its validation rows; test
rows are not read. The results are ``results/<family>/<name>.csv`` (every fit), ``.svg`` (the figure) and ``.md`` (the
table, and where it comes from). The data are prepared in a folder of the study, ``work/study/<family>-<name>``; DVC has
no part in it.
"""

import csv
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bdl_pipe import config
from bdl_pipe.config import nearest
from bdl_pipe.errors import ConfigError, UserError, require
from bdl_pipe.files import write_bytes
from bdl_pipe.method import Task

from ..core import places, records
from ..core.load import load, read_yaml, typed
from ..core.model import Params
from ..core.scores import Estimate, estimate
from ..core.settings import Settings
from ..tracking import provenance
from . import session
from .branch import Branch, branch_of, data_hash
from .grid import METRICS, Panel, Point, StudyConfig, values_of, written
from .trial import SEED, Ended

PARAMS: Final = Path("params.yaml")
RESULTS: Final = Path("results")
_FILE: Final = re.compile(r"([A-Za-z0-9_]+)-([A-Za-z0-9_-]+)")
_TOP: Final = "study"  # It stands for the file in the paths of its keys.
_SHARES: Final = ("accuracy", "ece", "coverage_90")  # These are written in per cent.
_STYLE: Final[Any] = {"font.size": 8.5, "axes.spines.top": False, "axes.spines.right": False, "svg.fonttype": "none"}
_MARKERS, _DASHES = "osD^vPX", ("-", "--", "-.", ":")


@dataclass(frozen=True)
class Study:
    """A study.

    Attributes:
        config: the file at ``path``, ``<family>-<title>.yaml``.
        params: params.yaml with the file's overlay.
    """

    branch: Branch
    config: StudyConfig
    path: Path
    params: Params

    @property
    def name(self) -> str:
        """Return ``<family>-<title>``."""
        return self.path.stem

    @property
    def task(self) -> Task:
        """Return the task of the data set."""
        return self.params.datasets[self.branch.dataset].task


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
    settings = settings.of("study", asked.branch.method.name)
    samples, scored = asked.config.samples(), [config.to_mapping(asked.params.evaluate), asked.config.samples()]
    with (
        places.rooted(places.WORK / "study" / asked.name),
        session.opened(asked.name, asked.branch, scored, asked.params, settings, resume) as (folder, parts),
    ):
        from . import tuner

        seen = tuner.Trials(asked.name, len(samples), asked.branch.tags(), METRICS[asked.task])
        parts["evaluate"] = asked.params.evaluate
        fits = tuner.run(seen, parts, *tuner.points(samples, max_concurrent), folder, settings)
        files = write(asked, fits, facts(asked, fits, settings))
        folder.finish()
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
    base, file = load(PARAMS).raw, read_yaml(path)
    try:
        asked = config.read(StudyConfig, file, _TOP)
        params = typed(config.merge(base, asked.overlay))
        branch = branch_of(params, asked.method, asked.dataset, asked.run, "study", settings)
        planned = Study(branch, asked, path, params)
        check(planned)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.path.removeprefix(f'{_TOP}.')}", error.rule, error.value) from None
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    return planned


def check(study: Study) -> None:
    """Raise ConfigError unless there are validation rows, the metrics exist and every point is a config."""
    rows = study.params.datasets[study.branch.dataset].validation
    require(rows > 0, f"datasets.{study.branch.dataset}.validation", "must leave rows to score a study on", rows)
    known = METRICS[study.task]
    for i, metric in enumerate(study.config.metrics):
        require(metric in known, f"metrics[{i}]", f"must be one of {study.task}{nearest(metric, known)}", metric)
    for point in study.config.points():
        study.branch.chain.configs(values_of(point))


def facts(study: Study, fits: Sequence[Ended], settings: Settings) -> dict[str, Any]:
    """Collect where the figures come from."""
    import torch

    return {
        "command": f"python -m pipeline study {study.path}",
        "params": f"{study.path} on {PARAMS}, sha256 {provenance.digest(study.params.raw)}",
        "seed": study.branch.chain.seed,
        "commit": provenance.commit(),
        "data sha256": data_hash(study.branch)[:16],
        "device": records.device_name(settings.device),
        "threads of a trial": settings.threads,
        "torch": torch.__version__,
        "fits": len(fits),
        "diverged": sum(not fit.scores for fit in fits),
        "seconds of trials": round(sum(fit.seconds for fit in fits), 1),
    }


def write(study: Study, fits: Sequence[Ended], about: Mapping[str, Any]) -> list[Path]:
    """Write the fits, then the figure, then the page that shows it: a page is never without its figure."""
    family, _, title = study.name.partition("-")
    place = RESULTS / family
    place.mkdir(parents=True, exist_ok=True)
    files = {
        place / f"{title}.csv": comma_separated(study.config, study.task, fits).encode(),
        place / f"{title}.svg": draw(study.name, study.config, fits),
        place / f"{title}.md": page(title, study.config, study.task, fits, f"{title}.svg", about).encode(),
    }
    for path, blob in files.items():
        write_bytes(path, blob)
    return list(files)


def comma_separated(study: StudyConfig, task: Task, fits: Sequence[Ended]) -> str:
    """Return every fit as CSV, in the order of the grid and the seeds, in full precision."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*study.grid, SEED, *METRICS[task], "seconds"])
    for point in study.points():
        for fit in of(fits, point):
            scores = [fit.scores.get(name, "") for name in METRICS[task]]
            writer.writerow([*map(written, point.values()), fit.sampled[SEED], *scores, f"{fit.seconds:.2f}"])
    return text.getvalue()


def page(
    title: str, study: StudyConfig, task: Task, fits: Sequence[Ended], picture: str, facts: Mapping[str, Any]
) -> str:
    """Return the figure, the tables of the points, and where they come from, as Markdown."""
    figures = ["fits", *map(heading, METRICS[task]), "seconds"]
    tables = list[str]()
    if study.base:
        base = ", ".join(f"{study.title(axis)} {written(study.base[axis])}" for axis in study.grid)
        tables += [f"Each table departs from this point in one hyperparameter alone: {base}.", ""]
    for axes in [[axis] for axis in study.grid] if study.base else [list(study.grid)]:
        points = study.departures(*axes) if study.base else study.points()
        rows = [[*(written(point[axis]) for axis in axes), *_figures(of(fits, point), task)] for point in points]
        head = [*map(study.title, axes), *figures]
        tables += [_line(head), _line(["---:"] * len(head)), *map(_line, rows), ""]
    over = "mean ± standard error over the seeds that did not diverge" if study.seeds > 1 else "one seed"
    about = f"Scores of validation rows of split 0, which no fit has seen; {over}. Test rows were not read."
    head = [f"# {title}: {study.method} on {study.dataset}", "", about, "", f"![{title}]({picture})", ""]
    return "\n".join([*head, *tables, "| | |", "|---|---|", *(_line([k, str(v)]) for k, v in facts.items()), ""])


def draw(name: str, study: StudyConfig, fits: Sequence[Ended]) -> bytes:
    """Draw an SVG file: a row for each metric, a column for each panel.

    Lines are means with standard errors over seeds, faint dots are the seeds; diverged fits are left out.
    """
    wide, high, blob = len(study.figure), len(study.metrics), io.BytesIO()
    with matplotlib.rc_context(_STYLE | {"svg.hashsalt": name}):
        figure = Figure(figsize=(0.5 + 2.5 * wide, 0.9 + 1.8 * high), layout="constrained")
        grid = figure.subplots(high, wide, sharex="col", sharey="row", squeeze=False)
        for j, panel in enumerate(study.figure):
            for i, metric in enumerate(study.metrics):
                _draw_panel(grid[i, j], panel, metric, study, fits)
                grid[i, 0].set_ylabel(heading(metric))
            held = (f"{study.title(axis)} = {written(value)}" for axis, value in panel.at.items())
            grid[0, j].set_title(", ".join(held), loc="left", fontsize=9)
            grid[-1, j].set_xlabel(study.title(panel.x))
            if panel.lines:
                grid[0, j].legend(title=study.title(panel.lines), frameon=False, fontsize=7.5, title_fontsize=7.5)
        figure.savefig(blob, format="svg", metadata={"Date": None, "Title": f"{study.method} on {study.dataset}"})
    return blob.getvalue()


def _draw_panel(axes: Axes, panel: Panel, metric: str, study: StudyConfig, fits: Sequence[Ended]) -> None:
    values, lines = study.grid[panel.x], study.grid[panel.lines] if panel.lines else (None,)
    for number, line in enumerate(lines):
        at = {**study.held(panel), **({panel.lines: line} if panel.lines else {})}
        shift = 0.06 * (number - (len(lines) - 1) / 2)  # Error bars stand beside each other.
        look: Any = {"color": f"C{number}", "marker": _MARKERS[number % len(_MARKERS)]}
        means = list[tuple[float, Estimate]]()
        for x, value in enumerate(values):
            scores = _scores(of(fits, {**at, panel.x: value}), metric)
            axes.plot([x + shift] * len(scores), scores, "o", color=look["color"], alpha=0.3, markersize=3, mew=0)
            if mean := estimate(scores):
                means.append((x + shift, mean))
        heights, errors = [mean.mean for _, mean in means], [mean.error or 0.0 for _, mean in means]
        dashes = _DASHES[number % len(_DASHES)]
        axes.errorbar([x for x, _ in means], heights, errors, **look, linestyle=dashes, label=written(line))
    axes.set(xlim=(-0.3, len(values) - 0.7), xticks=range(len(values)))
    axes.set_xticklabels([written(value) for value in values])


def of(fits: Iterable[Ended], point: Point) -> list[Ended]:
    """List the fits of a point, by seed."""
    values = values_of(point)
    same = [fit for fit in fits if all(written(fit.sampled[key]) == written(value) for key, value in values.items())]
    return sorted(same, key=lambda fit: int(fit.sampled[SEED]))


def heading(metric: str) -> str:
    """Return a metric's name, and % if it is written in per cent."""
    return f"{metric} %" if metric in _SHARES else metric


def _scores(fits: Sequence[Ended], metric: str) -> list[float]:
    """List the finite scores of the seeds; shares in per cent."""
    scale = 100 if metric in _SHARES else 1
    scores = [scale * fit.scores.get(metric, math.nan) for fit in fits]
    return [score for score in scores if math.isfinite(score)]


def _figures(fits: Sequence[Ended], task: Task) -> list[str]:
    """Write a point's count of fits, its scores and its seconds."""
    whole = sum(bool(fit.scores) for fit in fits)
    seconds = sum(fit.seconds for fit in fits) / max(len(fits), 1)
    scores = [_with_error(estimate(_scores(fits, name)), 2 if name in _SHARES else 3) for name in METRICS[task]]
    count = str(whole) if whole == len(fits) else f"{whole} of {len(fits)}"
    return [count, *scores, f"{seconds:.0f}" if seconds >= 10 else f"{seconds:.1f}"]


def _with_error(score: Estimate | None, digits: int) -> str:
    if score is None:
        return "—"
    return f"{score.mean:.{digits}f}" + (f" ± {score.error:.{digits}f}" if score.error is not None else "")


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
