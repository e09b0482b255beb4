"""The method ``coreset_sgmcmc``: an average over Markov chains of a network's weights given a coreset.

The target is p^{1/T}, log p(θ) = Σ_S log p(class | x̂, θ) − ½λ‖θ‖², with a sum over the coreset's rows. The chains run
as one batch, with any kernel of ``sgmcmc``. The predictive is (1/S) Σ_s p(y | x, θ_s) over the draws of all chains.

Kim et al. 2022 and 2023 evaluate their coresets in this way, at T = .01. Deviation: their code's prior is e^{−n̂λ‖θ‖},
with a norm that is not squared; ours is a Gaussian. The class of a learned label is its largest entry.

A batch norm normalises by the statistics of the step's rows, which are the whole coreset. So the density is a function
of θ, as a chain needs, but no product over rows. A draw predicts with the statistics of the coreset, without
augmentation, at its own weights.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.func import replace_all_batch_norm_modules_

from ... import networks
from ...artifacts import State, stack, unstack
from ...config import LATER, read
from ...data.augment import AugmentConfig, augment
from ...data.fitdata import FitData
from ...data.size import CONVNET
from ...errors import require, require_positive
from ...method import Inputs, Method, StageSpec, Summary
from ...networks.flat import FlatNetwork
from ...networks.normalisation import has_batch_norm, refresh_batch_norm
from ...posterior import NetworkDraws, NetworkSpec
from ...predictive import Categorical, mixture
from ...progress import Report
from ...seeds import Seed
from ...sgmcmc import diagnostics
from ...sgmcmc.kernel import Chains, ChainState, Density, Kernel
from ...sgmcmc.kernels import KernelConfig
from ...sgmcmc.sampling import density_of, kept_draws, run
from ...sgmcmc.schedules import Setting, StepSizes, Thinning, settled
from ..shared.init import Coreset, mean_log_likelihood
from .scale import LogitScale, check_scale, noted, resolved


@dataclass(frozen=True)
class ChainsConfig:
    """The section ``methods.coreset_sgmcmc``.

    Attributes:
        network: the architecture.
        kernel: the sampler (published: sghmc, step .01, friction .1 at ipc 10; hmc).
        step_size: the step size in the kernel's units; ``scaled`` is in units of the rows' mean loss.
        chains: the number of chains, each with new initial weights.
        thinning: the number of steps of each chain (proposals for hmc), and which of them are kept as draws.
        prior_precision: λ.
        temperature: T (published: .01).
        start_sd: the standard deviation of the initial weights N(0, start_sd² I). null uses the network's own
            initialisation (published: .1).
        augmentation: the augmentation of the coreset at each step. null disables it, as hmc requires, because hmc
            compares values of one density.
        diagnostics: the settings of the diagnostics of the chains' predictions.
        logit_scale: the factor of every draw's logits; ``validation`` chooses it on validation rows (:mod:`.scale`).
    """

    network: networks.NetworkConfig
    kernel: KernelConfig
    step_size: StepSizes
    chains: int
    thinning: Thinning
    prior_precision: float
    temperature: float
    start_sd: float | None
    augmentation: AugmentConfig | None
    diagnostics: diagnostics.DiagnosticsConfig
    logit_scale: LogitScale = field(default=1.0, metadata=LATER)

    def __post_init__(self) -> None:
        check_scale(self.logit_scale)
        require_positive(self, "chains", "prior_precision", "temperature", or_null=("start_sd",))
        one = self.augmentation is None or not (isinstance(self.kernel, Kernel) and self.kernel.accepts)
        require(one, "augmentation", f"must be null for the kernel {self.kernel.name}, which compares values")


def fit_chains(data: FitData, inputs: Inputs, config: ChainsConfig, *, rng: Seed, report: Report) -> State:
    """Run the chains on the coreset in ``inputs``.

    The fit uses only the data's shape and device, and its validation rows if ``logit_scale`` is ``validation``. A fit
    resumed from ``report.load()`` has the same bits. The state is a ``NetworkDraws`` with the draws of one chain after
    another.
    """
    (stored,) = inputs["coreset"]
    coreset = Coreset.for_fit(stored, data)
    spec = NetworkSpec(config.network, data.input_shape, data.outputs, "categorical")
    built = spec.build(Seed(0)).to(data.device)
    network = FlatNetwork(replace_all_batch_norm_modules_(copy.deepcopy(built)))
    classes, rows = coreset.labels.argmax(1), len(coreset.images)

    def density_at(step: int) -> Density:
        images = coreset.images
        if config.augmentation is not None:
            images = augment(images, config.augmentation, rng.fold("augment", step))

        def log_joint(weights: Tensor) -> Tensor:
            likelihood = rows * mean_log_likelihood(network.outputs(weights, images), classes)
            return likelihood - 0.5 * config.prior_precision * weights.square().sum(1)

        return density_of(log_joint)

    assert isinstance(config.kernel, Kernel)
    kernel, chains = config.kernel, Chains.of(rng, config.chains)
    setting = Setting.of(config.step_size, "step_size", lambda steps: settled(steps, kernel, rows, 1.0, 1))
    schedule = setting.schedule(setting.value)

    def begin() -> ChainState:
        if config.start_sd is None:
            fresh = [spec.build(rng.fold("start", chain)).state_dict() for chain in range(config.chains)]
            start = torch.stack([network.flat(named) for named in fresh]).to(data.device)
        else:
            noise = torch.randn(config.chains, network.size, generator=rng.fold("start").generator())
            start = (config.start_sd * noise).to(data.device)
        return kernel.init(start, chains.at(0), config.temperature)

    def moves(state: ChainState, first: int) -> Iterator[tuple[int, ChainState]]:
        return run(
            kernel,
            density_at,
            state,
            schedule,
            chains,
            first=first,
            steps=config.thinning.steps,
            temperature=config.temperature,
            burn_in=config.thinning.burn_in,
            setting=setting,
        )

    draws = kept_draws(begin, moves, config.thinning, schedule, report, device=data.device)
    weights = network.named(draws.transpose(0, 1).flatten(0, 1))
    if has_batch_norm(built):
        weights = _with_statistics(built, weights, coreset.images)

    def scaled_mixture(inputs: Tensor) -> Callable[[float], Tensor]:
        predictive = NetworkDraws(spec, weights).predict(inputs)
        assert isinstance(predictive, Categorical)
        return lambda scale: mixture((scale * predictive.draw_log_probs).log_softmax(-1))

    factor = resolved(config.logit_scale, data, scaled_mixture)
    scaled = {k: factor * v if k.startswith("head.") else v for k, v in weights.items()}
    return noted(NetworkDraws(spec, scaled).state(), config.logit_scale, factor)


def _with_statistics(network: nn.Module, weights: dict[str, Tensor], images: Tensor) -> dict[str, Tensor]:
    """Return draws with the running statistics of all images at each draw's weights, as ``state_dict`` entries."""
    draws = []
    for draw in unstack(weights):
        network.load_state_dict(draw, strict=False)
        refresh_batch_norm(network, images, len(images))
        draws.append({name: value.clone() for name, value in network.state_dict().items()})
    return stack(draws)


def summarise(states: Sequence[Sequence[State]], data: Sequence[FitData], config: ChainsConfig) -> Summary:
    """Compute R-hat and effective sample size of the predictions of each split's first seed; return the worst."""
    splits = []
    for (first, *_), rows in zip(states, data, strict=True):
        spec = read(NetworkSpec, first.config["spec"], "spec")
        by_chain = {name: value.cpu().unflatten(0, (config.chains, -1)) for name, value in first.tensors.items()}
        chains = [NetworkDraws(spec, {name: v[k] for name, v in by_chain.items()}) for k in range(config.chains)]
        splits.append(diagnostics.of_split(chains, rows, config.diagnostics))
    return diagnostics.over_splits(splits, config.diagnostics)


CORESET_SGMCMC = Method(
    name="coreset_sgmcmc",
    family="coresets",
    bayesian=True,
    config=ChainsConfig,
    tasks=("classification",),
    stages={"student": StageSpec(fit_chains, needs={"coreset": "cyclic"}, summarise=summarise)},
    search={"prior_precision": (0.01, 100.0, "log"), "step_size.value": (1e-4, 1e-1, "log")},
    settings={
        "network": CONVNET,
        "kernel": {"name": "sghmc"},
        "step_size": {"name": "constant", "value": 1e-2},
        "chains": 2,
        "thinning": {"steps": 150, "burn_in": 100, "every": 10},
        "prior_precision": 1.0,
        "temperature": 1e-2,
        "logit_scale": "validation",
        "start_sd": None,
        "augmentation": None,
        "diagnostics": {"rows": 32, "max_rhat": 1.05, "min_ess": 10},
    },
)
