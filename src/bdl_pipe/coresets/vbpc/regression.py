"""The method ``vbpc_regression``: a distilled coreset of a regression, with the closed-form head (Lee et al. 2025).

Lee et al. 2025 treat classes; "our discussion can be easily extended to more general problems" (section 2). With a
Gaussian likelihood N(y | Wᵀφ, σ²I) both problems of eq. 15 and 16 are exact. q(W) = N(m, V) is the posterior given the
coreset (eq. 21), and the expectation in the bound of eq. 16 is, for a row,

    E_q log N(y | f, σ²) = log N(y | φᵀm, σ²) − k φᵀVφ/(2σ²)          (``outer: expected``, the default)

of which the sum over the training rows minus KL[q ‖ p] is at most the log evidence of these rows, and equal to it if q
is their own posterior. The log of the predictive, log N(y | φᵀm, σ² + φᵀVφ), is ``outer: predictive``, as the paper has
for classes (eq. 27).

Deviations: the pseudo-rows' inputs and targets are learned with log ρ, log γ and log σ², by the training rows alone. γ
starts at n/σ², where each of the n̂ rows (β_S = n̂) counts as n/n̂ training rows; a fixed γ = 100 is the weight of 100
rows of variance 1, however many rows the coreset stands for. ρ starts where functions have the variance of the targets:
from ρ = 1, 256 features and 300 steps, σ² ended above the variance of the targets (gestation, 89 columns). β_D is 1,
the bound's own. With ``learns: scales`` the inputs and targets stay those of the training rows from which the
distillation starts.
"""

import math
from dataclasses import dataclass, field
from typing import Final, Literal, final

import torch
from jaxtyping import Float
from torch import Tensor

from ... import networks
from ...config import LATER
from ...data.fitdata import FitData, with_replacement
from ...data.size import Section, Size
from ...errors import require
from ...method import Default, Method, StageSpec, Upstream
from ...seeds import Seed
from ..shared.descent import POOLED, distilled_stage
from ..shared.pool_surrogate import DistilConfig, Memory, OuterProblem, PoolSurrogate
from ..shared.trunk import augmented
from .closed_form import HeadPosterior
from .posterior import StudentConfig
from .regression_posterior import SCALES, Scales, fit_student, phi, solve

_ROWS: Final = 1_000  # training rows, whose features set the initial ρ


@dataclass(frozen=True)
class VbpcRegressionConfig:
    """The section ``methods.vbpc_regression`` of params.yaml.

    Attributes:
        rows: the number of coreset rows.
        network: the architecture of the pool's and the student's networks.
        prior_variance: the initial variance ‖φ‖²/ρ of a function's value under the prior, in the mean over training
            rows and in units of the transformed targets. ρ is the precision of the prior of the head's weights.
        noise_variance: the initial σ², in units of the transformed targets.
        beta_dataset: β_D, the weight of the KL in the outer loss.
        coreset: the settings of the distillation.
        student: the settings of a trunk's training on the coreset.
        outer: the outer loss: minus the bound with the ``expected`` log-likelihood, or minus the log of the
            ``predictive``.
        learns: the ``rows`` and the scales, or only the ``scales`` ρ, γ and σ² of selected training rows.
    """

    rows: int
    network: networks.NetworkConfig
    prior_variance: float
    noise_variance: float
    beta_dataset: float
    coreset: DistilConfig
    student: StudentConfig
    outer: Literal["expected", "predictive"] = field(default="expected", metadata=LATER)
    learns: Literal["rows", "scales"] = field(default="rows", metadata=LATER)

    def __post_init__(self) -> None:
        for name in ("rows", "prior_variance", "noise_variance"):
            require(getattr(self, name) > 0, name, "must be > 0", getattr(self, name))
        require(self.beta_dataset >= 0, "beta_dataset", "must be >= 0", self.beta_dataset)
        require(self.coreset.start != "noise", "coreset.start", "must be random, kmeans or herding", "noise")
        rule, increment = "must be alone, because a regression has no classes to add", self.coreset.increment
        require(increment == "alone", "coreset.increment", rule, increment)
        for place, augmentation in (("coreset", self.coreset.augmentation), ("student", self.student.augmentation)):
            others = [name for name, size in augmentation.operations.items() if size > 0 and name != "noise"]
            named = ", ".join(others)
            rule = "must be only noise for the rows of a table, which mlp takes"
            require(not others or self.network.name != "mlp", f"{place}.augmentation.operations", rule, named)


def dataset_loss(
    q: HeadPosterior,
    batch_features: Float[Tensor, "b h"],
    batch_targets: Float[Tensor, "b k"],
    noise_variance: Float[Tensor, ""],
    num_train: int,
    beta_dataset: float = 1.0,
    outer: Literal["expected", "predictive"] = "expected",
) -> Float[Tensor, ""]:
    """Compute the outer loss −(n/|B|) Σ_B ℓ(y, x) + β_D KL[q ‖ p], in nats.

    Args:
        batch_features: the features of training rows, without a graph.
        batch_targets: their transformed targets.
        noise_variance: σ².
        num_train: n, the number of training rows.
        outer: the form of ℓ: E_q log N(y | f, σ²), or log N(y | φᵀm, σ² + φᵀVφ).
    """
    mean, variance = q.logit_moments(batch_features)
    errors, outputs = (batch_targets - mean).square().sum(1), batch_targets.shape[1]
    if outer == "expected":
        quadratic, spread = (errors + outputs * variance) / noise_variance, noise_variance
    else:
        quadratic, spread = errors / (noise_variance + variance), noise_variance + variance
    fit = 0.5 * (quadratic + outputs * (2 * math.pi * spread).log())
    return num_train * fit.mean() + beta_dataset * q.kl()


@final
class RegressionLoss(PoolSurrogate):
    """The outer loss on a batch, as a function of the rows' inputs and targets and of the log scales."""

    SCORE = "batch_squared_error"

    def __init__(self, data: FitData, config: VbpcRegressionConfig, memory: Memory | None, rng: Seed) -> None:
        super().__init__(data, config, memory, rng)
        self._regression, self._rows = config, len(data.train)
        self._train = data.rows("train", data.device)  # a table's rows are transformed once, not in each step
        with torch.no_grad():
            features = phi(self._pool.draw(0)[1], self._train.slice(0, _ROWS)[0])
        rho = float(features.square().sum(1).mean()) / config.prior_variance
        gamma = self._rows / config.noise_variance
        logs = [math.log(value) for value in (rho, gamma, config.noise_variance)]
        self._log_scales = torch.tensor(logs, device=data.device, requires_grad=True)

    def parameters(self) -> list[Tensor]:
        return [self._log_scales]

    def _batch(self, address: Seed) -> tuple[Tensor, Tensor]:
        index = with_replacement(self._rows, self._config.batch, address.fold("batch").generator())
        inputs, targets = self._train.take(index.to(self._train.device))
        return augmented(inputs, self._config.augmentation, address.fold("augment")), targets

    def row_scores(self, outputs: Tensor, targets: Tensor) -> Float[Tensor, " b"]:
        """Return the squared error of each row, in units of the transformed targets."""
        return (outputs - targets).square().sum(1)

    def outer_loss(self, problem: OuterProblem) -> tuple[Tensor, Tensor]:
        config, rows, labels = self._regression, problem.coreset, problem.labels
        if config.learns == "scales":
            rows, labels = rows.detach(), labels.detach()
        scales = Scales.of(self._log_scales)
        q = solve(problem.network, rows, labels, scales)
        with torch.no_grad():
            features, targets = phi(problem.network, problem.images), problem.classes.double()
        loss = dataset_loss(q, features, targets, scales.noise_variance, self._rows, config.beta_dataset, config.outer)
        return loss, features @ q.mean.detach()

    def after(self, step: int, loss: Tensor, images: Tensor, labels: Tensor) -> dict[str, float]:
        return super().after(step, loss / self._rows, images, labels)  # the loss is a sum over all rows


def default(size: Size) -> Section:
    """Return the hyperparameters, with at most fifty rows and, for a table, the wide network of the closed form."""
    network = size.network if size.image is not None else {**size.network, "hidden": [256]}
    coreset = {"steps": size.steps(500), "batch": min(256, size.train)}
    return {"rows": min(50, max(1, size.train // 4)), "network": network, "coreset": coreset}


VBPC_REGRESSION = Method(
    name="vbpc_regression",
    family="coresets",
    bayesian=True,
    config=VbpcRegressionConfig,
    tasks=("regression",),
    stages={
        "coreset": distilled_stage("vbpc_regression", RegressionLoss.of_fit, "coreset", size="rows", learned=(SCALES,)),
        "student": StageSpec(fit_student, needs={"coreset": "cyclic"}),
    },
    search={
        "coreset.lr": (1e-3, 1e-1, "log"),
        "coreset.label_lr": (1e-3, 1.0, "log"),
        "coreset.pool.steps": (10, 1000, "integer"),
        "student.lr": (1e-5, 1e-2, "log"),
    },
    settings={
        "prior_variance": 1.0,
        "noise_variance": 0.5,
        "beta_dataset": 1.0,
        "coreset": {
            "lr": 0.03,
            "label_lr": 0.1,
            **POOLED,
            "pool": {"networks": 10, "steps": 100, "lr": 1e-3},
            "augmentation": {"choose": "all"},
        },
        "student": {"steps": 50, "lr": 1e-3, "augmentation": {"choose": "all"}},
    },
    program=True,
    # `add` does not offer it, since a comparison has fits to all rows, and a coreset of few rows is no rival of them.
    default=Default(3.0, "vbpc_regression", default, suits=lambda size: False),
    upstream={"vbpc_regression": Upstream("coreset", 1, 3.0, default)},
)
