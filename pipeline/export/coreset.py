"""A coreset for others: ``python -m pipeline export coreset RUN --to DIR``; the folder needs nothing of this project.

It has the exact training tensors, the images as they look, the transform in words and numbers, a card, and a script of
plain torch that trains on it. The card and the script are the templates beside this file.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import jinja2
import pyarrow.compute as pc
from safetensors.torch import save_file

from bdl_pipe import artifacts
from bdl_pipe import scores as stored_scores
from bdl_pipe.config import nearest
from bdl_pipe.coresets.shared.init import Coreset
from bdl_pipe.coresets.shared.pictures import png, sheet
from bdl_pipe.data.prepared import load_fit
from bdl_pipe.data.transform import Transform
from bdl_pipe.errors import ConfigError, UserError
from bdl_pipe.method import fan_in
from bdl_pipe.scores import Quantity, RunScores

from ..core import places, records
from ..core.load import load
from ..core.model import Params, Run
from ..report.columns import Column, figure
from . import whole

SCORES: Final = ("accuracy", "nll", "ece")  # the columns of the card's scores
_TEMPLATES: Final = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
    trim_blocks=True,
    keep_trailing_newline=True,
    undefined=jinja2.StrictUndefined,
)


def export(key: str, target: Path, split: int = 0, seed: int = 0) -> None:
    """Write the folder ``target``.

    Args:
        key: of an entry of ``coresets``, or of one of ``runs`` that is made from a coreset.

    Raises:
        UserError: the run is no coreset, is not made, or has no such seed; its images went through another transform
            than that of the data that there are now; the folder is not empty.
    """
    params = load()
    run = coreset_of(params, key)
    place = places.artifact("coreset", run.key)
    if not (place / artifacts.MANIFEST).is_file():
        raise UserError(f"{run.key}: is not made yet; make repro")
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
        raise UserError(f"{run.key}: has rows of features; only coresets of images are exported")
    with whole(target) as folder:
        write(folder, state, data.transform, list(data.classes))
        (folder / "README.md").write_text(card(params, run, artifact, split, seed, data.transform))
    print(f"{target}: {len(state.tensors['images'])} images of {run.key}; {target / 'README.md'} says how to use them")


def coreset_of(params: Params, key: str) -> Run:
    """Return the run of ``coresets`` that ``key`` names, or that the run of ``runs`` is made from."""
    if ("student", key) in params.runs and ("coreset", key) not in params.runs:
        source = params.run("student", key).sources.get("coreset")
        if source is None:
            raise UserError(
                f"{key}: is not made from a coreset{nearest(key, [run.key for run in params.of('coreset')])}"
            )
        key = source
    return params.run("coreset", key)


def write(folder: Path, state: artifacts.State, transform: Transform, classes: list[str]) -> None:
    """Write everything but the card."""
    tensors = {name: state.tensors[name].contiguous() for name in Coreset.TENSORS}
    save_file(tensors, folder / "coreset.safetensors")
    if transform.whitening is not None:
        named = {key: getattr(transform.whitening, key) for key in ("centre", "matrix", "inverse")}
        save_file({key: value.contiguous() for key, value in named.items()}, folder / "whitening.safetensors")
    about = {"classes": classes, **describe(transform)}
    (folder / "transform.json").write_text(json.dumps(about, indent=1) + "\n")
    channels, height, width = tensors["images"].shape[1:]
    script = _TEMPLATES.get_template("train.py.jinja").render(
        channels=channels,
        height=height,
        width=width,
        outputs=tensors["labels"].shape[1],
        whitened=transform.whitening is not None,
    )
    (folder / "train.py").write_text(script)
    digits = len(str(len(tensors["raw"]) - 1))
    for number, (raw, label) in enumerate(zip(tensors["raw"], tensors["classes"].tolist(), strict=True)):
        place = folder / "images" / file_name(classes[label])
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number:0{digits}}.png").write_bytes(png(raw.float().numpy()))
    whole_sheet = sheet(tensors["raw"].float().numpy(), tensors["classes"].numpy(), len(classes))
    (folder / "sheet.png").write_bytes(whole_sheet)


def describe(transform: Transform) -> dict[str, Any]:
    """Describe what the transform does to images, and what undoes it."""
    forward, inverse = "x = (pixels - mean) / std for each channel", "pixels = x std + mean for each channel"
    if transform.whitening is not None:
        forward += "; flat = x of one image as a row, channel by channel; x = (flat - centre) matrix"
        inverse = f"flat = x inverse + centre; {inverse}, with flat as x"
    numbers = {"mean": transform.mean.tolist(), "std": transform.std.tolist()}
    return {"forward": forward, "inverse": inverse, **numbers, "whitening": transform.whitening is not None}


def file_name(label: str) -> str:
    """Return a class's name as a folder's: letters, digits, ``-`` and ``_``."""
    return "".join(c if c.isalnum() or c in "-_" else "_" for c in label) or "_"


def card(params: Params, run: Run, artifact: artifacts.Artifact, split: int, seed: int, transform: Transform) -> str:
    """Return the card: what the coreset is, where it comes from, how well it does, how it is used."""
    name = f"{split}-{seed}"
    tensors, record, about = artifact.state(name).tensors, records.read("coreset", run.key), artifact.manifest["about"]
    source, labels = params.datasets[run.spec.dataset].source.name, tensors["labels"]
    described = describe(transform)
    described |= {key: [f"{value:.6g}" for value in described[key]] for key in ("mean", "std")}
    return _TEMPLATES.get_template("README.md.jinja").render(
        run=run.key,
        about=about,
        source=source,
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
        transform=described,
        settings=json.dumps(about["config"], indent=1, sort_keys=True),
    )


def scores(params: Params, run: Run, split: int, seed: int, count: int) -> Iterator[dict[str, Any]]:
    """Yield the test scores of each run that was fitted to this very coreset.

    Args:
        count: the coresets of the split; the seeds of a run take turns with them.
    """
    for student in params.of("student"):
        place = places.artifact("evaluate", student.key)
        if student.sources.get("coreset") != run.key or not (place / artifacts.MANIFEST).is_file():
            continue
        rows = stored_scores.read(artifacts.load(place, "evaluate").path / "scores.parquet")
        rule = student.stage.needs["coreset"]
        used = [number for number in range(student.spec.seeds) if seed in fan_in(rule, number, count)]
        found = RunScores(rows.filter((pc.field("split") == split) & pc.field("seed").isin(used)))
        known = {metric: found.estimate(Quantity(metric)) for metric in SCORES}
        if fits := max((score.n for score in known.values() if score), default=0):
            figures = [figure(score, Column("", Quantity(metric))).figure for metric, score in known.items()]
            yield {"run": student.key, "protocol": student.method.name, "figures": figures, "fits": fits}
