"""The joint of a linearised network: against dense Jacobians and covariances, and against draws of weights."""

import dataclasses
import itertools
import math
from itertools import product
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor
from torch.func import functional_call, jacrev

from bdl_pipe.artifacts import State, under
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.joint_predictive import at_places
from bdl_pipe.networks import ConvNetConfig, MlpConfig
from bdl_pipe.posterior import GaussianPosterior, NetworkDraws, NetworkSpec, joint
from bdl_pipe.predictive import Gaussian
from bdl_pipe.registry import posterior_of
from bdl_pipe.seeds import Seed
from bdl_pipe.trajectory.curvature import kronecker_factors, layers_of
from bdl_pipe.trajectory.linearised import JointDependent, LinearisedDraws, LinearisedLaplace

from .test_laplace import IMAGES, PRECISION, make, weights_of

TEMPERATURE = 0.4
TWO = NetworkSpec(MlpConfig("mlp", (5,)), (4,), 2, "gaussian", 0.3)
HEAD = NetworkSpec(MlpConfig("mlp", (5,)), (4,), 1, "gaussian_head")
NORMED = dataclasses.replace(IMAGES, network=ConvNetConfig("convnet", 4, 2, norm="batch", pool="max"))


def fitted(data: FitData, spec: NetworkSpec, layers: str, **changes: Any) -> LinearisedLaplace:
    more = {"predictive": "linearised", "temperature": TEMPERATURE, "layers": layers} | changes
    posterior = posterior_of(make(data, spec, weights_of(spec), **more))
    assert isinstance(posterior, LinearisedLaplace) and isinstance(posterior, GaussianPosterior)
    return posterior


def groups_of(spec: NetworkSpec) -> Tensor:
    """Three groups of four rows."""
    return torch.randn(3, 4, *spec.input_shape, generator=torch.Generator().manual_seed(3))


@dataclasses.dataclass(frozen=True)
class Dense:
    """The linear model in float64, with a dense covariance of the weights of the layers that have one."""

    mean: Tensor  # [group, row, output]
    jacobian: Tensor  # [group, row, output, weight]
    covariance: Tensor  # [weight, weight]

    @property
    def outputs(self) -> Tensor:
        flat = self.jacobian.flatten(1, 2)
        return flat @ self.covariance @ flat.mT


def dense(data: FitData, spec: NetworkSpec, layers: str, inputs: Tensor, wrong: str = "") -> Dense:
    """The oracle by whole matrices, from the factors A and G themselves; ``wrong`` names a wrong variant."""
    weights = {k: v.double() if v.is_floating_point() else v for k, v in weights_of(spec).items()}
    network = spec.build(Seed(0)).double().eval()
    network.load_state_dict(weights)
    names = [name for name in layers_of(network) if layers == "all" or name == "head"]
    rows = data.tensors("train")[0].double()
    if layers == "all":
        factors = kronecker_factors(network, rows, spec)
    else:
        factors = {"head": kronecker_factors(network.head, network.trunk(rows).detach(), spec)[""]}

    def outputs(part: dict[str, Tensor]) -> Tensor:
        return functional_call(network, weights | part, (inputs.double().flatten(0, 1),))

    at = {name: v for name, v in weights.items() if name.rpartition(".")[0] in names}
    jacobians, blocks, covariances = jacrev(outputs)(at), [], []
    for name in names:
        weight, bias = jacobians[f"{name}.weight"].flatten(3), jacobians[f"{name}.bias"]
        blocks.append(torch.cat([weight, bias[..., None]], -1).flatten(2))  # row-major [out, in]
        a, g = factors[name].inputs, factors[name].outputs
        product = torch.kron(a, g) if wrong == "swapped" else torch.kron(g, a)
        precision = product + (0 if wrong == "no prior" else PRECISION) * torch.eye(len(product)).double()
        covariances.append((1 if wrong == "no temperature" else TEMPERATURE) * torch.linalg.pinv(precision))
    shape = inputs.shape[:2]
    return Dense(
        outputs({}).detach().unflatten(0, shape),
        torch.cat(blocks, -1).unflatten(0, shape),
        torch.block_diag(*covariances),
    )


LAYERS = pytest.mark.parametrize("layers", ["last", "all"])


NORMS = {
    n: dataclasses.replace(IMAGES, network=ConvNetConfig("convnet", 8, 2, norm=n))
    for n in ("instance", "group", "none")
}
MODELS = {"two": TWO, "head": HEAD, "convnet": IMAGES, "batch": NORMED}


@pytest.mark.parametrize(
    ("name", "layers"), [*itertools.product(MODELS, ("last", "all")), *((norm, "all") for norm in NORMS)]
)
def test_functions_have_the_mean_and_the_covariance_of_dense_matrices(
    name: str, layers: str, tiny_images: FitData, tiny_table: FitData
) -> None:
    spec = (MODELS | NORMS)[name]
    data, inputs = tiny_images if len(spec.input_shape) == 3 else tiny_table, groups_of(spec)
    right, functions = dense(data, spec, layers, inputs), fitted(data, spec, layers).functions(inputs)
    torch.testing.assert_close(functions.mean, right.mean, rtol=1e-4, atol=1e-5)
    scale = float(right.outputs.abs().max())
    assert float((functions.covariance - right.outputs).abs().max()) < 1e-4 * scale
    if name == "two":
        for wrong in ("no temperature", "swapped", "no prior"):
            other = dense(data, spec, layers, inputs, wrong).outputs
            assert float((functions.covariance - other).abs().max()) > 1e-2 * scale, wrong


@LAYERS
def test_regression_with_fixed_noise_equals_scipys_multivariate_normal(layers: str, tiny_table: FitData) -> None:
    """Two outputs, which depend on each other where all layers are uncertain; every row, the first rows, and places."""
    inputs, posterior = groups_of(TWO), fitted(tiny_table, TWO, layers)
    right = dense(tiny_table, TWO, layers, inputs)
    targets = right.mean + torch.randn(3, 4, 2, generator=torch.Generator().manual_seed(4)).double()
    distribution = joint(posterior, inputs, rng=Seed(0))
    assert distribution.draws == 1 and not distribution.is_product

    def log_prob(group: int, chosen: list[int], given: Tensor) -> float:
        places = [2 * row + k for row in chosen for k in range(2)]
        covariance = right.outputs[group][places][:, places] + 0.3 * torch.eye(len(places)).double()
        law = scipy.stats.multivariate_normal(right.mean[group].flatten()[places].numpy(), covariance.numpy())
        return float(law.logpdf(given.flatten().numpy()))

    for group in range(3):
        for rows in range(1, 5):
            expected = log_prob(group, list(range(rows)), targets[group, :rows])
            assert float(distribution.chain_log_prob(targets)[group, rows - 1]) == pytest.approx(expected, rel=1e-4)
            single = log_prob(group, [rows - 1], targets[group, rows - 1])
            assert float(distribution.row_log_prob(targets)[group, rows - 1]) == pytest.approx(single, rel=1e-4)
    assert distribution.gap(targets).abs().min() > 1e-2  # without the covariance between rows it would be 0
    order = torch.tensor([[1, 3, 1], [0, 2, 2], [3, 0, 1]])
    observed = targets[torch.arange(3)[:, None], order]
    placed = joint(posterior, inputs, rng=Seed(0), places=order).log_prob(observed)
    torch.testing.assert_close(placed, joint(posterior, at_places(inputs, order), rng=Seed(0)).log_prob(observed))
    assert float(placed[0]) == pytest.approx(log_prob(0, [1, 3, 1], observed[0]), rel=1e-4)
    across = right.outputs.unflatten(2, (4, 2)).unflatten(1, (4, 2))[:, :, 0, :, 1]
    assert (float(across.abs().max()) > 1e-3) == (layers == "all")


@LAYERS
def test_draws_of_class_logits_have_mean_and_covariance_of_dense_matrices(layers: str, tiny_images: FitData) -> None:
    """Of centred logits, in 50,000 draws; rows without their covariance are told apart."""
    inputs, centre = groups_of(IMAGES), torch.kron(torch.eye(4), torch.eye(3) - 1 / 3).double()
    right = dense(tiny_images, IMAGES, layers, inputs)
    classes = joint(fitted(tiny_images, IMAGES, layers), inputs, rng=Seed(0), draws=50_000)
    covariance = centre @ right.outputs @ centre
    away = (classes.draw_log_probs.double().flatten(2) - right.mean.flatten(1)) @ centre
    margin = 0.05 * float(covariance.abs().max())  # 5 standard errors of at most √2 times the largest over 224
    assert float((torch.einsum("dgi,dgj->gij", away, away) / len(away) - covariance).abs().max()) < margin
    assert float(covariance[:, :3, 3:].abs().max()) > 2 * margin
    assert float((away.mean(0).abs() / (covariance.diagonal(dim1=1, dim2=2) / len(away)).sqrt()).max()) < 5


def test_means_given_a_drawn_variance_follow_the_dense_conditional_gaussian(tiny_table: FitData) -> None:
    """Over the draws, the mean and the covariance of the conditional means make up the dense covariance again."""
    inputs = groups_of(HEAD)
    right = dense(tiny_table, HEAD, "all", inputs)
    distribution = joint(fitted(tiny_table, HEAD, "all"), inputs, rng=Seed(0), draws=50_000)
    assert isinstance(distribution, JointDependent)
    moved = distribution.mean[..., 0] - right.mean[..., 0]
    free = distribution.variance.log()[..., 0] - right.mean[..., 1]
    whole = right.outputs.unflatten(2, (4, 2)).unflatten(1, (4, 2))
    scale = float(whole.abs().max())
    conditional = distribution.covariance[0, :, :, 0, :, 0]
    for one, other, rest, k, m in ((moved, moved, conditional, 0, 0), (moved, free, 0, 0, 1), (free, free, 0, 1, 1)):
        estimated = torch.einsum("dgi,dgj->gij", one, other) / len(one) + rest
        assert float((estimated - whole[:, :, k, :, m]).abs().max()) < 0.05 * scale  # 5 s.e. of at most √2 scale/224


def test_a_dependent_joint_equals_a_mixture_of_multivariate_normals() -> None:
    generator = torch.Generator().manual_seed(1)
    root = torch.randn(2, 2, 6, 6, generator=generator).double()
    covariance = (root @ root.mT).unflatten(3, (3, 2)).unflatten(2, (3, 2))
    mean, free, targets = torch.randn(5, 2, 3, 2, generator=generator).double().split([2, 2, 1])
    dependent = JointDependent(mean, free.exp(), covariance)
    for group in range(2):
        whole = (root @ root.mT)[:, group] + torch.diag_embed(free.exp()[:, group].flatten(1))
        for size in (2, 4, 6):
            observed, pairs = targets[0, group].flatten()[:size], zip(mean[:, group], whole, strict=True)
            laws = [scipy.stats.multivariate_normal(m.flatten()[:size], c[:size, :size]) for m, c in pairs]
            expected = np.logaddexp(*(law.logpdf(observed) for law in laws)) - math.log(2)
            assert float(dependent.chain_log_prob(targets[0])[group, size // 2 - 1]) == pytest.approx(
                expected, rel=1e-9
            )
    rows = covariance.diagonal(dim1=2, dim2=4).movedim(-1, 2)
    alone = JointDependent(mean, free.exp(), torch.einsum("dgrij,rs->dgrisj", rows, torch.eye(3).double()))
    torch.testing.assert_close(alone.row_log_prob(targets[0]), dependent.row_log_prob(targets[0]))
    assert (alone.log_prob(targets[0]) - dependent.log_prob(targets[0])).abs().min() > 1e-2  # rows that do not depend


def test_an_older_state_without_factors_is_read_with_the_same_draws(tiny_images: FitData) -> None:
    state = fitted(tiny_images, IMAGES, "all").state()
    drawn = {name: v for name, v in state.tensors.items() if not name.startswith("laplace.")}
    factors = under("laplace.", state.tensors)
    assert {name.rpartition(".")[0] for name in factors} == set(layers_of(IMAGES.build(Seed(0))))
    older = posterior_of(State(drawn, {**state.config, "posterior": "linearised_draws"}))
    newer, rows = posterior_of(state), tiny_images.tensors("validation")[0]
    one, other = (each.predict(rows, rng=Seed(0)) for each in (older, newer))
    assert torch.equal(one.draw_log_probs, other.draw_log_probs)  # type: ignore[attr-defined]
    by_draws = joint(older, rows[:4].unflatten(0, (2, 2)), rng=Seed(0))
    assert by_draws.draws == 2 and joint(newer, rows[:4].unflatten(0, (2, 2)), rng=Seed(0)).draws == 500


DEEP = NetworkSpec(MlpConfig("mlp", (6, 5), "leaky_relu"), (4,), 1, "gaussian_head")
MAXIMA = NetworkSpec(ConvNetConfig("convnet", 4, 2, pool="max"), (1, 8, 8), 3, "categorical")


def draws_of(spec: NetworkSpec, part: str) -> tuple[NetworkDraws, dict[str, torch.Tensor]]:
    """Three draws around random weights, of the parameters whose names begin with ``part``, and the weights."""
    network, random = spec.build(Seed(1)), torch.Generator().manual_seed(2)
    center = network.state_dict()
    moved = {name for name, _ in network.named_parameters() if name.startswith(part)}
    stacked = {k: v.expand(3, *v.shape).clone() for k, v in center.items()}
    for name in moved:
        stacked[name] += 0.3 * torch.randn(stacked[name].shape, generator=random)
    return NetworkDraws(spec, stacked), center


def inputs_of(spec: NetworkSpec) -> torch.Tensor:
    return torch.randn(7, *spec.input_shape, generator=torch.Generator().manual_seed(3))


def dense_draws(draws: NetworkDraws, center: dict[str, torch.Tensor], inputs: torch.Tensor) -> torch.Tensor:
    """f + J(w − w*) with the whole Jacobian in float64, [draw, row, output]."""
    network = draws.spec.build(Seed(0)).double().eval()
    at = {k: v.double() if v.is_floating_point() else v for k, v in center.items()}
    names = [name for name, _ in network.named_parameters()]

    def outputs(part: dict[str, torch.Tensor]) -> torch.Tensor:
        return functional_call(network, at | part, (inputs.double(),))

    jacobian = jacrev(outputs)({name: at[name] for name in names})
    total = outputs({}).detach().expand(3, -1, -1).clone()
    for name in names:
        change = (draws.weights[name].double() - at[name]).flatten(1)  # [draw, weight]
        total += torch.einsum("now,dw->dno", jacobian[name].flatten(2), change)
    return total


ALL_NORMS = {
    n: NetworkSpec(ConvNetConfig("convnet", 8, 2, n), (1, 8, 8), 3, "categorical")
    for n in ("batch", "instance", "group", "none")
}


@pytest.mark.parametrize(
    ("spec", "part"),
    [*product((DEEP, MAXIMA), ("", "trunk", "head")), *((spec, "trunk.0") for spec in ALL_NORMS.values())],
)
def test_the_outputs_equal_the_dense_linearisation(spec: NetworkSpec, part: str) -> None:
    (draws, center), inputs = draws_of(spec, part), inputs_of(spec)
    predictive = LinearisedDraws.of(draws, center).predict(inputs)
    right = spec.predictive(dense_draws(draws, center, inputs))
    names = ["draw_mean", "draw_variance"] if isinstance(predictive, Gaussian) else ["draw_log_probs"]
    for name in names:
        torch.testing.assert_close(getattr(predictive, name).double(), getattr(right, name), rtol=1e-4, atol=1e-5)
    drawn = getattr(draws.predict(inputs), names[0])
    near = torch.allclose(drawn, getattr(predictive, names[0]), rtol=1e-4, atol=1e-5)
    assert near == (part == "head")  # the network is linear in its head alone
