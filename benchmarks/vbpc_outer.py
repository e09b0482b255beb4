"""results/vbpc/outer.md: the paper's outer loss and the bound, and the benefit of the posterior's variance.

    python -m pipeline repro prepare@fashion_mnist
    python -m benchmarks.vbpc_outer              # --prepared DIR, --steps N: 500, the comparison's

A coreset of ten images a class is distilled by the settings of params.yaml from the training rows of Fashion-MNIST with
each ``outer``, and its student is evaluated on the 5,000 validation rows. The posterior of their logits is N(m, s² I).
The columns are −E[log softmax(z)] (1,024 pairs of draws), −log E[softmax(z)] (one-dimensional integrals, the exact
predictive), and the score of eq. 25, by which VBPC predicts. The last columns are on the odd validation rows: eq. 25,
and softmax(c m), which uses only the mean; c is the best of a grid on the even validation rows. Test rows are not read.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import yaml
from torch import Tensor

from bdl_pipe import config
from bdl_pipe.coresets.vbpc import closed_form
from bdl_pipe.coresets.vbpc.method import VBPC, VbpcConfig
from bdl_pipe.coresets.vbpc.posterior import VbpcPosterior
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.last_layer.discriminative import quadrature
from bdl_pipe.progress import Silent
from bdl_pipe.seeds import Seed
from benchmarks import written
from pipeline.core import provenance
from pipeline.prepared import folders

OUT = Path("results/vbpc/outer.md")
HEAD = (
    "outer",
    "accuracy %",
    "−E log softmax",
    "−log E softmax",
    "eq. 25",
    "mean s²",
    "eq. 25, odd rows",
    "c",
    "softmax(c m), odd rows",
)
PAIRS, AT_ONCE = 1024, 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prepared", type=Path, default=Path("work/prepare/fashion_mnist"))
    parser.add_argument("--steps", type=int, default=500)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    began = time.process_time()
    data = folders.load_fit(chosen.prepared, 0, final=False)
    section = yaml.safe_load(Path("params.yaml").read_text())["methods"]["vbpc"]
    section["coreset"]["steps"] = chosen.steps
    rows = [row(data, section | {"outer": outer}) for outer in ("predictive", "expected")]
    seconds = time.process_time() - began
    about = f"Commit {provenance.commit()}, {chosen.steps} steps, one seed, {seconds:.0f} s of one core."
    table = written.table(HEAD, rows)
    OUT.write_text("\n\n".join(["# The outer loss of VBPC", written.about(__doc__), about, table]) + "\n")
    print(table)


def row(data: FitData, section: dict[str, Any]) -> tuple[str, ...]:
    """Distil, fit a student, and return its row of the table."""
    read = config.read(VbpcConfig, section, "methods.vbpc")
    made = VBPC.stages["coreset"].fit_one(data, {}, read, rng=Seed(0).fold("coreset"), report=Silent())
    fitted = VBPC.stages["student"].fit_one(
        data, {"coreset": [made]}, read, rng=Seed(0).fold("student"), report=Silent()
    )
    posterior = VbpcPosterior.from_state(fitted)
    inputs, classes = data.tensors("validation")
    mean, variance = posterior.head.logit_moments(posterior.features(inputs))
    predictive = closed_form.class_log_probs(mean, variance)
    odd, even = slice(1, None, 2), slice(0, None, 2)
    scale = min(
        (2 ** (k / 8) for k in range(-40, 41)), key=lambda c: nll((c * mean[even]).log_softmax(1), classes[even])
    )
    figures = [
        100 * float((mean.argmax(1) == classes).float().mean()),
        nll(expected(mean, variance), classes),
        nll(quadrature(mean.double(), variance.double()[:, None].expand_as(mean))[0], classes),
        nll(predictive, classes),
        float(variance.mean()),
        nll(predictive[odd], classes[odd]),
        scale,
        nll((scale * mean[odd]).log_softmax(1), classes[odd]),
    ]
    return read.outer, f"{figures[0]:.1f}", *(f"{value:.3f}" for value in figures[1:])


def expected(mean: Tensor, variance: Tensor) -> Tensor:
    """Return E[log softmax(z)] of each row and class, by pairs of draws that all rows share."""
    parts = [
        closed_form.expected_log_probs(
            mean, variance, torch.randn(AT_ONCE, 1, mean.shape[1], generator=Seed(0).fold("pairs", k).generator())
        )
        for k in range(PAIRS // AT_ONCE)
    ]
    return torch.stack(parts).mean(0)


def nll(log_probs: Tensor, classes: Tensor) -> float:
    """Return the mean negative log-likelihood in nats."""
    return float(F.nll_loss(log_probs, classes))


if __name__ == "__main__":
    main()
