"""New rows through a fitted posterior: ``python -m pipeline predict RUN --input FILE --output FILE.parquet``."""

import argparse
import os
from pathlib import Path
from typing import Any, Final

import numpy as np

from bdl_pipe import artifacts, summary
from bdl_pipe.errors import UserError
from bdl_pipe.posterior import Fitted
from bdl_pipe.registry import load_fitted
from bdl_pipe.seeds import Seed

STUDENTS: Final = Path("work/student")
BATCH: Final = 1000


def main(args: argparse.Namespace) -> int:
    """Write one row of the predictive for each row of the input.

    Raises:
        UserError: the run is not fitted, or the input does not fit the data it was fitted on.
    """
    from bdl_pipe.data.new_inputs import new_inputs

    student = _student(args.run)
    split, member = vars(args).get("split", 0), vars(args).get("member", 0)
    fitted = load_fitted(student, split, member, os.environ.get("BDL_DEVICE") or "cpu")
    schema = artifacts.load(student, "student", verify=False).json("schema.json")
    given, output = Path(args.input), Path(args.output)
    inputs = new_inputs(given, schema)
    names = _names(given, len(inputs))
    table = {"row" if names is None else "file": names or np.arange(len(inputs)), **predict(fitted, inputs, schema)}
    _write(output, table)
    print(f"{output}: {len(inputs)} rows, {', '.join(table)}")
    return 0


def predict(fitted: Fitted, inputs: np.ndarray, schema: dict[str, Any]) -> dict[str, np.ndarray]:
    """Columns of the predictive of raw ``inputs``, see ``bdl_pipe.summary``."""
    names = schema["classes"] or schema["targets"]
    device, parts = os.environ.get("BDL_DEVICE") or "cpu", []
    for start in range(0, len(inputs), BATCH):
        rng = Seed(0).fold("predict", start)
        predictive = fitted.predict(inputs[start : start + BATCH], rng=rng, device=device)
        parts.append(summary.columns(predictive, names))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _student(run: str) -> Path:
    if (STUDENTS / run / artifacts.MANIFEST).is_file():
        return STUDENTS / run
    known = sorted(p.parent.name for p in STUDENTS.glob(f"*/{artifacts.MANIFEST}"))
    hint = f"fitted: {', '.join(known)}" if known else "nothing is fitted yet; make repro"
    raise UserError(f"{run}: is not a fitted run ({hint})")


def _names(path: Path, count: int) -> list[str] | None:
    """File names of a folder's images, in the order in which they were read; None for other inputs."""
    from bdl_pipe.data.sources.images import image_files

    if not path.is_dir():
        return None
    folders = [path, *sorted(p for p in path.iterdir() if p.is_dir())]
    names = [str(file.relative_to(path)) for folder in folders for file in image_files(folder)]
    assert len(names) == count, (len(names), count)
    return names


def _write(path: Path, table: dict[str, Any]) -> None:
    """Whole or not at all."""
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
