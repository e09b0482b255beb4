"""A study of the method of `tune_cases`, for tests of studies."""

from pathlib import Path

import tune_cases
import yaml

import bdl_pipe.registry
from pipeline.core.settings import Settings
from pipeline.search import study
from pipeline.search.studies import Trial

SETTINGS = Settings()
HERE = Path(__file__).parent
STUDY = {
    "method": "shift",
    "dataset": "toy",
    "run": "toy-shift",
    "overlay": {},
    "grid": {"inner.shift+more": [-3.0, -2.25, 1.0], "log": ["", "log.txt"]},
    "seeds": 2,
    "names": {"inner.shift+more": "shift"},
    "metrics": ["nll", "rmse"],
    "figure": [{"x": "inner.shift+more", "lines": "log"}, {"x": "log", "at": {"inner.shift+more": 1}}],
}
PLAIN = {"figure": [{"x": "*"}], "names": {}}  # the figure of the one axis that there is


def project(folder, monkeypatch):
    """A prepared project whose registry holds the known methods, here and in Ray's workers; it has a study."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(bdl_pipe.registry, "METHODS", tune_cases.REGISTRY)
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    tune_cases.project(folder)
    written_study(folder)
    return folder


def written_study(folder, **changes):
    """The study's file, with other sections."""
    path = folder / "params/study/fake-shift.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    (only, *_) = changes.get("grid") or ["none"]
    text = yaml.safe_dump({**STUDY, **changes}, allow_unicode=True).replace("'*'", only)
    path.write_text(text)
    return path


def planned(folder, **changes):
    return study.plan(written_study(folder, **changes), SETTINGS)


def trials_of(asked, score=lambda at, seed: {"nll": 1.0, "rmse": 2.0}):
    return [Trial(at, seed, score(at, seed), 0.5) for at in asked.config.points() for seed in range(asked.config.seeds)]
