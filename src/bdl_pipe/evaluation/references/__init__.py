"""Samples of posteriors, stored so that a method's predictive can be compared with the posterior's own.

Each file beside this module has one split of a data set: draws of f at the test rows, by Hamiltonian Monte Carlo on the
posterior of a network's weights given all training rows. ``python -m benchmarks.references.hmc boston`` makes the files
again. A file is used only for the same rows and the same transform, since its prior, its noise and its draws are in
transformed units.

The distance of a predictive of one target from a reference's is computed at each row by quadrature,

    KL = ∫ p log(p/q) dy,   TV = ½ ∫ |p − q| dy,   p the reference's density, a mixture of Gaussians of one variance σ²

The trapezoidal rule has nodes σ/8 apart, from 7σ below the lowest to 7σ above the highest component. For a
smooth log q the KL is exact to 1e-8 (the rule converges exponentially for a Gaussian's integrals); where q has kinks,
and for TV, to about 3e-4. KL is infinite where q is 0 within that range.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ... import artifacts
from ...artifacts import State, under
from ...data.examples import Examples
from ...data.transform import Transform
from ...predictive import Continuous, Gaussian, Predictive
from ..gathered import Scores

HERE: Final = Path(__file__).parent
SUFFIX: Final = ".safetensors"
_REACH: Final = 7.0  # in σ; 1e-12 of a component lies beyond on each side
_NODES_A_SD: Final = 8
_CLOSE: Final = 1e-5  # relative error of a mean: its last digits differ between processors


@dataclass(frozen=True)
class Reference:
    """Draws of a posterior at the test rows of one split, in transformed units.

    Attributes:
        draws: f of each draw [draw, row].
        noise_variance: the variance of a target given f.
        about: the split, the posterior, the sampler with R-hat and effective sample sizes, NLL and RMSE, the commit.
    """

    draws: Float[Tensor, "draw row"]
    noise_variance: float
    about: Mapping[str, Any]

    def predictive(self, rows: slice = slice(None)) -> Gaussian:
        """Return the predictive at some of the test rows."""
        mean = self.draws[:, rows, None]
        return Gaussian(mean, torch.full_like(mean, self.noise_variance))

    def state(self, test: Examples, transform: Transform) -> State:
        """Return the state to store for the reference of the test rows ``test``, with draws in float16."""
        state = transform.state()
        about = {**self.about, "noise_variance": self.noise_variance, "rows": digest(test), "transform": state.config}
        return State({"draws": self.draws.half(), **{f"transform.{k}": v for k, v in state.tensors.items()}}, about)


def digest(examples: Examples) -> str:
    """Return the hash of rows with their targets, in original units."""
    whole = hashlib.sha256()
    for values in (examples.inputs, examples.targets):
        whole.update(f"{values.shape}".encode() + np.ascontiguousarray(values, np.float64).tobytes())
    return whole.hexdigest()


def find(test: Examples, transform: Transform) -> Reference | None:
    """Return the reference of these test rows under this transform; None if there is no reference.

    Raises:
        ArtifactError: a stored reference is damaged.
    """
    states = stored()
    if len(test) not in {rows for rows, _ in states}:
        return None
    state = states.get((len(test), digest(test)))
    fitted = transform.state()
    if state is None or fitted.config != state.config["transform"]:
        return None
    tensors = under("transform.", state.tensors)
    if fitted.tensors.keys() != tensors.keys():
        return None
    pairs = ((fitted.tensors[name].double(), value.double()) for name, value in tensors.items())
    if not all(a.shape == b.shape and torch.allclose(a, b, rtol=_CLOSE, atol=0) for a, b in pairs):
        return None
    return Reference(state.tensors["draws"].double(), state.config["noise_variance"], state.config)


@cache
def stored(folder: Path = HERE) -> Mapping[tuple[int, str], State]:
    """Read the references of a folder, by the number and the hash of their rows."""
    states = [artifacts.from_bytes(path.read_bytes(), path.name) for path in sorted(folder.glob(f"*{SUFFIX}"))]
    return {(state.tensors["draws"].shape[1], state.config["rows"]): state for state in states}


def distances(reference: Gaussian, other: Continuous) -> tuple[Float[Tensor, " batch"], Float[Tensor, " batch"]]:
    """Return KL(reference ‖ other) and the total variation between them at each row, in float64.

    Args:
        reference: a predictive of one output, with one variance for all draws and rows.
    """
    step = float(reference.draw_variance.flatten()[0]) ** 0.5 / _NODES_A_SD
    low = reference.draw_mean.amin(0).double() - _REACH * _NODES_A_SD * step  # [row, 1]
    last = ((reference.draw_mean.amax(0).double() - low) / step + _REACH * _NODES_A_SD).ceil()  # the row's last node
    divergence = variation = torch.zeros(len(low), dtype=torch.float64)
    for node in range(int(last.max()) + 1):
        values, within = low + step * node, (node <= last)[:, 0]
        log_p, log_q = reference.log_prob(values), other.log_prob(values.to(other.mean.device)).to(values)
        p, q = log_p.exp(), log_q.exp()
        divergence = divergence + torch.where(within, p * (log_p - log_q), 0.0)
        variation = variation + torch.where(within, (p - q).abs(), 0.0)
    device = other.mean.device
    beyond = other.cdf(low.to(device)) + 1 - other.cdf((low + step * last).to(device))
    return step * divergence, (step * variation + beyond[:, 0].to(low)) / 2


@dataclass
class Distances:
    """The distances of a run's predictive to the reference of its test rows, gathered over batches.

    Attributes:
        reference: the reference of the test rows; None means that there are no scores.
    """

    reference: Reference | None
    parts: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)

    def add(self, rows: slice, predictive: Predictive) -> None:
        """Add a batch of test rows, predicted in transformed units."""
        if self.reference is None:
            return
        assert isinstance(predictive, Continuous)
        divergence, variation = distances(self.reference.predictive(rows), predictive)
        deviation = predictive.epistemic_variance[:, 0].double().sqrt().cpu()
        ratio = deviation / self.reference.draws[:, rows].std(0, correction=0)
        self.parts.append((divergence, variation, ratio))

    def scores(self) -> Scores:
        """Return ``reference_kl`` and ``reference_tv``, means over rows, and ``reference_sd_ratio``, their median.

        A predictive has no ratio if its variance does not split into noise and uncertainty of f.
        """
        if self.reference is None:
            return {}
        divergence, variation, ratio = (torch.cat(values) for values in zip(*self.parts, strict=True))
        scores = {"reference_kl": (float(divergence.mean()), len(ratio))}
        scores["reference_tv"] = (float(variation.mean()), len(ratio))
        if bool(ratio.any()):
            scores["reference_sd_ratio"] = (float(ratio.quantile(0.5)), len(ratio))
        return scores
