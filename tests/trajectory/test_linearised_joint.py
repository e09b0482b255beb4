"""The joint of a linearised network: against dense Jacobians and covariances, and against draws of weights."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor
from torch.func import functional_call, jacrev

from bdl_pipe.artifacts import State, under
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.joint_predictive import JointCategorical, at_places
from bdl_pipe.networks import ConvNetConfig, MlpConfig
from bdl_pipe.posterior import GaussianPosterior, NetworkSpec, joint
from bdl_pipe.registry import posterior_of
from bdl_pipe.seeds import Seed
from bdl_pipe.trajectory.curvature import kronecker_factors, layers_of
from bdl_pipe.trajectory.linearised import JointDependent, LinearisedLaplace

from .test_laplace import IMAGES, PRECISION, make, weights_of

TEMPERATURE = 0.4
TWO = NetworkSpec(MlpConfig("mlp", (5,)), (4,), 2, "gaussian", 0.3)
HEAD = NetworkSpec(MlpConfig("mlp", (5,)), (4,), 1, "gaussian_head")
NORMED = dataclasses.replace(IMAGES, network=ConvNetConfig("convnet", 4, 2, norm="batch", pool="max"))
SIGMAS = 5.0  # two-sided: 6e-7 a comparison, below 1e-5 for all of this file


def fitted(data: FitData, spec: NetworkSpec, layers: str, **changes: Any) -> LinearisedLaplace:
    more = {"predictive": "linearised", "temperature": TEMPERATURE, "layers": layers} | changes
    found = posterior_of(make(data, spec, weights_of(spec), **more))
    assert isinstance(found, LinearisedLaplace) and isinstance(found, GaussianPosterior)
    return found


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


SPECS = pytest.mark.parametrize("spec", [TWO, HEAD, IMAGES, NORMED], ids=["two", "head", "convnet", "batch"])
LAYERS = pytest.mark.parametrize("layers", ["last", "all"])


def data_for(spec: NetworkSpec, images: FitData, table: FitData) -> FitData:
    return images if len(spec.input_shape) == 3 else table


@LAYERS
@SPECS
def test_functions_have_the_mean_and_the_covariance_of_dense_matrices(
    spec: NetworkSpec, layers: str, tiny_images: FitData, tiny_table: FitData
) -> None:
    data, inputs = data_for(spec, tiny_images, tiny_table), groups_of(spec)
    right, found = dense(data, spec, layers, inputs), fitted(data, spec, layers).functions(inputs)
    torch.testing.assert_close(found.mean, right.mean, rtol=1e-4, atol=1e-5)
    scale = float(right.outputs.abs().max())
    assert float((found.covariance - right.outputs).abs().max()) < 1e-4 * scale
    for wrong in ("no temperature", "swapped", "no prior"):
        other = dense(data, spec, layers, inputs, wrong).outputs
        assert float((found.covariance - other).abs().max()) > 1e-2 * scale, wrong


@pytest.mark.parametrize("norm", ["instance", "group", "none"])
def test_functions_of_every_norm_have_the_dense_covariance(norm: str, tiny_images: FitData) -> None:
    spec = dataclasses.replace(IMAGES, network=ConvNetConfig("convnet", 8, 2, norm=norm))  # type: ignore[arg-type]
    inputs = groups_of(spec)
    right = dense(tiny_images, spec, "all", inputs).outputs
    found = fitted(tiny_images, spec, "all").functions(inputs).covariance
    assert float((found - right).abs().max()) < 1e-4 * float(right.abs().max())


@LAYERS
def test_regression_with_fixed_noise_equals_scipys_multivariate_normal(layers: str, tiny_table: FitData) -> None:
    """Two outputs, which depend on each other where all layers are uncertain; every row, the first rows, and places."""
    inputs, posterior = groups_of(TWO), fitted(tiny_table, TWO, layers)
    right = dense(tiny_table, TWO, layers, inputs)
    targets = right.mean + torch.randn(3, 4, 2, generator=torch.Generator().manual_seed(4)).double()
    found = joint(posterior, inputs, rng=Seed(0))
    assert found.draws == 1 and not found.is_product

    def log_prob(group: int, chosen: list[int], given: Tensor) -> float:
        places = [2 * row + k for row in chosen for k in range(2)]
        covariance = right.outputs[group][places][:, places] + 0.3 * torch.eye(len(places)).double()
        law = scipy.stats.multivariate_normal(right.mean[group].flatten()[places].numpy(), covariance.numpy())
        return float(law.logpdf(given.flatten().numpy()))

    for group in range(3):
        for rows in range(1, 5):
            expected = log_prob(group, list(range(rows)), targets[group, :rows])
            assert float(found.chain_log_prob(targets)[group, rows - 1]) == pytest.approx(expected, rel=1e-4)
            single = log_prob(group, [rows - 1], targets[group, rows - 1])
            assert float(found.row_log_prob(targets)[group, rows - 1]) == pytest.approx(single, rel=1e-4)
    assert found.gap(targets).abs().min() > 1e-2  # without the covariance between rows it would be 0
    order = torch.tensor([[1, 3, 1], [0, 2, 2], [3, 0, 1]])
    observed = targets[torch.arange(3)[:, None], order]
    placed = joint(posterior, inputs, rng=Seed(0), places=order).log_prob(observed)
    torch.testing.assert_close(placed, joint(posterior, at_places(inputs, order), rng=Seed(0)).log_prob(observed))
    assert float(placed[0]) == pytest.approx(log_prob(0, [1, 3, 1], observed[0]), rel=1e-4)
    across = right.outputs.unflatten(2, (4, 2)).unflatten(1, (4, 2))[:, :, 0, :, 1]
    assert (float(across.abs().max()) > 1e-3) == (layers == "all")


def weight_draws(model: Dense, count: int, apart: bool = False) -> Tensor:
    """Outputs under draws of the weights [draw, group, row, output]; ``apart``: each row has draws of its own."""
    root = torch.linalg.cholesky(model.covariance)
    z = torch.randn(count, len(root), generator=torch.Generator().manual_seed(5)).double()
    values = model.mean + torch.einsum("grow,sw->sgro", model.jacobian @ root, z)
    return torch.stack([values[:, :, i].roll(i, 0) for i in range(values.shape[2])], 2) if apart else values


def apart(one: Tensor, other: Tensor) -> float:
    """The largest z of the difference of two means over draws of exp(log p) [draw, group]."""
    top = torch.maximum(one.max(0).values, other.max(0).values)
    (a, b) = ((terms - top).exp() for terms in (one, other))
    error = (a.var(0) / len(a) + b.var(0) / len(b)).sqrt()
    return float(((a.mean(0) - b.mean(0)) / error).abs().max())


@LAYERS
def test_joint_class_probabilities_equal_averages_over_draws_of_weights(layers: str, tiny_images: FitData) -> None:
    """A wide posterior, so that rows depend on each other: rows with draws of their own are told apart."""
    inputs, labels = groups_of(IMAGES), torch.tensor([[0, 0, 1, 0], [1, 1, 1, 2], [2, 2, 2, 2]])
    right = dense(tiny_images, IMAGES, layers, inputs)
    found = joint(fitted(tiny_images, IMAGES, layers), inputs, rng=Seed(0), draws=20_000)
    assert isinstance(found, JointCategorical)
    terms = found.draw_log_prob(labels).sum(-1)

    def drawn(own: bool) -> Tensor:
        logs = weight_draws(right, 20_000, own).log_softmax(-1)
        return logs.gather(-1, labels[None, ..., None].expand(len(logs), -1, -1, 1))[..., 0].sum(-1)

    assert apart(terms, drawn(False)) < SIGMAS
    assert apart(terms, drawn(True)) > 2 * SIGMAS
    again = joint(fitted(tiny_images, IMAGES, layers), inputs, rng=Seed(0), draws=20_000)
    assert torch.equal(found.log_prob(labels), again.log_prob(labels))


@LAYERS
def test_a_predicted_variance_is_drawn_and_the_means_are_integrated_exactly(layers: str, tiny_table: FitData) -> None:
    inputs = groups_of(HEAD)
    right = dense(tiny_table, HEAD, layers, inputs)
    targets = right.mean[..., :1] + 0.7 * torch.randn(3, 4, 1, generator=torch.Generator().manual_seed(4)).double()
    found = joint(fitted(tiny_table, HEAD, layers), inputs, rng=Seed(0), draws=20_000)
    assert isinstance(found, JointDependent) and found.draws == 20_000
    terms = found._chain_terms(targets)[..., -1]

    def drawn(own: bool) -> Tensor:
        mean, free = weight_draws(right, 200_000, own).chunk(2, dim=-1)
        logs = -0.5 * ((targets - mean).square() / free.exp() + free + math.log(2 * math.pi))
        return logs.sum((-1, -2))

    assert apart(terms, drawn(False)) < SIGMAS
    assert apart(terms, drawn(True)) > 2 * SIGMAS
    assert (terms.exp().std(0) < drawn(False).exp().std(0)).all()  # one half of the integral is in closed form


def test_means_given_a_drawn_variance_follow_the_dense_conditional_gaussian(tiny_table: FitData) -> None:
    """Over the draws, the mean and the covariance of the conditional means make up the dense covariance again."""
    inputs = groups_of(HEAD)
    right = dense(tiny_table, HEAD, "all", inputs)
    found = joint(fitted(tiny_table, HEAD, "all"), inputs, rng=Seed(0), draws=50_000)
    assert isinstance(found, JointDependent)
    moved, free = found.mean[..., 0] - right.mean[..., 0], found.variance.log()[..., 0] - right.mean[..., 1]
    whole = right.outputs.unflatten(2, (4, 2)).unflatten(1, (4, 2))
    scale = float(whole.abs().max())
    conditional = found.covariance[0, :, :, 0, :, 0]
    for one, other, rest, k, m in ((moved, moved, conditional, 0, 0), (moved, free, 0, 0, 1), (free, free, 0, 1, 1)):
        estimated = torch.einsum("dgi,dgj->gij", one, other) / len(one) + rest
        assert float((estimated - whole[:, :, k, :, m]).abs().max()) < 0.05 * scale  # 5 s.e. of at most √2 scale/224


def test_a_dependent_joint_equals_a_mixture_of_multivariate_normals() -> None:
    generator = torch.Generator().manual_seed(1)
    root = torch.randn(2, 2, 6, 6, generator=generator).double()
    covariance = (root @ root.mT).unflatten(3, (3, 2)).unflatten(2, (3, 2))
    mean, free, targets = torch.randn(5, 2, 3, 2, generator=generator).double().split([2, 2, 1])
    found = JointDependent(mean, free.exp(), covariance)
    for group in range(2):
        whole = (root @ root.mT)[:, group] + torch.diag_embed(free.exp()[:, group].flatten(1))
        for size in (2, 4, 6):
            logs = [
                scipy.stats.multivariate_normal(m.flatten()[:size], c[:size, :size]).logpdf(
                    targets[0, group].flatten()[:size]
                )
                for m, c in zip(mean[:, group], whole, strict=True)
            ]
            expected = np.logaddexp(*logs) - math.log(2)
            assert float(found.chain_log_prob(targets[0])[group, size // 2 - 1]) == pytest.approx(expected, rel=1e-9)
    rows = covariance.diagonal(dim1=2, dim2=4).movedim(-1, 2)
    alone = JointDependent(mean, free.exp(), torch.einsum("dgrij,rs->dgrisj", rows, torch.eye(3).double()))
    torch.testing.assert_close(alone.row_log_prob(targets[0]), found.row_log_prob(targets[0]))
    assert (alone.log_prob(targets[0]) - found.log_prob(targets[0])).abs().min() > 1e-2  # rows that do not depend


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
