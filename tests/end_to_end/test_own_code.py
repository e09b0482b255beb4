"""A user's own weights, and plugins of all kinds, through the whole graph, on a worker, and back from the artifact."""

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.end_to_end.conftest import FORKED, Project, make
from tests.pipeline import test_own_network as own_network
from tests.pipeline import test_plugin_stages as plugin_stages

pytestmark = [pytest.mark.soak, FORKED]
READ = """
from pathlib import Path
import numpy as np
from bdl_pipe import Seed, load_predictor
images = np.full((3, 1, 8, 8), 100, np.uint8)
predictive = load_predictor(Path("work/student/RUN")).predict(images, rng=Seed(0))
print(type(predictive).__name__, tuple(predictive.mean.shape), round(float(predictive.mean[0].sum()), 4))
"""


def only(raw: dict[str, Any], dataset: str, keys: tuple[str, ...], **changes: Any) -> dict[str, Any]:
    """Keep one data set, with changes, and the runs whose keys begin with one of ``keys``."""
    for section in ("trajectories", "runs"):
        raw[section] = {key: value for key, value in raw[section].items() if key.startswith(keys)}
    return {**raw, "datasets": {dataset: {**raw["datasets"][dataset], **changes}}}


def repro(project: Project, on_a_worker: str) -> tuple[str, list[dict[str, str]]]:
    """Run a stage on a worker, then all stages; check that nothing is left to do; return the output and the rows."""
    output = project.pipeline("repro", on_a_worker, env={"BDL_EXECUTOR": "ray"}).stdout
    output += project.pipeline("repro").stdout
    assert "nothing to do" in project.pipeline("repro").stdout and "up to date" in project.dvc("status")
    with open(project.folder / "report/comparison.csv") as file:
        return output, list(csv.DictReader(file))


def read(project: Project, run: str, code: int = 0) -> "subprocess.CompletedProcess[str]":
    return project.run(sys.executable, "-c", READ.replace("RUN", run), code=code)


def test_a_users_network_and_weights_run_through_the_whole_graph(tmp_path: Path) -> None:
    keys = ("digits-mine", "digits-on")
    raw = only(own_network.own_params(), "digits", keys, ood=[], transfer=[], corrupted_images=0)
    project = make(tmp_path / "tiny", "")
    own_network.write_own(project.folder)
    (project.folder / "params.yaml").write_text(yaml.safe_dump(raw))
    output, rows = repro(project, "trajectory@digits-on")  # a worker is sent the file
    assert "pretrained: scores are optimistic if" in output
    assert {row["method"] for row in rows if row["set"] == "test"} == {"deterministic", "kfac_laplace"}

    assert read(project, "digits-mine-deterministic").stdout.strip() == "Categorical (3, 10) 1.0"
    (project.folder / "plugins/mine.py").write_text(own_network.MINE + "open('ran', 'w')\n")
    error = read(project, "digits-mine-deterministic", code=1).stderr.splitlines()[-1]
    assert "the file plugins/mine.py must have the SHA-256" in error and "it has changed" in error
    assert not (project.folder / "ran").exists()


def test_plugins_of_all_kinds_run_through_the_whole_graph(tmp_path: Path) -> None:
    raw = only(plugin_stages.with_plugins(), "stripes", ("stripes",))
    project = make(tmp_path / "tiny", "")
    plugin_stages.write(project.folder, raw)
    output, rows = repro(project, "trajectory@stripes-sgd")  # a worker has to import the plugins, too
    assert "2 stages done" in output and "4 stages done" in output
    of_digits = {(row["score"], row["metric"]) for row in rows if (row["set"], row["name"]) == ("ood", "digits")}
    assert {("max_prob", "auroc"), ("top_margin", "auroc"), ("top_margin", "fpr95")} <= of_digits
    (accuracy,) = (row for row in rows if row["set"] == "test" and row["metric"] == "accuracy")
    assert accuracy["n"] == "6" and accuracy["dataset"] == "stripes"  # a tenth of the rows that the plugin makes
    assert "score: top margin" in (project.folder / "report/pages/unseen.html").read_text()
    assert not any(row["metric"] == "surely_wrong" for row in rows)  # no answer is that sure
    project.edit("plugins/metric.py", "< 0.01", "< 0.75")
    again = project.pipeline("repro").stdout
    assert {line.split(":")[0] for line in again.splitlines() if line.endswith(": started")} == {
        "scores@stripes-snapshots",
        "report",
    }
    with open(project.folder / "report/comparison.csv") as file:
        (wrong,) = (row for row in csv.DictReader(file) if row["metric"] == "surely_wrong")
    assert wrong["n"] == "6" and "Surely wrong %" in (project.folder / "report/comparison.md").read_text()
    about = json.loads((project.folder / "work/student/stripes-snapshots/manifest.json").read_text())["about"]
    assert about["plugins"] == ["plugins/method.py", "plugins/network.py"]

    assert read(project, "stripes-snapshots").stdout.strip() == "Categorical (3, 2) 1.0"
    (project.folder / "plugins/network.py").rename(project.folder / "elsewhere.py")
    error = read(project, "stripes-snapshots", code=1).stderr.splitlines()[-1]
    assert "work/student/stripes-snapshots: was made with the plugin plugins/network.py: the plugin" in error
    missing = project.pipeline("check", code=2).stderr
    assert missing.startswith("check: the plugin plugins/network.py is missing") and missing.count("\n") == 1
