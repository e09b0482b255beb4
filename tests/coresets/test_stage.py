"""The coreset of a step of class-incremental learning: of its own classes, after the rows of the step before."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from bdl_pipe import config
from bdl_pipe.artifacts import State
from bdl_pipe.coresets.shared.init import Coreset, balanced
from bdl_pipe.coresets.vbpc.method import VBPC
from bdl_pipe.data.examples import Examples
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.errors import DataError
from bdl_pipe.progress import Report, Silent
from bdl_pipe.registry import METHODS
from bdl_pipe.seeds import Seed
from tests.resuming import killed

from .cases import tiny_data, tiny_vbpc


def only(data: FitData, classes: list[int]) -> FitData:
    rows = np.isin(data.train.targets, classes)
    part = Examples(data.train.inputs[rows], data.train.targets[rows])
    return replace(data, train=part, validation=part)


def test_every_coreset_may_carry_an_earlier_one() -> None:
    made = {name: method.stages["coreset"] for name, method in METHODS.items() if "coreset" in method.stages}
    assert {"vbpc", "random_coreset", "frepo", "rcig", "bpc_fkl"} <= made.keys()
    for name, stage in made.items():
        assert stage.needs["coreset"] == "earlier", name
        assert stage.required == {*stage.needs} - {"coreset"}, name


def test_a_balanced_start_has_the_classes_that_are_there() -> None:
    start = balanced(only(tiny_data(), [0, 2]), 2, 1.0, rng=Seed(0))
    assert start.classes.tolist() == [0, 0, 2, 2]
    assert start.labels.shape == (4, 3) and start.labels.argmax(1).tolist() == [0, 0, 2, 2]
    data = tiny_data()
    few = np.append(np.flatnonzero(data.train.targets != 1), 1)  # one row of class 1, the other classes whole
    part = Examples(data.train.inputs[few], data.train.targets[few])
    with pytest.raises(DataError, match="class 1 has 1 training rows: ipc must be at most that, got 2"):
        balanced(replace(data, train=part), 2, 1.0, rng=Seed(0))


def test_the_earlier_rows_come_first_as_they_were_and_the_new_as_by_themselves() -> None:
    """At the end, and half-way, where a search looks."""
    read, stage = config.read(VBPC.config, tiny_vbpc(), "methods.vbpc"), VBPC.stages["coreset"]
    earlier = stage.fit_one(only(tiny_data(), [1]), {}, read, rng=Seed(1), report=Silent())
    data = only(tiny_data(), [0, 2])

    def fit(report: Report) -> State:
        return stage.fit_one(data, {}, read, rng=Seed(2), report=report)

    alone, checkpoint = fit(Silent()), killed(fit, 6)
    both = stage.fit_one(data, {"coreset": [earlier]}, read, rng=Seed(2), report=Silent())
    assert both.config == alone.config and both.tensors.keys() == alone.tensors.keys() == {*Coreset.TENSORS}
    for name in Coreset.TENSORS:
        assert torch.equal(both.tensors[name], torch.cat([earlier.tensors[name], alone.tensors[name]])), name
    assert both.tensors["classes"].tolist() == [1, 1, 0, 0, 2, 2]
    assert stage.from_checkpoint is not None
    half = stage.from_checkpoint(checkpoint, data, {"coreset": [earlier]}, read, rng=Seed(2))
    assert torch.equal(half.tensors["images"][:2], earlier.tensors["images"]) and len(half.tensors["images"]) == 6
