"""The variational last layer for regression with a posterior over the noise, whose predictive is a Student t.

Model y = Wφ + ε, ε ~ N(0, Σ), with the conjugate prior Σ ~ IW(ν, mI), W | Σ ~ MN(0, Σ, sI). The posterior has the same
form: q(Σ) = IW(κ, Ψ), q(W | Σ) = MN(W̄, Σ, S). With o outputs, Λ = E[Σ⁻¹] = κΨ⁻¹ and ψ_o(a) = Σ_i ψ(a − i/2), i < o:

    E log N(y | Wφ, Σ) = ½(E log det Σ⁻¹ − o log 2π − (y − W̄φ)ᵀΛ(y − W̄φ) − o φᵀSφ)
    E log det Σ⁻¹      = ψ_o(κ/2) + o log 2 + log det Λ − o log κ
    KL of W            = ½(tr(Λ W̄W̄ᵀ)/s + o(tr(S)/s − h + log det(sI)/det(S)))
    KL of Σ            = ½(ν log(det Ψ / m^o) + m tr Λ − κo + (κ − ν) ψ_o(κ/2)) + log Γ_o(ν/2) − log Γ_o(κ/2)
    p(y | x)           = t_{κ − o + 1}(W̄φ, Ψ(1 + φᵀSφ)/(κ − o + 1))

The bound is the ELBO itself, which is the log evidence at the exact posterior. Its maximum over κ, whatever the other
parameters, is at κ = ν + T/λ for T rows and the weight λ of the KL, so that κ is computed and not trained.

Source: Harrison, Willes and Snoek 2023, "Variational Bayesian Last Layers", appendix C.3, which says that inference for
the noise may be conjugate, and estimates Σ; the equations are derived from Bishop 2006, appendix B, and Gelman et al.
2013, section 3.6. Deviation from the layer with a point estimate: the prior of the weights is in units of the noise,
N(0, sΣ), since only this prior is conjugate.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Final, Unpack, final

import torch
from jaxtyping import Float
from torch import Tensor

from ..errors import require
from ..joint_predictive import GaussianFunctions
from ..networks.covariance import Form
from ..predictive import Predictive
from ..seeds import Seed
from ..student_t import StudentT
from .layer import Options, full_precision, mean_of
from .regression import NoiseMatrix

_NOISES: Final = 32  # noise variances of a mixture over functions


@final
class StudentRegression(NoiseMatrix):
    """A last layer of ``out_features`` outputs with a posterior over Σ; see :class:`LastLayer` for the other arguments.

    The noise parameters are the factor L of Λ = E[Σ⁻¹] = LLᵀ. Buffer: ``degrees`` κ.

    Args:
        num_train: T, the number of rows of the whole training set, or the sum of their weights.
        kl_weight: λ, the weight of the KL in training; 1 gives the bound.

    Raises:
        ConfigError: an argument is out of range, or ``wishart_dof`` <= ``out_features`` − 1, where the prior of Σ is
            improper.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        num_train: float,
        kl_weight: float = 1.0,
        **options: Unpack[Options],
    ) -> None:
        require(num_train >= 0, "num_train", "must be >= 0", num_train)
        require(kl_weight > 0, "kl_weight", "must be > 0", kl_weight)
        super().__init__(in_features, out_features, **options)
        least, dof = out_features - 1, self.wishart_dof
        require(dof > least, "wishart_dof", f"must be > {least}, the outputs less one, for conjugate noise", dof)
        self.degrees: Tensor
        self.register_buffer("degrees", torch.tensor(dof + num_train / kl_weight))

    def _mean_bound(self, features: Tensor, targets: Tensor, form: Form, weights: Tensor | None) -> Tensor:
        self._check(features, targets)
        outputs = targets.shape[-1]
        error = targets.to(features.dtype) - features @ self.mean.mT
        squared = (error @ self._noise_root()).square().sum(-1) + outputs * form.quadratic(features)[:, 0]
        log_det = self._digammas() + outputs * (2 / self.degrees).log() + 2 * self.noise_log_root.sum()  # E log det Σ⁻¹
        constant = log_det - outputs * math.log(2 * math.pi)
        constant = constant if weights is None else weights.mean() * constant
        return 0.5 * (constant - mean_of(squared, weights))

    def _digammas(self) -> Float[Tensor, ""]:
        """Return ψ_o(κ/2)."""
        return torch.digamma((self.degrees - torch.arange(len(self.mean)).to(self.degrees)) / 2).sum()

    def _kl(self, form: Form) -> Float[Tensor, ""]:
        outputs, dof, scale, root = len(self.mean), self.wishart_dof, self.wishart_scale, self._noise_root()
        white = (root.mT @ self.mean).square().sum()  # tr(Λ W̄W̄ᵀ)
        of_weights = white / self.prior_variance + outputs * form.divergence(self.prior_variance)
        log_det = outputs * (self.degrees / scale).log() - 2 * self.noise_log_root.sum()  # log det Ψ / m^o
        of_noise = dof * log_det + scale * root.square().sum() - self.degrees * outputs
        of_noise = of_noise + (self.degrees - dof) * self._digammas()
        half = torch.stack([torch.full_like(self.degrees, dof), self.degrees]).double() / 2
        before, after = torch.special.multigammaln(half, outputs)
        return 0.5 * (of_weights + of_noise) + (before - after).to(self.degrees)

    def log_noise_prior(self) -> Float[Tensor, ""]:
        """Return 0: the prior of Σ is in the KL."""
        return torch.zeros_like(self.degrees)

    @property
    def _free(self) -> float:
        """Return κ − o + 1, the degrees of freedom of the predictive."""
        return float(self.degrees) - len(self.mean) + 1

    def _squared_scale(self) -> Float[Tensor, " output"]:
        """Return the diagonal of Ψ/(κ − o + 1)."""
        return self.noise_covariance.diagonal() * (float(self.degrees) / self._free)

    def predict(self, features: Float[Tensor, "batch h"], *, rng: Seed = Seed(0)) -> StudentT:
        """Return the Student t of each output; as in :meth:`Regression.predict`, their dependence is omitted."""
        with full_precision(features):
            features = self._cast(features)
            spread = 1 + self.covariance().quadratic(features)  # [batch, 1]
            return StudentT((features @ self.mean.mT)[None], (spread * self._squared_scale())[None], self._free)

    def functions(self, features: Float[Tensor, "group row h"]) -> GaussianFunctions:
        """Return a mixture of Gaussians over 32 quantiles of each Σ_ii ~ IG((κ − o + 1)/2, Ψ_ii/2).

        Given Σ_ii the function has the covariance Σ_ii φᵀSφ', and the noise is Σ_ii. Outputs have their quantiles in
        different orders, so that they are almost independent, as in :meth:`predict`.
        """
        from scipy.special import gammaincinv

        levels = (torch.arange(_NOISES, dtype=torch.float64) + 0.5) / _NOISES
        precision = torch.as_tensor(gammaincinv(self._free / 2, levels.numpy()))
        orders = [
            torch.randperm(_NOISES, generator=Seed(0).fold("noise", i).generator()) for i in range(len(self.mean))
        ]
        ratio = self._free / 2 / precision[torch.stack(orders, -1)].to(features.device)  # Σ_ii over Ψ_ii/(κ − o + 1)
        with full_precision(features):
            features = self._cast(features)
            noise = ratio * self._squared_scale().double()  # [draw, output]
            covariance = noise[:, None, :, None, None] * self.covariance().covariance(features)
            mean = (features @ self.mean.mT).expand(_NOISES, -1, -1, -1)
            return GaussianFunctions(mean, covariance, noise, classes=False)

    def least_scale(
        self, predicted: Sequence[tuple[Predictive, Tensor]], weights: Tensor | None = None
    ) -> tuple[float, float]:
        """Minimise the mean of −log t(y) over a factor c of Ψ, without the functions' spread; return it and log c.

        See :func:`~bdl_pipe.training.likelihood.least_noise`, of the layer with a point estimate.
        """
        from scipy.optimize import minimize_scalar  # here, because the import takes half a second

        means = torch.cat([of.mean for of, _ in predicted]).double()
        targets = torch.cat([held for _, held in predicted]).double()
        scale = self._squared_scale().detach().double().expand_as(means)

        def nll(log_factor: float) -> float:
            scaled = (math.exp(log_factor) * scale)[None]
            return -float(mean_of(StudentT(means[None], scaled, self._free).log_prob(targets), weights))

        squared = ((targets - means).square() / scale).mean(-1)
        centre = math.log(max(float(mean_of(squared, weights)), 1e-8))  # the answer for Gaussians
        minimum = minimize_scalar(nll, bounds=(centre - 12, centre + 3), method="bounded", options={"xatol": 1e-4})
        return float(minimum.fun), float(minimum.x)

    @torch.no_grad()
    def condition(self, batches: Iterable[tuple[Tensor, ...]], total: float | None = None) -> None:
        """Replace q by the exact posterior at fixed features, from one pass; S has to be dense (appendix C.6).

        S⁻¹ = I/s + ΦᵀΦ, W̄ = YᵀΦS, κ = ν + T and Ψ = mI + YᵀY − W̄S⁻¹W̄ᵀ.

        Args:
            batches: (features [batch, h], targets [batch, output]) of the training rows, from the fixed trunk.
            total: T. None: the number of rows. With weights their sum; the rows are then
                :func:`~bdl_pipe.linear_regression.scaled`.

        Raises:
            ConfigError: the covariance is not dense.
            DataError: there are no rows, features are not finite or not ``in_features`` wide, or targets have another
                shape.
        """
        kind, outputs = self.covariance.kind, len(self.mean)
        require(kind == "dense", "covariance", "must be dense for the exact posterior", kind)
        assert self.covariance.factor is not None
        rows, gram, cross, squares = self._sums(batches)
        identity = torch.eye(self.in_features).to(gram)
        spread = torch.cholesky_inverse(torch.linalg.cholesky(gram + identity / self.prior_variance))  # S
        mean = (spread @ cross).mT
        scale = squares - mean @ cross + self.wishart_scale * torch.eye(outputs).to(gram)
        self.degrees.fill_(self.wishart_dof + (rows if total is None else total))
        precision = float(self.degrees) * torch.cholesky_inverse(torch.linalg.cholesky((scale + scale.mT) / 2))
        of_weights, of_noise = torch.linalg.cholesky(spread), torch.linalg.cholesky(precision)
        self.mean.copy_(mean)
        self.covariance.factor.copy_(of_weights.tril(-1).mT)
        self.covariance.log_scale.copy_(of_weights.diagonal().log())
        self.noise_factor.copy_(of_noise.tril(-1))
        self.noise_log_root.copy_(of_noise.diagonal().log())
