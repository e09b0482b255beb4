"""results/vbpc/influence.md: the training images that a learned coreset of Fashion-MNIST uses most and least.

    python -m pipeline repro prepare@fashion_small
    python -m benchmarks.vbpc_influence          # --prepared DIR, --steps N: 100

``row_influence`` scores the 12,000 training rows of ``fashion_small`` for a coreset of ten images a class that VBPC
learned from them, with two students and 5,000 validation rows as the reference. Test rows are not read.

**Leaving rows out.** A small problem: one row after another of 100 training rows is left out of outer gradient steps on
all rows (one image a class, a fixed random network), three of rate 20 or ten of rate 100, and the cost is the change of
the loss of 1,000 validation rows. The rank correlation of the cost is with the influence at the start, with the mean
influence over the steps, and with the latter in a random order. Errors are standard errors over three seeds, each with
other rows, network and start.

**Use.** A fifth of the training rows is left out: the most useful rows of each class, the least useful, or random ones.
VBPC learns a coreset of the others, and its student is scored on 5,000 validation rows that no influence has seen.
Differences from the random fifth are paired by seed; a difference below 4.3 of its errors (95 % by Student's t) is not
established.

**Pictures.** A line is a class, in the order of the classes; within a line the most extreme image is at the left.
"""

from dataclasses import replace
from itertools import combinations

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor

from bdl_pipe.artifacts import State
from bdl_pipe.coresets.vbpc.influence import row_influence, row_losses
from bdl_pipe.coresets.vbpc.posterior import VbpcPosterior
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.seeds import Seed
from bdl_report.pictures import png
from benchmarks import vbpc_small as small
from benchmarks import written

STUDENT = 4.303  # the quantile .975 of Student's t with two degrees of freedom
REFERENCE = 5_000  # validation rows of the reference, and as many others for scores
ROWS = 10  # a class, in the small problem
DESCENTS = {"three short steps": (3, 20.0), "ten long steps": (10, 100.0)}  # -> their number and rate
SHOWN, BIG, SHARE = 12, 2, 5


def main() -> None:
    options = small.arguments(__doc__)
    data, figures = small.load_data(options.prepared), small.Figures(f"vbpc_influence-{options.steps}")
    alone = {
        steps: [
            figures.get(f"{steps}, {seed}", lambda s=seed, d=descent: left_out(data, s, *d)) for seed in small.SEEDS
        ]
        for steps, descent in DESCENTS.items()
    }
    influences = [
        figures.get(f"influence, {seed}", lambda s=seed: influence(data, options.steps, s)) for seed in small.SEEDS
    ]
    scores = np.array(influences)
    fifths = {
        out: [
            figures.get(f"{out}, {seed}", lambda s=seed, o=out: without(data, scores[s], o, options.steps, s))
            for seed in small.SEEDS
        ]
        for out in ("random", "most useful", "least useful")
    }
    first = written.table(
        ("rank correlation of the cost with", *DESCENTS),
        [
            (name, *(small.mean_and_error([values[name] for values in found], 2) for found in alone.values()))
            for name in alone["ten long steps"][0]
        ],
    )
    second = written.table(
        ("left out", "NLL", "accuracy", "NLL − random", "accuracy − random"),
        [(f"the {name} fifth", *cells(found, fifths["random"])) for name, found in fifths.items()],
    )
    parts = [
        "## Leaving rows out",
        first,
        "## Use",
        second,
        "## Pictures",
        described(scores),
    ]
    for name, sign in (("most", -1), ("least", 1)):
        (small.OUT / f"influence-{name}.png").write_bytes(png(picture(sign * scores[0], data)))
        parts.append(f"![The {name} useful training images](influence-{name}.png)\n\n*The {name} useful images.*")
    small.write_page(
        "influence", "The influence of training rows on a coreset", __doc__, parts, figures.seconds(), options.steps
    )


def left_out(data: FitData, seed: int, steps: int, rate: float) -> dict[str, float]:
    """Return the rank correlations of one seed's small problem."""
    rng = Seed(seed).fold("left out")
    part = small.training_rows(data, small.balanced_rows(data.train.targets, ROWS, rng.fold("rows")))
    rows, reference = part.tensors("train"), validation(data, rng, 1_000)[0]
    start = small.coreset_of(part, small.random_config(1), rng)
    student = random_student(part, start, rng)
    losses, goal = row_losses(student, *rows), row_losses(student, *reference)
    count = len(rows[1])

    def descend(weights: Tensor, along: list[Tensor] | None = None) -> float:
        images, labels = start.tensors["images"], start.tensors["labels"] / 8  # the labels that VBPC starts from
        for _ in range(steps):
            if along is not None:
                state = State({"images": images, "labels": labels}, {})
                along.append(row_influence([student], state, rows, reference))
            leaves = tuple(tensor.detach().requires_grad_() for tensor in (images, labels))
            gradient = torch.autograd.grad(weights @ losses(*leaves) / count, leaves)
            images, labels = (leaf.detach() - rate * slope for leaf, slope in zip(leaves, gradient, strict=True))
        with torch.no_grad():
            return float(goal(images, labels).double().mean())

    along: list[Tensor] = []
    whole = descend(torch.ones(count), along)
    costs = [descend(torch.ones(count).index_fill(0, torch.tensor([row]), 0.0)) - whole for row in range(count)]
    mean = torch.stack(along).mean(0).numpy()
    orders = {
        "the influence at the start": along[0].numpy(),
        "the mean influence over the steps": mean,
        "the mean influence in a random order": rng.fold("order").numpy().permutation(mean),
    }
    found = {name: float(spearmanr(values, costs)[0]) for name, values in orders.items()}
    with torch.no_grad():
        before = float(goal(start.tensors["images"], start.tensors["labels"] / 8).double().mean())
    return found | {"(the loss before the steps, nats)": before, "(the loss after them, nats)": whole}


def random_student(data: FitData, coreset: State, rng: Seed) -> VbpcPosterior:
    """Return a student whose network is random (T' = 0)."""
    settings = small.vbpc_config(1)
    return small.student_of(data, coreset, replace(settings, student=replace(settings.student, steps=0)), rng)


def validation(data: FitData, rng: Seed, count: int) -> list[tuple[Tensor, Tensor]]:
    """Draw two parts of ``count`` validation rows, which share no row."""
    order = rng.fold("validation").numpy().permutation(len(data.validation))[: 2 * count]
    parts = (order[:count], order[count:])
    return [data.transform.rows(data.validation.inputs[part], data.validation.targets[part]) for part in parts]


def influence(data: FitData, steps: int, seed: int) -> list[float]:
    """Learn a coreset, fit two students to it, and return the influence of each training row."""
    rng, settings = Seed(seed).fold("influence"), small.vbpc_config(steps)
    coreset = small.coreset_of(data, settings, rng)
    students = [small.student_of(data, coreset, settings, rng.fold("student", number)) for number in range(2)]
    reference = validation(data, rng, REFERENCE)[0]
    return [float(f"{v:.4g}") for v in row_influence(students, coreset, data.tensors("train"), reference).tolist()]


def without(data: FitData, scores: np.ndarray, out: str, steps: int, seed: int) -> tuple[float, float]:
    """Learn a coreset without a fifth of each class; return its student's NLL and accuracy on other validation rows."""
    rng, settings, kept = Seed(seed).fold("influence"), small.vbpc_config(steps), list[np.ndarray]()
    values = {"random": rng.fold("random").numpy().random(len(scores)), "most useful": -scores, "least useful": scores}
    for k in np.unique(data.train.targets):
        rows = np.flatnonzero(data.train.targets == k)
        kept.append(rows[np.argsort(values[out][rows])[len(rows) // SHARE :]])
    part = small.training_rows(data, np.sort(np.concatenate(kept)))
    coreset = small.coreset_of(part, settings, rng)
    student = small.student_of(part, coreset, settings, rng)
    inputs, classes = validation(data, rng, REFERENCE)[1]
    predictive = student.predict(inputs)
    right = (predictive.mean.argmax(1) == classes).double()
    return float(-predictive.log_prob(classes).mean()), float(right.mean())


def cells(found: list[list[float]], random: list[list[float]]) -> list[str]:
    """Return NLL and accuracy, and their differences from the random fifth, marked by ~ if not established."""
    values, others = np.array(found), np.array(random)
    texts = [small.mean_and_error(values[:, k].tolist()) for k in (0, 1)]
    for gaps in (values - others).T.tolist():
        sure = abs(np.mean(gaps)) > STUDENT * written.mean_and_error(gaps)[1]
        texts.append("—" if not any(gaps) else ("" if sure else "~ ") + small.mean_and_error(gaps))
    return texts


def described(scores: np.ndarray) -> str:
    """Return the sentences on the signs of the scores and their agreement between seeds."""
    pairs = [float(spearmanr(scores[i], scores[j])[0]) for i, j in combinations(range(len(scores)), 2)]
    shares = [float((values < 0).mean()) for values in scores]
    return (
        f"The share of rows with a negative influence is {small.mean_and_error(shares)}. The influences of two seeds, "
        f"which have other coresets, students and reference rows, have the rank correlation "
        f"{small.mean_and_error(pairs, 2)} over {scores.shape[1]:,} rows (three pairs). The pictures are of seed 0."
    )


def picture(order: np.ndarray, data: FitData) -> np.ndarray:
    """Put the first images of each class by ``order`` side by side [channel, height, width], a line for each class."""
    lines = []
    for k in np.unique(data.train.targets):
        rows = np.flatnonzero(data.train.targets == k)
        images = data.train.inputs[rows[np.argsort(order[rows])[:SHOWN]]].astype(np.float32) / 255
        shown = [np.pad(image, ((0, 0), (0, 1), (0, 1)), constant_values=1.0) for image in images]
        lines.append(np.concatenate(shown, axis=2))
    return np.concatenate(lines, axis=1).repeat(BIG, 1).repeat(BIG, 2)


if __name__ == "__main__":
    main()
