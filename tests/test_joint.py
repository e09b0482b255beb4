"""Joints of several inputs: against enumeration, dense algebra and quadrature, with wrong variants that must differ."""

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor

from bdl_pipe.artifacts import State
from bdl_pipe.collapsed.mixture import CollapsedMixture
from bdl_pipe.collapsed.output_distributions import Linear
from bdl_pipe.coresets.vbpc.closed_form import solve
from bdl_pipe.data.transform import Transform
from bdl_pipe.derived_predictive import Exponential
from bdl_pipe.errors import DataError
from bdl_pipe.joint_predictive import (
    GaussianFunctions,
    JointCategorical,
    JointGaussian,
    at_places,
)
from bdl_pipe.joint_regression import JointContinuous, JointInOwnUnits
from bdl_pipe.last_layer import Discriminative, Generative, Regression
from bdl_pipe.networks import MlpConfig
from bdl_pipe.posterior import NetworkDraws, NetworkSpec, Predictor, joint
from bdl_pipe.predictive import Gaussian
from bdl_pipe.seeds import Seed
from tests.last_layer.cases import FORMS, draw, perturbed

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(60)
WEIGHTS = WEIGHTS / WEIGHTS.sum()


def dense_log_prob(mean: Any, covariance: Any, targets: Any) -> float:
    law = scipy.stats.multivariate_normal(np.asarray(mean), np.asarray(covariance))
    return float(law.logpdf(np.asarray(targets)))


@pytest.fixture
def classes() -> JointCategorical:
    """Four draws of functions, two groups of three inputs, three classes."""
    return JointCategorical(draw(0, 4, 2, 3, 3).log_softmax(-1))


def test_a_joint_sums_to_one_over_all_labels_and_equals_the_mixture(classes: JointCategorical) -> None:
    probs, total, alike = classes.draw_log_probs.exp().numpy(), 0.0, 0.0
    for labels in itertools.product(range(3), repeat=3):
        probabilities = classes.log_prob(torch.tensor([labels, labels])).exp().numpy()
        rows = probs[:, :, np.arange(3), labels]  # [draw, group, row]
        np.testing.assert_allclose(probabilities, rows.prod(-1).mean(0), rtol=1e-12)
        np.testing.assert_allclose(
            classes.marginal_log_prob(torch.tensor([labels, labels])).exp(), rows.mean(0).prod(-1), rtol=1e-12
        )
        total, alike = total + probabilities, alike + probabilities * (len(set(labels)) == 1)
    np.testing.assert_allclose(total, 1, rtol=1e-12)
    np.testing.assert_allclose(classes.same_class(), alike, rtol=1e-12)
    np.testing.assert_allclose(classes.marginal_same_class(), (probs.mean(0).prod(1)).sum(-1), rtol=1e-12)


def test_the_chain_is_the_joint_of_the_first_inputs_and_one_draw_is_a_product(classes: JointCategorical) -> None:
    labels = torch.tensor([[0, 1, 2], [1, 1, 0]])
    for rows in (1, 2, 3):
        first = JointCategorical(classes.draw_log_probs[:, :, :rows])
        torch.testing.assert_close(classes.chain_log_prob(labels)[:, rows - 1], first.log_prob(labels[:, :rows]))
    torch.testing.assert_close(classes.chain_log_prob(labels)[:, 0], classes.row_log_prob(labels)[:, 0])
    first = JointCategorical(classes.draw_log_probs[:, :, :1])
    assert torch.equal(first.gap(labels[:, :1]), torch.zeros(2, dtype=torch.float64))
    one = JointCategorical(classes.draw_log_probs[:1])
    assert one.is_product and not classes.is_product
    assert one.gap(labels).abs().max() < 1e-12


def gaussians() -> tuple[JointGaussian, Tensor, Tensor]:
    """Two draws, two groups of three rows, two outputs; the whole covariance [draw, group, output, row, row]."""
    root = draw(1, 2, 2, 2, 3, 3)
    covariance, variance = root @ root.mT, draw(2, 2, 2, 3, 2).exp()
    joint = JointGaussian(draw(3, 2, 2, 3, 2), variance, covariance)
    return joint, covariance + torch.diag_embed(variance.mT), draw(4, 2, 3, 2)


def test_a_gaussian_joint_equals_the_mixture_of_multivariate_normals() -> None:
    joint, whole, targets = gaussians()
    for group, rows in itertools.product(range(2), (1, 2, 3)):
        means, covariances = joint.mean[:, group, :rows], whole[:, group, :, :rows, :rows]
        each = [
            sum(dense_log_prob(mean[:, k], covariance[k], targets[group, :rows, k]) for k in range(2))
            for mean, covariance in zip(means, covariances, strict=True)
        ]
        expected = np.logaddexp(*each) - math.log(2)
        assert float(joint.chain_log_prob(targets)[group, rows - 1]) == pytest.approx(expected, rel=1e-10)


def test_the_marginals_of_a_gaussian_joint_equal_the_predictive() -> None:
    joint, whole, targets = gaussians()
    variance = whole.diagonal(dim1=-2, dim2=-1).mT
    predictive = Gaussian(joint.mean.flatten(1, 2), variance.flatten(1, 2))
    expected = predictive.log_prob(targets.flatten(0, 1)).unflatten(0, (2, 3))
    torch.testing.assert_close(joint.row_log_prob(targets), expected)
    without = JointGaussian(joint.mean, variance)  # the wrong variant: no cross terms
    torch.testing.assert_close(without.row_log_prob(targets), expected)
    assert (without.log_prob(targets) - joint.log_prob(targets)).abs().min() > 1e-2


def test_a_joint_by_draws_of_a_collapsed_mixture_is_the_mixture_of_products() -> None:
    part = Linear(draw(5, 4, 6, 2), draw(6, 4, 6, 2, 3).abs(), draw(7, 4, 6, 2).abs() + 3)
    predictive, targets = CollapsedMixture(part, 0.1), draw(8, 2, 3, 2)
    joint = JointContinuous(predictive, (2, 3, 2), 4)
    terms = predictive.draw_log_prob(targets.flatten(0, 1)).unflatten(1, (2, 3))
    torch.testing.assert_close(joint.log_prob(targets), terms.sum(-1).logsumexp(0) - math.log(4))
    expected = predictive.log_prob(targets.flatten(0, 1)).unflatten(0, (2, 3))
    torch.testing.assert_close(joint.row_log_prob(targets), expected)


@pytest.mark.parametrize("log", [False, True])
def test_own_units_change_the_densities_and_not_the_gap(log: bool) -> None:
    base, _, standard = gaussians()
    shift, scale = torch.tensor([0.5, -1.0]).double(), torch.tensor([0.3, 2.0]).double()
    targets = shift + scale * standard
    targets = targets.exp() if log else targets
    joint = JointInOwnUnits(base, shift, scale, log)
    variance = base.variance + base.covariance.diagonal(dim1=-2, dim2=-1).mT  # type: ignore[union-attr]
    rescaled = Gaussian(base.mean.flatten(1, 2), variance.flatten(1, 2)).rescale(shift, scale)
    predictive = Exponential(rescaled) if log else rescaled
    expected = predictive.log_prob(targets.flatten(0, 1)).unflatten(0, (2, 3))
    torch.testing.assert_close(joint.row_log_prob(targets), expected)
    torch.testing.assert_close(joint.gap(targets), base.gap(standard))
    if log:
        assert joint.log_prob(-targets).tolist() == [-math.inf, -math.inf]


@pytest.mark.parametrize(("form", "rank"), FORMS)
def test_the_functions_of_a_variational_layer_have_the_dense_covariance(form: str, rank: int | None) -> None:
    features = draw(1, 2, 4, 5)
    regression = perturbed(Regression(5, 2, covariance=form, rank=rank))
    (dense,) = regression.covariance().matrix()
    joint, targets = regression.functions(features), draw(2, 2, 4, 2)
    noise = regression.noise_covariance.diagonal()
    joint_density = joint.joint(None, draws=1, rng=Seed(0)).log_prob(targets).detach()
    eye = torch.eye(4).double()
    for group, phi in enumerate(features):
        mean, inside = (phi @ regression.mean.mT).detach(), (phi @ dense @ phi.T).detach()
        whole = [inside + variance.detach() * eye for variance in noise]
        expected = sum(dense_log_prob(mean[:, k], whole[k], targets[group, :, k]) for k in range(2))
        assert float(joint_density[group]) == pytest.approx(expected, rel=1e-9)
    single = joint.joint(None, draws=1, rng=Seed(0)).row_log_prob(targets)
    expected_rows = regression.predict(features.flatten(0, 1)).log_prob(targets.flatten(0, 1))
    torch.testing.assert_close(single.flatten(), expected_rows)
    discriminative = perturbed(Discriminative(5, 3, covariance=form, rank=rank))
    logits = discriminative.functions(features)
    expected = torch.einsum("gri,kij,gsj->gkrs", features, discriminative.covariance().matrix(), features)
    torch.testing.assert_close(logits.covariance[0], expected)
    mean, variance = discriminative.logit_moments(features.flatten(0, 1))
    torch.testing.assert_close(logits.mean[0].flatten(0, 1), mean)
    marginal = logits.covariance[0].diagonal(dim1=-2, dim2=-1).mT + logits.noise[0]
    torch.testing.assert_close(marginal.flatten(0, 1), variance)


def same_class_twice(mean: float, variance: float, noise: float) -> tuple[float, float]:
    """P(Y₁ = Y₂) of one input twice, joint and product: two classes, the difference of logits N(mean, variance)."""
    inside = mean + math.sqrt(variance) * NODES
    p = (WEIGHTS / (1 + np.exp(-(inside[:, None] + math.sqrt(noise) * NODES)))).sum(-1)  # given the function
    whole = float((WEIGHTS * p).sum())
    return float((WEIGHTS * (p**2 + (1 - p) ** 2)).sum()), whole**2 + (1 - whole) ** 2


def test_one_input_twice_under_a_discriminative_layer_equals_the_integral() -> None:
    """Two observations share the function and not the noise; the joint is far from the product of the marginals."""
    layer = perturbed(Discriminative(2, 2, initial_variance=4.0))
    features = draw(3, 1, 1, 2)
    functions, twice = layer.functions(features), torch.zeros(1, 2, dtype=torch.long)
    mean = float(functions.mean[0, 0, 0].diff().detach())
    variance, noise = float(functions.covariance[0, 0, :, 0, 0].sum().detach()), float(functions.noise.sum().detach())
    expected, product = same_class_twice(mean, variance, noise)
    sampled = functions.joint(twice, draws=40_000, rng=Seed(0))
    listed = layer.functions(features.expand(1, 2, 2)).joint(None, draws=40_000, rng=Seed(1))
    for one in (sampled, listed):
        assert isinstance(one, JointCategorical)
        assert float(one.same_class()) == pytest.approx(expected, abs=0.006)  # 4 standard errors of at most .0015
        assert float(one.marginal_same_class()) == pytest.approx(product, abs=0.012)
    assert expected - product > 0.1
    shared_noise = same_class_twice(mean, variance + noise, 1e-30)[0]  # the wrong variant: one noise for both
    assert shared_noise - expected > 0.012
    apart = GaussianFunctions(
        functions.mean.expand(1, 1, 2, 2),
        torch.diag_embed(functions.covariance[..., 0].expand(1, 1, 2, 2)),
        functions.noise,
        classes=True,
    )  # the wrong variant: no covariance between the two
    wrong = apart.joint(None, draws=40_000, rng=Seed(2))
    assert isinstance(wrong, JointCategorical)
    assert float(wrong.same_class()) == pytest.approx(product, abs=0.012)


@pytest.mark.parametrize("rows", [3, 9])
def test_the_functions_of_a_coreset_head_have_the_covariance_of_the_head(rows: int) -> None:
    """In the dual form and in the primal form."""
    head = solve(draw(1, rows, 5), draw(2, rows, 3), rho=0.7, gamma=20.0)
    assert (head.features is None) == (rows == 9)
    phi = draw(3, 2, 4, 5)
    functions = head.functions(phi)
    torch.testing.assert_close(functions.covariance[0, :, 0], phi @ head.covariance() @ phi.mT)
    torch.testing.assert_close(functions.mean[0], phi @ head.mean)
    _, variance = head.logit_moments(phi.flatten(0, 1))
    torch.testing.assert_close(functions.covariance[0, :, 0].diagonal(dim1=-2, dim2=-1).flatten(), variance)


def test_a_generative_layer_equals_the_integral_over_shared_class_means() -> None:
    """One feature and two classes: the joint, and the marginal of the first row, by quadrature over both means."""
    layer = perturbed(Generative(1, 2, class_counts=[3.0, 5.0]))
    with torch.no_grad():
        layer.log_root_precision += 0.7
        layer.concentration.fill_(1)
    phi = torch.tensor([[[0.9], [0.7]]]).double()
    sampled = JointCategorical(layer.drawn_log_probs(phi, 10_000, Seed(0)))
    moments = torch.stack([layer.mean[:, 0], layer.log_std[:, 0].exp()], 1).tolist()
    means = [mean + sd * NODES for mean, sd in moments]
    noise, prior = float(layer.noise_variance.detach()), layer.class_log_probs.numpy()
    weights = WEIGHTS[:, None] * WEIGHTS
    scores = [-((phi.flatten().numpy()[:, None] - m) ** 2) / (2 * noise) + prior[k] for k, m in enumerate(means)]
    first = 1 / (1 + np.exp(scores[1][:, None, :] - scores[0][:, :, None]))  # [row, node of mean 0, node of mean 1]
    for labels in itertools.product(range(2), repeat=2):
        terms = [first[i] if label == 0 else 1 - first[i] for i, label in enumerate(labels)]
        expected = float((weights * terms[0] * terms[1]).sum())
        assert float(sampled.log_prob(torch.tensor([labels])).exp()) == pytest.approx(expected, abs=0.02)  # 4 s.e.
        product = float((weights * terms[0]).sum() * (weights * terms[1]).sum())
        assert abs(product - expected) > 0.04  # the wrong variant: each input has its own class means
    marginal = float(sampled.row_log_prob(torch.tensor([[0, 0]]))[0, 0].exp())
    assert marginal == pytest.approx(float((weights * first[0]).sum()), abs=0.02)


@dataclass(frozen=True)
class Bayesian:
    """Linear regression, or linear logits, of weights N(mean, covariance), as a Gaussian over functions."""

    mean: Tensor
    root: Tensor
    noise: float
    classes: bool

    def functions(self, inputs: Tensor, *, rng: Seed) -> GaussianFunctions:
        white = inputs.double() @ self.root
        outputs = inputs.double() @ self.mean
        noise = torch.full((1, outputs.shape[-1]), self.noise)
        return GaussianFunctions(outputs[None], (white @ white.mT)[None, :, None], noise, self.classes)

    def predict(self, inputs: Tensor, *, rng: Seed) -> Any:
        raise AssertionError("the joint needs no predictive")

    def state(self) -> State:
        return State()

    @classmethod
    def from_state(cls, state: State, device: torch.device | str = "cpu") -> "Bayesian":
        raise AssertionError("it is not stored")


def networks_of(count: int, likelihood: str = "categorical") -> NetworkDraws:
    spec = NetworkSpec(MlpConfig("mlp", (4,)), (3,), 2, likelihood, noise_variance=0.2)  # type: ignore[arg-type]
    return NetworkDraws.of(spec, [spec.build(Seed(k)).state_dict() for k in range(count)])


@pytest.mark.parametrize("likelihood", ["categorical", "gaussian"])
def test_the_joint_of_networks_is_the_mixture_over_their_draws(likelihood: str) -> None:
    posterior, inputs = networks_of(5, likelihood), draw(1, 4, 3, 3).float()
    predictive = posterior.predict(inputs.flatten(0, 1))
    targets = torch.randint(2, (4, 3)) if likelihood == "categorical" else draw(2, 4, 3, 2).float()
    distribution = joint(posterior, inputs, rng=Seed(0))
    terms = predictive.draw_log_prob(targets.flatten(0, 1)).double().unflatten(1, (4, 3))
    expected = terms.sum(-1).logsumexp(0) - math.log(5)
    torch.testing.assert_close(distribution.log_prob(targets), expected, rtol=1e-6, atol=1e-6)
    assert distribution.draws == 5 and not distribution.is_product
    assert joint(networks_of(1, likelihood), inputs, rng=Seed(0)).is_product
    places = torch.tensor([[2, 0]] * 4)
    observed = joint(posterior, inputs, rng=Seed(0), places=places).log_prob(targets[:, [2, 0]])
    listed = joint(posterior, at_places(inputs, places), rng=Seed(0)).log_prob(targets[:, [2, 0]])
    torch.testing.assert_close(observed, listed)


def test_a_gaussian_over_functions_is_the_limit_of_draws_of_weights() -> None:
    """Classes: 50,000 draws of functions at each group against 100,000 draws of weights that all inputs share."""
    posterior = Bayesian(draw(1, 3, 2), 1.5 * draw(2, 3, 3), 0.0, classes=True)
    inputs, labels = draw(3, 1, 4, 3), torch.tensor([[0, 0, 1, 0]])
    weights = posterior.mean + (posterior.root @ draw(4, 100_000, 3, 2))
    by_weights = JointCategorical(torch.einsum("grf,sfo->sgro", inputs, weights).log_softmax(-1))
    distribution = joint(posterior, inputs, rng=Seed(0), draws=50_000)
    assert float(distribution.log_prob(labels)) == pytest.approx(float(by_weights.log_prob(labels)), abs=0.05)
    assert float(distribution.gap(labels)) == pytest.approx(float(by_weights.gap(labels)), abs=0.05)
    assert abs(float(distribution.gap(labels))) > 0.2


@pytest.mark.parametrize("classes", [True, False])
def test_an_input_in_several_places_counts_as_the_same_input_in_each(classes: bool) -> None:
    posterior = Bayesian(draw(1, 3, 2), draw(2, 3, 3), 0.0 if classes else 0.4, classes)
    inputs, order = draw(3, 2, 4, 3), torch.tensor([[1, 3, 1, 0, 0], [2, 2, 0, 3, 1]])
    distribution = joint(posterior, inputs, rng=Seed(0), draws=50, places=order)
    if isinstance(distribution, JointCategorical):
        once, labels = joint(posterior, inputs, rng=Seed(0), draws=50), torch.tensor([[0, 1, 1, 0, 1], [1, 1, 0, 0, 0]])
        assert isinstance(once, JointCategorical)
        listed = JointCategorical(torch.stack([once.draw_log_probs[:, g, order[g]] for g in range(2)], 1))
        for one in (distribution, once.at(order)):
            torch.testing.assert_close(one.chain_log_prob(labels), listed.chain_log_prob(labels))
            torch.testing.assert_close(one.same_class(), listed.same_class())
            torch.testing.assert_close(one.marginal_same_class(), listed.marginal_same_class())
        assert torch.equal(distribution.at(torch.tensor([[4, 0]] * 2)).places, torch.tensor([[0, 1], [1, 2]]))
    else:
        listed = joint(posterior, at_places(inputs, order), rng=Seed(0))
        targets = draw(4, 2, 5, 2)
        torch.testing.assert_close(distribution.log_prob(targets), listed.log_prob(targets))


def test_the_joint_of_raw_rows_is_in_the_targets_own_units() -> None:
    transform = Transform(
        "table", torch.ones(3), torch.full((3,), 2.0), shift=torch.tensor([3.0]), scale=torch.tensor([4.0])
    )
    posterior = Bayesian(draw(1, 3, 1), draw(2, 3, 3), 0.5, classes=False)
    raw = draw(3, 2, 2, 3).numpy()
    targets = torch.tensor(3 + 4 * draw(4, 2, 2, 1).numpy())
    log_prob = Predictor(posterior, transform).joint(raw, rng=Seed(0)).log_prob(targets)  # type: ignore[arg-type]
    phi = (raw - 1) / 2
    for group in range(2):
        covariance = 16 * (phi[group] @ (posterior.root @ posterior.root.T).numpy() @ phi[group].T + 0.5 * np.eye(2))
        mean = 3 + 4 * phi[group] @ posterior.mean[:, 0].numpy()
        assert float(log_prob[group]) == pytest.approx(dense_log_prob(mean, covariance, targets[group, :, 0]), rel=1e-5)


def test_wrong_shapes_and_places_are_refused(classes: JointCategorical) -> None:
    with pytest.raises(DataError, match=r"^targets must have shape \(2, 3\), got \(2, 2\)$"):
        classes.log_prob(torch.zeros(2, 2, dtype=torch.long))
    base, _, targets = gaussians()
    with pytest.raises(DataError, match=r"^targets must have shape \(2, 3, 2\), got \(2, 3\)$"):
        base.gap(targets[..., 0])
    with pytest.raises(DataError, match=r"^places must be numbers of rows of a group, 0 … 2, got 3$"):
        joint(networks_of(2), draw(1, 4, 3, 3).float(), rng=Seed(0), places=torch.tensor([[0, 3]] * 4))
