"""The sparse process against the exact one: with an inducing input at every row its bound is the evidence."""

import torch
from torch import Tensor

from bdl_pipe.baselines.exact_gp import ExactGp
from bdl_pipe.baselines.sparse_gp import SparseGp
from bdl_pipe.seeds import Seed


def rows(count: int = 24) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(count, 2, generator=generator, dtype=torch.float64)
    noise = 0.2 * torch.randn(count, 2, generator=generator, dtype=torch.float64)
    return inputs, torch.stack([inputs.sum(1).sin(), inputs[:, 0] ** 2 - 1], dim=1) + noise


@torch.no_grad()
def solved(inputs: Tensor, targets: Tensor) -> tuple[SparseGp, ExactGp]:
    """Both with equal hyperparameters, q(u) at the posterior of f at the rows, by dense algebra."""
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


def test_the_bound_is_the_evidence_where_every_row_is_an_inducing_input() -> None:
    """The control: with another mean of q(u) the bound is below it."""
    inputs, targets = rows()
    sparse, exact = solved(inputs, targets)
    bound = -len(inputs) * sparse(inputs, targets, len(inputs), {})
    evidence = exact.log_marginal_likelihood()
    torch.testing.assert_close(bound, evidence, rtol=2e-4, atol=1e-3)
    with torch.no_grad():
        sparse.process.variational_strategy._variational_distribution.variational_mean.add_(0.3)
    assert -len(inputs) * sparse(inputs, targets, len(inputs), {}) < evidence - 1


def test_predictions_are_then_those_of_the_exact_process() -> None:
    inputs, targets = rows()
    sparse, exact = solved(inputs, targets)
    new = 2 * torch.randn(9, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    mean, variance = exact.predictive(new)
    found = sparse.eval().predict(new, rng=Seed(0))
    torch.testing.assert_close(found.mean, mean, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(found.variance, variance, rtol=1e-3, atol=1e-3)


def test_a_minibatch_s_loss_is_an_unbiased_estimate() -> None:
    """The mean over all batches of one row is the loss of all rows."""
    inputs, targets = rows()
    sparse, _ = solved(inputs, targets)
    each = [sparse(inputs[i : i + 1], targets[i : i + 1], len(inputs), {}) for i in range(len(inputs))]
    torch.testing.assert_close(torch.stack(each).mean(), sparse(inputs, targets, len(inputs), {}))
