"""A coreset: tensors, pictures, a card and a script that trains on it without this project.

The transform is there in words and numbers. The card and the script are templates beside this file.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from bdl_pipe import artifacts
from bdl_pipe.config import nearest
from bdl_pipe.coresets.shared.init import Coreset
from bdl_pipe.data.catalog import licence_of
from bdl_pipe.errors import ConfigError, UserError
from bdl_pipe.method import fan_in
from bdl_report.pictures import write

from ...core import places, records
from ...core.load import load
from ...core.model import Params, Run
from ...plan.plan import was_made_from
from ...prepared.folders import load_fit
from ..shared import TEMPLATES, scores_of, whole

SCORES: Final = ("accuracy", "nll", "ece")  # the columns of the card's scores


def export(key: str, target: Path, split: int = 0, seed: int = 0) -> None:
    """Write the folder ``target``.

    Args:
        key: the key of a run of ``coresets``, or of a run of ``runs`` with a coreset as its input.

    Raises:
        UserError: the run is not a coreset, is not made yet or has no such seed, its transform differs from the present
            data's, or the folder is not empty.
    """
    params = load()
    run = coreset_of(params, key)
    place = places.artifact("coreset", run.key)
    if not (place / artifacts.MANIFEST).is_file():
        raise UserError(f"{run.key}: does not exist yet; make repro")
    artifact, name = artifacts.load(place, "coreset"), f"{split}-{seed}"
    if name not in artifact.names():
        raise UserError(f"{run.key}: has no split {split} with seed {seed}{nearest(name, artifact.names())}")
    prepared = places.artifact("prepare", run.spec.dataset)
    data, state = load_fit(prepared, split, final=True), artifact.state(name)
    try:
        Coreset.for_fit(state, data)
    except ConfigError as error:
        raise UserError(f"{run.key}: does not fit {prepared} ({error}); make repro") from None
    if state.tensors["images"].ndim != 4:
        raise UserError(f"{run.key}: is a coreset of table rows; only coresets of images can be exported")
    with whole(target) as folder:
        write(folder, state, data.transform, data.classes)
        transform = json.loads((folder / "transform.json").read_text(encoding="utf-8"))
        _, channels, height, width = state.tensors["images"].shape
        shape = {"channels": channels, "height": height, "width": width, "outputs": data.outputs}
        script = TEMPLATES.get_template("train.py.jinja").render(**shape, whitened=transform["whitening"])
        (folder / "train.py").write_text(script, encoding="utf-8")
        (folder / "README.md").write_text(card(params, run, artifact, split, seed, transform), encoding="utf-8")
    print(f"{target}: {len(state.tensors['images'])} images of {run.key}; see {target / 'README.md'} for their use")


def coreset_of(params: Params, key: str) -> Run:
    """Return the run of ``coresets`` that ``key`` names, or the coreset input of a run of ``runs``."""
    if ("student", key) in params.runs and ("coreset", key) not in params.runs:
        source = params.run("student", key).sources.get("coreset")
        if source is None:
            near = nearest(key, [run.key for run in params.of("coreset")])
            raise UserError(f"{key}: does not start from a coreset{near}")
        key = source
    return params.run("coreset", key)


def card(
    params: Params, run: Run, artifact: artifacts.Artifact, split: int, seed: int, transform: dict[str, Any]
) -> str:
    """Return the card: a description of the coreset, its origin, its scores and its use."""
    name = f"{split}-{seed}"
    tensors, record, about = artifact.state(name).tensors, records.read("coreset", run.key), artifact.manifest["about"]
    source, labels = params.datasets[run.spec.dataset].source.name, tensors["labels"]
    rounded = {key: [f"{value:.6g}" for value in transform[key]] for key in ("mean", "std")}
    return TEMPLATES.get_template("README.md.jinja").render(
        run=run.key,
        about=about,
        source=source,
        licence=licence_of(source),
        split=split,
        seed=seed,
        record={"commit": "", "device": "", **record},
        seconds=record.get("seconds", {}).get(name, 0),
        sha256=artifacts.sha256(artifact.path / artifacts.MANIFEST),
        scores=list(scores(params, run, split, seed, sum(other.startswith(f"{split}-") for other in artifact.names()))),
        images=list(tensors["images"].shape),
        labels=list(labels.shape),
        present=len(tensors["classes"].unique()),
        scale=float((labels.amax(1) - labels.amin(1)).mean()),
        transform=transform | rounded,
        settings=json.dumps(about["config"], indent=1, sort_keys=True),
    )


def scores(params: Params, run: Run, split: int, seed: int, count: int) -> Iterator[dict[str, object]]:
    """Yield the test scores of each run that was fitted to this coreset.

    Args:
        count: the number of coresets of the split, which a run's seeds use in turn.
    """
    for student in params.of("student"):
        if student.sources.get("coreset") != run.key:
            continue
        rule = student.stage.needs["coreset"]
        used = [
            number for number in range(student.spec.seeds) if seed in fan_in(rule, number, count, student.spec.seeds)
        ]
        if not _is_made_from(student, run):
            print(f"note: {student.key}: its test scores are left out, as it is of an earlier coreset; make repro")
            continue
        if figures := scores_of(student.key, split, used, SCORES):
            yield {"run": student.key, "protocol": student.method.name, "figures": figures.values(), "fits": len(used)}


def _is_made_from(student: Run, coreset: Run) -> bool:
    """Return True if a run was fitted to the present coreset, which is its input or in the bundle that is its input."""
    kind, _, key = student.spec.input.partition("/")
    bundled = kind != "inputs" or was_made_from(kind, key, places.artifact("coreset", coreset.key))
    return bundled and was_made_from("student", student.key, places.artifact(kind, key))
