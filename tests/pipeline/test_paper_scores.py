"""Evaluation writes every score that a paper's table or the report names."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from bdl_pipe import config, evaluation
from bdl_pipe.artifacts import State
from bdl_pipe.data.fitdata import Examples
from bdl_pipe.data.transform import Transform
from bdl_pipe.evaluation import EvaluateConfig
from bdl_pipe.metrics import DETECTION
from bdl_pipe.posterior import Predictor
from bdl_pipe.predictive import Categorical, Gaussian, Predictive
from bdl_pipe.seeds import Seed
from bdl_pipe.yaml_files import read_yaml
from bdl_report import papers


class Answering:
    """A posterior with every known score; its predictions do not depend on its inputs."""

    def __init__(self, task: str) -> None:
        self.task = task

    def predict(self, inputs: Tensor, *, rng: Seed) -> Predictive:
        draws = torch.randn(2, len(inputs), 3, generator=rng.fold("any").generator())
        if self.task == "regression":
            return Gaussian(draws[..., :1], draws[..., 1:2].exp())
        return Categorical(draws.log_softmax(-1), {"feature_density": draws[0, :, 0], "refit_density": draws[0, :, 1]})

    def state(self) -> State:
        return State({}, {"posterior": "answering"})

    @classmethod
    def from_state(cls, state: State, device: torch.device | str = "cpu") -> "Answering":
        raise NotImplementedError


def written(task: str) -> dict[str, set[str]]:
    """The metrics that evaluation writes for test, other and corrupted rows; ``score``: its scores for other rows."""
    fitted = Predictor(Answering(task), Transform("table", torch.zeros(2), torch.ones(2)))
    inputs = np.zeros((20, 2))
    targets = np.arange(20) % 3 if task == "classification" else np.zeros((20, 1))
    rows, settings = Examples(inputs, targets), EvaluateConfig(calibration_bins=3, batch=8, joint_pairs=10)
    clean = evaluation.score_clean(fitted, rows, settings, Seed(0))
    shifted = evaluation.score_classification(fitted, rows, settings, Seed(0)) if task == "classification" else {}
    other = evaluation.score_ood(fitted, inputs, clean.in_distribution_scores, settings, Seed(0))
    by = {metric for scores in other.values() for metric in scores}
    return {"test": {*clean.metrics}, "ood": by, "score": {*other}, "corrupted": {*shifted}, "transfer": {*shifted}}


@pytest.mark.parametrize("path", sorted(papers.HERE.glob("*.yaml")), ids=lambda path: path.stem)
def test_evaluation_writes_every_score_that_a_paper_names(path: Path) -> None:
    of_tasks = [written(task) for task in ("classification", "regression")]
    columns = {kind: of_tasks[0][kind] | of_tasks[1][kind] for kind in of_tasks[0]}
    assert columns["ood"] == {metric.name for metric in DETECTION}, "the report has a column for each"
    with open(path.with_suffix(".csv"), newline="") as file:
        tables = {row["table"] for row in csv.DictReader(file)}
    for table in (papers.load(f"{path.stem}:{name}") for name in sorted(tables)):
        for methods in table.figures.values():
            for method, metric in {(method, metric) for method, figures in methods.items() for metric in figures}:
                of = table.quantity(metric, method)
                assert of.metric in columns[of.set], (method, metric)
                assert of.score is None or of.score in columns["score"], (method, metric)
    names = config.read(papers.Names, read_yaml(path), path.name)
    for method, counterpart in names.methods.items():
        assert counterpart.scores.keys() <= names.metrics.keys(), method
        assert {*counterpart.scores.values()} <= columns["score"], method
