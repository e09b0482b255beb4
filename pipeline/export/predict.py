"""New rows through a fitted posterior."""

import os
from pathlib import Path
from typing import Any

import numpy as np

from bdl_pipe import artifacts, summary
from bdl_pipe.errors import UserError
from bdl_pipe.registry import load_predictor, stored_address

from ..core import places
from ..core.settings import Settings, require_device


def predict(
    run: str,
    given: Path,
    output: Path,
    split: int = 0,
    seed: int = 0,
    root: Path = places.WORK,
    level: float | None = None,
) -> None:
    """Write one row of the predictive for each row of the input.

    Raises:
        UserError: the run is not fitted, or the input does not fit the data that it was fitted on.
    """
    from bdl_pipe.data.new_inputs import new_inputs

    device = Settings.read().device
    require_device(device)
    student = student_of(run, root)
    fitted = load_predictor(student, split, seed, device)
    schema = artifacts.load(student, "student", verify=False).json("schema.json")
    inputs = new_inputs(given, schema)
    files, rng = _names(given, len(inputs)), stored_address(student, split, seed)
    if level is not None and fitted.recalibration is None:
        raise UserError(f"--level: {run} has no conformal sets: its data set has no calibration rows")
    names, level = schema["classes"] or schema["targets"], level or summary.COVERAGE
    predictions = summary.predictions(fitted, inputs, names, rng=rng, level=level, device=device)
    table = {"row" if files is None else "file": files or np.arange(len(inputs)), **predictions}
    _write(output, table)
    print(f"{output}: {len(inputs)} rows, {', '.join(table)}")


def student_of(run: str, root: Path) -> Path:
    """Find the artifact of a run among the artifacts in ``root``."""
    with places.rooted(root):
        student = places.artifact("student", run)
    if (student / artifacts.MANIFEST).is_file():
        return student
    known = sorted(p.parent.name for p in student.parent.glob(f"*/{artifacts.MANIFEST}"))
    raise UserError(f"{run}: is not a fitted run ({'fitted: ' + ', '.join(known) if known else 'none is fitted yet'})")


def _names(path: Path, count: int) -> list[str] | None:
    """List the file names of a folder's images, in the order in which they were read; None for other inputs."""
    from bdl_pipe.data.sources.images import image_files

    if not path.is_dir():
        return None
    folders = [path, *sorted(p for p in path.iterdir() if p.is_dir())]
    names = [str(file.relative_to(path)) for folder in folders for file in image_files(folder)]
    assert len(names) == count, (len(names), count)
    return names


def _write(path: Path, table: dict[str, Any]) -> None:
    """Write the table, whole or not at all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if path.is_dir():
        raise UserError(f"{path}: is a folder; --output must be a file")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(table), temporary)
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror or error})") from None
    finally:
        temporary.unlink(missing_ok=True)
