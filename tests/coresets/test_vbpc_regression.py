"""VBPC of a regression against dense float64 algebra, the exact evidence, quadrature and central differences."""

import math
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from bdl_pipe import networks
from bdl_pipe.artifacts import State
from bdl_pipe.coresets.shared.init import Coreset, selected
from bdl_pipe.coresets.shared.pool_surrogate import OuterProblem
from bdl_pipe.coresets.vbpc import closed_form, regression
from bdl_pipe.coresets.vbpc.regression import VBPC_REGRESSION, RegressionLoss
from bdl_pipe.coresets.vbpc.regression_posterior import SCALES, Scales, VbpcRegressionPosterior, phi
from bdl_pipe.data.examples import Examples
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.data.transform import Transform
from bdl_pipe.errors import ConfigError, DataError
from bdl_pipe.registry import posterior_of
from bdl_pipe.seeds import Seed
from tests.cases import config_of, fit
from tests.conftest import make_tiny_table
from tests.resuming import Killed, Watched

from .cases import central, normal, projected, relative

METHOD = "vbpc_regression"
RHO, NOISE, ROWS, WIDTH, OUTPUTS = 2.0, 0.3, 12, 7, 2
Outer = Literal["expected", "predictive"]


def loss(q: closed_form.HeadPosterior, phi: Tensor, targets: Tensor, outer: Outer = "expected") -> Tensor:
    """The outer loss of all rows with the bound's weight of the KL."""
    return regression.dataset_loss(q, phi, targets, torch.tensor(NOISE).double(), len(phi), 1.0, outer)


def rows() -> tuple[Tensor, Tensor]:
    return normal(ROWS, WIDTH, at="features"), normal(ROWS, OUTPUTS, at="targets")


def evidence(phi: Tensor, targets: Tensor) -> Tensor:
    """Return Σ_k log N(y_k | 0, ΦΦᵀ/ρ + σ²I), by a dense covariance of the rows."""
    covariance = phi @ phi.T / RHO + NOISE * torch.eye(len(phi)).double()
    return MultivariateNormal(torch.zeros(len(phi)).double(), covariance).log_prob(targets.T).sum()


def test_the_bound_is_the_evidence_if_the_coreset_is_the_data_and_lower_otherwise() -> None:
    """The wrong variants, the log of the predictive as the likelihood and half of the rows' precision, are not."""
    features, targets = rows()
    exact = evidence(features, targets)
    of_data = closed_form.solve(features, targets, RHO, ROWS / NOISE)  # γ/β_S = 1/σ²
    torch.testing.assert_close(-loss(of_data, features, targets), exact)
    weak = closed_form.solve(features, targets, RHO, ROWS / NOISE / 2)
    few = closed_form.solve(features[:5], targets[:5], RHO, ROWS / NOISE)
    assert -loss(weak, features, targets) < exact - 0.1
    assert -loss(few, features, targets) < exact - 0.1
    assert abs(-loss(of_data, features, targets, "predictive") - exact) > 1


@pytest.mark.parametrize("outer", ["expected", "predictive"])
def test_a_rows_likelihood_equals_quadrature_over_the_dense_posterior(outer: Outer) -> None:
    """With 60 Gauss-Hermite nodes; the other form of the likelihood differs from the same quadrature."""
    features, targets = rows()
    test, answers = normal(5, WIDTH, at="test"), normal(5, OUTPUTS, at="answers")
    q = closed_form.solve(features, targets, RHO, 40.0)
    covariance = torch.linalg.inv(RHO * torch.eye(WIDTH).double() + 40.0 / ROWS * features.T @ features)
    mean, sd = test @ covariance @ features.T @ targets * 40.0 / ROWS, (test @ covariance @ test.T).diagonal().sqrt()
    nodes, weights = map(torch.from_numpy, np.polynomial.hermite_e.hermegauss(60))
    f = mean[..., None] + sd[:, None, None] * nodes
    log_probs = -0.5 * ((answers[..., None] - f) ** 2 / NOISE + math.log(2 * math.pi * NOISE))
    shares = weights / weights.sum()
    oracle = ((log_probs @ shares) if outer == "expected" else (log_probs.exp() @ shares).log()).sum()
    values = {form: q.kl() - loss(q, test, answers, form) for form in ("expected", "predictive")}
    torch.testing.assert_close(values.pop(outer), oracle)
    assert abs(values.popitem()[1] - oracle) > 0.1


def section(**changes: Any) -> dict[str, Any]:
    """Changes of the smallest config: a smooth network of float64, without noise in the augmentation."""
    plain = {"choose": "all", "operations": {}}
    network = {"name": "mlp", "hidden": [5], "activation": "silu"}
    coreset = {"steps": 40, "batch": 40, "lr": 0.05, "label_lr": 0.05, "label_scale": 1.0, "augmentation": plain}
    coreset |= {"pool": {"networks": 2, "steps": 20, "lr": 1e-3}, **changes.pop("coreset", {})}
    student = {"steps": 10, "lr": 1e-3, "augmentation": plain}
    return {"rows": 6, "network": network, "coreset": coreset, "student": student} | changes


@pytest.mark.parametrize("outer", ["expected", "predictive"])
def test_the_gradient_in_inputs_targets_and_scales_equals_central_differences(outer: Outer) -> None:
    """A wrong variant, the gradient of the other form of the likelihood, does not."""
    data = make_tiny_table()
    surrogates = {
        form: RegressionLoss(data, config_of(METHOD, "regression", **section(outer=form)), None, Seed(0))
        for form in ("expected", "predictive")
    }
    network = networks.build(surrogates[outer]._regression.network, (4,), 1, rng=Seed(1)).double()
    batch, targets = (part[:40].double() for part in data.tensors("train"))
    point = torch.cat([normal(6 * 4, at="inputs"), normal(6, at="labels"), torch.tensor([0.3, 5.0, -0.8]).double()])

    def value(at: Tensor, form: Outer = outer) -> Tensor:
        surrogates[form]._log_scales = at[30:]
        inputs, labels = at[:24].reshape(6, 4), at[24:30, None]
        return surrogates[form].outer_loss(OuterProblem(network, inputs, labels, batch, targets, None, Seed(0)))[0]

    def gradient(form: Outer) -> Tensor:
        leaf = point.clone().requires_grad_()
        return projected(torch.autograd.grad(value(leaf, form), leaf)[0])

    other: Outer = "predictive" if outer == "expected" else "expected"
    oracle = central(value, point)
    assert relative(gradient(outer), oracle) < 1e-6
    assert relative(gradient(other), oracle) > 0.01


@pytest.fixture(scope="module")
def coreset() -> State:
    return fit(METHOD, "coreset", make_tiny_table(), **section())


def test_a_student_predicts_like_dense_algebra_on_its_own_trunk(coreset: State) -> None:
    """Mean, variance and covariance in float64; wrong variants: no bias, and a variance without the noise."""
    data = make_tiny_table()
    student = fit(METHOD, "student", data, {"coreset": [coreset]}, **section())
    posterior, (test, _) = posterior_of(student), data.tensors("validation")
    assert isinstance(posterior, VbpcRegressionPosterior)
    network = networks.build(posterior.spec.network, (4,), 0, rng=Seed(0))
    network.load_state_dict({k: v for k, v in student.tensors.items() if k.startswith("trunk.")})
    rho, gamma, noise = coreset.tensors[SCALES].double().exp().tolist()

    def dense(bias: float) -> tuple[Tensor, Tensor]:
        def phi(x: Tensor) -> Tensor:
            return torch.cat([network.features(x).double(), torch.full((len(x), 1), bias).double()], 1).detach()

        rows, labels = phi(coreset.tensors["images"]), coreset.tensors["labels"].double()
        covariance = torch.linalg.inv(rho * torch.eye(rows.shape[1]).double() + gamma / len(rows) * rows.T @ rows)
        mean = gamma / len(rows) * covariance @ rows.T @ labels
        return phi(test) @ mean, phi(test) @ covariance @ phi(test).T

    predictive, (mean, covariance) = posterior.predict(test), dense(1.0)
    variance = covariance.diagonal()[:, None] + noise
    torch.testing.assert_close(predictive.mean, mean.float(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(predictive.variance, variance.float(), rtol=1e-4, atol=1e-5)
    assert (dense(0.0)[0] - mean).abs().max() > 0.01 and noise > 0.01
    functions = posterior.functions(test[None, :6])
    torch.testing.assert_close(functions.covariance[0, 0, 0], covariance[:6, :6], rtol=1e-5, atol=1e-7)
    assert not functions.classes and functions.noise.tolist() == [[pytest.approx(noise)]]


def nll(state: State, data: FitData) -> float:
    inputs, targets = data.tensors("validation")
    return -float(posterior_of(state).predict(inputs, rng=Seed(0)).log_prob(targets).mean())


def test_a_distilled_coreset_predicts_better_than_its_start_with_learned_scales() -> None:
    """One seed, so that the test has no false alarm; the start's own rows do not move."""
    data, scores = make_tiny_table(), {}
    for learns in ("rows", "scales"):
        changes = section(learns=learns, network={"name": "mlp", "hidden": [32]}, coreset={"steps": 60})
        made = fit(METHOD, "coreset", data, **changes)
        scores[learns] = nll(fit(METHOD, "student", data, {"coreset": [made]}, **changes), data)
    start = selected(data, 6, 1.0, rng=Seed(0).fold("start"))
    assert torch.equal(made.tensors["images"], start.images) and torch.equal(made.tensors["labels"], start.labels)
    config = config_of(METHOD, "regression", **changes)
    first = RegressionLoss(data, config, None, Seed(0).fold("distil"))
    before, (inputs, _) = Scales.of(first.parameters()[0].detach()), data.tensors("train")
    norms = phi(first._pool.draw(0)[1], inputs).detach().square().sum(1)
    assert float((norms / before.rho).mean()) == pytest.approx(1.0, rel=1e-5)  # prior_variance
    assert [float(before.gamma), float(before.noise_variance)] == pytest.approx([160.0, 0.5], rel=1e-5)
    assert not torch.allclose(made.tensors[SCALES], first.parameters()[0], atol=0.1)
    assert scores["rows"] < scores["scales"] - 0.1


def test_a_checkpoint_becomes_a_coreset_with_its_scales(coreset: State) -> None:
    data, config, report = make_tiny_table(), config_of(METHOD, "regression", **section()), Watched(1)
    stage = VBPC_REGRESSION.stages["coreset"]
    with pytest.raises(Killed):
        stage.fit_one(data, {}, config, rng=Seed(0), report=report)
    checkpoint = report.load()
    assert stage.from_checkpoint is not None and checkpoint is not None
    early = stage.from_checkpoint(checkpoint, data, {}, config, rng=Seed(0))
    assert not torch.equal(early.tensors["images"], coreset.tensors["images"])
    assert early.tensors.keys() == coreset.tensors.keys() and early.tensors[SCALES].shape == (3,)
    assert early.config["rows"] == 6
    state = fit(METHOD, "student", data, {"coreset": [early]}, **section())
    assert math.isfinite(nll(state, data))


def test_selected_rows_are_different_training_rows_with_their_targets() -> None:
    data = make_tiny_table()
    inputs, targets = data.tensors("train")
    for choice in ("random", "kmeans", "herding"):
        chosen = selected(data, 10, 2.0, rng=Seed(3), choice=choice)
        same = (chosen.images[:, None] == inputs).all(-1)
        index = same.int().argmax(1)
        assert same.any(1).all() and len(index.unique()) == 10
        assert torch.equal(chosen.labels, 2.0 * targets[index])
    whole = selected(data, 80, 1.0, rng=Seed(3))
    assert torch.equal(whole.images, inputs)
    with pytest.raises(DataError, match=r"^the data have 80 training rows: rows must be at most that, got 81$"):
        selected(data, 81, 1.0, rng=Seed(3))
    with pytest.raises(ConfigError, match=r"coreset.start must be random, kmeans or herding in regression"):
        selected(data, 8, 1.0, rng=Seed(3), choice="noise")


def test_a_coreset_without_scales_is_refused() -> None:
    data = make_tiny_table()
    plain = Coreset.state(selected(data, 6, 1.0, rng=Seed(0)), data, {})
    with pytest.raises(ConfigError, match=r"^input must be of a coreset of a regression, with log_scales$"):
        fit(METHOD, "student", data, {"coreset": [plain]}, **section())


def test_images_with_real_valued_targets_have_a_coreset_too() -> None:
    """Two targets of an image: its brightness, and the difference of its halves."""
    random = np.random.default_rng(0)
    images = random.integers(0, 255, (40, 1, 8, 8)).astype(np.uint8)
    means = images.reshape(40, 2, -1).mean(2)
    examples = Examples(images, np.stack([means.sum(1), means[:, 0] - means[:, 1]], 1))
    scale = torch.from_numpy(examples.targets)
    transform = Transform("image", torch.tensor([0.5]), torch.tensor([0.3]), shift=scale.mean(0), scale=scale.std(0))
    data = FitData("regression", examples, examples, transform)
    network = {"name": "convnet", "width": 4, "blocks": 1, "norm": "instance"}
    turned = {"choose": "all", "operations": {"rotate": 15.0}}
    changes = section(network=network, coreset={"steps": 4, "augmentation": turned})
    made = fit(METHOD, "coreset", data, **changes)
    assert made.tensors["images"].shape == (6, 1, 8, 8) and made.tensors["labels"].shape == (6, 2)
    predictive = posterior_of(fit(METHOD, "student", data, {"coreset": [made]}, **changes)).predict(
        data.tensors("validation")[0], rng=Seed(0)
    )
    assert predictive.mean.shape == (40, 2) and bool((predictive.variance > 0).all())
