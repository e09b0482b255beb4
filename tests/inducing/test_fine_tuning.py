"""Posteriors that are pruned and then fine-tuned, through the methods' protocol."""

import functools
from dataclasses import replace
from typing import Any

import pytest
import torch

from bdl_pipe.artifacts import State
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.errors import ConfigError, UserError
from bdl_pipe.inducing import prune, stored
from bdl_pipe.inducing.learner import RandomWeights
from bdl_pipe.inducing.methods import RandomWeightsPosterior, validate_sources
from bdl_pipe.inducing.sparse import Kept
from bdl_pipe.metrics import cost
from bdl_pipe.progress import Report, Silent
from bdl_pipe.registry import posterior_of
from bdl_pipe.seeds import Seed
from tests.cases import LEARN, config_of, fit
from tests.conftest import make_tiny_images, make_tiny_table
from tests.resuming import Watched, killed, resumed, same_bits

PRUNED = ("ffg_u", "fcg_u", "ensemble_u", "ffg_w")
CASES = [(method, task) for method in PRUNED for task in ("classification", "regression")]
SHARE = 0.4
FIXED = {"early_stopping": None}
cases = pytest.mark.parametrize(("method", "task"), CASES)
pytestmark = pytest.mark.xdist_group(__name__)  # its tests share cached fits


def data_of(task: str) -> FitData:
    return make_tiny_images() if task == "classification" else make_tiny_table()


@functools.cache
def fitted(method: str, task: str) -> State:
    return fit(method, "student", data_of(task), rng=Seed(4), training={**LEARN, **FIXED, "epochs": 2})


def fine_tuned(method: str, task: str, report: Report, **changes: Any) -> State:
    settings = {"prune": SHARE, "annealing": None, "training": {**LEARN, **FIXED, "epochs": 1}} | changes
    inputs = {"student": [fitted(method, task)]}
    return fit(method, "student", data_of(task), inputs, rng=Seed(5), report=report, **settings)


@functools.cache
def tuned(method: str, task: str) -> State:
    return fine_tuned(method, task, Silent())


def learner(state: State) -> RandomWeights:
    return RandomWeightsPosterior.from_state(state).learner


def masks(net: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: m(torch.ones(m.count)) > 0 for name, m in net.named_modules() if isinstance(m, Kept)}


@cases
def test_fine_tuning_moves_kept_entries_and_neither_masks_nor_removed_entries(method: str, task: str) -> None:
    start = RandomWeights.pruned(learner(fitted(method, task)), replace(learner(tuned(method, task)).spec.config))
    end = learner(tuned(method, task))
    before, after = masks(start.net), masks(end.net)
    assert before.keys() == after.keys() and all(torch.equal(m, after[k]) for k, m in before.items())
    assert any(not m.all() for m in after.values())
    moved = dict(end.named_parameters())
    for name, parameter in start.named_parameters():
        if parameter.numel():
            assert not torch.equal(parameter, moved[name]), f"{name} stands still"
    for key, layer in end.net.layers.items():
        parts = layer.importance().values()
        for (name, mask), part in zip([(n, m) for n, m in after.items() if f".{key}." in n], parts, strict=True):
            assert (part[~mask] == 0).all(), f"{name} came back"


@pytest.mark.parametrize(("method", "task"), [("ensemble_u", "regression"), ("ffg_w", "classification")])
def test_fine_tuning_starts_at_the_kept_entries_of_the_fitted_posterior(method: str, task: str) -> None:
    source, config = learner(fitted(method, task)), learner(tuned(method, task)).spec.config
    start, expected = RandomWeights.pruned(source, config).state_dict(), prune(source.net, SHARE).state_dict()
    kept = {f"net.{name}": value for name, value in expected.items()}
    rest = {name: value for name, value in source.state_dict().items() if not name.startswith("net.")}
    assert start.keys() == (kept | rest).keys()
    assert all(torch.equal(value, start[name]) for name, value in (kept | rest).items())


@cases
def test_a_pruned_posterior_stores_and_optimises_fewer_numbers(method: str, task: str) -> None:
    whole, small = fitted(method, task), tuned(method, task)
    removed = stored(learner(whole).net) - stored(prune(learner(whole).net, SHARE))
    assert cost.stored_parameters(whole) - cost.stored_parameters(small) == removed
    packed = sum(v.nbytes for k, v in small.tensors.items() if k.endswith("packed"))
    saved = sum(v.nbytes for v in whole.tensors.values()) - sum(v.nbytes for v in small.tensors.values())
    assert saved == 4 * removed - packed > 0
    checkpoint = killed(lambda report: fine_tuned(method, task, report), 2)
    moments = [v for k, v in checkpoint.tensors.items() if k.endswith("exp_avg")]
    assert sum(v.numel() for v in moments) == sum(p.numel() for p in learner(small).parameters() if p.requires_grad)


@cases
def test_equal_seeds_and_a_resumed_run_give_equal_bits(method: str, task: str) -> None:
    undisturbed = Watched()
    assert same_bits(fine_tuned(method, task, undisturbed), tuned(method, task))
    assert same_bits(posterior_of(tuned(method, task)).state(), tuned(method, task))
    again = resumed(lambda report: fine_tuned(method, task, report), undisturbed.asked // 2)
    assert same_bits(again, tuned(method, task))


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no posterior": ({"source": None}, r"prune must be null without a posterior as input \(input: student/<run>\)"),
    "no share": ({"prune": None}, r"prune must be a share in \(0, 1\) with a posterior as input, got None"),
    "another network": ({"network": {"name": "mlp", "hidden": [9]}}, "network must equal the pruned posterior"),
    "other weights": ({"weights": {"kind": "ffg_u", "rows": 5, "cols": 5}}, "weights must equal the pruned posterior"),
    "joint weights": ({"shared": [2, 2]}, "shared must equal the pruned posterior"),
    "other layers": ({"layers": {"head": {"rows": 2}}}, "layers must equal the pruned posterior"),
    "epochs are chosen": ({"training": LEARN}, "training.early_stopping must be null with a posterior as input"),
    "pruned": (
        {"source": config_of("ffg_u", "regression", prune=0.5, training={**LEARN, **FIXED})},
        "input must be a posterior that is not pruned itself, got 'one with prune",
    ),
}


GOOD: dict[str, Any] = {"prune": 0.5, "training": {**LEARN, **FIXED}}


def section(method: str = "ffg_u", **changes: Any) -> Any:
    return config_of(method, "regression", **changes)


@pytest.mark.parametrize("name", WRONG)
def test_a_section_that_does_not_fit_its_input_is_refused(name: str) -> None:
    change, words = WRONG[name]
    source = change.get("source", section())
    validate_sources("ffg_u", section(**GOOD), {"student": section()})
    changed = {k: v for k, v in change.items() if k != "source"}
    with pytest.raises(ConfigError, match=words):
        validate_sources("ffg_u", section(**GOOD | changed), {} if source is None else {"student": source})


def test_a_fit_refuses_an_input_that_does_not_match_its_section() -> None:
    other = State(fitted("ffg_u", "regression").tensors, {"posterior": "gp"})
    for inputs, message in (
        ({}, "prune must be null without a posterior as input"),
        ({"student": [other]}, "input must be a posterior random_weights, got 'gp'"),
        ({"student": [fitted("fcg_u", "regression")]}, "input must be a run of ffg_u, got 'fcg_u'"),
    ):
        with pytest.raises(UserError, match=message):
            fit("ffg_u", "student", make_tiny_table(), inputs, **GOOD)
