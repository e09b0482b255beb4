"""Distillation descends and resumes with the same bits; the student learns the coreset and does not keep V."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from bdl_pipe import config
from bdl_pipe.artifacts import State
from bdl_pipe.coresets.protocols.closed_form import TrunkMixture
from bdl_pipe.coresets.shared.init import Coreset, balanced
from bdl_pipe.coresets.shared.pool import ModelPool, PoolConfig
from bdl_pipe.coresets.vbpc import method
from bdl_pipe.coresets.vbpc.posterior import VbpcPosterior, fit_student
from bdl_pipe.data.augment import AugmentConfig
from bdl_pipe.networks import ConvNetConfig
from bdl_pipe.progress import Report, Silent
from bdl_pipe.seeds import Seed
from tests.cases import fit
from tests.resuming import resumed, same_bits

from .cases import tiny_data, tiny_vbpc

distil_coreset = method.VBPC.stages["coreset"].fit_one


def read(**changes: Any) -> method.VbpcConfig:
    return config.read(method.VbpcConfig, tiny_vbpc(**changes), "methods.vbpc")


def distilling(settings: method.VbpcConfig, rng: Seed = Seed(0).fold("coreset")) -> Callable[[Report], State]:
    return lambda report: distil_coreset(DATA, {}, settings, rng=rng, report=report)


DATA = tiny_data()
STUDIED: dict[str, dict[str, Any]] = {  # the settings that the studies of params/study vary
    **{f"norm {norm}": {"network": {"norm": norm, "width": 8}} for norm in ("batch", "batch_stats", "group", "none")},
    "largest pools": {"network": {"pool": "max"}},
    "one block": {"network": {"blocks": 1}},
    **{f"start {start}": {"coreset": {"start": start}} for start in ("kmeans", "herding", "noise")},
    "an average": {"coreset": {"average": 0.9}},
    "labels that stay": {"coreset": {"label_lr": None}},
    "no augmentation": {"coreset": {"augmentation": {"operations": {"noise": 0.0, "rotate": 0.0, "cutout": 0.0}}}},
    "one old network": {"coreset": {"pool": {"networks": 1, "steps": 100}}},
    "the bound": {"outer": "expected"},
    "other precisions": {"rho": 1000.0, "gamma": 1.0},
}


@pytest.mark.parametrize("changes", STUDIED.values(), ids=STUDIED.keys())
def test_a_stopped_distillation_with_a_studied_setting_resumes_to_the_same_bits(changes: dict[str, Any]) -> None:
    settings = config.read(method.VbpcConfig, config.merge(tiny_vbpc(), changes), "methods.vbpc")
    undisturbed = distilling(settings)(Silent())
    assert same_bits(undisturbed, resumed(distilling(settings), 6))
    assert not same_bits(undisturbed, distilling(read())(Silent()))  # the setting changes the fit


def test_images_and_labels_move_by_their_own_learning_rates() -> None:
    """Adam's first step is its rate: images move by ``lr``, labels by ``label_lr``."""
    settings = read(coreset=tiny_vbpc()["coreset"] | {"steps": 1, "lr": 1.0e-3, "label_lr": 1.0e-1})
    moved, start = distilling(settings, Seed(0))(Silent()).tensors, balanced(DATA, 2, 1.0, rng=Seed(0).fold("start"))
    assert float((moved["images"] - start.images).abs().max()) == pytest.approx(1e-3, rel=1e-2)
    assert float((moved["labels"] - start.labels).abs().median()) == pytest.approx(1e-1, rel=1e-2)


def test_a_random_coreset_is_a_balanced_choice_of_training_rows() -> None:
    coreset = fit("random_coreset", "coreset", DATA, label_scale=2.0).tensors
    assert coreset["classes"].tolist() == [0, 0, 1, 1, 2, 2]
    rows = DATA.transform.inputs(DATA.train.inputs)
    for image, label in zip(coreset["images"], coreset["classes"], strict=True):
        match = (rows == image).flatten(1).all(1)
        assert match.any() and set(DATA.train.targets[match.numpy()]) == {int(label)}
    torch.testing.assert_close(coreset["labels"], 2 * (torch.eye(3)[coreset["classes"]] - 1 / 3) / (3 / 10) ** 0.5)


def test_the_ages_of_the_pool_are_staggered_and_an_old_network_is_replaced() -> None:
    pool = ModelPool(PoolConfig(4, 8, 1e-3), ConvNetConfig("convnet", 2, 2, "none"), (1, 8, 8), 3, rng=Seed(0))
    assert pool.state()["ages"].tolist() == [0, 2, 4, 6]
    images, labels = torch.randn(3, 1, 8, 8), torch.randn(3, 3)
    before = pool.state()["3.network.head.weight"]
    for _ in range(2):
        pool.advance(3, images, labels, AugmentConfig("all"))
    state = pool.state()
    assert (state["ages"].tolist(), state["generations"].tolist()) == ([0, 2, 4, 0], [0, 0, 0, 1])
    assert not torch.equal(before, state["3.network.head.weight"])
    assert {pool.draw(step)[0] for step in range(50)} == {0, 1, 2, 3}


SETTINGS = config.read(method.VbpcConfig, tiny_vbpc(), "methods.vbpc")


@pytest.fixture(scope="module")
def coreset() -> dict[str, list]:
    return {"coreset": [distilling(SETTINGS, Seed(0))(Silent())]}


@pytest.mark.parametrize(("ipc", "square"), [(2, 6), (12, 32)])
def test_the_stored_head_has_only_the_tensors_that_a_prediction_needs(ipc: int, square: int) -> None:
    """3·ipc rows of 32 features: the factor is square in the smaller number; Φ is stored only with fewer rows."""
    settings = config.read(method.VbpcConfig, config.merge(tiny_vbpc(), {"ipc": ipc}), "methods.vbpc")
    chosen = balanced(DATA, ipc, 1.0, rng=Seed(0)).state(DATA, {})
    state = fit_student(DATA, {"coreset": [chosen]}, settings, rng=Seed(1), report=Silent())
    stored = {k.removeprefix("head."): tuple(v.shape) for k, v in state.tensors.items() if k.startswith("head.")}
    shapes = {"mean": (32, 3), "factor": (square, square)} | ({"features": (6, 32)} if ipc == 2 else {})
    assert stored == shapes
    inputs, _ = DATA.tensors("validation")
    again = VbpcPosterior.from_state(state)
    phi = again.features(inputs)
    with torch.no_grad():
        expected = settings.solve(again._networks.module, Coreset.from_state(chosen).images, chosen.tensors["labels"])
    torch.testing.assert_close(again.predict(inputs).log_probs, expected.predict(phi).log_probs)


def test_the_student_of_a_distilled_coreset_is_far_more_accurate_than_chance() -> None:
    """Classes differ by 50 grey levels under a noise of 0–120: the accuracy must be far above 1/3."""
    longer = config.merge(tiny_vbpc(), {"coreset": {"steps": 150}, "network": {"norm": "none"}})
    longer["coreset"]["augmentation"] = longer["student"]["augmentation"] = {"choose": "all", "operations": {}}
    settings = config.read(method.VbpcConfig, longer, "methods.vbpc")
    inputs_of_fit = {"coreset": [distilling(settings, Seed(0))(Silent())]}
    fitted = VbpcPosterior.from_state(fit_student(DATA, inputs_of_fit, settings, rng=Seed(1), report=Silent()))
    inputs, targets = DATA.tensors("validation")
    assert float((fitted.predict(inputs).mean.argmax(1) == targets).float().mean()) > 0.8


def test_the_mixture_of_trunks_predicts_the_mean_of_their_predictives(coreset: dict[str, list]) -> None:
    inputs, _ = DATA.tensors("validation")
    section = {name: tiny_vbpc()[name] for name in ("network", "rho", "gamma", "feature_scale", "student")}
    mixture = TrunkMixture.from_state(fit("coreset_bma", "student", DATA, coreset, rng=Seed(1), trunks=3, **section))
    alone = []
    for k in range(3):
        state = fit_student(DATA, coreset, SETTINGS, rng=Seed(1).fold("trunk", k), report=Silent())
        alone.append(VbpcPosterior.from_state(state).predict(inputs).mean)
    torch.testing.assert_close(mixture.predict(inputs).mean, torch.stack(alone).mean(0))
    assert float(mixture.predict(inputs).mutual_information().min()) > 0
    assert not torch.allclose(alone[0], alone[1])
