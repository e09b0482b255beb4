"""Every method on a device that is not the CPU: fitted, killed and resumed, scored, summarised.

The device is a GPU where one exists, else a CPU that poses as one (:mod:`tests.posed`). The pose has no forward-mode
derivatives, and two gradients through a norm are beyond it: these cases need a GPU.
"""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from bdl_pipe.artifacts import State, to_bytes
from bdl_pipe.data.examples import Examples
from bdl_pipe.evaluation import EvaluateConfig, score_all
from bdl_pipe.posterior import Predictor
from bdl_pipe.progress import Report
from bdl_pipe.registry import posterior_of
from bdl_pipe.seeds import Seed
from tests.cases import CASES, Case
from tests.posed import There, posing
from tests.resuming import Killed, Watched
from tests.test_conformance import config_of, data_of, inputs_of, parametrize

BEYOND_THE_POSE = {
    *("kfac_laplace-student-regression", "ldgbll-student-regression", "rcig-coreset-classification"),  # forward mode
    *("sngp-student-classification", "sngp-student-regression", "bpc_w-coreset-classification"),
}
pytestmark = pytest.mark.filterwarnings("ignore:for .* a no-op")  # a copy into a tensor of the pose is no no-op
HAS_GPU = torch.cuda.is_available()
SCORES = EvaluateConfig(15, 7, 10, 3)

# Each stage of a method runs once in make test, on a table if it can; some run on images, too. Methods whose fit is the
# code of another one run in make soak: of ffg_u, ciber_last, vbll_bnn, swag, tabm and vbpc.
HERE = [case for case in CASES if HAS_GPU or str(case) not in BEYOND_THE_POSE]
ONCE = {(c.method, c.kind): c for c in sorted(HERE, key=lambda case: (-len(str(case)), case.task))}
IMAGES = ("sgd", "deterministic", "swag", "sgmcmc")
SAME = ("fcg_u", "ensemble_u", "fcg_w", "matrix_normal_w", "k_tied_w", "rank1_w")
SAME += ("ciber_second", "d_vbll_bnn", "g_vbll_bnn", "multi_swag", "stacked", "coreset_bma")
AGAIN = [
    c
    for c in HERE
    if c.method in SAME or (c != ONCE[c.method, c.kind] and (c.method not in IMAGES or "teacher" in str(c)))
]
ROWS = 6  # rows that are scored


@pytest.fixture
def device() -> Iterator[str]:
    with nullcontext("cuda") if HAS_GPU else posing() as name:
        yield name


@parametrize(HERE, soak=AGAIN)
def test_a_fit_runs_continues_and_is_scored_on_the_device(case: Case, device: str) -> None:
    every = data_of(case.task)
    host = replace(every, train=Examples(every.train.inputs[::2], every.train.targets[::2]))  # the pose is slow
    data, config = host.on(device), config_of(case)

    def fit(report: Report) -> State:
        return case.stage.fit_one(data, inputs_of(case), config, rng=Seed(7).fold("member", 0), report=report)

    watched = Watched()
    state = fit(watched)
    if watched.asked:
        killed = Watched((watched.asked + 1) // 2)
        with pytest.raises(Killed):
            fit(killed)
        resumed = fit(Watched(kept=killed.kept))
        assert HAS_GPU or to_bytes(resumed) == to_bytes(state)
    if case.stage.summarise is not None:
        case.stage.summarise([[state]], [data], config)
    if case.kind == "student":
        fitted = Predictor(posterior_of(state, device), data.transform, data.classes)
        rows = Examples(host.validation.inputs[:ROWS], host.validation.targets[:ROWS])
        figures, _ = score_all(fitted, rows, SCORES, Seed(1), device, ood={}, transfer={})
        assert figures


def test_the_pose_is_as_strict_as_a_gpu() -> None:
    here = torch.arange(3.0)
    with posing() as device:
        there = here.to(device)
        assert isinstance(there, There) and (there + 1).tolist() == [1, 2, 3] and (there + here[1]).sum().item() == 6
        assert there[torch.tensor([2, 0])].cpu().tolist() == [2, 0], "places may be of the CPU"
        with pytest.raises(RuntimeError, match="all tensors must be on one device"):
            there + here
        with pytest.raises(RuntimeError, match="generator must be of the tensor's device"):
            torch.randn(3, generator=Seed(0).generator(), device=device)
        with pytest.raises(TypeError):
            there.numpy()
        assert torch.randn(3, generator=Seed(0).generator(device), device=device).shape == (3,)
