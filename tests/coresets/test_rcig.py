"""RCIG: its parts and gradients against a dense bilevel problem in float64, its limits, exact resume."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from bdl_pipe import config, networks
from bdl_pipe.artifacts import State
from bdl_pipe.coresets.rcig import linearised
from bdl_pipe.coresets.rcig.method import RCIG, RcigConfig, clipped, outer_gradient
from bdl_pipe.coresets.shared.init import balanced
from bdl_pipe.errors import ConfigError
from bdl_pipe.networks.convnet import ConvNetConfig
from bdl_pipe.progress import Report, Silent
from bdl_pipe.seeds import Seed
from tests.cases import CONFIGS
from tests.resuming import killed, resumed, same_bits

from .cases import central, normal, projected, relative, tiny_data

EXACT = linearised.ExactConfig("exact")
CG = linearised.ConjugateGradientConfig("cg", 2000, 1e-13)
solvers = pytest.mark.parametrize("solver", [EXACT, CG], ids=["exact", "cg"])
PENALTY, CLASSES = 0.3, 3
SECTION = CONFIGS["rcig", "classification"] | {"solver": {"name": "exact"}, "network_steps": 3}
NETWORK = ConvNetConfig("convnet", 2, blocks=2, norm="none")


def network(seed: int = 3) -> networks.Network:
    return networks.build(NETWORK, (1, 4, 4), CLASSES, rng=Seed(seed)).double()


@pytest.fixture
def model() -> linearised.Model:
    return linearised.Linearisation(network(0), 5.0).at(network())


@pytest.fixture
def case() -> tuple[Tensor, ...]:
    """Coreset images and labels, ℓ, batch and classes."""
    images, labels, batch = (
        normal(*s, at=at) for at, s in (("x", (4, 1, 4, 4)), ("y", (4, CLASSES)), ("b", (5, 1, 4, 4)))
    )
    return images, labels, torch.tensor(0.2, dtype=torch.float64), batch, torch.tensor([0, 2, 1, 1, 0])


def smooth() -> networks.Network:
    """The same network with softplus, by hand."""
    net = network()
    for index, module in enumerate(net.trunk):  # type: ignore[arg-type]
        if isinstance(module, torch.nn.ReLU):
            net.trunk[index] = torch.nn.Softplus(beta=5.0)  # type: ignore[index, operator]
    return net


def dense(images: Tensor) -> tuple[Tensor, Tensor]:
    """H [n, h] and J [n·k, p] by reverse mode over all outputs; p: the trunk's parameters and the head's bias."""
    net = smooth()
    named = dict(net.named_parameters())
    moving = [name for name in named if name != "head.weight"]

    def outputs(*values: Tensor) -> Tensor:
        out: Tensor = functional_call(net, named | dict(zip(moving, values, strict=True)), (images,))
        return out

    parts = torch.autograd.functional.jacobian(outputs, tuple(named[n].detach() for n in moving), create_graph=True)
    return net.trunk(images), torch.cat([p.flatten(2) for p in parts], 2).flatten(0, 1)


def bilevel(images, labels, log_scale, batch, classes) -> tuple[Tensor, Tensor, Tensor]:
    """L_t where τ and W together solve ridge regression: (loss, outputs, τ), by one dense system of both."""
    (h, j), (h_batch, j_batch) = dense(images), dense(batch)
    identity = torch.eye(CLASSES, dtype=h.dtype)
    design = torch.cat([j, torch.kron(h, identity)], 1)  # of (τ, W), a row's classes side by side
    normal_matrix = design.T @ design + PENALTY * torch.eye(design.shape[1], dtype=h.dtype)
    solved = torch.linalg.solve(normal_matrix, design.T @ labels.flatten())
    outputs = (torch.cat([j_batch, torch.kron(h_batch, identity)], 1) @ solved).unflatten(0, (-1, CLASSES))
    top = labels.sort(1, descending=True).values
    margin = (top[:, 0] - top[:, 1]).clamp(max=0.5 / CLASSES).mean()
    return F.cross_entropy(log_scale.exp() * outputs, classes) - margin, outputs, solved[: j.shape[1]]


def test_features_and_jacobian_products_equal_a_dense_jacobian(model, case) -> None:
    images, labels = case[:2]
    (h, j), tangent = dense(images), normal(model.size, at="t")
    features, moved = model.both(images, tangent)
    for actual, expected in (
        (features, h),
        (moved.flatten(), j @ tangent),
        (model.jacobian(images), j),
        (model.transposed(images, labels), j.T @ labels.flatten()),
    ):
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


@solvers
def test_the_solution_equals_ridge_regression_with_the_tangent_kernel(solver, model, case) -> None:
    images, labels, _, batch, _ = case
    _, outputs, expected = bilevel(*case)
    solution = linearised.InnerProblem(model, images, labels, PENALTY, solver).solution()
    assert relative(solution, expected) < 1e-10
    fit = linearised.fitted(model, images, labels, solution, PENALTY)
    zero = linearised.slope_along(model, images, labels, fit, solution, normal(model.size, at="v"), PENALTY)
    assert abs(float(zero)) < 1e-10
    (h, j), (h_batch, j_batch) = dense(images), dense(batch)
    classes = torch.eye(CLASSES, dtype=h.dtype)
    kernel = j @ j.T + torch.kron(h @ h.T, classes) + PENALTY * torch.eye(len(j), dtype=h.dtype)
    crossed = j_batch @ j.T + torch.kron(h_batch @ h.T, classes)
    kernel_ridge = crossed @ torch.linalg.solve(kernel, labels.flatten())
    assert relative(outputs.flatten(), kernel_ridge) < 1e-10
    gradient = outer_gradient(model, *case, PENALTY, solver)
    assert relative(gradient.outputs.flatten(), kernel_ridge) < 1e-9


@pytest.mark.slow
@solvers
def test_the_direct_and_implicit_parts_add_up_to_the_bilevel_gradient(solver, model, case) -> None:
    """Either part alone, or a sum with the implicit part negated or without the loss's factor, is a wrong gradient."""
    gradient, (images, labels, log_scale, *rows) = outer_gradient(model, *case, PENALTY, solver), case
    assert float(gradient.loss) == pytest.approx(float(bilevel(*case)[0].detach()), rel=1e-10)
    of_images = central(lambda x: bilevel(x, labels, log_scale, *rows)[0], images)
    of_labels = central(lambda y: bilevel(images, y, log_scale, *rows)[0], labels)
    of_scale = central(lambda s: bilevel(images, labels, s, *rows)[0], log_scale)
    assert relative(projected(gradient.direct[2]), of_scale) < 1e-7
    for direct, implicit, expected in zip(gradient.direct, gradient.implicit, (of_images, of_labels), strict=False):
        assert relative(projected(direct + implicit), expected) < 1e-6
        for wrong in (direct, implicit, direct - implicit, direct + PENALTY / labels.numel() * implicit):
            assert relative(projected(wrong), expected) > 1e-3


def test_the_error_of_conjugate_gradients_falls_with_the_iterations(model, case) -> None:
    """The implicit gradient's error against the dense solution falls with the iterations, and is large after three."""
    exact, errors = outer_gradient(model, *case, PENALTY, EXACT).implicit, []
    for iterations in (3, 6, 12):
        solver = linearised.ConjugateGradientConfig("cg", iterations, 1e-13)
        implicit = outer_gradient(model, *case, PENALTY, solver).implicit
        errors.append(max(relative(a, b) for a, b in zip(implicit, exact, strict=True)))
    assert errors[0] > 0.05 and errors[2] < 1e-6 and errors[0] > errors[1] > errors[2]


def test_a_row_of_twice_the_weight_counts_as_two_equal_rows(model, case) -> None:
    *start, batch, classes = case
    twice, weights = torch.tensor([0, 0, 1, 2, 3, 4, 4]), torch.tensor([2.0, 1, 1, 1, 2]).double() / 7
    weighted = outer_gradient(model, *start, batch, classes, PENALTY, EXACT, weights)
    expected = outer_gradient(model, *start, batch[twice], classes[twice], PENALTY, EXACT)
    plain = outer_gradient(model, *case, PENALTY, EXACT)
    assert float(weighted.loss) == pytest.approx(float(expected.loss), rel=1e-12)
    parts = ((*gradient.direct, *gradient.implicit) for gradient in (weighted, expected, plain))
    for a, b, other in zip(*parts, strict=True):
        assert relative(a, b) < 1e-9 and relative(other, b) > 1e-2


def test_an_implicit_part_longer_than_the_direct_part_is_clipped() -> None:
    direct, implicit = torch.tensor([3.0, 4.0]), torch.tensor([0.0, 10.0])
    torch.testing.assert_close(clipped(implicit, direct), torch.tensor([0.0, 5.0]))
    torch.testing.assert_close(clipped(implicit / 10, direct), implicit / 10)


def read(**changes: Any) -> RcigConfig:
    return config.read(RcigConfig, SECTION | changes, "methods.rcig")


def distilled(report: Report | None = None, **changes: Any) -> State:
    return RCIG.stages["coreset"].fit_one(tiny_data(), {}, read(**changes), rng=Seed(2), report=report or Silent())


@pytest.mark.slow
def test_a_stopped_run_with_the_exact_solver_resumes_to_the_same_bits() -> None:
    """The conformance test has conjugate gradients."""
    whole = distilled(solver={"name": "exact"})
    assert same_bits(resumed(lambda report: distilled(report, solver={"name": "exact"}), 6), whole)
    start = balanced(tiny_data(), 2, 1.0, rng=Seed(2).fold("start"))
    for name in ("images", "labels"):
        assert not torch.equal(whole.tensors[name], getattr(start, name))


def test_the_average_weighs_all_steps_exponentially() -> None:
    """Its checkpoint after step 6 holds Σ .1·.9^(6−i) x_i, and the images read from it are this sum over 1 − .9⁶."""
    checkpoints = [killed(distilled, step) for step in range(1, 7)]
    images = [checkpoint.tensors["task.images"] for checkpoint in checkpoints]
    half_way = RCIG.stages["coreset"].from_checkpoint
    assert half_way is not None
    weights = 0.1 * 0.9 ** np.arange(5, -1, -1)
    expected = sum(w * x.double() for w, x in zip(weights, images, strict=True)) / weights.sum()
    averaged = half_way(checkpoints[-1], tiny_data(), {}, read(), rng=Seed(2)).tensors["images"]
    torch.testing.assert_close(averaged.double(), expected, rtol=1e-5, atol=1e-6)
    assert relative(averaged.double(), images[-1].double()) > 1e-4


def test_a_network_without_relu_is_refused() -> None:
    plain = networks.build(networks.MlpConfig("mlp", (4,), activation="tanh"), (2,), 2, rng=Seed(0))
    with pytest.raises(ConfigError, match="ReLU"):
        linearised.Linearisation(plain, 60.0)
