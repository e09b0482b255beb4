"""The registry: name → (what it makes in which stage kind, what it needs, its config)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from . import artifacts
from .data.transform import Transform
from .errors import ArtifactError
from .method import Method
from .posterior import Fitted, NetworkDraws, Posterior

METHODS: Final[Mapping[str, Method]] = {}

POSTERIORS: Final[Mapping[str, type[Posterior]]] = {NetworkDraws.key: NetworkDraws}


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
    state, schema = artifact.state(name), artifact.json("schema.json")
    transform = Transform.from_state(artifact.state(f"transform-{split}"))
    posterior = posterior_of(state).from_state(state, device)
    return Fitted(posterior, transform, tuple(map(str, schema.get("classes") or ())))


def posterior_of(state: artifacts.State) -> type[Posterior]:
    """The class that a fitted state belongs to."""
    key = str(state.config.get("posterior"))
    if key not in POSTERIORS:
        raise ArtifactError(f"posterior must be one of {', '.join(POSTERIORS)}, got {key!r}")
    return POSTERIORS[key]
