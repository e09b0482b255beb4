"""The five methods that distil from expert trajectories: exact resume, reading of experts, refused inputs."""

from itertools import product
from typing import Any

import pytest
import torch

from bdl_pipe import config
from bdl_pipe.artifacts import State
from bdl_pipe.coresets.bpc import methods
from bdl_pipe.coresets.bpc.experts import Experts, drawn_start
from bdl_pipe.coresets.shared.init import balanced
from bdl_pipe.errors import ConfigError
from bdl_pipe.progress import Report, Silent
from bdl_pipe.seeds import Seed
from bdl_pipe.training import snapshots
from bdl_pipe.trajectory.sgd import SGD, SgdConfig
from tests.cases import BPC, CONFIGS
from tests.resuming import Watched, resumed, same_bits

from .cases import tiny_data

EXPERTS = {
    "network": {"name": "convnet", "width": 4, "blocks": 2, "norm": "instance"},
    "epochs": 3,
    "snapshots": 3,
    "batch": 20,
    "optimiser": {"name": "sgd", "lr": 0.1},
    "keep_start": True,
}
OUTER = BPC["outer"] | {
    "optimiser": {"name": "adam", "lr": 0.02},
    "augmentation": {"choose": "one", "operations": {"rotate": 15.0, "cutout": 0.25, "noise": 0.1}},
    "average": None,
}
METHODS = {m.name: m for m in (methods.BPC_FKL, methods.BPC_RKL, methods.BPC_W, methods.BPC_CD, methods.FBPC)}
SECTIONS: dict[str, dict[str, Any]] = {
    name: CONFIGS[name, "classification"] | {"outer": OUTER} | ({"start_epochs": 2} if name != "fbpc" else {})
    for name in METHODS
}
SECTIONS["bpc_fkl"]["shared_noise"] = True


def experts(count: int = 2, data: Any = None, **changes: Any) -> list[State]:
    section, data = config.read(SgdConfig, EXPERTS | changes, "methods.sgd"), data or tiny_data()
    fit = SGD.stages["trajectory"].fit_one
    return [fit(data, {}, section, rng=Seed(k), report=Silent()) for k in range(count)]


@pytest.fixture(scope="module")
def trajectories() -> list[State]:
    return experts()


def read(name: str, **changes: Any) -> Any:
    return config.read(METHODS[name].config, SECTIONS[name] | changes, f"methods.{name}")


def distilled(name: str, trajectories: list[State], report: Report | None = None, **changes: Any) -> State:
    fit = METHODS[name].stages["coreset"].fit_one
    inputs = {"trajectory": trajectories}
    return fit(tiny_data(), inputs, read(name, **changes), rng=Seed(5), report=report or Silent())


def test_a_stopped_run_resumes_to_the_same_bits(trajectories: list[State]) -> None:
    """With SGD and no average; the conformance test has all methods, Adam and an average. Reports show gradients."""
    name = "bpc_rkl"
    outer, report = OUTER | {"optimiser": {"name": "sgd", "lr": 0.02, "momentum": 0.5}}, Watched()
    whole = distilled(name, trajectories, report, outer=outer)
    assert {"surrogate", "gradient", "rms"} <= report.seen[-1].keys() and len(report.seen) == 6
    assert all(seen["gradient"] > 0 for seen in report.seen)
    assert same_bits(resumed(lambda report: distilled(name, trajectories, report, outer=outer), 3), whole)
    start = balanced(tiny_data(), 2, 1.0, rng=Seed(5).fold("start"))
    assert not torch.equal(whole.tensors["images"], start.images)  # images move, labels and classes do not
    assert torch.equal(whole.tensors["labels"], start.labels) and torch.equal(whole.tensors["classes"], start.classes)
    assert whole.config["coreset"] == name and whole.config["ipc"] == 2


def test_an_expert_is_read_at_its_start_and_after_each_epoch(trajectories: list[State]) -> None:
    read_back = Experts(trajectories, tiny_data())
    assert len(read_back) == 2 and read_back.epochs == 3
    names = [name for name, _ in read_back.spec.build(Seed(0)).named_parameters()]
    for epoch in range(4):
        stored = snapshots.snapshot(trajectories[1], epoch)
        assert torch.equal(read_back.weights(1, epoch), torch.cat([stored[name].flatten() for name in names]))
    drawn = (drawn_start(read_back, 3, 1, Seed(9).fold(k)) for k in range(60))
    places = product(range(2), range(3))
    pairs = ((read_back.weights(e, t), read_back.weights(e, t + 1)) for e, t in places)
    seen, all_six = ({tuple(float(part.sum()) for part in pair) for pair in some} for some in (drawn, pairs))
    assert seen == all_six  # all six are drawn, and no others


def test_an_expert_may_have_several_snapshots_per_epoch() -> None:
    """With two snapshots an epoch, half an epoch is one step; all snapshots must exist, also for start_epochs."""
    halves = Experts(experts(1, snapshots=6, snapshots_per_epoch=2), tiny_data())
    whole = Experts(experts(1), tiny_data())
    assert (halves.epochs, whole.epochs) == (6, 3)
    for epoch in range(4):
        assert torch.equal(halves.weights(0, 2 * epoch), whole.weights(0, epoch))
    with pytest.raises(ConfigError, match="every part of one"):
        Experts(experts(1, snapshots=5, snapshots_per_epoch=2), tiny_data())
    section = {"snapshots": 6, "snapshots_per_epoch": 2}
    checked("bpc_fkl", section, start_epochs=6)
    with pytest.raises(ConfigError, match=r"parts of them, of the trajectory \(6\)"):
        checked("bpc_fkl", section, start_epochs=7)


@pytest.mark.parametrize("count", [5, 40], ids=["at_once", "one_by_one"])
def test_the_outputs_of_draws_equal_the_outputs_of_single_networks(count: int, trajectories: list[State]) -> None:
    read_back, images = Experts(trajectories, tiny_data()), torch.randn(count, 1, 8, 8, generator=Seed(0).generator())
    weights = torch.stack([read_back.weights(e, t) for e in range(2) for t in (0, 3)])
    outputs = read_back.network.outputs(weights, images)
    for k, (expert, epoch) in enumerate([(0, 0), (0, 3), (1, 0), (1, 3)]):
        network = read_back.spec.build(Seed(0))
        network.load_state_dict(snapshots.snapshot(trajectories[expert], epoch))
        torch.testing.assert_close(outputs[k], network(images), rtol=1e-5, atol=1e-6)


def test_bpc_w_moves_its_inner_learning_rate_by_lr_step(trajectories: list[State]) -> None:
    """Adam's first step moves the logarithm of the inner rate by lr_step, whatever the images' rate is."""
    data, section = tiny_data(), read("bpc_w", lr_step=0.03)
    start = balanced(data, 2, 1.0, rng=Seed(5))
    surrogate = methods._Wasserstein(Experts(trajectories, data), start, data, section)
    images = start.images.clone().requires_grad_()
    (moved,) = surrogate.parameters()
    optimiser = torch.optim.Adam([images, moved], lr=section.outer.optimiser.lr)
    surrogate.surrogate(images, Seed(1)).backward()
    optimiser.step()
    assert abs(float(moved.detach()) * surrogate._unit) == pytest.approx(0.03, rel=1e-3)


def checked(name: str, experts: dict[str, Any] | None = None, **changes: Any) -> None:
    """Check a section against the section of its experts, as is done before any training."""
    sources = {"trajectory": config.read(SgdConfig, EXPERTS | (experts or {}), "methods.sgd")}
    METHODS[name].stages["coreset"].validate_sources(read(name, **changes), sources)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"keep_start": False}, "input must be of a trajectory that kept its start"),
        ({"snapshots": 2}, "input must be of a trajectory that kept every epoch, or every part of one"),
        ({"network": EXPERTS["network"] | {"norm": "batch"}}, "input must be of a network without running statistics"),
    ],
)
def test_trajectories_that_cannot_be_experts_are_refused(changes: dict[str, Any], message: str) -> None:
    """By a fit, from the stored trajectories, and before any training, from their configs."""
    with pytest.raises(ConfigError, match=message):
        distilled("bpc_fkl", experts(1, **changes))
    with pytest.raises(ConfigError, match=r"^input"):
        checked("bpc_fkl", changes)


def test_experts_of_other_classes_and_too_few_epochs_are_refused(trajectories: list[State]) -> None:
    with pytest.raises(ConfigError, match="input must be of experts for images and classes"):
        distilled("bpc_w", experts(1, data=tiny_data(classes=2)))
    with pytest.raises(ConfigError, match="start_epochs asks for epoch 4 of 3"):
        distilled("bpc_fkl", trajectories, start_epochs=4)
    checked("bpc_fkl", start_epochs=3)
    with pytest.raises(ConfigError, match="start_epochs"):
        checked("bpc_fkl", start_epochs=4)
