"""Settings that the last layers' paper mentions and does not try: bounds, class shares, a posterior of the noise.

    python -m benchmarks.vbll_settings     # writes results/vbll/settings.csv and .md; goes on from the rows of the CSV

Data are the tables of scikit-learn, standardised by their training rows. Every fit has a trunk of one layer, 400 steps
of Adam at a rate of 0.01 on batches of 100 rows, and gradients clipped at 1. Nothing is chosen by a score. A figure is
the mean over splits ± its standard error; differences are of the same splits, and one below two standard errors is
called not established.

*Bounds.* The gap of each bound of E log Σ exp at the training rows of a layer that was fitted with Jensen's bound, in
nats, and the NLL of test rows of layers that were fitted with each bound. All predict by 500 drawn logits.
*Class shares.* Test rows are drawn so that class k of K has a share proportional to K − k. The NLL of the generative
layer at the training rows' shares and at the shares of the test rows, and of the discriminative layer, whose
probabilities are multiplied by the ratio of shares for the second.
*Blocks.* The NLL of the generative layer at the training rows' shares with blocks of 4 features, and with one dense
block, less its NLL with a diagonal covariance; all have the same ν of 128.
*Noise.* The NLL of regression with a point estimate of the noise and with a posterior, by the number of training rows.
A number of rows whose splits are not all in the CSV is left out.
"""

import hashlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from sklearn import datasets
from torch import Tensor, nn

from bdl_pipe.last_layer import Discriminative, Generative, Regression, StudentRegression
from bdl_pipe.last_layer.blocks import BlockGenerative
from bdl_pipe.last_layer.bounds import BOUNDS, tilted_dense
from bdl_pipe.last_layer.full import FullDiscriminative
from bdl_pipe.predictive import Predictive
from bdl_pipe.seeds import Seed
from benchmarks import stored_rows
from benchmarks.written import about, error, table, write

OUT: Final = Path(__file__).resolve().parent.parent / "results" / "vbll"
CSV: Final = OUT / "settings.csv"
SPLITS, STEPS, BATCH, LR, CLIP, DRAWS = 5, 400, 100, 1e-2, 1.0, 500
CLASSES: Final = {"digits": 600, "wine": 100, "breast_cancer": 300}  # training rows
ROWS: Final = (20, 40, 80, 320)  # training rows of diabetes
NOISE_SPLITS: Final = 20
BLOCKS: Final = (1, 4, 32)
PRIORS: Final[dict[str, float]] = {"prior_variance": 1.0, "wishart_dof": 1.0, "wishart_scale": 1.0}
Layer = Regression | StudentRegression | Discriminative | FullDiscriminative | Generative


@dataclass(frozen=True)
class Split:
    """Standardised inputs and targets of training and test rows."""

    inputs: Tensor
    targets: Tensor
    test_inputs: Tensor
    test_targets: Tensor


def main() -> None:
    """Compute the rows that the CSV lacks, then write the page."""
    start, stored = time.process_time(), stored_rows.read(CSV)
    for part, data, split, compute in work():
        if (part, data, split) in {(row["part"], row["data"], row["split"]) for row in stored}:
            continue
        values = compute()
        stored += [{"part": part, "data": data, "split": split, "name": n, "value": str(v)} for n, v in values.items()]
        stored_rows.write(CSV, ("part", "data", "split", "name", "value"), stored)
        print(part, data, split, {name: round(value, 4) for name, value in values.items()}, flush=True)
    page(stored, start)


def work() -> Iterator[tuple[str, str, str, Callable[[], dict[str, float]]]]:
    """Yield the part, the data, the split and the computation of its figures."""
    for data, rows in CLASSES.items():
        for number in range(SPLITS):
            yield "bounds", data, str(number), lambda d=data, r=rows, n=number: bounds(split(d, r, n), n)  # type: ignore[misc]
            yield "shares", data, str(number), lambda d=data, r=rows, n=number: shares(split(d, r, n), n)  # type: ignore[misc]
            yield "blocks", data, str(number), lambda d=data, r=rows, n=number: blocks(split(d, r, n), n)  # type: ignore[misc]
    for rows in ROWS:
        for number in range(NOISE_SPLITS):
            name = f"diabetes, {rows} rows"
            yield "noise", name, str(number), lambda r=rows, n=number: noise(split("diabetes", r, n), n)  # type: ignore[misc]


def load(data: str) -> tuple[np.ndarray, np.ndarray]:
    inputs, targets = getattr(datasets, f"load_{data}")(return_X_y=True)
    return inputs.astype(np.float64), targets.astype(np.float64)


def split(data: str, rows: int, number: int) -> Split:
    """Return a random split; inputs, and targets of regression, are standardised by its training rows."""
    inputs, targets = load(data)
    order = Seed(number).fold("split", data).numpy().permutation(len(inputs))
    train, test = order[:rows], order[rows:]
    scale = inputs[train].std(0)
    inputs = (inputs - inputs[train].mean(0)) / np.where(scale > 0, scale, 1)
    if data == "diabetes":
        targets = (targets - targets[train].mean()) / targets[train].std()
        y = torch.tensor(targets, dtype=torch.float32)[:, None]
    else:
        y = torch.tensor(targets).long()
    x = torch.tensor(inputs, dtype=torch.float32)
    return Split(x[train], y[train], x[test], y[test])


def fitted(of: Split, layer: Layer, width: int, number: int) -> nn.Module:
    """Train a trunk with the layer and return the trunk."""
    with torch.random.fork_rng():
        torch.manual_seed(number)
        trunk = nn.Sequential(nn.Linear(of.inputs.shape[1], width), nn.Tanh())
    weights = [*trunk.parameters(), *layer.parameters()]
    rule, generator = torch.optim.Adam(weights, LR), Seed(number).fold("batches").generator()
    for _ in range(STEPS):
        batch = torch.randint(len(of.inputs), (BATCH,), generator=generator)
        rule.zero_grad()
        layer.loss(trunk(of.inputs[batch]), of.targets[batch], num_train=len(of.inputs)).backward()
        nn.utils.clip_grad_norm_(weights, CLIP)
        rule.step()
    return trunk.eval()


def nll(predictive: Predictive, targets: Tensor) -> float:
    return -float(predictive.log_prob(targets).mean())


@torch.no_grad()
def _gaps(of: Split, layer: Discriminative, trunk: nn.Module, number: int) -> dict[str, float]:
    """Return each bound less the mean of 4,000 draws of log Σ exp, over the training rows."""
    mean, variance = (tensor.double() for tensor in layer.logit_moments(trunk(of.inputs)))
    total = torch.zeros(len(mean)).double()
    generator = Seed(number).fold("gap").generator()
    for _ in range(2000):  # with the opposite number of each
        normal = variance.sqrt() * torch.randn(mean.shape, generator=generator, dtype=torch.float64)
        total += torch.logsumexp(mean + normal, -1) + torch.logsumexp(mean - normal, -1)
    values = {f"gap {name}": float((bound(mean, variance) - total / 4000).mean()) for name, bound in BOUNDS.items()}
    return values | {"mean variance of a logit": float(variance.mean())}


def bounds(of: Split, number: int) -> dict[str, float]:
    classes, width = int(of.targets.max()) + 1, 32
    values: dict[str, float] = {}
    for name in (*BOUNDS, "full"):
        layer: Discriminative | FullDiscriminative
        if name == "full":
            layer = FullDiscriminative(width, classes, draws=DRAWS, rng=Seed(number), **PRIORS)  # type: ignore[arg-type]
        else:
            rule: dict[str, Any] = {"predictive": "sampled", "draws": DRAWS, "bound": name, "covariance": "dense"}
            layer = Discriminative(width, classes, rng=Seed(number), **rule, **PRIORS)
        trunk = fitted(of, layer, width, number)
        if isinstance(layer, Discriminative) and name == "jensen":
            values |= _gaps(of, layer, trunk, number)
        with torch.no_grad():
            predictive = layer.predict(trunk(of.test_inputs), rng=Seed(number))
            values[f"NLL {name}"] = nll(predictive, of.test_targets)
            values[f"accuracy {name}"] = float((predictive.mean.argmax(1) == of.test_targets).float().mean())
            if isinstance(layer, FullDiscriminative):
                mean, covariance = layer.logit_moments(trunk(of.test_inputs))
                independent = torch.diag_embed(covariance.diagonal(dim1=-2, dim2=-1))
                change = (tilted_dense(mean, covariance) - tilted_dense(mean, independent)).mean()
                values["bound full less independent"] = float(change)
    return values


def shares(of: Split, number: int) -> dict[str, float]:
    classes, width = int(of.targets.max()) + 1, 32
    counts = torch.bincount(of.targets, minlength=classes).float()
    target = torch.arange(classes, 0, -1).float()
    target = target / target.sum()
    present = torch.bincount(of.test_targets, minlength=classes)
    size = int((present / target).min())  # the largest number of test rows with these shares
    random, chosen = Seed(number).fold("shares").numpy(), list[np.ndarray]()
    for k in range(classes):
        of_class = np.flatnonzero(of.test_targets.numpy() == k)
        chosen.append(random.choice(of_class, int(size * float(target[k])), replace=False))
    rows = np.concatenate(chosen)
    inputs, labels = of.test_inputs[rows], of.test_targets[rows]
    generative = Generative(width, classes, class_counts=counts, wishart_dof=128.0, rng=Seed(number))
    discriminative = Discriminative(width, classes, covariance="dense", rng=Seed(number), **PRIORS)  # type: ignore[arg-type]
    trunk = fitted(of, generative, width, number)
    other = fitted(of, discriminative, width, number)
    with torch.no_grad():
        phi = trunk(inputs)
        log_probs = discriminative.predict(other(inputs)).log_probs
        changed = torch.log_softmax(log_probs + target.log() - (counts / counts.sum()).log(), -1)
        return {
            "generative, shares of training": nll(generative.predict(phi), labels),
            "generative, shares of the rows": nll(generative.predict(phi, class_shares=target), labels),
            "discriminative": -float(log_probs.gather(1, labels[:, None]).mean()),
            "discriminative, ratio of shares": -float(changed.gather(1, labels[:, None]).mean()),
            "rows": float(len(rows)),
        }


def blocks(of: Split, number: int) -> dict[str, float]:
    classes, width = int(of.targets.max()) + 1, 32
    options: dict[str, Any] = {"class_counts": torch.bincount(of.targets, minlength=classes).float()}
    options |= {"wishart_dof": 128.0, "rng": Seed(number)}
    values: dict[str, float] = {}
    for block in BLOCKS:
        if block == 1:
            layer = Generative(width, classes, **options)
        else:
            layer = BlockGenerative(width, classes, block=block, **options)
        start = time.process_time()
        trunk = fitted(of, layer, width, number)
        values[f"seconds {block}"] = time.process_time() - start
        with torch.no_grad():
            predictive = layer.predict(trunk(of.test_inputs))
            values[f"NLL {block}"] = nll(predictive, of.test_targets)
            values[f"accuracy {block}"] = float((predictive.mean.argmax(1) == of.test_targets).float().mean())
    return values


def noise(of: Split, number: int) -> dict[str, float]:
    width, rows = 16, len(of.inputs)
    point = Regression(width, 1, covariance="dense", rng=Seed(number), **PRIORS)  # type: ignore[arg-type]
    student = StudentRegression(width, 1, num_train=rows, covariance="dense", rng=Seed(number), **PRIORS)  # type: ignore[arg-type]
    values = {}
    for name, layer in {"point": point, "posterior": student}.items():
        trunk = fitted(of, layer, width, number)
        with torch.no_grad():
            predictive = layer.predict(trunk(of.test_inputs))
            values[f"NLL {name}"] = nll(predictive, of.test_targets)
            values[f"RMSE {name}"] = float((predictive.mean - of.test_targets).square().mean().sqrt())
    return values


def values_of(stored: list[dict[str, str]], part: str, data: str, name: str) -> np.ndarray:
    """Return the figure of each split, in their order."""
    rows = [row for row in stored if (row["part"], row["data"], row["name"]) == (part, data, name)]
    return np.array([float(row["value"]) for row in sorted(rows, key=lambda row: int(row["split"]))])


def cell(values: np.ndarray) -> str:
    return error(float(values.mean()), float(values.std(ddof=1) / len(values) ** 0.5), 3)


def difference(values: np.ndarray, others: np.ndarray) -> str:
    """Return the mean of paired differences, with a note if it is below two standard errors."""
    each = values - others
    clear = abs(each.mean()) > 2 * each.std(ddof=1) / len(each) ** 0.5
    return cell(each) + ("" if clear else ", not established")


def page(stored: list[dict[str, str]], start: float) -> None:
    """Write the page from the stored rows."""

    def of(part: str, data: str, name: str) -> np.ndarray:
        return values_of(stored, part, data, name)

    gaps = [
        [
            data,
            cell(of("bounds", data, "mean variance of a logit")),
            *(cell(of("bounds", data, f"gap {n}")) for n in BOUNDS),
        ]
        for data in CLASSES
    ]
    scores, accuracies = [], []
    for data in CLASSES:
        base = of("bounds", data, "NLL jensen")
        others = [difference(of("bounds", data, f"NLL {name}"), base) for name in ("tilted", "bouchard", "full")]
        scores.append([data, cell(base), *others])
        names = (*BOUNDS, "full")
        accuracies.append([data, *(cell(100 * of("bounds", data, f"accuracy {name}")) for name in names)])
    shifted = []
    for data in CLASSES:
        before, after = (of("shares", data, f"generative, shares of {of_what}") for of_what in ("training", "the rows"))
        plain, ratio = of("shares", data, "discriminative"), of("shares", data, "discriminative, ratio of shares")
        shifted.append([data, cell(before), difference(after, before), cell(plain), difference(ratio, plain)])
    sparse = []
    for data in CLASSES:
        base, seconds = of("blocks", data, "NLL 1"), [of("blocks", data, f"seconds {block}").mean() for block in BLOCKS]
        less = [difference(of("blocks", data, f"NLL {block}"), base) for block in BLOCKS[1:]]
        sparse.append([data, cell(base), *less, *(f"{of_fit:.1f}" for of_fit in seconds)])
    noisy = []
    for rows in ROWS:
        data = f"diabetes, {rows} rows"
        base = of("noise", data, "NLL point")
        if len(base) < NOISE_SPLITS:
            continue
        by_rmse = difference(of("noise", data, "RMSE posterior"), of("noise", data, "RMSE point"))
        noisy.append([str(rows), cell(base), difference(of("noise", data, "NLL posterior"), base), by_rmse])
    hashes = {
        name: hashlib.sha256(load(name)[0].tobytes() + load(name)[1].tobytes()).hexdigest()
        for name in (*CLASSES, "diabetes")
    }
    facts = f"{SPLITS} splits of the tables of classes, {NOISE_SPLITS} of diabetes. SHA-256 of inputs and targets: "
    facts += ", ".join(f"{name} {digest[:12]}" for name, digest in hashes.items()) + "."
    parts = [
        about(__doc__),
        facts,
        "## The gap of each bound, in nats for each training row",
        table(["data", "variance of a logit", *BOUNDS], gaps),
        "## NLL of test rows by the bound of training, and its difference from Jensen's",
        table(["data", "jensen", "tilted", "bouchard", "tilted, covariance full"], scores),
        "Accuracy in per cent:",
        table(["data", *BOUNDS, "tilted, covariance full"], accuracies),
        "## NLL of rows with shifted class shares",
        table(
            ["data", "generative", "with the rows' shares", "discriminative", "with the ratio of shares"],
            shifted,
        ),
        "## NLL of the generative layer by the blocks of its covariances, and seconds of a fit",
        table(["data", "diagonal", "blocks of 4", "dense", "s, diagonal", "s, blocks of 4", "s, dense"], sparse),
        "## NLL of regression, and the difference of a posterior over the noise",
        table(["training rows", "point estimate", "posterior: NLL", "posterior: RMSE"], noisy),
    ]
    write(OUT / "settings.md", "Settings of the last layers", "python -m benchmarks.vbll_settings", parts, start)


if __name__ == "__main__":
    sys.exit(main())
