"""A study: ``python -m pipeline study params/study/FAMILY-NAME.yaml``; a metric against hyperparameters, by Ray Tune.

Every point, of a grid or about a base, is fitted with every seed on the training rows of split 0 and scored on its
validation rows; test rows are not read. Written to ``results/<family>/<name>``: ``.csv`` (every trial), then ``.svg``
(the figure), then ``.md`` (the table, and where it comes from). What is prepared lies in a tree of its own,
``work/study/<family>-<name>``; DVC has no part in it.
"""

import argparse
import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bdl_pipe import config
from bdl_pipe.config import nearest
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.errors import ConfigError, UserError, require
from bdl_pipe.files import write_bytes
from bdl_pipe.method import Task

from ..core import places, records
from ..core.load import load, read_yaml, typed
from ..core.model import Params
from ..core.settings import Settings
from ..tracking import provenance
from . import ray_tune, turn
from .branch import RECORD, Branch, begin, branch_of, data_hash, finish, load_data, make_upstream, tracked
from .ray_tune import Kept
from .storage import shared
from .studies import METRICS, POINT, SEED, StudyConfig, Trial, numbers, sampled_numbers
from .telling import Trials
from .trial import SECONDS, Upstream

PARAMS: Final = Path("params.yaml")
RESULTS: Final = Path("results")
_STEM: Final = re.compile(r"([A-Za-z0-9_]+)-([A-Za-z0-9_-]+)")
_TOP: Final = "study"  # stands for the file in the paths of its keys


@dataclass(frozen=True)
class Study(Branch):
    """A study: a branch, and the grid of numbers that are tried.

    Attributes:
        config: the file.
        path: where it lies; ``<family>-<title>.yaml``.
        params: params.yaml with the file's overlay.
    """

    config: StudyConfig
    path: Path
    params: Params

    @property
    def name(self) -> str:
        """Return the file's name without its suffix, ``<family>-<title>``."""
        return self.path.stem

    @property
    def task(self) -> Task:
        """Return the task of the data set."""
        return self.params.datasets[self.dataset].task

    @property
    def stem(self) -> Path:
        """Return the results' place, without a suffix."""
        family, _, title = self.name.partition("-")
        return RESULTS / family / title

    def identity(self, data: str) -> str:
        """Hash everything that a trial's score depends on."""
        scored = [config.to_mapping(self.params.evaluate), list(self.config.points())]
        return provenance.digest([*self.facts(), *scored, self.config.seeds, data])


def main(args: argparse.Namespace) -> int:
    """Try every point, and write the results."""
    settings = Settings.read()
    study = plan(Path(args.file), settings)
    settings = settings.of("study", study.method.name)
    folder = places.STATE / "study" / study.name
    with places.rooted(places.WORK / "study" / study.name):
        data = load_data(study, study.params, settings)
        sha256 = data_hash(study)
        identity = study.identity(sha256)
        away = shared(settings, f"study-{study.name}", identity)
        with turn.taken(folder, away):
            begun = begin(folder, identity, study.name, bool(args.resume), away)
            tags = {**study.tags, "stage": "study", "seed": study.chain.seed}
            with ray_tune.ray_of(settings), tracked(f"study {study.name}", tags, begun, folder, identity, away):
                upstream = make_upstream(study, data, study.params, settings)
                at_once = vars(args).get("max_concurrent")
                trials = run(study, data, upstream, Kept(folder, settings, away), at_once)
            made = write(study, trials, facts(study, trials, sha256, folder, settings))
            finish(folder, identity, away)
    for path in made:
        print(f"written: {path}")
    return 0


def plan(path: Path, settings: Settings) -> Study:
    """Read and check the file, params.yaml with its overlay, and every point of the grid.

    Raises:
        UserError: the first key that breaks its rule, with its path, the rule and the value; nothing has run then.
    """
    if not _STEM.fullmatch(path.stem):
        raise UserError(f"{path}: must be called <family>-<name>.yaml, after which its results are called")
    base, file = load(PARAMS).raw, read_yaml(path)
    try:
        asked = config.read(StudyConfig, file, _TOP)
        params = typed(config.merge(base, asked.overlay))
        branch = branch_of(params, asked.method, asked.dataset, asked.run, "study", settings)
        fields = {f.name: getattr(branch, f.name) for f in dataclasses.fields(branch)}
        study = Study(**fields, config=asked, path=path, params=params)
        check(study)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.path.removeprefix(f'{_TOP}.')}", error.rule, error.value) from None
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    return study


def check(study: Study) -> None:
    """Raise ConfigError unless there are rows to score on, the metrics exist and every point is a config."""
    dataset = study.params.datasets[study.dataset]
    path = f"datasets.{study.dataset}.validation"
    require(dataset.validation > 0, path, "must leave rows to score a study on", dataset.validation)
    for i, metric in enumerate(study.config.metrics):
        known = METRICS[study.task]
        require(metric in known, f"metrics[{i}]", f"must be one of {study.task}{nearest(metric, known)}", metric)
    for point in study.config.points():
        study.chain.configs(numbers(point))


def run(study: Study, data: FitData, upstream: Upstream, kept: Kept, at_once: int | None) -> list[Trial]:
    """Run the trials that are not yet finished, and return all of them.

    Raises:
        UserError: trials failed, with the first one's reason.
        KeyboardInterrupt: it was stopped before all trials had ended.
    """
    from ray import tune

    from .studies.point import trial

    asked, metrics = study.config, METRICS[study.task]
    parts = {"chain": study.chain, "evaluate": study.params.evaluate, "data": data, "upstream": upstream}
    points = list(asked.points())
    space = {POINT: tune.grid_search(points), SEED: tune.grid_search(list(range(asked.seeds)))}
    how = tune.TuneConfig(max_concurrent_trials=at_once, reuse_actors=True)
    trials = Trials(study.name, len(points) * asked.seeds, study.tags, metrics, sampled_numbers, asked.called)
    results = ray_tune.run(trials, trial, parts, space, how, kept)
    return [_trial(r.config, r.metrics, metrics) for r in results]


def _trial(sampled: Mapping[str, Any], reported: Mapping[str, Any], metrics: Sequence[str]) -> Trial:
    scores = {name: float(reported[name]) for name in metrics if name in reported}
    return Trial(sampled[POINT], sampled[SEED], scores, float(reported[SECONDS]))


def facts(study: Study, trials: Sequence[Trial], data: str, folder: Path, settings: Settings) -> dict[str, Any]:
    """Collect where the figures come from."""
    import torch

    commits = json.loads((folder / RECORD).read_text()).get("commits", ())
    return {
        "command": f"python -m pipeline study {study.path}",
        "params": f"{study.path} on {PARAMS}, sha256 {provenance.digest(study.params.raw)}",
        "seed": study.chain.seed,
        "commit": ", ".join(commits),
        "data sha256": data[:16],
        "device": records.device_name(settings.device),
        "threads of a trial": settings.threads,
        "torch": torch.__version__,
        "fits": len(trials),
        "diverged": sum(not t.scores for t in trials),
        "seconds of trials": round(sum(t.seconds for t in trials), 1),
    }


def write(study: Study, trials: Sequence[Trial], about: Mapping[str, Any]) -> list[Path]:
    """Write the trials, then the figure, then the page that shows it: whoever finds the page finds the others."""
    from .studies import figure, table

    made = {suffix: study.stem.with_name(study.stem.name + suffix) for suffix in (".csv", ".svg", ".md")}
    study.stem.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(made[".csv"], table.comma_separated(study.config, study.task, trials).encode())
    picture = figure.draw(study.name, study.config, trials)
    write_bytes(made[".svg"], picture)
    page = table.markdown(study.stem.name, study.config, study.task, trials, made[".svg"].name, about)
    write_bytes(made[".md"], page.encode())
    return list(made.values())
