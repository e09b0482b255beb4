"""CIBER's figure 2: ten samples of a posterior as a mixture, or with a box over the last layer, against 2,000.

Zeng and Van den Broeck 2023, figure 2 and appendix C.1. ``benchmarks.ciber_toy`` has the problem and lists our choices;
``benchmarks.references.ciber_nuts`` has the stored posterior. Three predictives of y at x are made of ten samples:

    mixture    the average of N(f_s(x), σ²): the paper's "HMC"
    CIBER      the exact integral over a box [min, max] of the last layer's weights over the ten samples, with triangles
               of radius √6·σ; the other weights are each sample's. Either all ten last weights are collapsed, or the
               three with the largest range·|feature|, or only the largest
    fit        one Gaussian with the mean and variance of f over the ten samples, plus σ²

The ten samples are one of four kinds: ``thinned`` draws, far apart in the posterior; ``aligned``, the same draws with
each sample's units permuted to match the first sample's (the order of units is arbitrary, and a box over different
orders is meaningless); a ``run`` of successive draws of one chain; a ``walk`` around one draw, which does not sample
the whole posterior but resembles a trajectory of SGD.

The truth is the mixture of all 2,000 draws. Scores on a grid of x: W₁ of y; KL(truth ‖ estimate), for CIBER with the
tail of ``benchmarks/ciber_linear.py``; the truth's mass within the central 90 % of the estimate; this interval's width
over the truth's. They are averaged over x within the data's intervals, over x in the rest of [-1.5, 1.5], and over
disjoint sets of samples.

    python -m benchmarks.ciber_figure2
"""

import argparse
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import matplotlib
import numpy as np
import torch
from scipy.optimize import linear_sum_assignment

from bdl_pipe.collapsed.integrals import few_uniforms, radius
from benchmarks.ciber_toy import HIDDEN, INTERVALS, NOISES, Reference, cubic, features, functions, parts, read_reference
from benchmarks.written import PAGES, error, table, write

GRID = np.linspace(-1.5, 1.5, 25)
REACH, POINTS = 14.0, 281  # the grid of y, with steps of half the noise
TAIL, COVER = 0.01, 0.9
Densities = np.ndarray  # densities of y [x, y]
Estimate = Callable[[np.ndarray, np.ndarray, np.ndarray], Densities]  # arguments: weights [draw, 140], x, y


def gaussians(y: np.ndarray, mean: np.ndarray, deviation: np.ndarray | float) -> np.ndarray:
    """Gaussian densities at y [..., y], for means [...]."""
    scale = np.asarray(deviation)[..., None]
    return np.exp(-(((y - mean[..., None]) / scale) ** 2) / 2) / (scale * math.sqrt(2 * math.pi))


def mixture(weights: np.ndarray, x: np.ndarray, y: np.ndarray, noise: float) -> Densities:
    """The average over samples [draw, 140] of N(f(x), noise²), one at a time."""
    total = np.zeros((len(x), len(y)))
    for f in functions(weights, x):
        total += gaussians(y, f, noise)
    return total / len(weights)


def fit(weights: np.ndarray, x: np.ndarray, y: np.ndarray, noise: float) -> Densities:
    f = functions(weights, x)
    return gaussians(y, f.mean(0), np.sqrt(f.var(0, ddof=1) + noise**2))


def collapsed(weights: np.ndarray, x: np.ndarray, y: np.ndarray, noise: float, count: int = HIDDEN) -> Densities:
    """CIBER with ``count`` collapsed weights of the last layer: for each x the largest by range·|feature|."""
    z, last = features(weights, x), parts(weights)[4]  # [draw, x, unit], [draw, unit]
    middle, half = (last.max(0) + last.min(0)) / 2, (last.max(0) - last.min(0)) / 2
    order = np.argsort(-half * z, axis=-1, kind="stable")  # features are not negative
    chosen = np.take_along_axis(np.ones_like(z) * (np.arange(HIDDEN) < count), np.argsort(order, axis=-1), -1) > 0
    centre = (z * np.where(chosen, middle, last[:, None])).sum(-1)  # [draw, x]
    widths = -np.sort(-np.where(chosen, half * z, 0), axis=-1)  # [draw, x, unit], the widest first
    q = box_density(y, centre.reshape(-1), widths.reshape(-1, HIDDEN), noise)
    variance = (widths**2).sum(-1) / 3 + noise**2
    return (1 - TAIL) * q.reshape(*centre.shape, -1).mean(0) + TAIL * gaussians(y, centre, np.sqrt(variance)).mean(0)


def box_density(y: np.ndarray, centre: np.ndarray, widths: np.ndarray, noise: float) -> np.ndarray:
    """Densities [point, y] for centres [point] and half-widths [point, unit], zeros last; zeros cost nothing."""
    found, reach = np.empty((len(centre), len(y))), radius(noise, "variance")
    on = (widths > 0).sum(-1)
    for count in np.unique(on):
        where = on == count
        made = [torch.from_numpy(a) for a in (y, centre[where][:, None], widths[where][:, None, :count])]
        found[where] = few_uniforms.triangular_density(*made, reach).numpy()
    return found


def aligned(weights: np.ndarray) -> np.ndarray:
    """The same functions; each sample's last hidden units are permuted to match the first sample's contributions."""
    first, bias, middle, shift, last = parts(weights)
    adds = features(weights, GRID) * last[:, None]  # [draw, x, unit]
    rows = []
    for k in range(len(weights)):
        gaps = ((adds[0][:, :, None] - adds[k][:, None]) ** 2).sum(0)  # [unit of the first, unit of this]
        order = linear_sum_assignment(gaps)[1]
        rows.append(np.concatenate([first[k], bias[k], middle[k][order].ravel(), shift[k][order], last[k][order]]))
    return np.stack(rows)


def score(truth: Densities, estimate: Densities, y: np.ndarray) -> dict[str, np.ndarray]:
    """Each score at each x [x]; densities on a grid, of a total mass of one."""
    step = y[1] - y[0]
    below = [np.cumsum(d, -1) * step for d in (truth, estimate)]
    ends = [quantile(below[1], y, q) for q in ((1 - COVER) / 2, (1 + COVER) / 2)]
    true = [quantile(below[0], y, q) for q in ((1 - COVER) / 2, (1 + COVER) / 2)]
    middle = y + step / 2  # a sum up to a point is the mass up to half a step beyond it
    mass = [np.array([np.interp(v, middle, row) for v, row in zip(e, below[0], strict=True)]) for e in ends]
    gap = np.where(truth > 0, np.log(np.maximum(truth, 1e-300)) - np.log(np.maximum(estimate, 1e-300)), 0)
    return {
        "W₁": np.abs(below[0] - below[1]).sum(-1) * step,
        "KL": (truth * gap).sum(-1) * step,
        "coverage": mass[1] - mass[0],
        "width": (ends[1] - ends[0]) / (true[1] - true[0]),
    }


def quantile(below: np.ndarray, y: np.ndarray, level: float) -> np.ndarray:
    """The quantile at ``level`` of each row of distribution functions [x, y] -> [x]."""
    middle = y + (y[1] - y[0]) / 2
    return np.array([np.interp(level, row, middle) for row in below])


def at_data(x: np.ndarray) -> np.ndarray:
    return np.any([(x >= low) & (x <= high) for low, high in INTERVALS], axis=0)


def estimates(noise: float) -> dict[str, Estimate]:
    made: dict[str, Estimate] = {"mixture": partial(mixture, noise=noise), "fit": partial(fit, noise=noise)}
    return made | {f"CIBER, {count}": partial(collapsed, noise=noise, count=count) for count in (1, 3, HIDDEN)}


def sets(reference: Reference, count: int) -> dict[str, list[np.ndarray]]:
    """Disjoint sets of ten samples, by the kind of the samples."""
    every = len(reference.weights) // 10
    thinned = [reference.weights[k::every] for k in range(count)]
    found = {"thinned": thinned, "aligned": [aligned(w) for w in thinned]}
    for name, blocks in (("run", reference.runs), ("walk", reference.walks)):
        found[name] = list(blocks[np.linspace(0, len(blocks) - 1, count).astype(int)])
    return found


def rows(reference: Reference, count: int) -> list[list[str]]:
    y, inside = np.linspace(-REACH, REACH, POINTS), at_data(GRID)
    truth, found = mixture(reference.weights, GRID, y, reference.about["noise"]), []
    for name, taken in sets(reference, count).items():
        for method, predict in estimates(reference.about["noise"]).items():
            if name == "aligned" and "CIBER" not in method:
                continue  # the order of the units changes no function
            scores = [score(truth, predict(weights, GRID, y), y) for weights in taken]
            cells = []
            for key, digits in (("W₁", 3), ("KL", 2), ("coverage", 2), ("width", 2)):
                for mask in (inside, ~inside):
                    each = np.array([s[key][mask].mean() for s in scores])
                    cells.append(error(each.mean(), each.std(ddof=1) / math.sqrt(count), digits))
            found.append([name, method, *cells])
    return found


def draw(reference: Reference, count: int) -> None:
    """The paper's three panels, for thinned samples, and one for a walk: mean and central 90 %."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    noise, taken = reference.about["noise"], sets(reference, count)
    y, x = np.linspace(-REACH, REACH, POINTS), np.linspace(-1.5, 1.5, 61)
    few, walk = taken["thinned"][0], taken["walk"][0]
    panels = {"NUTS, ten samples": mixture(few, x, y, noise), "CIBER, the same ten": collapsed(few, x, y, noise)}
    panels |= {"NUTS, 2,000 samples": mixture(reference.weights, x, y, noise)}
    panels |= {
        "a walk: its ten as a mixture": mixture(walk, x, y, noise),
        "a walk: CIBER": collapsed(walk, x, y, noise),
    }
    panels |= {"CIBER, three weights, thinned": collapsed(few, x, y, noise, 3)}
    with matplotlib.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure, axes = pyplot.subplots(2, 3, figsize=(9.6, 5.8), layout="constrained", sharey=True)
        for axis, (title, density) in zip(axes.flat, panels.items(), strict=True):
            _panel(axis, title, reference, x, y, density)
        axes[0, 0].legend(fontsize=7.5, frameon=False)
        figure.savefig(PAGES / "figure2.png", dpi=110)


def _panel(axis: Any, title: str, reference: Reference, x: np.ndarray, y: np.ndarray, density: Densities) -> None:
    step = y[1] - y[0]
    below = np.cumsum(density, -1) * step
    low, high = (quantile(below, y, level) for level in ((1 - COVER) / 2, (1 + COVER) / 2))
    axis.fill_between(x, low, high, color="C0", alpha=0.25, linewidth=0, label="central 90 %")
    axis.plot(x, (density * y).sum(-1) * step, "C0", linewidth=1.6, label="mean")
    axis.plot(x, cubic(x), "r", linewidth=0.9, label="4x³ - 2x")
    axis.plot(reference.x, reference.y, "k.", markersize=4, label="observations")
    axis.set(title=title, xlim=(-1.5, 1.5), ylim=(-8, 8), xlabel="x")


def about(values: Sequence[dict[str, Any]], keys: Sequence[str]) -> str:
    shown = [[f"{one[key]:.6g}" if isinstance(one[key], float) else f"{one[key]}" for one in values] for key in keys]
    heads = ["NUTS", *(f"noise {one['noise']:g}" for one in values)]
    return table(heads, [[key.replace("_", " "), *cells] for key, cells in zip(keys, shown, strict=True)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=int, default=20, help="of ten samples, at most 40")
    options = parser.parse_args()
    torch.set_num_threads(1)
    start, references = time.process_time(), [read_reference(noise) for noise in NOISES]
    keys = ("sampler", "chains", "draws", "burn_in", "r_hat_max", "ess_min", "divergences", "acceptance", "cpu_s")
    heads = ["ten samples", "estimate"]
    heads += [f"{key}, {part}" for key in ("W₁", "KL", "coverage", "width") for part in ("data", "elsewhere")]
    made = [about([reference.about for reference in references], keys), EXPLAINED.format(options.sets)]
    for reference in references:
        made += [f"## Noise {reference.about['noise']:g}", table(heads, rows(reference, options.sets), left=2)]
    draw(references[0], options.sets)
    made += ["![Mean and central 90 % of each, of the first set](figure2.png)", f"Noise {NOISES[0]}, the first set."]
    write(PAGES / "figure2.md", "The toy regression of figure 2", "python -m benchmarks.ciber_figure2", made, start)


EXPLAINED = """Mean ± standard error over {} disjoint sets of ten samples. "Data": x within the data's intervals;
"elsewhere": the rest of [-1.5, 1.5]. "Coverage": the mass of the 2,000 in the estimate's central 90 %; "width": that
interval's over theirs. Ways to take samples, and estimates: the head of `benchmarks/ciber_figure2.py`."""


if __name__ == "__main__":
    main()
