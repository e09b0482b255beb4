"""The method ``coreset_sgmcmc``: an average over Markov chains of a network's weights given a coreset.

The target is e^{−U/T}, U(θ) = −Σ_S log p(class | x̂, θ) + ½λ‖θ‖², a sum over the coreset's rows; the chains are
``sgmcmc.hamiltonian``'s, several as one batch. What predicts is (1/S) Σ_s p(y | x, θ_s) over the draws of all chains.

Kim et al. 2022 and 2023 evaluate their coresets so, at T = .01. Their code's prior is e^{−n̂λ‖θ‖}, of a norm that is not
squared; ours is a Gaussian (deviation). A coreset with learned labels has the classes of their largest entries.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ... import networks
from ...artifacts import State
from ...config import read
from ...data.augment import AugmentConfig, augment
from ...data.fitdata import FitData
from ...errors import Diverged, require
from ...method import Inputs, Method, StageSpec
from ...networks.flat import FlatNetwork, check_norm, stateless
from ...posterior import NetworkDraws, NetworkSpec
from ...progress import Report
from ...seeds import Seed
from ...sgmcmc import diagnostics
from ...sgmcmc.hamiltonian import Energy, HmcConfig, SghmcConfig, hmc, momenta, sghmc
from ...sgmcmc.sgld import Thinning
from ..shared.init import Coreset
from ..shared.likelihood import mean_log_likelihood


@dataclass(frozen=True)
class ChainsConfig:
    """``methods.coreset_sgmcmc``.

    Attributes:
        network: the architecture.
        kernel: the sampler (published: sghmc, step .01, friction .1 at ipc 10; hmc).
        chains: how many, from fresh initial weights each.
        thinning: steps of each chain (of hmc: proposals), those dropped, and the distance of those kept.
        prior_precision: λ.
        temperature: T (published: .01).
        start_sd: the initial weights are N(0, start_sd² I); null: the network's own (published: .1).
        augmentation: of the coreset at each step of sghmc; null: none. hmc has none, since its energy is one function.
        diagnostics: of the chains' predictions.
    """

    network: networks.NetworkConfig
    kernel: SghmcConfig | HmcConfig
    chains: int
    thinning: Thinning
    prior_precision: float
    temperature: float
    start_sd: float | None
    augmentation: AugmentConfig | None
    diagnostics: diagnostics.DiagnosticsConfig

    def __post_init__(self) -> None:
        check_norm(self.network, "network.norm")
        require(self.chains > 0, "chains", "must be > 0", self.chains)
        require(self.prior_precision > 0, "prior_precision", "must be > 0", self.prior_precision)
        require(self.temperature > 0, "temperature", "must be > 0", self.temperature)
        require(self.start_sd is None or self.start_sd > 0, "start_sd", "must be > 0 or null", self.start_sd)
        one = isinstance(self.kernel, SghmcConfig) or self.augmentation is None
        require(one, "augmentation", "must be null for the kernel hmc, whose energy is one function")


Step = tuple[int, Tensor, Tensor, Tensor]  # steps done, θ and r [chain, weight], which chains moved [chain]


def fit_chains(data: FitData, inputs: Inputs, config: ChainsConfig, *, rng: Seed, report: Report) -> State:
    """Run the chains on the one coreset in ``inputs``; only the data's shape and device are used.

    It resumes from ``report.load()`` with the same bits. The state is that of ``NetworkDraws``, chain after chain; the
    share of accepted steps so far is told with each.

    Raises:
        ConfigError: the network has running statistics; :meth:`Coreset.for_fit`.
        Diverged: a chain left the numbers.
    """
    (stored,) = inputs["coreset"]
    coreset = Coreset.for_fit(stored, data)
    spec = NetworkSpec(config.network, data.input_shape, data.outputs, "categorical")
    network = stateless(spec.build(Seed(0)).to(data.device), "network.norm")
    total, classes = config.thinning.steps, coreset.labels.argmax(1)

    def energy_at(step: int) -> Energy:
        images = coreset.images
        if config.augmentation is not None:
            images = augment(images, config.augmentation, rng.fold("augment", step))

        def energy(weights: Tensor) -> Tensor:
            likelihood = len(images) * mean_log_likelihood(network.outputs(weights, images), classes)
            return 0.5 * config.prior_precision * weights.square().sum(1) - likelihood

        return energy

    start = _start(spec, network, config, data.device, rng)
    first, at, speeds, draws, moved = _resume(report, start, momenta(start, config.temperature, rng.fold("velocities")))
    for done, at, speeds, accepted in _steps(config, energy_at, at, speeds, first, total, rng):  # noqa: B020
        if not bool(at.isfinite().all()):
            raise Diverged(f"a chain left the numbers at step {done}: lower kernel.step_size")
        moved = moved + accepted.double()
        if config.thinning.keeps(done):
            draws.append(at.clone())
        report(done, total, {"acceptance": float(moved.mean()) / done})
        if report.due():
            kept = torch.stack(draws) if draws else at.new_zeros(0, *at.shape)
            tensors = {"position": at, "velocity": speeds, "draws": kept, "moved": moved}
            report.save(State({k: v.clone() for k, v in tensors.items()}, {"step": done}))
    return NetworkDraws(spec, network.named(torch.stack(draws, 1).flatten(0, 1))).state()


def _steps(
    config: ChainsConfig,
    energy_at: Callable[[int], Energy],
    at: Tensor,
    speeds: Tensor,
    first: int,
    total: int,
    rng: Seed,
) -> Iterator[Step]:
    kernel, temperature = config.kernel, config.temperature
    if isinstance(kernel, SghmcConfig):
        always = torch.ones(len(at), device=at.device)
        for done, weights, velocities in sghmc(
            energy_at, at, speeds, kernel, temperature, first=first, steps=total, rng=rng
        ):
            yield done, weights, velocities, always
        return
    one = energy_at(0)
    for done, weights, accepted in hmc(one, at, kernel, temperature, first=first, steps=total, rng=rng):
        yield done, weights, speeds, accepted


def _start(
    spec: NetworkSpec, network: FlatNetwork, config: ChainsConfig, device: torch.device | str, rng: Seed
) -> Tensor:
    if config.start_sd is not None:
        noise = torch.randn(config.chains, network.size, generator=rng.fold("start").generator())
        return (config.start_sd * noise).to(device)
    fresh = [spec.build(rng.fold("start", chain)).state_dict() for chain in range(config.chains)]
    return torch.stack([network.flat(named) for named in fresh]).to(device)


def _resume(report: Report, start: Tensor, velocities: Tensor) -> tuple[int, Tensor, Tensor, list[Tensor], Tensor]:
    """Return (steps done, θ, r, draws, accepted steps of each chain) of the last checkpoint, or of the beginning."""
    last = report.load()
    if last is None:
        return 0, start, velocities, [], torch.zeros(len(start), dtype=torch.float64, device=start.device)
    saved = {name: value.to(start.device) for name, value in last.tensors.items()}
    return int(last.config["step"]), saved["position"], saved["velocity"], list(saved["draws"]), saved["moved"]


def summarise(states: list[State], data: FitData, config: ChainsConfig) -> tuple[dict[str, float], list[str]]:
    """Compute R-hat and effective sample size of what the chains of the first seed predict."""
    spec = read(NetworkSpec, states[0].config["spec"], "spec")
    by_chain = {name: value.unflatten(0, (config.chains, -1)) for name, value in states[0].tensors.items()}
    chains = [NetworkDraws(spec, {name: v[k] for name, v in by_chain.items()}) for k in range(config.chains)]
    return diagnostics.summarise(chains, data, config.diagnostics)


CORESET_SGMCMC = Method(
    name="coreset_sgmcmc",
    config=ChainsConfig,
    tasks=("classification",),
    stages={"student": StageSpec(fit_chains, needs={"coreset": "cyclic"}, summarise=summarise)},
    search={"prior_precision": (0.01, 100.0, "log"), "kernel.step_size": (1e-4, 1e-1, "log")},
)
