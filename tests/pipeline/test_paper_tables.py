"""The params files of the papers' tables: which run stands for which cell; evaluation writes every score of a table."""

import csv
from functools import cache
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
from bdl_report.papers.survey import STAND_INS
from pipeline.core.load import typed
from pipeline.core.model import Params
from pipeline.core.params_files import read_params
from pipeline.papers import compared

ROOT = Path(__file__).parents[2]
RITTER = (2, 3, 5, 6, 7, 8, *range(11, 19))  # tables of one params file
LEE = (1, 2, 3, 4, 8, 9, 10)


@cache
def params(source: str) -> Params:
    """Read the params file of a table, or of the table whose fits it shows."""
    return typed(read_params(ROOT / f"params/paper/{source}.yaml"))


def test_every_method_of_ritter_has_one_run_and_every_run_is_shown() -> None:
    sections, shown = params("inducing-table2"), set[str]()
    for table in (papers.load(f"inducing:table{number}") for number in RITTER):
        assert table.source == "inducing-table2"
        for dataset, figures in table.figures.items():
            lines = compared(table, dataset, sections, evaluated=()).lines
            assert [line.method for line in lines] == [*figures]
            keys = [line.run for line in lines if line.run is not None]
            assert len(keys) == len(set(keys)) == len(figures)
            for line in lines:
                assert {m: cell.paper for m, cell in line.cells.items() if cell.paper} == figures[line.method]
            shown |= {*keys}
    assert shown == {row.key for row in sections.of("student")}


def test_every_params_file_has_only_data_sets_of_its_table_and_names_its_command() -> None:
    paths = sorted(p for p in ROOT.glob("params/paper/*-*.yaml") if not p.stem.endswith(STAND_INS))
    assert len(paths) >= 12
    for path in paths:
        table = papers.load(path.stem.replace("-", ":", 1))
        sections = params(path.stem)
        datasets = {table.names.datasets[name] for name in table.figures}
        assert {row.spec.dataset for row in sections.of("student")} <= datasets
        assert f"python -m pipeline paper {table}" in path.read_text()


@pytest.mark.parametrize("number", LEE)
def test_every_method_of_lee_has_one_run_with_the_right_coreset(number: int) -> None:
    """AVBPC has a second line, of ridge regression."""
    table = papers.load(f"vbpc:table{number}")
    sections = params(table.source)
    shown = [name for name in table.figures if table.names.datasets[name] in sections.datasets]
    assert {*table.figures} - {*shown} == ({"Tiny-ImageNet"} if number == 1 else set())
    for dataset in shown:
        lines = compared(table, dataset, sections, evaluated=()).lines
        keys = [line.run for line in lines if line.run]
        assert len(keys) == len({*keys})
        of_paper, more = lines[: len(table.figures[dataset])], lines[len(table.figures[dataset]) :]
        assert [line.method for line in of_paper] == [*table.figures[dataset]]
        assert [line.method for line in of_paper if line.run is None] == []
        second = ["coreset_krr (vbpc-ipc1)", "coreset_krr (vbpc-ipc10)"]
        assert [line.method for line in more] == (second if dataset.startswith("CIFAR") and number != 9 else [])
        for line in of_paper:
            assert line.run is None or coreset_of(sections, line.run) == expected_coreset(line.method)


def coreset_of(found: Params, key: str) -> tuple[str, int, str]:
    """Return the method of a run's coreset, its images per class, and the method that predicts from it."""
    run = found.run("student", key)
    coreset = found.run("coreset", run.sources["coreset"])
    return coreset.method.name, coreset.config.ipc, run.method.name


def expected_coreset(name: str) -> tuple[str, int, str]:
    method, _, rest = name.partition(" (")
    ipc = int(rest[4:-1]) if rest.startswith("ipc") else 10
    coreset, vi, a = method.removesuffix(" VI"), method.endswith(" VI"), method == "AVBPC"
    ours = {"AVBPC": "vbpc", "Random": "random_coreset"}.get(coreset, coreset.lower().replace("-", "_"))
    if vi or (method == "VBPC" and not rest.startswith(("ipc", "Conv-BN"))):
        return ours, ipc, "coreset_vi"
    if ours in ("vbpc", "random_coreset") and not a:
        return ours, ipc, ours
    return ours, ipc, "coreset_nn" if a or ours in ("frepo", "rcig") else "coreset_sgmcmc"


def test_every_run_of_lee_is_a_cell_or_the_second_line_of_avbpc() -> None:
    published, shown = params("vbpc-table1"), set[str]()
    for table in (papers.load(f"vbpc:table{number}") for number in (1, 2, 3, 4, 10)):
        for dataset in table.figures:
            if table.names.datasets[dataset] in published.datasets:
                shown |= {line.run for line in compared(table, dataset, published, ()).lines if line.run}
    assert shown == {row.key for row in published.of("student")}
    used = {row.sources["coreset"] for row in published.of("student")}
    assert used == {row.key for row in published.of("coreset")}


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
