"""A plugin's method, network, data source and score through the whole graph, and back from the stored artifact."""

import csv
import json
import sys
from pathlib import Path

import pytest
import yaml

from tests.end_to_end.conftest import make
from tests.pipeline.test_plugin_stages import with_plugins, write

pytestmark = pytest.mark.slow
READ = """
from pathlib import Path
import numpy as np
from bdl_pipe import Seed, load_predictor
images = np.full((3, 1, 8, 8), 100, np.uint8)
predictive = load_predictor(Path("work/student/stripes-snapshots")).predict(images, rng=Seed(0))
print(type(predictive).__name__, tuple(predictive.mean.shape))
"""


def test_all_four_kinds(tmp_path: Path) -> None:
    raw = with_plugins()
    for section in ("datasets", "trajectories", "runs"):
        raw[section] = {key: value for key, value in raw[section].items() if key.startswith("stripes")}
    raw["datasets"]["stripes"]["ood"] = ["digits"]
    project = make(tmp_path / "tiny", yaml.safe_dump(raw))
    write(project.folder, raw)
    ray = {"BDL_EXECUTOR": "ray"}  # so that a worker has to import the plugins, too
    said = project.pipeline("repro", "trajectory@stripes-sgd", env=ray).stdout
    said += project.pipeline("repro").stdout
    assert "2 stages done" in said and "3 stages done" in said
    with open(project.folder / "report/comparison.csv") as file:
        rows = [row for row in csv.DictReader(file) if row["method"] == "snapshots"]
    of_digits = {(row["score"], row["metric"]) for row in rows if (row["set"], row["name"]) == ("ood", "digits")}
    assert {("max_prob", "auroc"), ("top_margin", "auroc"), ("top_margin", "fpr95")} <= of_digits
    (accuracy,) = (row for row in rows if row["set"] == "test" and row["metric"] == "accuracy")
    assert accuracy["n"] == "6" and accuracy["dataset"] == "stripes"  # a tenth of the rows that the plugin makes
    assert "score: top margin" in (project.folder / "report/index.html").read_text()
    about = json.loads((project.folder / "work/student/stripes-snapshots/manifest.json").read_text())["about"]
    assert about["plugins"] == ["plugins/method.py", "plugins/network.py"]
    assert "nothing to do" in project.pipeline("repro").stdout and "up to date" in project.dvc("status")

    assert project.run(sys.executable, "-c", READ).stdout.strip() == "Categorical (3, 2)"
    (project.folder / "plugins/network.py").rename(project.folder / "elsewhere.py")
    error = project.run(sys.executable, "-c", READ, code=1).stderr.splitlines()[-1]
    assert "work/student/stripes-snapshots: was made with the plugin plugins/network.py: the plugin" in error
    missing = project.pipeline("check", code=2).stderr
    assert missing.startswith("check: the plugin plugins/network.py is not there") and missing.count("\n") == 1
