"""Samples of posteriors, stored so that a method's predictive can be compared with the posterior's own.

Each file beside this module has one split of a data set: draws of f at the test rows, by Hamiltonian Monte Carlo on the
posterior of a network's weights given all training rows. ``python -m benchmarks.references.hmc boston`` makes the files
again. A file is used only for the same rows and the same transform, since its prior, its noise and its draws are in
transformed units.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
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
from ...predictive import Gaussian

HERE: Final = Path(__file__).parent
SUFFIX: Final = ".safetensors"
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
        own = transform.state()
        about = {**self.about, "noise_variance": self.noise_variance, "rows": digest(test), "transform": own.config}
        return State({"draws": self.draws.half(), **{f"transform.{k}": v for k, v in own.tensors.items()}}, about)


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
    known = stored()
    if len(test) not in {rows for rows, _ in known}:
        return None
    state = known.get((len(test), digest(test)))
    if state is None or not _same(transform, State(under("transform.", state.tensors), state.config["transform"])):
        return None
    return Reference(state.tensors["draws"].double(), state.config["noise_variance"], state.config)


@cache
def stored(folder: Path = HERE) -> Mapping[tuple[int, str], State]:
    """Read the references of a folder, by the number and the hash of their rows."""
    states = [artifacts.from_bytes(path.read_bytes(), path.name) for path in sorted(folder.glob(f"*{SUFFIX}"))]
    return {(state.tensors["draws"].shape[1], state.config["rows"]): state for state in states}


def _same(transform: Transform, stored: State) -> bool:
    own = transform.state()
    if own.config != stored.config or own.tensors.keys() != stored.tensors.keys():
        return False
    pairs = ((own.tensors[name].double(), value.double()) for name, value in stored.tensors.items())
    return all(a.shape == b.shape and torch.allclose(a, b, rtol=_CLOSE, atol=0) for a, b in pairs)
