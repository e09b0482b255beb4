"""The exact Gaussian process against dense formulas in numpy, and the sparse one against the exact one."""

import math
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor

from bdl_pipe.artifacts import State
from bdl_pipe.baselines.gaussian_processes import ExactGp, dense
from bdl_pipe.baselines.gp import GP, Evidence, GpConfig, GpPosterior
from bdl_pipe.baselines.sparse_gp import SparseGp, SvgpConfig, SvgpPosterior
from bdl_pipe.data.examples import Examples
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.data.transform import Transform
from bdl_pipe.errors import DataError
from bdl_pipe.progress import Silent
from bdl_pipe.seeds import Seed

from .cases import LEARN

CONFIG = GpConfig(ard=True, steps=20, lr=0.1)


def table(rows: int = 60, outputs: int = 2, seed: int = 0) -> FitData:
    """y_k = 7 + 3(sin 2x₀ + k·x₁ + noise of deviation .1); x₂ has no effect; 200 validation rows."""
    random = np.random.default_rng(seed)
    inputs = random.normal(size=(rows + 200, 3))
    clean = np.sin(2 * inputs[:, :1]) + np.arange(outputs) * inputs[:, 1:2]
    targets = 7 + 3 * (clean + random.normal(0, 0.1, clean.shape))
    x, y = torch.tensor(inputs[:rows]), torch.tensor(targets[:rows])
    transform = Transform("table", x.mean(0), x.std(0), shift=y.mean(0), scale=y.std(0))
    parts = Examples(inputs[:rows], targets[:rows]), Examples(inputs[rows:], targets[rows:])
    return FitData("regression", *parts, transform)


def fitted(data: FitData, config: GpConfig = CONFIG) -> State:
    return GP.stages["student"].fit_one(data, {}, config, rng=Seed(0), report=Silent())


class Dense:
    """One output's process, by n×n inverses (Rasmussen and Williams 2006, eqs 2.23–2.24 and 2.30)."""

    def __init__(self, posterior: GpPosterior, output: int) -> None:
        process = posterior.process
        self.x, self.y = posterior.inputs.double().numpy(), posterior.targets.double().numpy()[:, output]
        self.scale = process.covar_module.base_kernel.lengthscale[output].detach().numpy()  # [1, d] or [1, 1]
        self.unit = self.y.std()  # the hyperparameters refer to y / unit
        self.amplitude = process.covar_module.outputscale[output].item() * self.unit**2
        self.noise = process.likelihood.noise[output].item() * self.unit**2
        self.centre = process.mean_module.constant[output].item() * self.unit

    def kernel(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return self.amplitude * np.exp(-0.5 * (((a[:, None] - b[None]) / self.scale) ** 2).sum(-1))

    def covariance(self) -> np.ndarray:
        return self.kernel(self.x, self.x) + self.noise * np.eye(len(self.x))

    def evidence(self) -> float:
        """log p(y / unit)."""
        law = scipy.stats.multivariate_normal(np.full(len(self.x), self.centre), self.covariance())
        return float(law.logpdf(self.y)) + len(self.y) * math.log(self.unit)

    def predict(self, new: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        across = self.kernel(new, self.x)
        gain = np.linalg.solve(self.covariance(), across.T).T
        variance = self.amplitude + self.noise - (gain * across).sum(1)
        return self.centre + gain @ (self.y - self.centre), variance


@pytest.mark.parametrize("ard", [True, False])
def test_predictions_and_evidence_equal_the_dense_formulas(ard: bool) -> None:
    data = table()
    posterior = GpPosterior.from_state(fitted(data, replace(CONFIG, ard=ard)))
    new = data.tensors("validation")[0].double()
    predictive = posterior.predict(new)
    for k in range(2):
        mean, variance = Dense(posterior, k).predict(new.numpy())
        np.testing.assert_allclose(predictive.draw_mean[0, :, k].numpy(), mean, atol=1e-8)
        np.testing.assert_allclose(predictive.draw_variance[0, :, k].numpy(), variance, atol=1e-8)
    log_likelihood = posterior.process.log_marginal_likelihood().item()
    assert log_likelihood == pytest.approx(sum(Dense(posterior, k).evidence() for k in range(2)), rel=1e-9)
    other = Dense(posterior, 0)  # negative control: the comparison sees a percent of noise
    other.noise *= 1.01
    assert np.abs(other.predict(new.numpy())[1] - predictive.draw_variance[0, :, 0].numpy()).max() > 1e-5


def test_the_covariance_of_a_group_equals_the_dense_posterior_covariance() -> None:
    """More groups of three rows than are computed at once; without the covariances the joint density differs."""
    data = table()
    posterior = GpPosterior.from_state(fitted(data))
    new, targets = (part[:180].unflatten(0, (60, 3)) for part in data.tensors("validation"))
    new = torch.cat([new, new, new])  # 540 rows
    functions = posterior.functions(new, rng=Seed(0))
    log_prob = functions.joint(None, draws=1, rng=Seed(0)).log_prob(torch.cat([targets] * 3))
    for group in (0, 59, 179):
        expected = 0.0
        for k in range(2):
            dense, rows = Dense(posterior, k), new[group].double().numpy()
            across = dense.kernel(rows, dense.x)
            covariance = dense.kernel(rows, rows) - across @ np.linalg.solve(dense.covariance(), across.T)
            np.testing.assert_allclose(functions.covariance[0, group, k], covariance, atol=1e-8)
            law = scipy.stats.multivariate_normal(dense.predict(rows)[0], covariance + dense.noise * np.eye(3))
            expected += law.logpdf(targets[group % 60, :, k].double().numpy())
        assert float(log_prob[group]) == pytest.approx(expected, rel=1e-6)
    product = posterior.predict(new[0]).log_prob(targets[0]).sum()
    assert abs(float(product) - float(log_prob[0])) > 1e-3


def test_the_evidence_stays_exact_with_more_rows_than_gpytorch_treats_exactly() -> None:
    random = torch.Generator().manual_seed(0)
    inputs, targets = (torch.randn(900, width, generator=random) for width in (2, 1))
    targets = targets / targets.double().std(0, correction=0)
    process = ExactGp(inputs, targets, ard=False)
    log_likelihood = process.log_marginal_likelihood().item()
    named = dict(process.named_parameters())
    assert log_likelihood == pytest.approx(Dense(GpPosterior(inputs, targets, named, False), 0).evidence(), rel=1e-9)


@pytest.mark.parametrize("ard", [False, True])
def test_the_closed_form_gradient_equals_autograd_through_gpytorch(ard: bool) -> None:
    process = ExactGp(*table().tensors("train"), ard)
    gradients = torch.autograd.grad(process.log_marginal_likelihood(), list(process.parameters()))
    with dense():
        prior = process.likelihood(process(*process.train_inputs))
        value = prior.log_prob(process.train_targets).sum()
        expected = torch.autograd.grad(value, list(process.parameters()), retain_graph=True)
        wrong = torch.autograd.grad(value + 1e-6 * prior.covariance_matrix.sum(), list(process.parameters()))
    assert float(process.log_marginal_likelihood()) == pytest.approx(float(value), rel=1e-13)
    torch.testing.assert_close(gradients, expected, rtol=1e-10, atol=1e-12)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(gradients, wrong, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("optimiser", "steps"), [("adam", 300), ("lbfgs", 100)])
def test_the_fit_climbs_to_a_stationary_point(optimiser: Literal["adam", "lbfgs"], steps: int) -> None:
    def slope(process: ExactGp) -> float:
        process.requires_grad_()
        each = torch.autograd.grad(process.log_marginal_likelihood() / 60, list(process.parameters()))
        return max(float(s.abs().max()) for s in each)

    data = table(outputs=1)
    start = ExactGp(*data.tensors("train"), ard=False)
    end = GpPosterior.from_state(fitted(data, GpConfig(ard=False, steps=steps, lr=0.1, optimiser=optimiser))).process
    assert float(end.log_marginal_likelihood().detach()) > float(start.log_marginal_likelihood().detach()) + 1
    assert slope(end) < 1e-4 < 1e-2 < slope(start)


def assert_interpolated(inputs: np.ndarray, targets: np.ndarray) -> None:
    """Check that L-BFGS ends, and that the mean passes through the rows."""
    x, y = torch.tensor(inputs), torch.tensor(targets)
    rows = Examples(inputs, targets)
    data = FitData("regression", rows, rows, Transform("table", x.mean(0), x.std(0), shift=y.mean(0), scale=y.std(0)))
    end = GpPosterior.from_state(fitted(data, GpConfig(ard=True, steps=200, lr=0.1, optimiser="lbfgs")))
    x, y = data.tensors("train")
    torch.testing.assert_close(end.predict(x).mean, y, rtol=0, atol=0.02)


def test_repeated_rows_without_noise_keep_the_covariance_regular() -> None:
    random = np.random.default_rng(0)
    inputs = np.repeat(random.normal(size=(20, 2)), 5, 0)
    targets = inputs[:, :1] ** 2
    assert_interpolated(inputs, targets)


@pytest.mark.parametrize("seed", [7, 9, 10])
def test_levels_without_an_order_keep_the_covariance_regular(seed: int) -> None:
    """The evidence shortens the length scale of such a column without end: each level has a value of its own."""
    random = np.random.default_rng(seed)
    level = np.arange(32) % 8
    targets = (random.normal(size=8) * (-1.0) ** np.arange(8))[level, None]
    inputs = np.column_stack([level, random.normal(size=32)])
    assert_interpolated(inputs, targets)


@pytest.mark.parametrize("ard", [False, True])
def test_the_priors_are_lognormals_of_columns_in_the_unit_interval_and_of_the_noise(ard: bool) -> None:
    """The prior is one of ℓ/√12, as a standardised uniform column is √12 wide; without √12 the comparison fails."""
    rows, targets = table().tensors("train")
    plain, scaled = (Evidence(rows, targets, ard, prior=prior) for prior in ("none", "dimension_scaled"))
    lengths = scaled.process.covar_module.base_kernel.lengthscale.detach().numpy()
    noise = scaled.process.likelihood.noise.detach().numpy()
    assert (lengths.size, noise.size) == (6 if ard else 2, 2)

    def density(unit: float) -> float:
        law = scipy.stats.lognorm(s=math.sqrt(3), scale=math.exp(math.sqrt(2)) * math.sqrt(3))
        of_noise = scipy.stats.lognorm(s=1.0, scale=math.exp(-4.0)).logpdf(noise).sum()
        return float((law.logpdf(lengths / unit) - math.log(unit)).sum() + of_noise)

    difference = float((plain.loss(0) - scaled.loss(0)).detach()) * targets.numel()
    assert difference == pytest.approx(density(math.sqrt(12)), rel=1e-9)
    assert difference != pytest.approx(density(1.0), rel=1e-3)


def test_the_prior_bounds_the_length_scale_of_a_column_without_effect() -> None:
    """Twelve rows, whose evidence grows with that length scale without end."""
    data = table(rows=12, outputs=1)
    config = GpConfig(ard=True, steps=200, lr=0.1, optimiser="lbfgs")
    plain, scaled = (
        GpPosterior.from_state(fitted(data, replace(config, prior=prior))).process.covar_module.base_kernel.lengthscale
        for prior in ("none", "dimension_scaled")
    )
    assert float(plain[0, 0, 1]) > 1000
    assert 5 < float(scaled[0, 0, 1]) < 50


def test_predictions_scale_with_the_unit_of_the_targets() -> None:
    data = table()
    wide = replace(data, transform=replace(data.transform, scale=data.transform.scale / 1000))  # type: ignore[operator]
    plain, scaled = (GpPosterior.from_state(fitted(d)).predict(data.tensors("validation")[0]) for d in (data, wide))
    torch.testing.assert_close(scaled.mean, 1000 * plain.mean, rtol=1e-4, atol=1e-2)
    torch.testing.assert_close(scaled.variance, 1e6 * plain.variance, rtol=1e-4, atol=1e-2)


def test_too_many_rows_are_refused() -> None:
    with pytest.raises(DataError, match=r"^gp: the data must have at most 10000 training rows, got 10001"):
        fitted(table(rows=10_001))


def test_training_rows_are_predicted_without_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    data = table()
    predictive = GpPosterior.from_state(fitted(data)).predict(data.tensors("train")[0])
    assert not [w for w in recwarn if "training data" in str(w.message)]
    error = (predictive.mean - data.tensors("train")[1]).square().mean()
    assert error < 0.1


def rows(count: int = 24) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(count, 2, generator=generator, dtype=torch.float64)
    noise = 0.2 * torch.randn(count, 2, generator=generator, dtype=torch.float64)
    return inputs, torch.stack([inputs.sum(1).sin(), inputs[:, 0] ** 2 - 1], dim=1) + noise


@torch.no_grad()
def solved(inputs: Tensor, targets: Tensor) -> tuple[SparseGp, ExactGp]:
    """Both processes with equal hyperparameters; q(u) is the posterior of f at the rows, by dense algebra."""
    exact, sparse = ExactGp(inputs, targets, ard=True), SparseGp(inputs.expand(2, -1, -1).clone(), ard=True)
    strategy = sparse.process.variational_strategy
    for process, noise in ((exact, exact.likelihood), (sparse.process, sparse.likelihood)):
        process.mean_module.constant.copy_(torch.tensor([0.1, -0.2]))
        process.covar_module.outputscale = torch.tensor([0.8, 1.7]).double()
        process.covar_module.base_kernel.lengthscale = torch.tensor([[[0.3, 0.5]], [[0.4, 0.4]]]).double()
        noise.noise = torch.tensor([[0.05], [0.1]]).double()
    kernel = sparse.process.covar_module(inputs.expand(2, -1, -1)).to_dense()
    root = torch.linalg.cholesky(kernel + 1e-8 * torch.eye(len(inputs)))
    noises, shift = sparse.likelihood.noise[..., None], sparse.process.mean_module.constant[:, None]
    gain = kernel @ torch.linalg.inv(kernel + noises * torch.eye(len(inputs)))
    mean = (gain @ (targets.T - shift)[..., None])[..., 0]
    covariance = kernel - gain @ kernel
    whitened = torch.linalg.solve_triangular(root, covariance, upper=False)
    whitened = torch.linalg.solve_triangular(root, whitened.mT, upper=False)
    q = strategy._variational_distribution
    q.variational_mean.copy_(torch.linalg.solve_triangular(root, mean[..., None], upper=False)[..., 0])
    q.chol_variational_covar.copy_(torch.linalg.cholesky(whitened + 1e-10 * torch.eye(len(inputs))))
    return sparse, exact


def test_the_bound_equals_the_evidence_if_every_row_is_an_inducing_input() -> None:
    """Control: with another mean of q(u) the bound is below the evidence."""
    inputs, targets = rows()
    sparse, exact = solved(inputs, targets)
    bound = -len(inputs) * sparse(inputs, targets, len(inputs), {})
    evidence = exact.log_marginal_likelihood()
    torch.testing.assert_close(bound, evidence, rtol=2e-4, atol=1e-3)
    with torch.no_grad():
        sparse.process.variational_strategy._variational_distribution.variational_mean.add_(0.3)
    assert -len(inputs) * sparse(inputs, targets, len(inputs), {}) < evidence - 1


def test_sparse_predictions_are_exact_if_every_row_is_an_inducing_input() -> None:
    inputs, targets = rows()
    sparse, exact = solved(inputs, targets)
    new = 2 * torch.randn(9, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    mean, variance = exact.predictive(new)
    predictive = sparse.eval().predict(new, rng=Seed(0))
    torch.testing.assert_close(predictive.mean, mean, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(predictive.variance, variance, rtol=1e-3, atol=1e-3)
    groups, config = new.unflatten(0, (3, 3)), SvgpConfig(24, True, LEARN)
    together = SvgpPosterior(sparse, config).functions(groups, rng=Seed(0))
    for part, whole in zip((together.mean[0], together.covariance[0]), exact.functions(groups), strict=True):
        torch.testing.assert_close(part, whole, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(together.noise[0], exact.likelihood.noise[:, 0])


def test_the_estimated_noise_of_each_output_is_the_best_of_a_grid() -> None:
    inputs, targets = rows()
    sparse, _ = solved(inputs, targets)
    noise = torch.randn(targets.shape, generator=torch.Generator().manual_seed(2))
    targets = targets + torch.tensor([0.3, 1.0]) * noise
    parts = [slice(0, 10), slice(10, len(inputs))]
    score, estimate = sparse.estimated([(sparse.predict(inputs[part], rng=Seed(0)), targets[part]) for part in parts])
    before = sparse.predict(inputs, rng=Seed(0))
    latent = (before.draw_variance[0] - sparse.likelihood.noise[:, 0]).detach()
    grid = torch.logspace(-4, 1, 5001, dtype=torch.float64)[:, None, None]
    normal = torch.distributions.Normal(before.draw_mean[0].detach(), (latent + grid).sqrt())
    each = -normal.log_prob(targets).mean(1)  # [noise, output]
    sparse.load_state_dict(sparse.state_dict() | estimate)
    torch.testing.assert_close(sparse.likelihood.noise[:, 0], grid[each.argmin(0), 0, 0], rtol=5e-3, atol=1e-6)
    assert score == pytest.approx(float(each.amin(0).sum()), abs=1e-5)


def test_the_minibatch_loss_is_an_unbiased_estimate_of_the_full_loss() -> None:
    """The mean over all batches of one row is the loss of all rows."""
    inputs, targets = rows()
    sparse, _ = solved(inputs, targets)
    each = [sparse(inputs[i : i + 1], targets[i : i + 1], len(inputs), {}) for i in range(len(inputs))]
    torch.testing.assert_close(torch.stack(each).mean(), sparse(inputs, targets, len(inputs), {}))
