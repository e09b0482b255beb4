"""The pictures of the methods' pages: each method's predictive on a curve with a gap and on two moons.

    python -m website.pictures [METHOD ...]

Without names it draws the missing pictures, so that it may be stopped at any time. A method is fitted by
``BayesianRegressor(method).fit(x, y)`` with the estimators' defaults; nothing is tuned for the picture. Methods that
accept only images have no picture of this kind.
"""

import io
import sys
import time
from pathlib import Path
from typing import Final

import matplotlib
import numpy as np
import torch
from PIL import Image
from sklearn.datasets import make_moons

from bdl_pipe import METHODS, BayesianClassifier, BayesianRegressor

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

OUT: Final = Path(__file__).parents[1] / "docs/methods/images"
IMAGES_ALONE: Final = "coresets."  # the module of the methods that, for classes, take only images
ROWS: Final = {"random-ipc1": "random_coreset"}  # a row's name -> its method, if they differ
SIDE: Final = 70  # points per side of the map of probabilities


def main() -> None:
    """Draw the pictures of the named methods, or without names all missing pictures."""
    OUT.mkdir(parents=True, exist_ok=True)
    asked = sys.argv[1:]
    if not asked:
        cut_coresets()
    for name in asked or [name for name in drawable() if not (OUT / f"{name}.png").exists()]:
        start = time.perf_counter()
        draw(name, OUT / f"{name}.png")
        print(f"{name}: {time.perf_counter() - start:.1f} s", flush=True)


def drawable() -> list[str]:
    """List the methods that predict from rows of a table with the values that they have in ``params.yaml``."""
    without_values = ("vbll_bnn", "d_vbll_bnn", "g_vbll_bnn", "fcg_w")
    return [
        name
        for name, method in METHODS.items()
        if "student" in method.stages and name not in without_values
        if IMAGES_ALONE not in METHODS.module(name) or "regression" in method.tasks
    ]


def cut_coresets() -> None:
    """Cut the rows of the stored picture of coresets: one image of each class of Fashion-MNIST by each method."""
    stored = Path(__file__).parents[1] / "results/coresets"
    picture = Image.open(stored / "fashion_mnist-ipc1.png")
    text = (stored / "README.md").read_text().partition("](fashion_mnist-ipc1.png)")[2]
    names = text.partition("Rows, from the top: ")[2].partition(".\n")[0].split(", ")
    for number, name in enumerate(names):
        if (method := ROWS.get(name, name.removesuffix("-ipc1"))) not in METHODS:
            continue
        top, bottom = (round(edge * picture.height / len(names)) for edge in (number, number + 1))
        row = picture.crop((0, top, picture.width, bottom))
        row.save(OUT / f"{method}.png", optimize=True)


def curve() -> tuple[np.ndarray, np.ndarray]:
    """Return 100 rows of sin(4x) with noise of standard deviation 0.15, none of them in the middle."""
    random = np.random.default_rng(0)
    x = np.concatenate([random.uniform(-1.2, -0.3, 50), random.uniform(0.3, 1.2, 50)])
    return x[:, None], np.sin(4 * x) + 0.15 * random.normal(size=100)


def draw(name: str, path: Path) -> None:
    """Fit the method to its tasks' problems and write the picture."""
    torch.set_num_threads(1)
    tasks = METHODS[name].tasks
    figure, axes = plt.subplots(1, len(tasks), figsize=(3.6 * len(tasks), 2.5), dpi=110, squeeze=False)
    for task, axis in zip(sorted(tasks, reverse=True), axes[0], strict=True):
        (_regression if task == "regression" else _moons)(name, axis)
        axis.tick_params(labelsize=7)
    figure.tight_layout(pad=0.4)
    buffer = io.BytesIO()
    figure.savefig(buffer)
    plt.close(figure)
    Image.open(buffer).convert("RGB").quantize(96).save(path, optimize=True)


def _regression(name: str, axis: Axes) -> None:
    x, y = curve()
    model = BayesianRegressor(name).fit(x, y)
    grid = np.linspace(-2.2, 2.2, 300)[:, None]
    for level, shade in ((0.9, "#c6dbef"), (0.5, "#6baed6")):
        low, high = model.predict_interval(grid, level=level)
        axis.fill_between(grid[:, 0], low, high, color=shade, linewidth=0, label=f"{level:.0%}")
    axis.plot(grid[:, 0], model.predict(grid), color="#08306b", linewidth=1.2)
    axis.plot(grid[:, 0], np.sin(4 * grid[:, 0]), color="black", linewidth=0.7, linestyle=":")
    axis.plot(x[:, 0], y, ".", color="#d94801", markersize=2.5)
    axis.set(xlim=(-2.2, 2.2), ylim=(-3, 3))


def _moons(name: str, axis: Axes) -> None:
    x, y = make_moons(200, noise=0.12, random_state=0)
    model = BayesianClassifier(name).fit(x, y)
    across, up = np.linspace(-3, 4, SIDE), np.linspace(-2.5, 3, SIDE)
    rows = np.stack(np.meshgrid(across, up), -1).reshape(-1, 2)
    probability = model.predict_proba(rows)[:, 1].reshape(SIDE, SIDE)
    shown = axis.imshow(
        probability, extent=(-3, 4, -2.5, 3), origin="lower", cmap="RdBu", vmin=0, vmax=1, aspect="auto"
    )
    for label, colour in ((0, "#fddbc7"), (1, "#d1e5f0")):
        axis.scatter(*x[y == label].T, s=5, color=colour, edgecolors="black", linewidths=0.3)
    axis.figure.colorbar(shown, ax=axis, ticks=[0, 0.5, 1]).ax.tick_params(labelsize=7)


if __name__ == "__main__":
    main()
