"""A fitted posterior as a program for torch or onnxruntime alone."""

from pathlib import Path

import torch

from bdl_pipe import artifacts, programs
from bdl_pipe.data.catalog import licence_of
from bdl_pipe.errors import UserError
from bdl_pipe.registry import load_predictor, stored_address

from ...core import places, records
from ...core.load import load
from ...prepared.folders import load_fit, load_schema
from .. import program_folder
from ..shared import scores_of, student_of, whole

_ROWS = 64  # rows of the comparison between program and posterior
_SCORES = {"classification": ("accuracy", "nll", "ece"), "regression": ("rmse", "nll", "coverage_90")}


def export(run: str, target: Path, split: int = 0, seed: int = 0) -> None:
    """Write the folder ``target`` with a program that predicts like one fit of the run.

    Raises:
        UserError: the run is not fitted, has no such fit or cannot be traced, its data set is no longer in params.yaml
            or has other columns, or the folder is not empty.
    """
    student, params = student_of(run), load()
    artifact, fitted = artifacts.load(student, "student", verify=False), load_predictor(student, split, seed)
    about, schema = artifact.manifest["about"], artifact.json("schema.json")
    if about["dataset"] not in params.datasets:
        raise UserError(f"{run}: params.yaml no longer has its data set {about['dataset']}; add it again first")
    source = params.datasets[about["dataset"]].source.name
    prepared = places.artifact("prepare", about["dataset"])
    present = load_schema(prepared)
    if any(present[name] != schema[name] for name in ("features", "classes", "input_shape")):
        raise UserError(f"{run}: {about['dataset']} has other columns or classes than at the fit; make repro")
    data = load_fit(prepared, split, final=True)
    with whole(target) as folder:
        rows = torch.from_numpy(data.train.inputs[:_ROWS].copy())  # the stored rows are read-only
        program = programs.trace(fitted, rows, rng=stored_address(student, split, seed))
        facts = {
            "Run": run,
            "Method": f"`{about['method']}`",
            "Data": f"{source}, split {split}, seed {seed}",
            "Data licence": licence_of(source),
            **{f"Test {name}": value for name, value in scores_of(run, split, [seed], _SCORES[schema["task"]]).items()},
            "Made at commit": records.read("student", run).get("commit") or "unknown",
            "SHA-256 of the artifact": artifacts.sha256(student / artifacts.MANIFEST),
        }
        written = program_folder.write(folder, program, schema, facts)
    print(f"{target}: {' and '.join(written)} of {run}; see {target / program_folder.CARD} for how to run it")
