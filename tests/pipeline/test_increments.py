"""Class-incremental learning as runs of the graph: the inputs of each step, its scored classes, and the report."""

import itertools
import re
from dataclasses import astuple, replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from bdl_pipe import artifacts
from bdl_pipe.data.config import IncrementConfig
from bdl_pipe.data.transform import Transform
from bdl_pipe.errors import UserError
from bdl_pipe.posterior import Predictor
from bdl_pipe.registry import POSTERIORS
from bdl_pipe.scores import Estimate
from bdl_pipe.seeds import Seed
from bdl_report import page, tables
from pipeline import cli
from pipeline.core.load import load, typed
from pipeline.core.settings import Settings
from pipeline.plan.plan import plan
from pipeline.prepared import folders
from pipeline.search import branch_of
from pipeline.stages import report
from tests.data.test_ood import bright_rows
from tests.pipeline import test_params_files, walk
from tests.pipeline.params_cases import changed, params
from tests.report.report_cases import scores_of_step, write_run


def test_a_step_is_fitted_to_all_coresets_so_far_and_scored_on_all_classes_so_far(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BDL_TRACKING", "off")
    (x, y), (x_test, y_test) = bright_rows(120, 0), bright_rows(24, 1)
    np.savez("d.npz", x_train=x, y_train=y, x_test=x_test, y_test=y_test)
    walk.prepared(here, params("with experts"), "d0")
    for stage in ("prepare d1", "coreset c0", "coreset c1", "student r0", "student r1"):
        walk.stage(*stage.split())
    data = [folders.load_fit(Path(f"work/prepare/d{step}"), 0, final=True) for step in range(2)]
    states = [{k: v.tolist() for k, v in d.transform.state().tensors.items()} for d in data]
    assert states[0] == states[1], "their names have not the same address"
    assert len(data[0].validation) + len(data[1].validation) == 30
    first, both = (artifacts.load(Path(f"work/coreset/c{step}"), "coreset").state("0-0") for step in range(2))
    order = np.random.RandomState(0).permutation(6).tolist()
    assert [sorted(set(s.tensors["classes"].tolist())) for s in (first, both)] == [sorted(order[:3]), list(range(6))]
    assert torch.equal(both.tensors["images"][:6], first.tensors["images"]) and len(both.tensors["images"]) == 12
    for key, sentence in (("r0", "6 images of 3 classes"), ("c1", "12 images of 6 classes")):
        assert cli.main(["export", "coreset", key, "--to", key]) == 0
        assert sentence in (Path(key) / "README.md").read_text()
    for step, seen in ((0, order[:3]), (1, order)):
        walk.stage("evaluate", f"r{step}")
        row_of = {r["metric"]: r for r in pq.read_table(f"work/evaluate/r{step}/scores.parquet").to_pylist()}
        student = artifacts.load(Path(f"work/student/r{step}"), "student")
        state = student.state("0-0")
        posterior = POSTERIORS[state.config["posterior"]].from_state(state, "cpu")
        fitted = Predictor(posterior, Transform.from_state(student.state("transform-0")))
        tested = np.isin(y_test, seen)
        p = fitted.predict(x_test[tested], rng=Seed(0)).mean.double().numpy()
        assert p.shape == (tested.sum(), 6)
        right = p.argmax(1) == y_test[tested]  # over the outputs of all classes, not only of the classes so far
        assert (row_of["accuracy"]["value"], row_of["accuracy"]["n"]) == (pytest.approx(right.mean()), tested.sum())
        nll = -np.log(p[np.arange(len(p)), y_test[tested]]).mean()
        assert row_of["nll"]["value"] == pytest.approx(nll, rel=1e-5)
    walk.stage("trajectory", "e1")
    walk.stage("inputs", "both")
    walk.stage("coreset", "b1")
    from_experts = artifacts.load(Path("work/coreset/b1"), "coreset").state("0-0")
    assert torch.equal(from_experts.tensors["images"][:6], first.tensors["images"])
    numbers = load()
    assert {row.key: row.step and row.step.increment.step for row in report.infos(numbers)} == {"r0": 0, "r1": 1}


def test_the_coreset_of_a_step_is_planned_after_the_coreset_of_the_step_before_and_searched_alone() -> None:
    numbers = typed(params("with experts"))
    assert plan(numbers)["coreset@c1"].needs == {"prepare@d1", "coreset@c0"}
    assert [r.key for r in numbers.lineage(numbers.run("student", "r1"))] == ["c0", "c1", "r1"]
    assert numbers.run("coreset", "b1").sources == {"trajectory": "e1", "coreset": "c0"}
    alone = changed(params("with experts"), {"coresets.c1.input": "prepare/d1", "coresets.b1.input": "trajectory/e1"})
    assert typed(alone).run("coreset", "c1").sources == {}  # a learner that forgets
    assert typed(alone).run("coreset", "b1").sources == {"trajectory": "e1"}
    numbers = typed(params("increments"))  # a search over runs of two data sets is refused
    with pytest.raises(UserError, match=r"^r1: has inputs on d0: a search fits all runs on d1; search on the first"):
        branch_of(numbers, "random_coreset", "d1", None, Settings())
    assert branch_of(numbers, "random_coreset", "d0", None, Settings()).runs[-1].key == "r0"


def test_the_increments_overlay_is_valid_and_each_run_follows_all_earlier_steps() -> None:
    numbers = test_params_files.load("params/increments.yaml")
    lines = ("vbpc", "vbpc_memory", "frepo", "frepo_memory", "random_coreset")
    for order, name, (source, last) in itertools.product(range(2), lines, (("", 4), ("-halves", 1))):
        lineage = numbers.lineage(numbers.run("student", f"fashion_mnist{source}-{order}-{last}-{name}"))
        steps = [numbers.datasets[run.spec.dataset].increment for run in lineage]
        assert [(step.order, step.step) for step in steps if step] == [(order, n) for n in (*range(last + 1), last)]
        coresets = [run.method.name for run in lineage[:-1]]
        assert coresets == [name.removesuffix("_memory")] * (last + 1)
        if name != "random_coreset":
            forms = [run.config.coreset.increment for run in lineage[:-1]]
            beside = "with_earlier" if name.endswith("_memory") else "alone"
            assert forms == ["alone"] + [beside] * last


def infos(root: Path) -> list[tables.RunInfo]:
    """Runs of one method: two orders of two steps each, and one run on all classes at once."""
    stored_runs = [write_run(root, "whole", "vbpc", "a", scores_of_step([0.7]))]
    for order, figures in enumerate(([[0.9, 0.7], [0.5]], [[0.6], [0.1]])):  # by step, of the seeds
        for number, values in enumerate(figures):
            run = write_run(root, f"d-{order}-{number}", "vbpc", "a", scores_of_step(values))
            stored_runs.append(replace(run, step=tables.Step("fashion_mnist", "g", IncrementConfig(order, 2, number))))
    return stored_runs


def test_the_report_has_means_over_orders_after_each_step(tmp_path: Path) -> None:
    """The mean over seeds comes first: .8 and .6, so .7 ± .1; then .5 and .1: .3 ± .2."""
    runs = infos(tmp_path)
    table = tables.gather(runs)
    means = [(count, *astuple(mean)) for count, mean in page.over_orders(table, runs, "accuracy")]
    assert means == [pytest.approx((2, 0.7, 0.1, 2)), pytest.approx((4, 0.3, 0.2, 2))]
    text = page.render(table, {}, 110)["index"]
    assert "Class by class" in text and "Class by class" not in page.render(tables.gather(runs[:1]), {}, 110)["index"]
    part = text[text.index('<section id=".steps">') :]
    assert "fashion_mnist, 2 classes a step" in part and part.count('role="img"') == 2
    assert re.search(r">70.00 <small>± 10.00</small></td><td[^>]*>30.00 <small>± 20.00</small></td>", part)
    assert 'aria-label="accuracy after the last step: vbpc 30"' in part
    missing = [replace(runs[1], evaluate=tmp_path / "absent"), *runs[2:]]  # the first order's first step
    assert page.over_orders(tables.gather(missing), missing, "accuracy")[0] == (2, Estimate(0.6, None, 1))
    page.render(tables.gather([replace(run, evaluate=tmp_path / "absent") for run in runs]), {}, 110)
