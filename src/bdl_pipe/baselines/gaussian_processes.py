"""The Gaussian processes of gpytorch, one per output: constant mean, scaled RBF kernel, Gaussian noise.

    y_k = f_k(x) + ε,  f_k ~ GP(c_k, a_k exp(−½ Σ_j (x_j − x′_j)²/ℓ²_kj)),  ε ~ N(0, σ²_k)

(Rasmussen and Williams 2006, eqs 2.9, 2.30 and 5.1.) The exact process always uses a Cholesky factor of the n×n
covariance: beyond 800 rows gpytorch would use conjugate gradients with probes from the global generator, and equal
seeds would not give equal bits. All numbers are float64. Only this module imports gpytorch, an optional dependency; it
is imported by ``gp.processes``.
"""

import math
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Final, final

import gpytorch
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean
from gpytorch.variational import CholeskyVariationalDistribution, VariationalStrategy
from jaxtyping import Float
from linear_operator.operators import DiagLinearOperator
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

_GPYTORCH: Final = threading.RLock()
_ROWS: Final = 250  # rows in one covariance matrix of ``group_moments``, which takes whole groups
NOISE: Final = 0.1  # initial σ², in standardised units; gpytorch keeps it above 1e-4


@final
class LogDensity(torch.autograd.Function):
    """log N(r; 0, K) of each process [o], with its derivatives in closed form.

    With α = K⁻¹r they are ∂/∂r = −α and ∂/∂K = ½(ααᵀ − K⁻¹) (Rasmussen and Williams 2006, eq. 5.9). Autograd would
    differentiate the factor of K instead, which takes more than twice the time.
    """

    @staticmethod
    def forward(
        context: Any, covariance: Float[Tensor, "o n n"], residual: Float[Tensor, "o n"]
    ) -> Float[Tensor, " o"]:
        factor = psd_safe_cholesky(covariance)
        white = torch.linalg.solve_triangular(factor, residual[..., None], upper=False)[..., 0]
        context.save_for_backward(factor, residual)
        constant = 0.5 * residual.shape[-1] * math.log(2 * math.pi)
        return -0.5 * white.square().sum(-1) - factor.diagonal(dim1=-2, dim2=-1).log().sum(-1) - constant

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        (gradient,), (factor, residual) = gradients, context.saved_tensors
        solved = torch.cholesky_solve(residual[..., None], factor)  # α [o, n, 1]
        inverse = torch.cholesky_inverse(factor)
        curved = torch.baddbmm(inverse, solved, solved.mT, beta=-0.5, alpha=0.5)
        return gradient[:, None, None] * curved, -gradient[:, None] * solved[..., 0]


@final
class WeightedLikelihood(GaussianLikelihood):
    """A Gaussian likelihood with the noise σ²/w of training rows; gpytorch passes inputs with these rows alone."""

    def __init__(self, weights: Float[Tensor, " n"], batch: torch.Size) -> None:
        super().__init__(batch_shape=batch)
        self._weights = weights

    def marginal(self, function_dist: MultivariateNormal, *params: Any, **kwargs: Any) -> MultivariateNormal:
        if not params:
            return super().marginal(function_dist, **kwargs)
        noise = DiagLinearOperator(self.noise / self._weights)
        return MultivariateNormal(function_dist.mean, function_dist.lazy_covariance_matrix + noise)


@final
class ExactGp(gpytorch.models.ExactGP):
    """A batch of o independent gpytorch processes on the same inputs."""

    def __init__(
        self,
        inputs: Float[Tensor, "n d"],
        targets: Float[Tensor, "n o"],
        ard: bool,
        weights: Float[Tensor, " n"] | None = None,
    ) -> None:
        """Start at c = 0, a = softplus(0), σ² = .1 and ℓ = √d; standardised rows are about √(2d) apart.

        Args:
            weights: w of the rows' log-likelihoods, > 0. None: all are 1.
        """
        outputs, columns = targets.shape[1], inputs.shape[1]
        batch = torch.Size([outputs])
        noise = GaussianLikelihood(batch_shape=batch) if weights is None else WeightedLikelihood(weights, batch)
        self._weights = weights
        super().__init__(inputs.double().expand(outputs, -1, -1), targets.double().T.contiguous(), noise)
        kernel = RBFKernel(ard_num_dims=columns if ard else None, batch_shape=batch)
        self.mean_module = ConstantMean(batch_shape=batch)
        self.covar_module = ScaleKernel(kernel, batch_shape=batch)
        self.to(inputs.device, torch.float64)
        kernel.lengthscale = math.sqrt(columns)
        noise.noise = NOISE

    def forward(self, inputs: Tensor) -> MultivariateNormal:
        return MultivariateNormal(self.mean_module(inputs), self.covar_module(inputs))

    def log_marginal_likelihood(self) -> Float[Tensor, ""]:
        """Return Σ_k log p(y_k), in nats, with the autograd graph.

        With weights it is Σ_k log ∫ Π_i N(y_ik | f_k(x_i), σ²_k)^w_i dp(f_k), which is the log density under the noise
        σ²/w_i, and −½ Σ_i ((w_i − 1) log 2πσ² + log w_i) more.
        """
        with dense():
            self.train()
            prior = self.likelihood(self(*self.train_inputs), *self.train_inputs)
            residual = self.train_targets - prior.mean
            log_density = LogDensity.apply(prior.lazy_covariance_matrix.to_dense(), residual).sum()
            if self._weights is None:
                return log_density
            of_noise = (2 * math.pi * self.likelihood.noise).log()  # [output, 1]
            return log_density - 0.5 * ((self._weights - 1) * of_noise + self._weights.log()).sum()

    def predictive(self, inputs: Float[Tensor, "b d"]) -> tuple[Float[Tensor, "b o"], Float[Tensor, "b o"]]:
        """Return the mean and the variance of y, including noise."""
        wide = inputs.double().expand(len(self.train_targets), -1, -1)
        with dense():
            self.eval()
            answer = self.likelihood(self(wide))
            return answer.mean.T, answer.variance.T

    def functions(self, inputs: Float[Tensor, "g r d"]) -> tuple[Float[Tensor, "g r o"], Float[Tensor, "g o r r"]]:
        """Return the mean and the covariance of f at the rows of each group."""
        with dense():
            self.eval()
            return group_moments(lambda rows: self(rows.expand(len(self.train_targets), -1, -1)), inputs)


@final
class SparseProcess(gpytorch.models.ApproximateGP):
    """A batch of o independent processes with inducing inputs [o, m, d]."""

    def __init__(self, inducing: Tensor, ard: bool) -> None:
        outputs, count, columns = inducing.shape
        batch = torch.Size([outputs])
        posterior = CholeskyVariationalDistribution(count, batch_shape=batch, mean_init_std=0.0)
        super().__init__(VariationalStrategy(self, inducing, posterior, learn_inducing_locations=True))
        kernel = RBFKernel(ard_num_dims=columns if ard else None, batch_shape=batch)
        self.mean_module = ConstantMean(batch_shape=batch)
        self.covar_module = ScaleKernel(kernel, batch_shape=batch)
        kernel.lengthscale = math.sqrt(columns)

    def forward(self, inputs: Tensor) -> MultivariateNormal:
        return MultivariateNormal(self.mean_module(inputs), self.covar_module(inputs))


def group_moments(
    process: Callable[[Tensor], MultivariateNormal], inputs: Float[Tensor, "g r d"]
) -> tuple[Float[Tensor, "g r o"], Float[Tensor, "g o r r"]]:
    """Return the mean and the covariance of f at the rows of each group; each call takes several groups.

    Args:
        process: rows [n, d] in float64 -> f at these rows, a batch of o.
    """
    rows, means, covariances = inputs.shape[1], [], []
    with dense():
        for part in inputs.double().split(max(1, _ROWS // rows)):
            latent, each = process(part.flatten(0, 1)), torch.arange(len(part), device=part.device)
            blocks = latent.covariance_matrix.unflatten(-1, (-1, rows)).unflatten(-3, (-1, rows))
            covariances.append(blocks[:, each, :, each])  # [group, o, row, row]: the diagonal blocks
            means.append(latent.mean.T.unflatten(0, (-1, rows)))
    return torch.cat(means), torch.cat(covariances)


def dense() -> ExitStack:
    """Return a context in which gpytorch uses Cholesky factors for any number of rows.

    gpytorch's settings belong to the whole process and its processes keep caches, so one thread at a time is inside.
    """
    stack = ExitStack()
    stack.enter_context(_GPYTORCH)
    stack.enter_context(gpytorch.settings.debug(False))  # debug mode warns when training rows are predicted
    stack.enter_context(gpytorch.settings.fast_computations(False, False, False))
    stack.enter_context(gpytorch.settings.max_cholesky_size(2**31))
    return stack
