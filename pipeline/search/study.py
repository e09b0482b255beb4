"""``python -m pipeline study params/study/FAMILY-NAME.yaml``: metrics against hyperparameters, by Ray Tune.

The file has a grid of the method's hyperparameters, as :mod:`bdl_report.grids` describes it.

Each seed of each point is fitted on the training rows of split 0 and scored on its validation rows; test rows are not
used. The results are ``results/<family>/<name>.csv`` (every fit), ``.svg`` (the figure) and ``.md`` (the table, and its
provenance). The data are prepared in the study's folder, ``work/study/<family>-<name>``; DVC is not used.
"""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import matplotlib

from bdl_pipe import config
from bdl_pipe.config import nearest
from bdl_pipe.errors import ConfigError, UserError, require
from bdl_pipe.files import write_bytes
from bdl_pipe.metrics.table import always
from bdl_pipe.yaml_files import read_yaml
from bdl_report import grids
from bdl_report.grids import SEED, GridConfig, results_of, values_of, written

from ..core import places, provenance, records
from ..core.load import load, typed
from ..core.model import Params
from ..core.params_files import written_out
from ..core.settings import Settings
from . import branch_of, opened, scores_of
from .trial import Branch, Ended

RESULTS: Final = Path("results")
_FILE: Final = re.compile(r"([A-Za-z0-9_]+)-([A-Za-z0-9_-]+)")
_TOP: Final = "study"  # prefix of the paths of the file's keys


@dataclass(frozen=True, kw_only=True)
class StudyConfig(GridConfig):
    """A file of ``params/study``, checked; it also has the keys of a :class:`bdl_report.grids.GridConfig`.

    Attributes:
        method: the method of params.yaml; the hyperparameters and seeds of its first run vary.
        dataset: the data set of params.yaml.
        overlay: changes to params.yaml, in the format of ``apply``.
        run: the run to study, with its upstream runs; null means the first run on the data set that uses the method.
    """

    method: str
    dataset: str
    overlay: dict[str, Any]
    run: str | None = None


@dataclass(frozen=True)
class Study:
    """A study, read and checked.

    Attributes:
        config: the content of ``path``, ``<family>-<title>.yaml``.
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
        UserError: the file, params.yaml or the state of a stopped study is wrong.
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
        UserError: a key breaks its rule; the message has its path, the rule and the value.
    """
    if not _FILE.fullmatch(path.stem):
        raise UserError(f"{path}: must be named <family>-<name>.yaml, which names the results")
    base, file = load().raw, read_yaml(path)
    if isinstance(file.get("overlay"), Mapping):
        file = {**file, "overlay": written_out(file["overlay"], path)}
    try:
        asked = config.read(StudyConfig, file, _TOP)
        params = typed(config.merge(base, asked.overlay))
        task = params.datasets[asked.dataset].task if asked.dataset in params.datasets else "classification"
        metrics = tuple(dict.fromkeys((*always(task), *asked.metrics)))
        evaluation = (params.evaluate, metrics, "study")
        branch = branch_of(params, asked.method, asked.dataset, asked.run, settings, *evaluation)
        for i, metric in enumerate(asked.metrics):
            rule = f"must be one of {task}{nearest(metric, scores_of(task))}"
            require(metric in scores_of(task), f"metrics[{i}]", rule, metric)
        for point in asked.points():
            branch.configs(values_of(point))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.path.removeprefix(f'{_TOP}.')}", error.rule, error.value) from None
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    return Study(branch, asked, path, params, metrics)


def facts(study: Study, fits: Sequence[Ended], settings: Settings) -> dict[str, object]:
    """Collect the provenance of the results."""
    import torch

    return {
        "command": f"python -m pipeline study {study.path}",
        "params": f"{study.path} on params.yaml, sha256 {provenance.digest(study.params.raw)}",
        "seed": study.branch.seed,
        "commit": provenance.commit(),
        "data sha256": records.data_hash(study.branch.dataset),
        "device": records.device_name(settings.device),
        "threads of a trial": settings.threads,
        "torch": torch.__version__,
        "fits": len(fits),
        "seconds of trials": round(sum(fit.seconds for fit in fits), 1),
    }


def write(study: Study, fits: Sequence[Ended], about: Mapping[str, object]) -> list[Path]:
    """Write the fits, then the figure, and last the page that shows it."""
    family, _, title = study.path.stem.partition("-")
    place = RESULTS / family / title
    place.parent.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*study.config.grid, SEED, *study.metrics, "seconds"])
    for point in study.config.points():
        for fit in results_of(fits, point):
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


def page(title: str, study: Study, fits: Sequence[Ended], about: Mapping[str, object]) -> str:
    """Return the figure, a table with a row for each point, and their provenance, as Markdown."""
    asked = study.config
    head, *rows = grids.rows(asked, fits, study.metrics)
    what = "mean ± standard error over the seeds that did not diverge"
    return "\n".join(
        [
            f"# {title}: {asked.method} on {asked.dataset}\n",
            f"Scores of validation rows of split 0, which no fit has seen; {what}. Test rows were not read.\n",
            f"![{title}]({title}.svg)\n",
            *(f"| {' | '.join(row)} |" for row in (head, ["---", *["---:"] * (len(head) - 1)], *rows)),
            "\n| | |\n|---|---|",
            *(f"| {key} | {value} |" for key, value in about.items()),
            "",
        ]
    )


def draw(study: Study, fits: Sequence[Ended]) -> bytes:
    """Draw the figure as an SVG file; equal fits give equal bytes."""
    blob = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": study.path.stem}):
        grids.draw(study.config, fits).savefig(blob, format="svg", metadata={"Date": None})
    return blob.getvalue()
