"""The methods ``gbll`` and ``ldgbll``: features trained by the exact evidence of a Bayesian last layer.

Watson, Lin, Klink, Pajarinen & Peters 2021, "Latent Derivative Bayesian Last Layer Networks", as the baselines of
Harrison, Willes & Snoek 2023 (table 2, G.2). ``gbll`` minimises −log p(Y | Φ)/n over the trunk, the prior variance s
and the noise variance σ² (their logarithms), see ``linear_regression``. A noise of each input (ours) is σ² exp(φᵀg),
and g is trained by the same evidence. The predictive is exact, given the trained trunk and variances. ``ldgbll`` adds
a zero-mean Gaussian prior on the function's derivatives: the Jacobian wᵀ∂φ/∂x is linear in w, so it is Gaussian in
closed form. It enters as a latent variable by its KL divergence from the prior, which favours smooth *and* diverse
features.

Deviations: the KL is the sum over the derivatives' marginals (a lower bound of the joint KL, finite even with fewer
features than inputs), averaged over rows, with a weight. Every step uses all rows, so an epoch is one step, and the
evidence is exact. According to Harrison et al., Watson et al. use batches of 32, and the evidences of batches do not
add up to the evidence of all rows. A step costs O(nh² + h³), and the derivatives O(bdh²) for b rows of d columns.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import jacfwd, vmap

from ..artifacts import State
from ..config import LATER
from ..data.fitdata import FitData, distinct, variance_of
from ..errors import require, require_positive
from ..linear_regression import LinearPosterior, log_marginal_likelihood, posterior, scaled
from ..method import Inputs, Method, StageSpec
from ..networks import MlpConfig
from ..predictive import Predictive
from ..progress import Report
from ..seeds import Seed
from ..training.learner import ROW_WEIGHTS, TOTAL_WEIGHT, EarlyStopping, TrainingConfig, require_fits
from ..training.likelihood import NoiseOf
from ..training.loop import OptimiserConfig
from .exact_layer import ExactLayerLearner, TrunkSpec, features, fit_exact_layers, noise_head


@dataclass(frozen=True)
class GbllConfig:
    """The section ``methods.gbll`` of params.yaml.

    Attributes:
        network: the trunk, without dropout.
        epochs: the number of steps, each on all rows; with ``early_stopping`` the largest number.
        optimiser: the update rule; weight decay does not apply to s and σ².
        early_stopping: how the number of epochs is chosen on validation rows. null runs all epochs.
        prior_variance: the initial s, the prior variance of each weight and the bias.
        noise_variance: the initial σ², in the units of the transformed targets. null means the power of ten nearest to
            the variance of the training rows' targets (:func:`magnitude`).
        noise: ``one`` variance, or one for ``each input``, linear in the features on the log scale.
    """

    network: MlpConfig
    epochs: int
    optimiser: OptimiserConfig
    early_stopping: EarlyStopping | None
    prior_variance: float
    noise_variance: float | None
    noise: NoiseOf = field(default="one", metadata=LATER, kw_only=True)

    def __post_init__(self) -> None:
        require(self.network.dropout == 0, "network.dropout", "must be 0", self.network.dropout)
        require_positive(self, "epochs", "prior_variance", or_null=("noise_variance",))
        require_fits(self.early_stopping, self.optimiser)


@dataclass(frozen=True)
class LdgbllConfig(GbllConfig):
    """The section ``methods.ldgbll``, with the prior on derivatives; the activation must be leaky_relu.

    Attributes:
        derivative_variance: v of the prior N(0, v) on each ∂f/∂x, in transformed targets² per transformed input². null
            means the power of ten nearest to the variance of the training rows' targets (:func:`magnitude`).
        weight: the weight of the derivatives' mean KL relative to the evidence per row.
        derivative_rows: the number of training rows, drawn at each step, at which derivatives are computed. null means
            all rows.
    """

    derivative_variance: float | None
    weight: float
    derivative_rows: int | None

    def __post_init__(self) -> None:
        super().__post_init__()
        # with ReLUs, a row without an active unit has derivatives of zero variance, hence an infinite KL
        slope = self.network.activation
        require(slope == "leaky_relu", "network.activation", "must be leaky_relu for ldgbll", slope)
        require_positive(self, or_null=("derivative_variance", "derivative_rows"))
        require(self.weight >= 0, "weight", "must be >= 0", self.weight)


class Gbll(ExactLayerLearner):
    """A learner of a trunk, s and σ²; it holds the training rows, on which its predictive is conditioned.

    Attributes:
        network: inputs -> features.
        log_prior_variance, log_noise_variance: log s and log σ².
        rows, targets: the transformed training rows, which are not part of a posterior's state.
        weights: of these rows [row]. None: all are 1.
    """

    rows: Tensor
    targets: Tensor
    weights: Tensor | None

    def __init__(self, config: GbllConfig, data: FitData, rng: Seed) -> None:
        super().__init__()
        self.network = TrunkSpec(config.network, data.input_shape).build(rng)
        self.log_prior_variance = nn.Parameter(torch.tensor(math.log(config.prior_variance)))
        rows, targets = data.tensors("train", data.device)
        weights = data.weights("train", data.device)
        noise_variance = magnitude(targets, weights) if config.noise_variance is None else config.noise_variance
        self.log_noise_variance = nn.Parameter(torch.tensor(math.log(noise_variance)))
        self.noise_head = noise_head(config.noise, config.network)
        self.register_buffer("rows", rows)
        self.register_buffer("targets", targets)
        self.register_buffer("weights", weights)

    def variances(self) -> tuple[Tensor, Tensor]:
        """Return s and σ² in float64."""
        return self.log_prior_variance.double().exp(), self.log_noise_variance.double().exp()

    def forward(self, inputs: Tensor, targets: Tensor, num_train: int, noise: dict[str, Tensor]) -> Tensor:
        assert len(inputs) == num_train, "the evidence is of all rows at once"
        phi = features(self.network, inputs)
        g, shares = self.log_noise(phi), noise.get(ROW_WEIGHTS)
        total = noise[TOTAL_WEIGHT].double() if shares is not None else num_train
        rows = scaled(phi, targets.double(), g, _weights(noise, num_train))
        loss = -log_marginal_likelihood(*rows, *self.variances(), total) / total
        if g is None:
            return loss
        return loss + targets.shape[1] / 2 * (g.mean() if shares is None else (shares[:, None] * g).mean())

    def posterior(self) -> LinearPosterior:
        """Return the posterior of the last layer, given the training rows."""
        return self._given(self.rows, self.targets, self.weights)

    def _given(self, inputs: Tensor, targets: Tensor, weights: Tensor | None) -> LinearPosterior:
        phi = features(self.network, inputs)
        return posterior(*scaled(phi, targets.double(), self.log_noise(phi), weights), *self.variances())

    def predict(self, inputs: Tensor, *, rng: Seed) -> Predictive:
        phi = features(self.network, inputs)
        return self.posterior().predict(phi, self.log_noise(phi), inputs.dtype)

    def undecayed(self) -> set[str]:
        return {"log_prior_variance", "log_noise_variance"}

    def exact_layer(self, data: FitData) -> tuple[LinearPosterior, float]:
        """Return the layer with the trained prior and noise variance."""
        return self.posterior(), float(self.variances()[0])


class Ldgbll(Gbll):
    """A :class:`Gbll` with the prior on derivatives.

    Attributes:
        derivative_variance: v, which is not part of a posterior's state.
    """

    derivative_variance: Tensor

    def __init__(self, config: LdgbllConfig, data: FitData, rng: Seed) -> None:
        super().__init__(config, data, rng)
        self.config = config
        given = config.derivative_variance
        # a buffer, since several fits at once differ in it
        variance = torch.tensor(magnitude(self.targets, self.weights) if given is None else given, dtype=torch.float64)
        self.register_buffer("derivative_variance", variance.to(data.device))

    def forward(self, inputs: Tensor, targets: Tensor, num_train: int, noise: dict[str, Tensor]) -> Tensor:
        fit = super().forward(inputs, targets, num_train, noise)
        at = inputs[noise["rows"]] if "rows" in noise else inputs
        layer = self._given(inputs, targets, _weights(noise, num_train))
        kl = derivative_kl(layer, lambda x: features(self.network, x[None])[0], at, self.derivative_variance)
        if ROW_WEIGHTS in noise:
            kl = kl * (noise[ROW_WEIGHTS][noise["rows"]] if "rows" in noise else noise[ROW_WEIGHTS])
        return fit + self.config.weight * kl.mean()

    def noise(self, steps: int, batch: int, generator: torch.Generator) -> dict[str, Tensor]:
        """Return the rows of the batch at which derivatives are computed, [steps, row]."""
        count = self.config.derivative_rows
        if count is None or count >= batch:
            return {}
        return {"rows": torch.stack([distinct(batch, count, generator) for _ in range(steps)])}


def _weights(noise: dict[str, Tensor], rows: int) -> Tensor | None:
    """Return the weights of a step's rows, which are all rows, float64 [row]; None without weights."""
    return noise[ROW_WEIGHTS].double() * noise[TOTAL_WEIGHT] / rows if ROW_WEIGHTS in noise else None


def magnitude(targets: Float[Tensor, "row output"], weights: Float[Tensor, " row"] | None = None) -> float:
    """Return the power of ten nearest to the variance of targets, the mean over columns; 1 if they do not vary.

    Only the order of magnitude of a start matters, and a power of ten is in general the same for all splits of a table.
    """
    variance = float(variance_of(targets, weights).mean())
    return 10.0 ** round(math.log10(variance)) if variance > 0 else 1.0


def derivative_kl(
    layer: LinearPosterior, trunk: Callable[[Tensor], Tensor], inputs: Float[Tensor, "b d"], variance: float | Tensor
) -> Float[Tensor, " b"]:
    """Return Σ_{d,k} KL[N(μ_dk, τ_d) ‖ N(0, v)] in nats at each input; v is ``variance``.

    μ_dk and τ_d are the moments of ∂(w_kᵀφ(x))/∂x_d, in forward mode, with one pass per input column. The KL is
    infinite if no feature depends on an input column: such features are not diverse.

    Args:
        trunk: φ, one row [d] -> the features [h] of ``layer``, including the bias.
    """
    slopes = vmap(jacfwd(trunk), out_dims=1)(inputs)  # ∂φ/∂x [h, b, d]
    # one solve of b·d columns, since a batch of b solves would copy the factor b times
    root = torch.linalg.solve_triangular(layer.factor, slopes.flatten(1), upper=False).reshape(slopes.shape)
    mean = torch.einsum("hbd,ho->bdo", slopes, layer.mean)
    ratio = root.permute(1, 2, 0).square().sum(-1)[..., None] / variance  # [b, d, 1]
    return 0.5 * (ratio + mean.square() / variance - 1 - ratio.log()).sum((-2, -1))


def fit(
    data: Sequence[FitData], inputs: Sequence[Inputs], config: GbllConfig, *, rngs: Sequence[Seed], report: Report
) -> list[State]:
    """Fit a posterior to each of ``data``; ``inputs`` are not used."""
    name, learner = ("ldgbll", Ldgbll) if isinstance(config, LdgbllConfig) else ("gbll", Gbll)
    most = max(len(rows.train) for rows in data)
    training = TrainingConfig(config.epochs, most, config.optimiser, config.early_stopping)
    return fit_exact_layers(name, learner, config, training, data, rngs=rngs, report=report)


_SEARCH = {
    "optimiser.lr": (1e-3, 1e-1, "log"),
    "optimiser.weight_decay": (1e-4, 1.0, "log"),
    "prior_variance": (1e-3, 1e1, "log"),
}

_SETTINGS: Final = {
    "network": {"name": "mlp", "hidden": [50], "activation": "leaky_relu"},
    "epochs": 40,
    "optimiser": {"name": "adamw", "lr": 3e-2, "schedule": "one_cycle", "weight_decay": 1.0, "grad_clip_norm": 1.0},
    "early_stopping": None,
    "prior_variance": 0.1,
    "noise_variance": 0.2,
}
_LATENT: Final = {"derivative_variance": 0.3, "weight": 0.05, "derivative_rows": 64}

GBLL = Method(
    name="gbll",
    bayesian=True,
    config=GbllConfig,
    tasks=("regression",),
    online=("regression",),
    stages={"student": StageSpec(fit_many=fit)},
    weighs_rows=True,
    search=_SEARCH,  # type: ignore[arg-type]
    settings=_SETTINGS,
)
LDGBLL = Method(
    name="ldgbll",
    bayesian=True,
    config=LdgbllConfig,
    tasks=("regression",),
    online=("regression",),
    stages={"student": StageSpec(fit_many=fit)},
    weighs_rows=True,
    search=_SEARCH | {"derivative_variance": (1e-2, 1e1, "log"), "weight": (1e-3, 1.0, "log")},  # type: ignore[arg-type]
    settings={**_SETTINGS, "epochs": 70, "noise_variance": 0.1, **_LATENT},
)
