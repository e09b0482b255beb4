"""Access to prepared data for fits and evaluations: two memory-mapped artifacts.

This module does not import the code that makes the artifacts. So a change of a data source or a corruption makes
``prepare`` out of date, but makes a fit out of date only if the rows change.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from bdl_pipe import artifacts
from bdl_pipe.data.examples import Examples
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.data.transform import Transform
from bdl_pipe.files import FileBytes

from . import arrow_rows

FIT_KIND: Final = "prepare"
HOLDOUT_KIND: Final = "holdout"
SCHEMA_FILE: Final = "schema.json"
CALIBRATION_FILE: Final = "calibration.arrow"


class Job(NamedTuple):
    """One corruption at one severity."""

    name: str
    severity: int

    @property
    def key(self) -> str:
        """Return ``name-severity``, the name of the job's file."""
        return f"{self.name}-{self.severity}"


@dataclass(frozen=True)
class Holdout:
    """The memory-mapped rows that only ``evaluate`` reads.

    Attributes:
        files: the files in the manifest: name relative to ``path`` -> facts.
    """

    path: Path
    test: Examples
    files: Mapping[str, Any]

    def ood(self) -> dict[str, Examples]:
        """Read the out-of-distribution sets by name, with their own classes as labels."""
        return self._by_name("ood")

    def transfer(self) -> dict[str, Examples]:
        """Read the labelled rows of other sets by name, with the fitted set's classes as labels."""
        return self._by_name("transfer")

    def corruptions(self) -> list[Job]:
        """List the available corruptions and severities."""
        names = (p.stem.rsplit("-", 1) for p in sorted((self.path / "corrupted").glob("*.arrow")))
        return [Job(name, int(severity)) for name, severity in names]

    def corrupted(self, name: str, severity: int) -> Examples:
        """Read the rows under one corruption at one severity."""
        return arrow_rows.read(self._corrupted(name, severity)).examples

    def corrupted_file(self, name: str, severity: int) -> FileBytes:
        """Return the file that :meth:`corrupted` reads, for ``arrow_rows.loads`` on another machine."""
        place = self._corrupted(name, severity)
        return FileBytes.of(place, self.files[str(place.relative_to(self.path))]["sha256"])

    def _corrupted(self, name: str, severity: int) -> Path:
        return self.path / "corrupted" / f"{Job(name, severity).key}.arrow"

    def _by_name(self, folder: str) -> dict[str, Examples]:
        return {p.stem: arrow_rows.read(p).examples for p in sorted((self.path / folder).glob("*.arrow"))}


def load_fit(path: Path, split: int, *, final: bool) -> FitData:
    """Read one split's training data from a ``prepare`` artifact; see :func:`load_fits`."""
    (data,) = load_fits(path, [split], final=final)
    return data


def load_fits(path: Path, splits: Iterable[int], *, final: bool) -> list[FitData]:
    """Read the training data of several splits, memory-mapped, from a ``prepare`` artifact that is verified once.

    Args:
        final: whether the data are for a final fit. If so, and if ``fit_rows`` includes validation rows, the training
            part includes the validation rows, the validation part is empty, and ``search`` is the result of
            ``final=False``. With ``final=False`` both parts are separate, and the transform is fitted only to the
            training rows.

    Raises:
        ArtifactError: the artifact is missing, altered or truncated.
    """
    artifact = artifacts.load(path, FIT_KIND)
    schema = artifact.json(SCHEMA_FILE)
    return [_fit_data(artifact, schema, split, final) for split in splits]


def _fit_data(artifact: artifacts.Artifact, schema: Mapping[str, Any], split: int, final: bool) -> FitData:
    rows = arrow_rows.read(artifact.path / str(split) / "train.arrow")
    classes = tuple(schema["classes"])

    def data(count: int, transform: str, search: FitData | None = None) -> FitData:
        fitted = Transform.from_state(artifact.state(f"{split}/{transform}"))
        about = {"search": search, "ordered": schema.get("ordered", False)}
        return FitData(schema["task"], *rows.examples.cut(count), fitted, classes, **about)

    apart = "transform-search" if f"{split}/transform-search" in artifact.names() else "transform"
    search = data(rows.about["train"], apart)
    joined = schema["fit_rows"] == "train_and_validation" and len(search.validation) > 0
    return data(len(rows.examples), "transform", search) if final and joined else search


def load_calibration(path: Path, split: int) -> Examples | None:
    """Read the calibration rows of one split; None if there are none."""
    place = path / str(split) / CALIBRATION_FILE
    return arrow_rows.read(place).examples if place.is_file() else None


def load_schema(path: Path) -> dict[str, Any]:
    """Read the schema of new rows: task, kind, classes, input_shape, features, targets, fit_rows."""
    return artifacts.load(path, FIT_KIND, verify=False).json(SCHEMA_FILE)


def load_holdout(path: Path, split: int) -> Holdout:
    """Read one split's test rows, and the OOD and corrupted sets, from a ``holdout`` artifact."""
    (held,) = load_holdouts(path, [split])
    return held


def load_holdouts(path: Path, splits: Iterable[int]) -> list[Holdout]:
    """Read the test rows of several splits, see :func:`load_holdout`; the artifact is verified once."""
    files = artifacts.load(path, HOLDOUT_KIND).manifest["files"]
    return [Holdout(path, arrow_rows.read(path / str(split) / "test.arrow").examples, files) for split in splits]
