"""The influence of rows on a coreset, against eq. 22 in dense algebra and against outer steps without the row."""

import math
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from bdl_pipe import NetworkSpec, Seed, State, read_config, row_influence
from bdl_pipe.coresets.vbpc import closed_form
from bdl_pipe.coresets.vbpc.posterior import Spec, VbpcPosterior
from bdl_pipe.errors import ConfigError

from .cases import relative

RHO, GAMMA, SCALE, CLASSES, CORESET, ROWS = 2.0, 30.0, 0.7, 3, 6, 40
NETWORK = {"network": {"name": "mlp", "hidden": [12]}, "input_shape": [4], "outputs": 3, "likelihood": "categorical"}
Rows = tuple[Tensor, Tensor]


def random_rows(count: int, name: str) -> Rows:
    """Inputs of three overlapping classes, in float64."""
    generator = Seed(5).fold(name).generator()
    classes = torch.arange(count) % CLASSES
    centres = torch.eye(CLASSES, 4, dtype=torch.float64) * 1.5
    return centres[classes] + torch.randn(count, 4, generator=generator, dtype=torch.float64), classes


@cache
def trunk(number: int) -> nn.Module:
    network = read_config(NetworkSpec, NETWORK, "spec").build(Seed(number))
    return network.double().requires_grad_(False)


def student(number: int) -> VbpcPosterior:
    """A posterior with a random trunk; its head is of another coreset, which the influence must not depend on."""
    config = read_config(NetworkSpec, NETWORK, "spec").network
    weights = {name: v for name, v in trunk(number).state_dict().items() if name.startswith("trunk.")}
    head = closed_form.solve(torch.ones(CORESET, 12).double(), torch.ones(CORESET, CLASSES).double(), RHO, GAMMA)
    return VbpcPosterior(Spec(config, (4,), SCALE, RHO, head.ratio), weights, head)


def coreset() -> State:
    images, classes = random_rows(CORESET, "coreset")
    return State({"images": images, "labels": torch.eye(CLASSES, dtype=torch.float64)[classes] - 1 / CLASSES}, {})


def natural(number: int, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """λ of eq. 20: (γ/β_S)ΦᵀŶ and −½(ρI + (γ/β_S)ΦᵀΦ), in dense algebra."""
    phi, weight = SCALE * trunk(number).features(images), GAMMA / CORESET
    return weight * phi.T @ labels, -0.5 * (RHO * torch.eye(phi.shape[1]).double() + weight * phi.T @ phi)


def losses(number: int, first: Tensor, second: Tensor, rows: Rows) -> Tensor:
    """Each row's loss as a function of λ, by the covariance itself (eq. 25)."""
    phi, covariance = SCALE * trunk(number).features(rows[0]), torch.linalg.inv(-2 * second)
    variance = ((phi @ covariance) * phi).sum(1)
    logits = phi @ covariance @ first / (1 + math.pi / 8 * variance).sqrt()[:, None]
    return logits.logsumexp(1) - logits.gather(1, rows[1][:, None])[:, 0]


def reference_loss(images: Tensor, labels: Tensor, rows: Rows, students: int = 2) -> Tensor:
    values = [losses(number, *natural(number, images, labels), rows).mean() for number in range(students)]
    return torch.stack(values).mean()


def steps_without(rows: Rows, missing: int | None, rate: float, count: int) -> tuple[Tensor, ...]:
    """Gradient steps of the coreset on the mean loss of the rows, of which one is missing; all are divided by n."""
    left_in = torch.arange(len(rows[1])) != (-1 if missing is None else missing)
    some, state = (rows[0][left_in], rows[1][left_in]), coreset().tensors
    now = (state["images"], state["labels"])
    for _ in range(count):
        leaves = tuple(tensor.detach().requires_grad_() for tensor in now)
        loss = reference_loss(*leaves, some) * len(some[1]) / len(rows[1])
        gradient = torch.autograd.grad(loss, leaves)
        now = tuple(tensor.detach() - rate * slope for tensor, slope in zip(leaves, gradient, strict=True))
    return now


def influence(rows: Rows, reference: Rows) -> Tensor:
    return row_influence([student(0), student(1)], coreset(), rows, reference)


def test_the_influence_equals_equation_22_in_dense_algebra() -> None:
    """−β_S⁻¹ (∇_S ∇_μ ℓ_S) ∇_λ ℓ_i row by row; a sign, a missing mean term and shuffled rows are wrong."""
    rows, reference, state = random_rows(ROWS, "rows"), random_rows(50, "reference"), coreset().tensors
    leaves = tuple(state[name].clone().requires_grad_() for name in ("images", "labels"))
    toward = torch.autograd.grad(reference_loss(*leaves, reference), leaves)
    expected, only_second = torch.zeros(ROWS).double(), torch.zeros(ROWS).double()
    for number in range(2):
        # the change of λ along the reference gradient: −β_S⁻¹ of the change of ∇_μ ℓ_S (eq. 19)
        point, change = torch.func.jvp(lambda *s, n=number: natural(n, *s), tuple(state.values()), toward)
        jacobians = torch.func.jacrev(lambda *at, n=number: losses(n, *at, rows), argnums=(0, 1))(*point)
        parts = [(slope * moved).sum((1, 2)) / 2 for slope, moved in zip(jacobians, change, strict=True)]
        expected, only_second = expected + parts[0] + parts[1], only_second + parts[1]
    scores = influence(rows, reference)
    assert relative(scores, expected) < 1e-9
    for wrong in (-expected, only_second, expected.roll(1)):
        assert relative(scores, wrong) > 0.1


def test_the_influence_is_the_loss_that_an_outer_step_without_the_row_costs() -> None:
    rows, reference, rate = random_rows(ROWS, "rows"), random_rows(50, "reference"), 1e-4
    scores, whole = influence(rows, reference), reference_loss(*steps_without(rows, None, rate, 1), reference)
    costs = [reference_loss(*steps_without(rows, row, rate, 1), reference) - whole for row in range(ROWS)]
    measured = torch.stack(costs) * ROWS / rate
    assert relative(scores, measured) < 1e-3
    assert relative(scores, measured.roll(1)) > 0.1


def test_the_mean_influence_on_the_rows_themselves_is_a_squared_gradient_and_no_student_is_an_error() -> None:
    rows = random_rows(ROWS, "rows")
    leaves = tuple(coreset().tensors[name].clone().requires_grad_() for name in ("images", "labels"))
    gradient = torch.autograd.grad(reference_loss(*leaves, rows), leaves)
    torch.testing.assert_close(influence(rows, rows).mean(), sum(part.square().sum() for part in gradient))
    with pytest.raises(ConfigError, match="students must have at least one posterior, got 0"):
        row_influence([], coreset(), rows, rows)
