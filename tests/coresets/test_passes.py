"""Outer steps through a pool: on ``meta`` a read of a value is an error; compiled and bfloat16 passes; float32."""

import shutil
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from bdl_pipe import config
from bdl_pipe.artifacts import State
from bdl_pipe.coresets.shared.descent import CoresetDescent
from bdl_pipe.coresets.shared.init import balanced
from bdl_pipe.coresets.shared.pool_surrogate import Memory
from bdl_pipe.coresets.vbpc import closed_form, method
from bdl_pipe.coresets.vbpc.method import VBPC, DatasetLoss
from bdl_pipe.errors import ConfigError, Diverged
from bdl_pipe.networks import ConvNetConfig, build
from bdl_pipe.networks.base import trunk_pass
from bdl_pipe.progress import Report, Silent
from bdl_pipe.seeds import Seed
from bdl_pipe.training import loop
from tests.cases import fit
from tests.resuming import resumed, same_bits

from .cases import tiny_data, tiny_vbpc
from .test_distil import distil_coreset

DATA = tiny_data()


class Reads(DatasetLoss):
    """The control: one number is read in each step."""

    def loss(self, images: Tensor, labels: Tensor, step: int, rng: Seed) -> Tensor:
        loss = super().loss(images, labels, step, rng)
        self.last = float(loss.detach())
        return loss


def steps(surrogate: type[DatasetLoss], device: str, *, beside: bool = False, **changes: Any) -> None:
    """Five outer steps as the loop takes them; on the way a network of the pool reaches its age and is replaced."""
    read = config.read(VBPC.config, config.merge(tiny_vbpc(), changes), "methods.vbpc")
    data = DATA.on(device)
    memory = Memory(balanced(DATA, 3, 1.0, rng=Seed(4)), 2) if beside else None
    if memory is not None:
        memory.coreset = memory.coreset.to(device)  # after a fit's start, which reads its classes once
    surrogate_of_data = surrogate(data, read, memory, Seed(1))
    start = balanced(data, read.ipc, 1.0, rng=Seed(0)).to(device)
    task = CoresetDescent(start, surrogate_of_data, label_unit=2.0, average=0.9, rng=Seed(2))
    optimiser = loop.make_optimiser(task.parameters(), loop.OptimiserConfig("adam", 0.01))
    watch = loop._Watch(ahead=True)
    for step in range(5):
        optimiser.zero_grad()
        loss = task.loss(step)
        watch.see(step, loss.detach())
        loss.backward(inputs=task.parameters())
        optimiser.step()
        assert task.after(step, loss.detach()) == {}


@pytest.mark.parametrize("norm", ["instance", "batch", "batch_stats"])
@pytest.mark.parametrize(("ipc", "beside"), [(2, False), (12, False), (2, True)])
def test_an_outer_step_reads_nothing_back_from_its_device(norm: str, ipc: int, beside: bool) -> None:
    """With fewer coreset rows than features, and with more; and beside an earlier coreset."""
    network = {"norm": norm}
    steps(DatasetLoss, "meta", beside=beside, network=network, ipc=ipc)
    with pytest.raises(RuntimeError, match="cannot be called on meta tensors"):
        steps(Reads, "meta", beside=beside, network=network, ipc=ipc)
    steps(Reads, "cpu", beside=beside, network=network, ipc=ipc)


def test_a_batch_on_a_device_has_the_shapes_types_and_rows_of_the_host() -> None:
    images, classes = DATA.on("meta").batch(7, Seed(3))
    assert (images.device.type, classes.device.type) == ("meta", "meta")
    here, targets = DATA.batch(7, Seed(3))
    assert (images.shape, images.dtype, classes.dtype) == (here.shape, here.dtype, targets.dtype)
    rows, labels = DATA._rows_there
    assert rows.dtype == torch.uint8
    chosen = torch.randint(len(rows), (7,), generator=Seed(3).generator())
    assert torch.equal(DATA.transform.inputs(rows[chosen]), here)
    assert torch.equal(DATA.transform.targets(labels[chosen]), targets)
    assert "_rows_there" not in DATA.__getstate__()


def test_the_watch_names_the_first_loss_that_is_not_finite_and_its_step() -> None:
    watch = loop._Watch(ahead=True)
    for step, value in enumerate([1.0, float("nan"), 2.0, float("inf"), 3.0]):
        watch.see(step, torch.tensor(value))
    with pytest.raises(Diverged, match="the loss became nan at step 1: lower the learning rate"):
        watch.look()
    whole = loop._Watch(ahead=True)
    for step in range(99):
        whole.see(step, torch.tensor(1.0) if step < 50 else torch.tensor(float("inf")))
    with pytest.raises(Diverged, match="inf at step 50"):
        whole.see(99, torch.tensor(1.0))  # ``see`` raises, without a call of ``look``
    with pytest.raises(Diverged, match="nan at step 0"):
        loop._Watch(ahead=False).see(0, torch.tensor(float("nan")))


@pytest.mark.parametrize("rows", [4, 40])
def test_float32_gives_finite_losses_or_names_the_settings_to_change(rows: int) -> None:
    """rho and gamma over ten decades each; the batch contains a row of the coreset."""
    generator, refused = Seed(0).generator(), 0
    features = torch.rand(rows, 16, generator=generator)
    features[1] = features[0]
    test = torch.cat([features[:2], torch.rand(5, 16, generator=generator)])
    for rho, gamma in product((1e-5, 1e-3, 0.1, 10.0, 1e3, 1e5), repeat=2):
        inputs = features.clone().requires_grad_()
        try:
            q = closed_form.solve(inputs, torch.eye(10)[torch.arange(rows) % 10], rho, gamma)
        except Diverged as error:
            assert "raise rho, or lower gamma or feature_scale" in str(error)
            assert gamma / rho > 1e7
            refused += 1
            continue
        loss = closed_form.dataset_loss(q, test, torch.arange(7), 60_000)
        (gradient,) = torch.autograd.grad(loss, inputs)
        assert loss.isfinite() and gradient.isfinite().all(), (rho, gamma)
    assert refused < 6


needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
AT = Seed(0).fold("coreset")


def pooled(blocks: int = 2, **pool: Any) -> method.VbpcConfig:
    changes = {"network": {"pool": "average", "blocks": blocks}, "coreset": {"steps": 8, "pool": pool}}
    return config.read(method.VbpcConfig, config.merge(tiny_vbpc(), changes), "methods.vbpc")


def distilled(blocks: int = 2, **pool: Any) -> State:
    return distil_coreset(DATA, {}, pooled(blocks, **pool), rng=AT, report=Silent())


def apart(first: State, second: State) -> float:
    """Return the largest difference of images and labels."""
    return max(float((first.tensors[name] - second.tensors[name]).abs().max()) for name in ("images", "labels"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pool", "blocks", "most"),
    [
        pytest.param({"compiled": True}, 2, 1e-4, marks=[needs_compiler, pytest.mark.soak]),
        pytest.param({"compiled": True, "precision": "bfloat16"}, 1, 0.1, marks=needs_compiler),
        pytest.param({"precision": "bfloat16"}, 2, 0.1),
    ],
    ids=["compiled", "both", "bfloat16"],
)
def test_compiled_and_bfloat16_passes_nearly_agree_and_resume(pool: dict[str, Any], blocks: int, most: float) -> None:
    """Each of the eight steps moves a label by at most .1, and an image by .01; .1 is less than two of them.

    Each fit compiles its own passes: one block in ``make test``, two in ``make soak``.
    """
    undisturbed = distilled(blocks, **pool)
    assert 0 < apart(undisturbed, distilled(blocks)) < most

    def distil(report: Report) -> State:
        return distil_coreset(DATA, {}, pooled(blocks, **pool), rng=AT, report=report)

    assert same_bits(undisturbed, resumed(distil, 3))


def test_frepo_obeys_the_precision_of_its_pool() -> None:
    plain = tiny_vbpc()["coreset"]
    rounded = config.merge(plain, {"pool": {"precision": "bfloat16"}})
    assert apart(*(fit("frepo", "coreset", DATA, rng=AT, coreset=coreset) for coreset in (plain, rounded))) > 0


def test_features_and_gradients_in_low_precision_are_near_float64() -> None:
    """Relative error of features and of the images' gradient: bfloat16 has 8 bits, float32 24.

    A unit that is nearly 0 may be on the other side in bfloat16, so its gradient is not as close as its features.
    """
    network = build(ConvNetConfig("convnet", 4, 2, "instance"), (1, 8, 8), 3, rng=Seed(0))
    images = torch.randn(16, 1, 8, 8, generator=Seed(1).generator())
    slope = torch.randn(16, network.width, generator=Seed(2).generator(), dtype=torch.float64)

    def found(run: Any, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        leaf = images.to(dtype).requires_grad_()
        features = run(network.to(dtype).trunk, leaf)
        (gradient,) = torch.autograd.grad((features.double() * slope).sum(), leaf)
        return features.detach().double(), gradient.double()

    exact = found(trunk_pass(False, "float32", "cpu"), torch.float64)
    for precision, most in (("float32", (1e-6, 1e-5)), ("bfloat16", (0.01, 0.1))):
        near = found(trunk_pass(False, precision, "cpu"), torch.float32)  # type: ignore[arg-type]
        errors = [float((a - b).norm() / b.norm()) for a, b in zip(near, exact, strict=True)]
        assert all(error < bound for error, bound in zip(errors, most, strict=True)), (precision, errors)
        assert errors[0] > most[0] / 100  # the pass really has this precision


def test_a_compiled_pool_without_a_cpp_compiler_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ConfigError, match=r"compiled.*needs a C\+\+ compiler.*no no-such-compiler"):
        distilled(compiled=True)
