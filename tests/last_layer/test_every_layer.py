"""The properties that both the regression layer and the discriminative layer have: gradients, stacking, rules."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from bdl_pipe.errors import ConfigError
from bdl_pipe.last_layer import Discriminative, Regression

from .cases import FORMS, Loss, draw, perturbed

WIDTH, ROWS = 5, 8
CLASSES = torch.arange(ROWS) % 3


@dataclass(frozen=True)
class Kind:
    """A layer with three data sets for it, [member, row, ...]."""

    layer: type[Regression] | type[Discriminative]
    outputs: int
    targets: Tensor

    def make(self, **options: Any) -> Any:
        return self.layer(WIDTH, self.outputs, **options)


KINDS = {
    "regression": Kind(Regression, 2, draw(2, 3, ROWS, 2)),
    "classes": Kind(Discriminative, 3, torch.stack([CLASSES, (CLASSES + 1) % 3, CLASSES.flip(0)])),
}
every_form = pytest.mark.parametrize(("form", "rank"), FORMS)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@every_form
def test_gradients_equal_finite_differences(kind: Kind, form: str, rank: int | None) -> None:
    layer = perturbed(kind.make(covariance=form, rank=rank))
    names, values = zip(*layer.named_parameters(), strict=True)
    wrapped, features = Loss(layer, 20), draw(1, ROWS, WIDTH).requires_grad_()

    def loss(features: Tensor, *values: Tensor) -> Tensor:
        named = {f"layer.{n}": v for n, v in zip(names, values, strict=True)}
        return functional_call(wrapped, named, (features, kind.targets[0]))

    assert torch.autograd.gradcheck(loss, (features, *values))


@every_form
def test_stacked_layers_have_the_losses_and_gradients_of_single_layers(kind: Kind, form: str, rank: int | None) -> None:
    """Losses, and gradients by ``grad`` within ``vmap`` and by autograd through ``vmap``."""
    layers: list[nn.Module] = [
        Loss(perturbed(kind.make(covariance=form, rank=rank), seed=seed), 20) for seed in range(3)
    ]
    features = draw(1, 3, ROWS, WIDTH)
    parameters, buffers = stack_module_state(layers)

    def losses(parameters: dict[str, Tensor], features: Tensor, targets: Tensor) -> Tensor:
        return functional_call(layers[0], (parameters, buffers), (features, targets))

    together = vmap(losses)(parameters, features, kind.targets)
    alone = torch.stack([layer(f, t) for layer, f, t in zip(layers, features, kind.targets, strict=True)])
    torch.testing.assert_close(together, alone, rtol=1e-12, atol=1e-12)
    within = vmap(torch.func.grad(losses))(parameters, features, kind.targets)
    around = dict(zip(parameters, torch.autograd.grad(together.sum(), list(parameters.values())), strict=True))
    for index, layer in enumerate(layers):
        ours = torch.autograd.grad(layer(features[index], kind.targets[index]), list(layer.parameters()))
        for (name, _), one in zip(layer.named_parameters(), ours, strict=True):
            torch.testing.assert_close(within[name][index], one, rtol=1e-10, atol=1e-12)
            torch.testing.assert_close(around[name][index], one, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ({"covariance": "full"}, "covariance"),  # test_covariance has the other forms that are refused
        *(({"prior_variance": value}, "prior_variance") for value in (0.0, -1.0, float("nan"))),
        *(({"wishart_dof": value}, "wishart_dof") for value in (0.0, -1.0)),
        *(({"wishart_scale": value}, "wishart_scale") for value in (0.0, float("inf"))),
        ({"initial_variance": -1.0}, "initial_variance"),
    ],
)
def test_arguments_out_of_range_are_refused(kind: Kind, arguments: dict[str, object], key: str) -> None:
    with pytest.raises(ConfigError, match=f"^{key} must be"):
        kind.make(**arguments)


@pytest.mark.parametrize(
    ("layer", "arguments", "key"),
    [
        *(
            (layer, {"in_features": width}, "in_features")
            for layer in (Regression, Discriminative)
            for width in (0, -3)
        ),
        (Regression, {"out_features": 0}, "out_features"),
        (Discriminative, {"num_classes": 1}, "num_classes"),
        (Discriminative, {"predictive": "exact"}, "predictive"),
        (Discriminative, {"draws": 0}, "draws"),
    ],
)
def test_impossible_sizes_and_rules_are_refused(layer: type, arguments: dict[str, object], key: str) -> None:
    sizes = {"in_features": WIDTH, "out_features" if layer is Regression else "num_classes": 3}
    with pytest.raises(ConfigError, match=f"^{key} must be"):
        layer(**sizes | arguments)
