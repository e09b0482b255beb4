"""The runs and settings of a method equal those that ``add`` and params.yaml have; a user can choose others."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

import bdl_pipe as bdl
from bdl_pipe import BayesianClassifier, BayesianRegressor, offers
from bdl_pipe.config import merge, read
from bdl_pipe.data.size import Size
from bdl_pipe.errors import UserError
from bdl_pipe.estimators.plan import plan
from bdl_pipe.evaluation import USUAL, EvaluateConfig
from bdl_pipe.fitting import Run
from bdl_pipe.offers import offered
from bdl_pipe.registry import METHODS
from bdl_pipe.yaml_files import read_yaml
from pipeline.add import overlay_of
from pipeline.core.load import typed
from pipeline.core.params_files import read_params
from tests.case_files import cases_of

cases = cases_of(__file__)
ROOT: Final = Path(__file__).parents[2]
SIZES: Final = {
    "few": Size("regression", 300, 8, has_test=True),
    "many": Size("regression", 30_000, 8, has_test=True),
    "classes": Size("classification", 3_000, 8, fewest=100, has_test=True),
    "images": Size("classification", 20_000, 784, image=(1, 28, 28), fewest=1000, has_test=True),
}
EMPTY: Final = ("datasets", "trajectories", "teachers", "coresets", "runs", "decisions")
FILES: Final = ("params/inducing-convnet.yaml", "params/coresets.yaml", "params.yaml")  # the last one is preferred
PARAMS: Final[dict[str, Any]] = {name: s for file in FILES for name, s in read_params(ROOT / file)["methods"].items()}
METHODS_ALONE: Final = read_yaml(ROOT / "params.yaml") | {section: {} for section in EMPTY} | {"methods": PARAMS}


def own(size: Size) -> dict[str, Any]:
    if size.image is not None:
        return {"source": {"name": "npz", "path": "x.npz"}, "normalise": "train", "targets": "none"}
    source = {"name": "table", "path": "x.csv", "target": ["y"], "task": size.task}
    return {"source": source, "normalise": "robust", "targets": "standardise" if size.task == "regression" else "none"}


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_the_runs_of_all_methods_equal_the_runs_that_add_writes(size: Size) -> None:
    methods = offered(size)
    params = typed(merge(METHODS_ALONE, overlay_of("data", own(size), size, methods, 1)))
    runs_of_data = {key: run for key, run in params.runs.items() if run.spec.dataset == "data"}
    runs, seeds = [run for method in methods for run in plan(method.name, size)], dict[tuple[str, str], int]()
    for run in runs:
        theirs = runs_of_data[run.kind, run.key]
        assert run.config == theirs.config and run.method is theirs.method
        assert dict(run.sources) == dict(theirs.sources)
        seeds[run.kind, run.key] = max(run.seeds, seeds.get((run.kind, run.key), 0))  # two methods may share a run
    assert seeds == {key: run.spec.seeds for key, run in runs_of_data.items()}


def named(runs: list[Run]) -> list[str]:
    return [f"{run.kind}/{run.key.removeprefix('data-')}" for run in runs]


@cases("runs", "method size made_from expected")
def test_made_from_chooses_a_methods_runs(method: str, size: str, made_from: str | None, expected: list[str]) -> None:
    assert named(plan(method, SIZES[size], made_from=made_from)) == expected


def test_a_method_without_a_default_has_a_network_that_suits_a_table() -> None:
    (gbll,), (fcg,) = plan("gbll", SIZES["few"]), plan("fcg_u", SIZES["few"])
    assert gbll.config.network.hidden == (50,)  # the network of its section
    assert fcg.config.network.hidden == tuple(SIZES["few"].hidden)  # its section has a ConvNet, which takes no table
    assert fcg.config.training.epochs == SIZES["few"].epochs(2_000)


@pytest.mark.parametrize("name", ["few", "classes", "images"])
def test_every_method_is_planned_or_refused_in_one_line(name: str) -> None:
    """A refusal is a ValueError in one line: a key, an argument or the rows, and the rule."""
    for method in (method for method in METHODS.values() if "student" in method.stages):
        try:
            runs = plan(method.name, SIZES[name])
        except UserError as refusal:
            message = str(refusal)
            assert re.match(r"^(method|rows|methods\.[\w.]+) (must|is missing)", message), message
            assert isinstance(refusal, ValueError) and "\n" not in message
            assert method not in offered(SIZES[name]), message
        else:
            assert runs[-1].method is method and runs[-1].kind == "student"


@pytest.mark.parametrize("rows", [100, 1_500, 20_000, 2_000_000])
def test_the_hyperparameters_of_an_offered_method_are_valid_for_every_size_and_pace(rows: int) -> None:
    image = Size("classification", rows, 30, image=(3, 40, 60), fewest=rows // 10)
    for size in (Size("classification", rows, 30), Size("regression", rows, 30), image):
        for one in (size, replace(size, pace=offers.LEAST)):
            assert all(plan(method.name, one)[-1].kind == "student" for method in offered(one))


def test_hyperparameters_of_every_run_can_be_changed() -> None:
    change = {"iterates": {"batch": 7}, "swag": {"draws": 9}}
    override = {"batch": 5}
    first, second, last = plan("dark_knowledge", SIZES["few"], made_from="swag", override=override, upstream=change)
    assert (first.config.batch, second.config.draws, last.config.batch) == (7, 9, 5)
    coreset, student = plan("coreset_bma", SIZES["images"], upstream={"vbpc": {"rho": 3.0}})
    assert student.config.network == coreset.config.network  # a protocol takes the settings of its coreset
    assert student.config.rho == coreset.config.rho == 3.0 and student.config.gamma == coreset.config.gamma


@dataclass(frozen=True)
class SnapshotsConfig:
    last: int = 3


def fit_snapshots(data: Any, inputs: Any, config: Any, *, rng: Any, report: Any) -> bdl.State:
    (trajectory,) = inputs["trajectory"]
    spec = bdl.read_config(bdl.NetworkSpec, trajectory.config["spec"], "spec")
    return bdl.NetworkDraws(spec, {k: v[-config.last :] for k, v in bdl.snapshots(trajectory).items()}).state()


def test_a_plugins_method_is_fitted_from_the_trajectory_that_it_needs(forgotten_plugins: None) -> None:
    needs = {"student": bdl.StageSpec(fit_snapshots, needs={"trajectory": "one_to_one"})}
    bdl.register_method(bdl.Method("snapshot_draws", SnapshotsConfig, ("regression", "classification"), needs))
    x = np.random.default_rng(0).normal(size=(60, 2))
    model = BayesianRegressor("snapshot_draws", override={"last": 2}, pace=0.05).fit(x, x[:, 0])
    assert len(model.predict_dist(x).predictive.draw_mean) == 2
    classifier = BayesianClassifier("snapshot_draws", pace=0.05).fit(x, x[:, 0] > 0)
    assert len(classifier.predict_dist(x).predictive.draw_log_probs) == 3


KINDS: Final[dict[str, dict[str, Any]]] = {  # methods of one trajectory, several, chains, a teacher and a coreset
    **{name: {} for name in ("swag", "ensemble", "sgmcmc", "dark_knowledge")},
    "vbpc": {
        "override": {"student": {"steps": 3}},
        "upstream": {"vbpc": {"coreset": {"steps": 4, "pool": {"networks": 2, "steps": 2}}}},
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_a_method_of_each_kind_of_input_fits_and_predicts(name: str) -> None:
    random, labels = np.random.default_rng(0), np.arange(60) % 2
    x: np.ndarray = random.normal(size=(60, 3)) + labels[:, None]
    if name == "vbpc":
        x = (random.integers(0, 100, (60, 8, 8)) + 100 * labels[:, None, None] * (np.arange(8) % 2)).astype(np.uint8)
    model = BayesianClassifier(name, pace=0.01, **KINDS[name]).fit(x, labels)
    probabilities = model.predict_proba(x)
    assert probabilities.shape == (60, 2) and probabilities.sum(1) == pytest.approx(1, abs=1e-5)
    of_labels = np.log(probabilities[np.arange(60), labels])
    assert model.log_prob(x, labels) == pytest.approx(of_labels, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("size", [*SIZES.values(), Size("regression", 89, 2, has_test=True)])
def test_without_a_method_a_declared_one_is_taken_that_suits_the_rows(size: Size, weighted: bool) -> None:
    """One line of each method's own declaration decides; the reason is that method's."""
    method, why = offers.automatic(size, weighted=weighted)
    declared = [m.name for m in offered(size) if m.default is not None and m.default.automatic(size)]
    expected = "ensemble" if size.image else "linear" if size.rows < 90 else "multi_swag"
    assert declared == [method.name] == [expected] and method.weighs_rows and why


@pytest.mark.slow
def test_a_limit_of_minutes_reduces_the_epochs() -> None:
    x = np.random.default_rng(0).normal(size=(60, 2))
    model = BayesianRegressor("vbll", minutes=1e-3).fit(x, x[:, 0])
    size = Size("regression", 60, 2, has_test=True)
    whole, least = (plan("vbll", replace(size, pace=pace))[-1].config.training.epochs for pace in (1.0, offers.LEAST))
    assert model.fitted_.about["config"]["training"]["epochs"] == least < whole


UNSET: Final = {"pretrained", "vbll_bnn", "d_vbll_bnn", "g_vbll_bnn", "fcg_w"}  # The user sets all their keys.


def test_every_method_has_a_section_or_is_listed_as_unset() -> None:
    assert {*PARAMS, *UNSET} == {*METHODS}
    assert not any(METHODS[name].settings for name in UNSET)
    assert read(EvaluateConfig, read_yaml(ROOT / "params.yaml")["evaluate"], "evaluate") == USUAL


@pytest.mark.parametrize("name", sorted({*METHODS} - UNSET))
def test_the_settings_of_a_method_equal_its_section(name: str) -> None:
    """They are the whole section, but for what follows from the size of the data."""
    method, section = METHODS[name], PARAMS[name]
    typed = read(method.config, section, f"methods.{name}")
    assert read(method.config, merge(section, method.settings), f"methods.{name}") == typed
    if method.default is None and not method.upstream:
        assert read(method.config, method.settings, f"methods.{name}") == typed
