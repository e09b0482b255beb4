"""An outer step through a pool never waits for its device: on ``meta``, which has no values, a read is an error."""

from typing import Any

import pytest
import torch
from torch import Tensor

from bdl_pipe import config
from bdl_pipe.coresets.shared.descent import CoresetDescent
from bdl_pipe.coresets.shared.init import balanced
from bdl_pipe.coresets.shared.pool_surrogate import Memory
from bdl_pipe.coresets.vbpc import closed_form
from bdl_pipe.coresets.vbpc.method import VBPC, DatasetLoss
from bdl_pipe.errors import Diverged
from bdl_pipe.seeds import Seed
from bdl_pipe.training import loop

from .cases import tiny_data, tiny_vbpc

DATA = tiny_data()


class Reads(DatasetLoss):
    """The control: one number is read in each step."""

    def loss(self, images: Tensor, labels: Tensor, step: int, rng: Seed) -> Tensor:
        found = super().loss(images, labels, step, rng)
        self.last = float(found.detach())
        return found


def steps(surrogate: type[DatasetLoss], device: str, *, beside: bool = False, **changes: Any) -> None:
    """Five outer steps as the loop takes them; on the way a network of the pool reaches its age and is replaced."""
    read = config.read(VBPC.config, config.merge(tiny_vbpc(), changes), "methods.vbpc")
    data = DATA.on(device)
    memory = Memory(balanced(DATA, 3, 1.0, rng=Seed(4)), 2) if beside else None
    if memory is not None:
        memory.coreset = memory.coreset.to(device)  # after a fit's start, which reads its classes once
    made = surrogate(data, read, memory, Seed(1))
    start = balanced(data, read.ipc, 1.0, rng=Seed(0)).to(device)
    task = CoresetDescent(start, made, label_unit=2.0, average=0.9, rng=Seed(2))
    optimiser, watch = (
        loop.make_optimiser(task.parameters(), loop.OptimiserConfig("adam", 0.01)),
        loop._Watch(ahead=True),
    )
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
    generator = Seed(0).generator()
    features = torch.rand(rows, 16, generator=generator)
    features[1] = features[0]
    test = torch.cat([features[:2], torch.rand(5, 16, generator=generator)])
    labels, refused = torch.eye(10)[torch.arange(rows) % 10], 0
    for rho in (1e-5, 1e-3, 0.1, 10.0, 1e3, 1e5):
        for gamma in (1e-5, 1e-3, 0.1, 10.0, 1e3, 1e5):
            inputs = features.clone().requires_grad_()
            try:
                q = closed_form.solve(inputs, labels, rho, gamma)
            except Diverged as error:
                assert "raise rho, or lower gamma or feature_scale" in str(error)
                assert gamma / rho > 1e7
                refused += 1
                continue
            loss = closed_form.dataset_loss(q, test, torch.arange(7), 60_000)
            (gradient,) = torch.autograd.grad(loss, inputs)
            assert loss.isfinite() and gradient.isfinite().all(), (rho, gamma)
    assert refused < 6
