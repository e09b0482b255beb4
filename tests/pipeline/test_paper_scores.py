"""Every score that a paper's table or the report names is one that evaluation writes."""

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
from bdl_pipe.posterior import Predictor
from bdl_pipe.predictive import Categorical, Gaussian, Predictive
from bdl_pipe.seeds import Seed
from pipeline import papers
from pipeline.core import params
from pipeline.report.sections import OOD_SCORES


class Answering:
    """A posterior with every score that there is: its answer does not look at its inputs."""

    def __init__(self, task: str) -> None:
        self.task = task

    def predict(self, inputs: Tensor, *, rng: Seed) -> Predictive:
        draws = torch.randn(2, len(inputs), 3, generator=rng.fold("any").generator())
        if self.task == "regression":
            return Gaussian(draws[..., :1], draws[..., 1:2].exp())
        return Categorical(draws.log_softmax(-1), draws[0, :, 0], draws[0, :, 1])

    def state(self) -> State:
        return State({}, {"posterior": "answering"})

    @classmethod
    def from_state(cls, state: State, device: torch.device | str = "cpu") -> "Answering":
        raise NotImplementedError


def written(task: str) -> dict[str, set[str]]:
    """The names of all scores that evaluation writes, of test rows, of other data and of corrupted rows."""
    fitted = Predictor(Answering(task), Transform("table", torch.zeros(2), torch.ones(2)))
    inputs = np.zeros((20, 2))
    targets = np.arange(20) % 3 if task == "classification" else np.zeros((20, 1))
    how = EvaluateConfig(calibration_bins=3, batch=8, joint_pairs=10)
    clean = evaluation.score_clean(fitted, Examples(inputs, targets), how, Seed(0))
    shifted = (
        evaluation.score_classification(fitted, Examples(inputs, targets), how, Seed(0))
        if task == "classification"
        else {}
    )
    other = evaluation.score_ood(fitted, inputs, clean.in_distribution_scores, how, Seed(0))
    return {"test": {*clean.metrics}, "ood": {*other}, "corrupted": {*shifted}}


@pytest.mark.parametrize("path", sorted(papers.HERE.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_score_that_a_paper_names_is_one_that_evaluation_writes(path: Path) -> None:
    names = config.read(papers.Names, params.read_yaml(path), path.name)
    found = [written(task) for task in ("classification", "regression")]
    known = {split: found[0][split] | found[1][split] for split in ("test", "ood", "corrupted")}
    assert "auroc" in known["ood"] and "auroc_density" not in known["ood"]
    with open(path.with_suffix(".csv"), newline="") as file:
        asked = {(row["method"], row["metric"]) for row in csv.DictReader(file)}
    for method, metric in asked:
        name, _, where = metric.partition(":")
        special = names.methods[method].metrics
        labelled = where in papers.CORRUPTED or where in names.transfers
        split = "corrupted" if labelled else "ood" if where else "test"  # both labelled kinds have the same scores
        assert special.get(name, names.metrics[name].metric) in known[split], (method, metric)
    for method, counterpart in names.methods.items():
        assert counterpart.metrics.keys() <= names.metrics.keys(), method
        assert {*counterpart.metrics.values()} <= known["test"] | known["ood"], method


def test_every_score_of_other_data_has_its_columns_in_the_report() -> None:
    found = {name.removeprefix("auroc") for task in ("classification", "regression") for name in written(task)["ood"]}
    suffixes = {name for name in found if not name.startswith(("aupr", "fpr"))}
    assert suffixes == {*OOD_SCORES}
