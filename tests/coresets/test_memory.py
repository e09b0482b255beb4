"""A step distilled beside an earlier coreset: its loss and gradient by hand, its pool, its weights, exact resume."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bdl_pipe import config
from bdl_pipe.artifacts import State
from bdl_pipe.coresets import frepo
from bdl_pipe.coresets.rcig import method as rcig
from bdl_pipe.coresets.shared.init import Coreset, balanced
from bdl_pipe.coresets.shared.pool import ModelPool
from bdl_pipe.coresets.shared.pool_surrogate import Memory, PoolSurrogate
from bdl_pipe.coresets.vbpc import method as vbpc
from bdl_pipe.data.augment import augment
from bdl_pipe.data.examples import Examples
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.errors import ConfigError
from bdl_pipe.progress import Report, Silent
from bdl_pipe.seeds import Seed
from tests.cases import CONFIGS
from tests.resuming import resumed, same_bits

from .cases import central, drawn, relative, tiny_data, tiny_vbpc
from .test_oracles_gradients import AUGMENTATION, AUGMENTED, DoubleData, check, dense_outer_loss, frepo_loss, smoothed

HERE = Seed(8)
NETWORK = {"name": "convnet", "width": 2, "blocks": 1, "norm": "none"}
METHODS = {"vbpc": vbpc.VBPC, "frepo": frepo.FREPO, "rcig": rcig.RCIG}
SURROGATES = {"vbpc": vbpc.DatasetLoss, "frepo": frepo._RidgeLoss, "rcig": rcig._Implicit}


def of_classes(data: FitData, *kept: int) -> FitData:
    """The data of a step: the training rows of some classes."""
    chosen = np.isin(data.train.targets, kept)
    return replace(data, train=Examples(data.train.inputs[chosen], data.train.targets[chosen]))


def double_data() -> DoubleData:
    small = of_classes(tiny_data(rows=30, side=4), 2)
    return DoubleData(small.task, small.train, small.validation, small.transform, small.classes)


def earlier(side: int = 8) -> Coreset:
    """Two rows of class 0 and three of class 1, with labels that no start has."""
    data = tiny_data(side=side)
    first, second = (balanced(of_classes(data, number), 2 + number, 1.0, rng=Seed(40 + number)) for number in (0, 1))
    labels = torch.cat([first.labels, second.labels])
    labels = 3 * labels + 0.1 * drawn(*labels.shape, at=Seed(41)).float()
    return Coreset(torch.cat([first.images, second.images]), labels, torch.cat([first.classes, second.classes]))


def section(name: str, **outer: Any) -> dict[str, Any]:
    section = tiny_vbpc() if name == "vbpc" else CONFIGS[name, "classification"]
    average = {"average": 0.9} if name == "rcig" else {}
    return {**section, "coreset": tiny_vbpc()["coreset"] | average | outer}


def read(name: str, **outer: Any) -> Any:
    return config.read(METHODS[name].config, section(name, **outer), f"methods.{name}")


def distilled(name: str, report: Report | None = None, *, memory: bool = True, **outer: Any) -> State:
    data, method = of_classes(tiny_data(), 2), METHODS[name]
    inputs = {"coreset": [earlier().state(tiny_data(), {})]} if memory else {}
    fit = method.stages["coreset"].fit_one
    return fit(data, inputs, read(name, **outer), rng=Seed(2), report=report or Silent())


@pytest.mark.parametrize("name", METHODS)
def test_an_earlier_coreset_changes_the_new_rows_only_under_with_earlier(name: str) -> None:
    """Without an earlier coreset, both increments give the same bits; the earlier rows themselves never change."""
    alone = distilled(name, memory=False)
    free = distilled(name, memory=False, increment="with_earlier")
    assert all(torch.equal(alone.tensors[key], free.tensors[key]) for key in Coreset.TENSORS)
    union, apart = distilled(name, increment="with_earlier"), distilled(name)
    assert torch.equal(apart.tensors["images"][5:], alone.tensors["images"])
    for coreset in (union, apart):
        assert torch.equal(coreset.tensors["images"][:5], earlier().images)
        assert torch.equal(coreset.tensors["labels"][:5], earlier().labels)
        assert coreset.tensors["classes"].tolist() == [0, 0, 1, 1, 1, 2, 2]
    for key in ("images", "labels"):
        assert not torch.equal(union.tensors[key][5:], alone.tensors[key])


@pytest.mark.parametrize("name", METHODS)
def test_a_stopped_step_resumes_to_the_same_bits(name: str) -> None:
    fit = partial(distilled, name, increment="with_earlier")
    assert same_bits(resumed(fit, 6), fit())


def test_every_class_has_the_same_weight() -> None:
    """Every earlier row is on one of two sides, which are drawn at random with about half of each class."""
    memory, seen = Memory(earlier(), 2), set[tuple[int, ...]]()
    for step in range(40):
        inner, outer = memory.halves(HERE.fold(step))
        assert sorted(inner.tolist() + outer.tolist()) == list(range(5))
        assert earlier().classes[outer].tolist() == [0, 1]
        weights = memory.weights(8, outer)
        assert weights.tolist() == pytest.approx([0.5 / 8] * 8 + [0.25] * 2)
        seen.add(tuple(outer.tolist()))
    assert len(seen) == 6  # all 2 · 3 splits; a split is missing with a chance below 6 · (5/6)^40 = 0.4 %


def double(name: str, **changes: Any) -> tuple[PoolSurrogate, Memory, Mapping[str, Any]]:
    """A surrogate in float64 whose memory has the classes 0 and 1, and its section."""
    outer = {"augmentation": AUGMENTATION, "increment": "with_earlier"}
    keys = section(name, **outer) | {"network": NETWORK} | changes
    kept = earlier(side=4)
    memory = Memory(replace(kept, images=kept.images.double(), labels=kept.labels.double()), 1)
    surrogate = SURROGATES[name](double_data(), config.read(METHODS[name].config, keys, name), memory, Seed(2))
    for member in surrogate._pool._members:
        smoothed(member.network.double())
    return surrogate, memory, keys


@pytest.mark.parametrize("name", ["vbpc", "frepo"])
def test_the_loss_beside_an_earlier_coreset_and_its_gradient_equal_dense_algebra(name: str) -> None:
    """By dense inverses and central differences; controls: equal weights, earlier rows on no side or on both."""
    surrogate, memory, mapping = double(name, **({"beta_dataset": 0.0} if name == "vbpc" else {"ridge": 0.1}))
    start, kept = balanced(double_data(), 2, 0.1, rng=Seed(5)), memory.coreset
    images = start.images.double()
    labels = start.labels.double() + 0.01 * drawn(2, 3, at=HERE)  # at a tie the margin has no derivative
    rows, classes = double_data().batch(mapping["coreset"]["batch"], HERE.fold("batch"))
    trunk = surrogate._pool.draw(3)[1].eval().trunk
    inner, outer = memory.halves(HERE.fold("halves"))
    stand_ins = augment(kept.images[outer], AUGMENTED, HERE.fold("memory"))
    batch = trunk(torch.cat([augment(rows, AUGMENTED, HERE.fold("augment")), stand_ins])).detach()
    of_batch = torch.cat([classes, torch.tensor([0, 1])])
    weights = torch.tensor([1 / 3 / len(rows)] * len(rows) + [1 / 3] * 2).double()
    section = config.read(METHODS[name].config, mapping, name)

    def value(images: Tensor, labels: Tensor, weights: Tensor = weights, inner: Tensor = inner) -> Tensor:
        union = augment(torch.cat([kept.images[inner], images]), AUGMENTED, HERE.fold("coreset"))
        phi, whole = trunk(union).detach(), torch.cat([kept.labels[inner], labels])
        if name == "frepo":
            return frepo_loss(phi, whole, batch, of_batch, weights)
        return dense_outer_loss(phi, whole, batch, of_batch, section, weights)

    check(lambda x, y: surrogate.loss(x, y, 3, HERE), value, images, labels, 1e-6, 1e-6)  # weights are float32
    exact, new_rows = central(lambda x: value(x, labels), images), torch.arange(len(weights)) < len(rows)
    for wrong in (torch.full_like(weights, 1 / len(weights)), (new_rows / len(rows)).double()):
        assert abs(float(value(images, labels, wrong) / value(images, labels)) - 1) > 1e-2
        assert relative(central(lambda x, w=wrong: value(x, labels, w), images), exact) > 1e-2
    both = torch.arange(len(kept.images))
    assert relative(central(lambda x: value(x, labels, inner=both), images), exact) > 1e-2


@pytest.mark.parametrize("name", METHODS)
def test_the_pool_trains_its_networks_on_the_earlier_and_the_new_rows(name: str) -> None:
    data, read_config, start = of_classes(tiny_data(), 2), read(name, increment="with_earlier"), earlier()
    surrogate, new = SURROGATES[name](data, read_config, Memory(start, 1), Seed(2)), balanced(data, 2, 1.0, rng=Seed(5))
    surrogate.loss(new.images.clone().requires_grad_(), new.labels, 3, HERE)
    surrogate.train_network(new.images, new.labels)

    def by_hand(images: Tensor, labels: Tensor) -> tuple[int, Mapping[str, Tensor]]:
        settings = read_config.coreset
        pool = ModelPool(settings.pool, read_config.network, data.input_shape, 3, rng=Seed(2).fold("pool"))
        slot = pool.draw(3)[0]
        pool.advance(slot, images, labels, settings.augmentation)
        return slot, pool.state()

    union = torch.cat([start.images, new.images]), torch.cat([start.labels, new.labels])
    (slot, expected), (_, alone), state = by_hand(*union), by_hand(new.images, new.labels), surrogate._pool.state()
    assert all(torch.equal(state[key], value) for key, value in expected.items())
    assert not torch.equal(alone[f"{slot}.network.head.weight"], expected[f"{slot}.network.head.weight"])


def test_an_earlier_coreset_of_other_inputs_or_of_one_row_is_refused() -> None:
    data, one = of_classes(tiny_data(), 2), balanced(of_classes(tiny_data(), 0), 1, 1.0, rng=Seed(0))
    fit = vbpc.VBPC.stages["coreset"].fit_one
    for state, message in (
        (earlier(side=4).state(tiny_data(side=4), {}), "input must be of a coreset of inputs of"),
        (one.state(tiny_data(), {}), r"coreset\.increment must be alone if the earlier coreset has only one row"),
    ):
        with pytest.raises(ConfigError, match=message):
            fit(data, {"coreset": [state]}, read("vbpc", increment="with_earlier"), rng=Seed(0), report=Silent())
