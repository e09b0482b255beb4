"""The registry: name → (what it makes in which stage kind, what it needs, its config)."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

import torch

from . import artifacts
from .artifacts import State
from .baselines import (
    BNN,
    DETERMINISTIC,
    DROPOUT,
    ENSEMBLE,
    GBLL,
    GP,
    LDGBLL,
    MAP_BLR,
    SNGP,
    BnnPosterior,
    DropoutPosterior,
    ExactLayerPosterior,
)
from .baselines.gp import GpPosterior
from .baselines.sngp import SngpPosterior
from .collapsed.classes import CIBER, CiberPosterior
from .collapsed.regression import CIBER_LAST, CIBER_SECOND, CiberLastPosterior, CiberSecondPosterior
from .coresets.methods import RANDOM_CORESET, VBPC
from .coresets.posterior import VbpcPosterior
from .dark_knowledge.distil import DARK_KNOWLEDGE
from .data.transform import Transform
from .errors import ArtifactError
from .inducing.learner import RandomWeightsPosterior
from .inducing.methods import ENSEMBLE_U, FCG_U, FCG_W, FFG_U, FFG_W
from .last_layer.learner import LastLayerPosterior
from .last_layer.methods import D_VBLL, D_VBLL_BNN, G_VBLL, G_VBLL_BNN, VBLL, VBLL_BNN
from .method import Method
from .posterior import Fitted, NetworkDraws, Posterior, prediction_address
from .seeds import Seed
from .sgmcmc.chains import SGLD
from .trajectory import KFAC_LAPLACE, PCA_ESS, PCA_VI, SGD, SWA, SWAG, LinearisedDraws

METHODS: Final[Mapping[str, Method]] = MappingProxyType(
    {
        method.name: method
        for method in (
            SGD,
            SGLD,
            VBPC,
            RANDOM_CORESET,
            DETERMINISTIC,
            ENSEMBLE,
            BNN,
            DROPOUT,
            DARK_KNOWLEDGE,
            VBLL,
            VBLL_BNN,
            D_VBLL,
            D_VBLL_BNN,
            G_VBLL,
            G_VBLL_BNN,
            GP,
            SWA,
            SWAG,
            PCA_ESS,
            PCA_VI,
            KFAC_LAPLACE,
            CIBER,
            CIBER_LAST,
            CIBER_SECOND,
            SNGP,
            GBLL,
            LDGBLL,
            MAP_BLR,
            FFG_U,
            FCG_U,
            ENSEMBLE_U,
            FFG_W,
            FCG_W,
        )
    }
)

POSTERIORS: Final[Mapping[str, type[Posterior]]] = MappingProxyType(
    {
        NetworkDraws.key: NetworkDraws,
        VbpcPosterior.key: VbpcPosterior,
        LastLayerPosterior.key: LastLayerPosterior,
        GpPosterior.key: GpPosterior,
        BnnPosterior.key: BnnPosterior,
        DropoutPosterior.key: DropoutPosterior,
        SngpPosterior.key: SngpPosterior,
        ExactLayerPosterior.key: ExactLayerPosterior,
        RandomWeightsPosterior.key: RandomWeightsPosterior,
        LinearisedDraws.key: LinearisedDraws,
        CiberPosterior.key: CiberPosterior,
        CiberLastPosterior.key: CiberLastPosterior,
        CiberSecondPosterior.key: CiberSecondPosterior,
    }
)


def stored_address(path: Path, split: int = 0, member: int = 0) -> Seed:
    """The address of the predictions of a member of a student artifact, the one that its scores are at.

    Raises:
        ArtifactError: the folder is not a whole student artifact, or does not say which run of which seed it is of.
    """
    about = artifacts.load(path, "student", verify=False).manifest["about"]
    if not {"seed", "run"} <= about.keys():
        raise ArtifactError(f"{path}: must say its seed and its run; make it again")
    return prediction_address(about["seed"], about["run"], split, member)


def load_fitted(path: Path, split: int = 0, member: int = 0, device: str = "cpu") -> Fitted:
    """The fitted posterior in a student artifact: raw inputs in, original units out.

    Raises:
        ArtifactError: the folder is not a whole student artifact, or has no such split or member.
    """
    artifact = artifacts.load(path, "student")
    name = f"{split}-{member}"
    made = [n for n in artifact.names() if not n.startswith("transform-")]
    if name not in made:
        raise ArtifactError(
            f"{path}: has no member {member} of split {split} (it has <split>-<member> {', '.join(made)})"
        )
    transform = Transform.from_state(artifact.state(f"transform-{split}"))
    classes = tuple(map(str, artifact.json("schema.json").get("classes") or ()))
    return Fitted(posterior_of(artifact.state(name), device), transform, classes)


def posterior_of(state: State, device: torch.device | str = "cpu") -> Posterior:
    """The posterior whose ``state()`` this is, on ``device``.

    Raises:
        ArtifactError: the state is of no registered posterior.
    """
    key = str(state.config.get("posterior"))
    if key not in POSTERIORS:
        raise ArtifactError(f"posterior must be one of {', '.join(POSTERIORS)}, got {key!r}")
    return POSTERIORS[key].from_state(state, device)
