"""results/vbpc/sheets.md: the images of VBPC's coresets, as in figures 2 to 11 of Lee, Lee & Lee 2025.

Run ``python -m benchmarks.pages.coreset_sheets`` in a project folder with the coresets of
``params/coreset-sheets.yaml``. It fits nothing. A picture has a row for each class. Images are clipped to [0, 1] and
shown in 16 grey levels, more than ten images in 5 and more than 100 in 4, so that all pictures together take 400 kB.
"""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from PIL import Image

from bdl_pipe import artifacts
from bdl_pipe.coresets.shared.init import balanced
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.fitting import seeds_of
from bdl_pipe.seeds import Seed
from bdl_report.pictures import sheet
from benchmarks import written
from pipeline.core import places, provenance, records
from pipeline.core.load import load
from pipeline.core.model import Params, Run
from pipeline.prepared import folders

OUT: Final = Path("results/vbpc/sheets.md")
_SIZES: Final = ((10, 16, 2), (100, 5, 1), (None, 4, 1))  # at most so many images -> grey levels, magnification
_START: Final = "start of "  # in front of a coreset's name: the images that it started from
_MOVED: Final = "The mean absolute change of a pixel since the start; training images have intensities in [0, 1]."
FIGURES: Final[Mapping[str, tuple[str, ...]]] = {
    "Figure 2: a start from noise (left) and the coreset (right)": (
        "start of noise_start-1",
        "noise_start-1",
        "start of noise_start-10",
        "noise_start-10",
    ),
    "Figure 3: a start from training images (left) and the coreset (right)": (
        "start of fashion_mnist-1",
        "fashion_mnist-1",
        "start of fashion_mnist-10",
        "fashion_mnist-10",
    ),
    "Figure 4: LAMB (left) and Adam (right)": ("lamb-1", "fashion_mnist-1", "lamb-10", "fashion_mnist-10"),
    "Figure 5: networks of the pool replaced at age 100, 200 and 400": ("fashion_mnist-10", "age_200-10", "age_400-10"),
    "Figure 6: labels that stay (left) and labels that are learned (right)": (
        "fixed_labels-1",
        "fashion_mnist-1",
        "fixed_labels-10",
        "fashion_mnist-10",
    ),
    "Figure 7: without (left) and with (right) Gaussian noise on the images while distilling": (
        "no_noise-1",
        "fashion_mnist-1",
        "no_noise-10",
        "fashion_mnist-10",
    ),
    "Figure 8: MNIST, one image a class; its start on the left": ("start of mnist5k-1", "mnist5k-1"),
    "Figure 9: MNIST, ten and fifty images a class, each below its start": (
        "start of mnist5k-10",
        "mnist5k-10",
        "start of mnist5k-50",
        "mnist5k-50",
    ),
    "Figure 10: Fashion-MNIST, one image a class; its start on the left": (
        "start of fashion_mnist-1",
        "fashion_mnist-1",
    ),
    "Figure 11: Fashion-MNIST, ten and fifty images a class, each below its start": (
        "start of fashion_mnist-10",
        "fashion_mnist-10",
        "start of fashion_mnist-50",
        "fashion_mnist-50",
    ),
}


def main() -> None:
    """Draw the coresets that are stored in this folder, and write the page; it names what is missing."""
    read = load()
    names = dict.fromkeys(name for shown in FIGURES.values() for name in shown)
    place = OUT.parent / "sheets"
    place.mkdir(parents=True, exist_ok=True)
    drawn = {name: file for name in names if (file := draw(name, read, place))}
    origin = written.listed(facts([_key(name) for name in drawn]))
    made = [name for name in drawn if not name.startswith(_START)]
    text = [
        "# Coresets to look at",
        written.about(__doc__),
        origin,
        _MOVED,
        moved_table({name: moved(name, read) for name in made}),
    ]
    for title, shown in FIGURES.items():
        pictures = [f"![{name}](sheets/{drawn[name]})" for name in shown if name in drawn]
        missing = [name for name in shown if name not in drawn]
        text += [f"## {title}", *(["\n".join(pictures)] if pictures else [])]
        text += [f"Not made: {', '.join(missing)}."] if missing else []
    OUT.write_text("\n\n".join(text) + "\n")


def facts(keys: Sequence[str]) -> dict[str, object]:
    """Collect where stored coresets come from: their commits, configs, devices and seconds."""
    known = {key: records.read("coreset", key) for key in keys}
    configs = [artifacts.load(places.artifact("coreset", key), "coreset").manifest["about"] for key in known]
    return {
        "commit": ", ".join(dict.fromkeys(record["commit"] for record in known.values())),
        "configs sha256": provenance.digest(configs),
        "device": ", ".join(dict.fromkeys(record["device"] for record in known.values())),
        "seconds of distillation": round(sum(sum(record["seconds"].values()) for record in known.values()), 1),
    }


def _key(name: str) -> str:
    return f"sheet-{name.removeprefix(_START)}"


def draw(name: str, read: Params, place: Path) -> str | None:
    """Draw a coreset or its start into ``place``; return the file's name, or None if the coreset is not stored."""
    key = _key(name)
    folder = places.artifact("coreset", key)
    if not (folder / artifacts.MANIFEST).is_file():
        return None
    tensors = artifacts.load(folder, "coreset").state("0-0").tensors
    images, classes = tensors["raw"].float().numpy(), tensors["classes"].numpy()
    if name.startswith(_START):
        images = _started(key, read)
    file = name.replace(" ", "_") + ".png"
    (place / file).write_bytes(grey(images, classes))
    return file


def moved(name: str, read: Params) -> float:
    """Return the mean absolute change of a stored coreset's pixels since its start, in intensities."""
    now = artifacts.load(places.artifact("coreset", _key(name)), "coreset").state("0-0").tensors["raw"].float().numpy()
    return float(np.abs(now - _started(_key(name), read)).mean())


def moved_table(changes: Mapping[str, float]) -> str:
    """Write the changes since the start as a table, the largest first."""
    rows = [(name, f"{change:.3f}") for name, change in sorted(changes.items(), key=lambda item: -item[1])]
    return written.table(("coreset", "mean change"), rows)


def _started(key: str, read: Params) -> np.ndarray:
    run = read.run("coreset", key)
    data = folders.load_fit(places.artifact("prepare", run.spec.dataset), 0, final=True)
    return start(run, data, Seed(read.seed))


def start(run: Run, data: FitData, seed: Seed) -> np.ndarray:
    """Return the images that the first seed of a stored coreset started from, in intensities."""
    (fit,) = seeds_of(run.stage, "", {}, seed.fold(run.kind, run.key))
    first = balanced(data, run.config.ipc, 1.0, rng=fit.rng.fold("start"), choice=run.config.coreset.start)
    return data.transform.inverse_inputs(first.images).numpy()


def grey(images: np.ndarray, classes: np.ndarray) -> bytes:
    """Draw grey images in [0, 1], a row for each class, as one PNG; many images have fewer grey levels."""
    levels, big = next((levels, big) for most, levels, big in _SIZES if most is None or len(images) <= most)
    whole = np.asarray(Image.open(io.BytesIO(sheet(images, classes, int(classes.max()) + 1, big=big))))
    picture = Image.fromarray(np.rint(whole / 255 * (levels - 1)).astype(np.uint8), mode="P")
    picture.putpalette([round(255 * level / (levels - 1)) for level in range(levels) for _ in "rgb"])
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG", optimize=True, bits=2 if levels == 4 else 4)
    return buffer.getvalue()


if __name__ == "__main__":
    main()
