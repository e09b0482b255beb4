"""A network and weights of the user's through the whole graph, on a worker, and back from the stored artifact."""

import csv
import json
import sys
from pathlib import Path

import pytest
import torch
import yaml

from tests.end_to_end.conftest import make
from tests.pipeline.test_own_network import MINE, own_params, write_own

pytestmark = pytest.mark.slow
READ = """
from pathlib import Path
import numpy as np
from bdl_pipe import Seed, load_predictor
images = np.full((3, 1, 8, 8), 100, np.uint8)
predictive = load_predictor(Path("work/student/digits-mine-deterministic")).predict(images, rng=Seed(0))
print(predictive.mean[0].tolist())
"""


def test_a_network_and_its_weights(tmp_path: Path) -> None:
    raw = own_params()
    raw["datasets"] = {"digits": {**raw["datasets"]["digits"], "ood": [], "transfer": [], "corrupted_images": 0}}
    for section in ("trajectories", "runs"):
        raw[section] = {
            key: value for key, value in raw[section].items() if key.startswith(("digits-mine", "digits-on"))
        }
    project = make(tmp_path / "tiny", yaml.safe_dump(raw))
    write_own(project.folder)
    (project.folder / "params.yaml").write_text(yaml.safe_dump(raw))
    project.pipeline("repro", "trajectory@digits-on", env={"BDL_EXECUTOR": "ray"})  # a worker is sent the file
    said = project.pipeline("repro").stdout
    assert "pretrained: scores are too good if" in said
    with open(project.folder / "report/comparison.csv") as file:
        rows = [row for row in csv.DictReader(file) if row["set"] == "test" and row["metric"] == "accuracy"]
    assert {row["method"] for row in rows} == {"deterministic", "kfac_laplace"}
    assert "nothing to do" in project.pipeline("repro").stdout and "up to date" in project.dvc("status")

    answer = json.loads(project.run(sys.executable, "-c", READ).stdout)
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 12), torch.nn.ReLU(), torch.nn.Linear(12, 10))
    module.load_state_dict(torch.load(project.folder / "data/mine.pt"))
    assert abs(sum(answer) - 1) < 1e-5
    (project.folder / "plugins/mine.py").write_text(MINE + "open('ran', 'w')\n")
    error = project.run(sys.executable, "-c", READ, code=1).stderr.splitlines()[-1]
    assert "the file plugins/mine.py must have the SHA-256" in error and "it has changed" in error
    assert not (project.folder / "ran").exists()
