"""Class-incremental learning as runs of the graph: the inputs of each step, its scored classes, and the report."""

import copy
import itertools
import re
import shutil
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import yaml

from bdl_pipe import artifacts
from bdl_pipe.data.config import IncrementConfig
from bdl_pipe.data.transform import Transform
from bdl_pipe.errors import UserError
from bdl_pipe.posterior import Predictor
from bdl_pipe.registry import POSTERIORS
from bdl_pipe.scores import Estimate, Quantity
from bdl_pipe.seeds import Seed
from bdl_report import page, tables
from pipeline import cli
from pipeline.core import overlays
from pipeline.core.load import load, typed
from pipeline.core.settings import Settings
from pipeline.plan.plan import one, plan
from pipeline.prepared import folders
from pipeline.search import branch_of
from pipeline.stages import inputs, report
from pipeline.work.executor import Inline
from tests.data.test_increment import rows
from tests.pipeline import walk
from tests.preparing import SECTION
from tests.report.report_cases import scores_of_step, write_run

ROOT = Path(__file__).parents[2]
NETWORK = {"name": "convnet", "width": 4, "blocks": 2, "norm": "instance", "pool": "average"}
STUDENT = {"steps": 2, "lr": 3.0e-4, "augmentation": {"choose": "all", "operations": {}}}
DATA = {**SECTION, "source": {"name": "npz", "path": "d.npz"}, "validation": 30, "fit_rows": "train"}
INNER = {"steps": 2, "lr": 0.05, "ahead": 1}
OUTER = {
    "steps": 2,
    "optimiser": {"name": "adam", "lr": 0.02},
    "augmentation": {"choose": "all", "operations": {}},
    "average": None,
}


def raw() -> dict[str, Any]:
    """Two steps of three classes; the second step's coreset takes the first step's as input; experts of the second."""
    made: dict[str, Any] = {
        "seed": 0,
        "teachers": {},
        "evaluate": {"calibration_bins": 5, "batch": 100, "joint_pairs": 0},
    }
    made |= {"report": {"figures_dpi": 110}, "datasets": {}, "coresets": {}, "runs": {}}
    vbpc = {"ipc": 2, "network": NETWORK, "rho": 10.0, "gamma": 100.0, "feature_scale": 1.0, "student": STUDENT}
    bpc = {"ipc": 2, "start_epochs": 1, "inner": INNER, "draws": 2, "sd": 0.01, "shared_noise": True, "outer": OUTER}
    optimiser = {"name": "sgd", "lr": 0.05, "schedule": "constant", "weight_decay": 0.0}
    sgd = {"network": NETWORK, "epochs": 2, "snapshots": 2, "batch": 16, "optimiser": optimiser, "keep_start": True}
    made["methods"] = {"random_coreset": vbpc | {"label_scale": 1.0}, "bpc_fkl": bpc, "sgd": sgd}
    for step in range(2):
        made["datasets"][f"d{step}"] = DATA | {"increment": {"order": 0, "classes": 3, "step": step}}
        row = {"dataset": f"d{step}", "method": "random_coreset", "seeds": 1}
        made["coresets"][f"c{step}"] = row | {"input": "coreset/c0" if step else "prepare/d0"}
        made["runs"][f"r{step}"] = row | {"setting": "small", "input": f"coreset/c{step}"}
    made["trajectories"] = {"e1": {"dataset": "d1", "method": "sgd", "seeds": 1, "input": "prepare/d1"}}
    return made


def with_experts(made: dict[str, Any], **bundle: str) -> dict[str, Any]:
    """Add a coreset of the second step that is made from its experts and the first step's coreset together."""
    made["inputs"] = {"both": {"trajectory": "trajectory/e1", "coreset": "coreset/c0"} | bundle}
    made["coresets"]["b1"] = {"dataset": "d1", "method": "bpc_fkl", "seeds": 1, "input": "inputs/both"}
    return made


def test_a_step_is_fitted_to_all_coresets_so_far_and_scored_on_all_classes_so_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BDL_TRACKING", "off")
    (x, y), (x_test, y_test) = rows(120, 0), rows(24, 1)
    np.savez("d.npz", x_train=x, y_train=y, x_test=x_test, y_test=y_test)
    Path("params.yaml").write_text(yaml.safe_dump(with_experts(raw()), sort_keys=False))
    for stage in ("prepare d0", "prepare d1", "coreset c0", "coreset c1", "student r0", "student r1"):
        walk.stage(*stage.split())
    data = [folders.load_fit(Path(f"work/prepare/d{step}"), 0, final=True) for step in range(2)]
    states = [{k: v.tolist() for k, v in d.transform.state().tensors.items()} for d in data]
    assert states[0] == states[1], "their names have not the same address"
    assert len(data[0].validation) + len(data[1].validation) == 30
    first, both = (artifacts.load(Path(f"work/coreset/c{step}"), "coreset").state("0-0") for step in range(2))
    order = np.random.RandomState(0).permutation(6).tolist()
    assert [sorted(set(s.tensors["classes"].tolist())) for s in (first, both)] == [sorted(order[:3]), list(range(6))]
    assert torch.equal(both.tensors["images"][:6], first.tensors["images"]) and len(both.tensors["images"]) == 12
    for key, said in (("r0", "6 images of 3 classes"), ("c1", "12 images of 6 classes")):
        assert cli.main(["export", "coreset", key, "--to", key]) == 0
        assert said in (Path(key) / "README.md").read_text()
    for step, seen in ((0, order[:3]), (1, order)):
        walk.stage("evaluate", f"r{step}")
        found = {r["metric"]: r for r in pq.read_table(f"work/evaluate/r{step}/scores.parquet").to_pylist()}
        student = artifacts.load(Path(f"work/student/r{step}"), "student")
        state = student.state("0-0")
        posterior = POSTERIORS[state.config["posterior"]].from_state(state, "cpu")
        fitted = Predictor(posterior, Transform.from_state(student.state("transform-0")))
        tested = np.isin(y_test, seen)
        p = fitted.predict(x_test[tested], rng=Seed(0)).mean.double().numpy()
        assert p.shape == (tested.sum(), 6)
        right = p.argmax(1) == y_test[tested]  # over the outputs of all classes, not only of the classes so far
        assert (found["accuracy"]["value"], found["accuracy"]["n"]) == (pytest.approx(right.mean()), tested.sum())
        nll = -np.log(p[np.arange(len(p)), y_test[tested]]).mean()
        assert found["nll"]["value"] == pytest.approx(nll, rel=1e-5)
    walk.stage("trajectory", "e1")
    loaded = load()
    inputs.run(one("inputs", "both", loaded), loaded, Inline(Settings()), Settings())
    walk.stage("coreset", "b1")
    from_experts = artifacts.load(Path("work/coreset/b1"), "coreset").state("0-0")
    assert torch.equal(from_experts.tensors["images"][:6], first.tensors["images"])
    numbers = load()
    assert {row.key: row.step and row.step.increment.step for row in report.infos(numbers)} == {"r0": 0, "r1": 1}


def test_the_coreset_of_a_step_is_planned_after_the_coreset_of_the_step_before() -> None:
    numbers = typed(with_experts(raw()))
    assert plan(numbers)["coreset@c1"].needs == {"prepare@d1", "coreset@c0"}
    assert [r.key for r in numbers.lineage(numbers.run("student", "r1"))] == ["c0", "c1", "r1"]
    assert numbers.run("coreset", "b1").sources == {"trajectory": "e1", "coreset": "c0"}
    alone = raw()
    alone["coresets"]["c1"]["input"] = "prepare/d1"  # a learner that forgets
    assert typed(alone).run("coreset", "c1").sources == {}


def refused(made: dict[str, Any]) -> str:
    with pytest.raises(UserError) as caught:
        typed(made)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ({"increment": {"order": 1, "classes": 3, "step": 0}}, "another order"),
        ({"increment": {"order": 0, "classes": 2, "step": 0}}, "other steps"),
        ({"increment": {"order": 0, "classes": 3, "step": 1}}, "the same step"),
        ({"increment": None}, "all classes"),
        ({"normalise": "none"}, "another transform"),
        ({"source": {"name": "npz", "path": "e.npz"}}, "another source"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_coreset_of_anything_but_the_step_before_is_refused(change: dict[str, Any], shown: str) -> None:
    made = raw()
    made["datasets"]["d0"] |= change
    message = "coresets.c1.input must be of the data set one step before d1, got 'coreset/c0: d0'"
    assert refused(made) == message, shown
    assert refused(with_experts(made)) == message
    bundle = with_experts(copy.deepcopy(made))
    bundle["coresets"] = {"c0": made["coresets"]["c0"]}
    bundle["runs"] = {}
    assert refused(bundle).startswith("inputs.both must be of one data set, got {"), shown


def test_a_run_or_coreset_with_a_wrong_input_is_refused() -> None:
    made = raw()
    made["runs"]["r1"]["input"] = "coreset/c0"
    assert refused(made) == "runs.r1.input must be of the data set d1, got 'coreset/c0: d0'"
    made = raw()
    made["coresets"]["c1"]["input"] = "trajectory/e1"
    assert refused(made) == "coresets.c1.input must be coreset/<run> or prepare/d1, got 'trajectory/e1'"
    made = with_experts(raw())
    made["coresets"]["b1"]["input"] = "coreset/c0"
    rule = "must be trajectory/<run> or inputs/<key> with trajectory and coreset"
    assert refused(made) == f"coresets.b1.input {rule}, got 'coreset/c0'"
    made["coresets"]["b1"]["input"] = "trajectory/e1"
    assert typed(made).run("coreset", "b1").sources == {"trajectory": "e1"}


def test_a_search_over_runs_of_two_data_sets_is_refused() -> None:
    numbers = typed(raw())
    with pytest.raises(UserError, match=r"^r1: has inputs on d0: a search fits all runs on d1; search on the first"):
        branch_of(numbers, "random_coreset", "d1", None, Settings())
    assert branch_of(numbers, "random_coreset", "d0", None, Settings()).runs[-1].key == "r0"


def test_the_increments_overlay_is_valid_and_each_run_follows_all_earlier_steps(tmp_path: Path) -> None:
    shutil.copy(ROOT / "params.yaml", tmp_path / "params.yaml")
    overlays.apply(ROOT / "params/comparison.yaml", tmp_path / "params.yaml")
    overlays.apply(ROOT / "params/increments.yaml", tmp_path / "params.yaml")
    numbers = load(tmp_path / "params.yaml")
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
    found = [write_run(root, "whole", "vbpc", "a", scores_of_step([0.7]))]
    for order, figures in enumerate(([[0.9, 0.7], [0.5]], [[0.6], [0.1]])):  # by step, of the seeds
        for number, values in enumerate(figures):
            run = write_run(root, f"d-{order}-{number}", "vbpc", "a", scores_of_step(values))
            found.append(replace(run, step=tables.Step("fashion_mnist", "g", IncrementConfig(order, 2, number))))
    return found


def test_the_report_has_means_over_orders_after_each_step(tmp_path: Path) -> None:
    """The mean over seeds comes first: .8 and .6, so .7 ± .1; then .5 and .1: .3 ± .2."""
    runs = infos(tmp_path)
    table = tables.gather(runs)
    found = [(count, *astuple(mean)) for count, mean in page.over_orders(table, runs, "accuracy")]
    assert found == [pytest.approx((2, 0.7, 0.1, 2)), pytest.approx((4, 0.3, 0.2, 2))]
    text = page.render(table, {}, 110)["index.html"]
    part = text[text.index('<section id=".steps">') :]
    assert "fashion_mnist, 2 classes a step" in part and part.count("<svg") == 2
    assert re.search(r">70.00 <small>± 10.00</small></td><td[^>]*>30.00 <small>± 20.00</small></td>", part)
    assert 'aria-label="accuracy after the last step: vbpc 30"' in part
    missing = [replace(runs[1], evaluate=tmp_path / "absent"), *runs[2:]]  # the first order's first step
    assert page.over_orders(tables.gather(missing), missing, "accuracy")[0] == (2, Estimate(0.6, None, 1))
    page.render(tables.gather([replace(run, evaluate=tmp_path / "absent") for run in runs]), {}, 110)


def test_a_report_without_steps_has_no_class_by_class_section(tmp_path: Path) -> None:
    table = tables.gather(infos(tmp_path)[:1])
    assert table.estimate("whole-vbpc-a", Quantity("accuracy")) is not None
    assert "Class by class" not in page.render(table, {}, 110)["index.html"]
