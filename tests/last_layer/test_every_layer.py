"""The properties that every last layer has: gradients, stacking, autocast, rules of its arguments."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, stack_module_state, vmap

from bdl_pipe.last_layer import Discriminative, Generative, Regression
from bdl_pipe.last_layer.blocks import BlockGenerative
from tests.refusals import refusal, refused

from . import generative_cases
from .cases import FORMS, Loss, draw, perturbed

WIDTH, ROWS = 5, 8
LABELS = torch.arange(ROWS) % 3
OF_CLASSES, OF_NUMBERS = torch.stack([LABELS, (LABELS + 1) % 3, LABELS.flip(0)]), draw(2, 3, ROWS, 2)


@dataclass(frozen=True)
class Kind:
    """A layer in float64 by its seed, and three data sets for it, [member, row, ...]."""

    make: Callable[[int], Any]
    targets: Tensor

    def loss(self, seed: int = 5) -> Loss:
        return Loss(self.make(seed), 20)


def gaussian(layer: Any, outputs: int, form: str, rank: int | None) -> Callable[[int], Any]:
    return lambda seed: perturbed(layer(WIDTH, outputs, covariance=form, rank=rank), seed=seed)


def blocks(seed: int) -> BlockGenerative:
    return perturbed(BlockGenerative(WIDTH, 3, block=WIDTH, class_counts=(1, 2, 3), wishart_dof=6.0), seed=seed)


KINDS = {
    **{f"regression-{form}": Kind(gaussian(Regression, 2, form, rank), OF_NUMBERS) for form, rank in FORMS},
    **{f"classes-{form}": Kind(gaussian(Discriminative, 3, form, rank), OF_CLASSES) for form, rank in FORMS},
    "generative": Kind(generative_cases.make, OF_CLASSES),
    "generative-blocks": Kind(blocks, OF_CLASSES),
}
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


@every_kind
def test_gradients_equal_finite_differences(kind: Kind) -> None:
    """Along random directions of all arguments together."""
    layer, features = kind.loss(), draw(1, ROWS, WIDTH).requires_grad_()
    names, values = zip(*layer.named_parameters(), strict=True)

    def loss(features: Tensor, *values: Tensor) -> Tensor:
        return functional_call(layer, dict(zip(names, values, strict=True)), (features, kind.targets[0]))

    assert torch.autograd.gradcheck(loss, (features, *values), fast_mode=True)


@every_kind
def test_stacked_layers_have_the_losses_and_gradients_of_single_layers(kind: Kind) -> None:
    """On rows of their own: losses, and gradients by ``grad`` within ``vmap`` and by autograd through ``vmap``.

    Losses on rows that the layers share, too.
    """
    layers = [kind.loss(seed) for seed in range(3)]
    features, targets = draw(1, 3, ROWS, WIDTH), kind.targets
    parameters, buffers = stack_module_state(layers)

    def losses(parameters: dict[str, Tensor], buffers: dict[str, Tensor], features: Tensor, targets: Tensor) -> Tensor:
        return functional_call(layers[0], (parameters, buffers), (features, targets))

    together = vmap(losses)(parameters, buffers, features, targets)
    alone = torch.stack([layer(f, t) for layer, f, t in zip(layers, features, targets, strict=True)])
    torch.testing.assert_close(together, alone, rtol=1e-12, atol=1e-12)
    shared = vmap(losses, in_dims=(0, 0, None, None))(parameters, buffers, features[0], targets[0])
    alone = torch.stack([layer(features[0], targets[0]) for layer in layers])
    torch.testing.assert_close(shared, alone, rtol=1e-12, atol=1e-12)
    within = vmap(torch.func.grad(losses))(parameters, buffers, features, targets)
    around = dict(zip(parameters, torch.autograd.grad(together.sum(), list(parameters.values())), strict=True))
    for index, layer in enumerate(layers):
        ours = torch.autograd.grad(layer(features[index], targets[index]), list(layer.parameters()))
        for (name, _), one in zip(layer.named_parameters(), ours, strict=True):
            torch.testing.assert_close(within[name][index], one, rtol=1e-10, atol=1e-12)
            torch.testing.assert_close(around[name][index], one, rtol=1e-10, atol=1e-12)


@every_kind
def test_autocast_changes_neither_the_loss_nor_its_gradients_nor_the_predictive(kind: Kind) -> None:
    layer, targets = kind.make(5).float(), kind.targets[0]
    targets = targets.float() if targets.is_floating_point() else targets
    features = draw(1, ROWS, WIDTH).bfloat16().float().requires_grad_()
    leaves = (features, *layer.parameters())
    plain = layer.loss(features, targets, num_train=20)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = layer.loss(features, targets, num_train=20)
        variance = layer.predict(features.bfloat16()).variance
        assert torch.equal(layer.loss(features.bfloat16(), targets, num_train=20), plain)
    fused = kind in (KINDS["regression-dense"], KINDS["classes-diagonal"])  # a backward that autocast leaves alone, too
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=fused):
        slopes = torch.autograd.grad(inside, leaves)
    assert torch.equal(inside, plain)
    torch.testing.assert_close(slopes, torch.autograd.grad(plain, leaves), rtol=0, atol=0)
    assert torch.equal(variance, layer.predict(features).variance)


def test_arguments_out_of_range_are_refused_with_their_rule() -> None:
    rows = refused("last_layers")
    sizes: dict[Any, dict[str, Any]] = {
        Regression: {"out_features": 2},
        Discriminative: {"num_classes": 3},
        Generative: {"num_classes": 4, "class_counts": (1, 2, 3, 4)},
    }
    wrong = {}
    for layer, valid in sizes.items():
        for arguments, message in rows[layer.__name__] + (rows["both"] if layer is not Generative else []):
            error = refusal(layer, **{"in_features": WIDTH, **valid, **arguments})
            if not error.startswith(f"ConfigError: {message}"):
                wrong[layer.__name__, str(arguments)] = error
    assert wrong == {}
