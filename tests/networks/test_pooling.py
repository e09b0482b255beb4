"""2×2 pools against torch's own: bit for bit, except that a mean's sum may round otherwise; derivatives to rounding."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bdl_pipe.networks.pooling import AveragePool, MaxPool
from bdl_pipe.seeds import Seed

PAIRS = [(MaxPool(), lambda x: F.max_pool2d(x, 2)), (AveragePool(), lambda x: F.avg_pool2d(x, 2))]
Function = Callable[[Tensor], Tensor]


def images(*shape: int, ties: bool = True) -> Tensor:
    drawn = torch.randn(shape, generator=Seed(0).generator())
    return drawn.round(decimals=0 if ties else 3)


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
@pytest.mark.parametrize("shape", [(5, 3, 8, 8), (2, 4, 7, 9), (1, 1, 2, 3), (3, 6, 10)])
@pytest.mark.parametrize("ties", [True, False])
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_values_and_gradients_match_torch(
    ours: nn.Module, theirs: Function, shape: tuple[int, ...], ties: bool, order: torch.memory_format
) -> None:
    """With ties, whose first value has the gradient; with an odd last row and column, which have no gradient."""
    inputs = images(*shape, ties=ties)
    if len(shape) == 4:
        inputs = inputs.contiguous(memory_format=order)
    inputs.requires_grad_()
    pooled, expected = ours(inputs), theirs(inputs)
    weights = torch.randn(expected.shape, generator=Seed(1).generator())
    gradients = [torch.autograd.grad((weights * out).sum(), inputs)[0] for out in (pooled, expected)]
    assert torch.equal(*gradients)
    largest = 0.0 if isinstance(ours, MaxPool) else 1e-6  # the order of a mean's sum depends on the processor
    torch.testing.assert_close(pooled, expected, rtol=0, atol=largest)
    with torch.no_grad():
        torch.testing.assert_close(ours(inputs), expected, rtol=0, atol=largest)


def test_the_gradient_shows_which_of_equal_values_was_chosen() -> None:
    """The control: a pool that chooses the last of equal values has another gradient."""
    inputs = torch.ones(1, 1, 2, 2, requires_grad=True)
    ours, last = MaxPool()(inputs), F.max_pool2d(inputs.flip(2, 3), 2)
    gradients = [torch.autograd.grad(out.sum(), inputs)[0] for out in (ours, last)]
    assert gradients[0].flatten().tolist() == [1, 0, 0, 0] and gradients[1].flatten().tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize("at", range(4))
@pytest.mark.parametrize("with_gradients", [True, False])
def test_a_nan_in_any_place_makes_the_output_nan(at: int, with_gradients: bool) -> None:
    inputs = torch.arange(4.0).reshape(1, 1, 2, 2)
    inputs.view(-1)[at] = torch.nan
    with torch.set_grad_enabled(with_gradients):
        assert bool(MaxPool()(inputs).isnan()) and bool(AveragePool()(inputs).isnan())


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_vmap_and_forward_and_second_derivatives_match_torch(ours: nn.Module, theirs: Function) -> None:
    inputs, tangents = images(4, 2, 3, 6, 6, ties=False).double(), images(4, 2, 3, 6, 6).double()

    def loss(pool: Function) -> Callable[[Tensor], Tensor]:
        return lambda x: pool(x.square()).pow(3).sum()

    for transform in (
        lambda pool: torch.func.vmap(pool)(inputs),
        lambda pool: torch.func.vmap(torch.func.grad(loss(pool)))(inputs),
        lambda pool: torch.func.jvp(pool, (inputs[0],), (tangents[0],))[1],
        lambda pool: torch.func.jvp(torch.func.grad(loss(pool)), (inputs[0],), (tangents[0],))[1],
    ):
        torch.testing.assert_close(transform(ours), transform(theirs), rtol=1e-14, atol=1e-14)
    some = images(1, 2, 4, 4, ties=False).double().requires_grad_()
    assert torch.autograd.gradgradcheck(lambda x: ours(x).pow(3), (some,))
