"""Predictions for new rows: ``python -m pipeline predict RUN --input FILE --output FILE.parquet``."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from bdl_pipe import artifacts, summary
from bdl_pipe.errors import UserError
from bdl_pipe.files import write_bytes
from bdl_pipe.registry import load_predictor, stored_address

from ..core.settings import Settings, require_device
from .shared import student_of


def predict(
    run: str,
    source: Path,
    output: Path,
    split: int = 0,
    seed: int = 0,
    level: float | None = None,
    paper: str | None = None,
) -> None:
    """Write a row of predictions for each row of the input.

    Args:
        paper: ``<paper>:<table>`` of the run; None if the run is in params.yaml.

    Raises:
        UserError: the run is not fitted, or the input does not fit its data.
    """
    from bdl_pipe.data.new_inputs import image_inputs, left_out, new_inputs, unseen

    if output.suffix.lower() not in (".parquet", ".pq"):
        raise UserError(f"--output: is written as Parquet; name it {output.with_suffix('.parquet')}")
    if output.exists() and source.exists() and output.samefile(source):
        raise UserError(f"--output: must not be the input {source}, which would be lost")
    device = Settings.read().device
    require_device(device)
    student = student_of(run, paper)
    fitted = load_predictor(student, split, seed, device)
    schema = artifacts.load(student, "student", verify=False).json("schema.json")
    inputs = new_inputs(source, schema)
    for line in unseen(inputs, schema):
        print(f"note: {line}")
    if level is not None and fitted.recalibration is None:
        raise UserError(f"--level: {run} has no conformal sets: its data set has no calibration rows")
    names, rng = schema["classes"] or schema["targets"], stored_address(student, split, seed)
    predictions = summary.predictions(fitted, inputs, names, rng=rng, level=level, device=device)
    files = [str(file.relative_to(source)) for file in image_inputs(source)] if source.is_dir() else []
    if files and (others := left_out(source)):
        what = "files are skipped: they are not images of a known kind, or lie in a folder too deep"
        print(f"note: {len(others)} {what}; the first is {others[0].relative_to(source)}")
    first = {"file": files} if files else {"row": np.arange(len(inputs))}
    _write(output, {**first, **predictions})
    print(f"{output}: {len(inputs)} rows, {', '.join([*first, *predictions])}")


def _write(path: Path, table: Mapping[str, object]) -> None:
    """Write the table as Parquet, completely or not at all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if path.is_dir():
        raise UserError(f"{path}: is a folder; --output must be a file")
    blob = pa.BufferOutputStream()
    pq.write_table(pa.table(table), blob)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, blob.getvalue().to_pybytes())
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror or error})") from None
