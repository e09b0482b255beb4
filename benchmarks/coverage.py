"""results/coverage.md: the coverage of the estimators' intervals where the noise is small, and where it is large.

    python -m benchmarks.coverage

The law is known: y = sin 2x₁ + x₂²/2 + x₃ + σ(x) ε with ε ~ N(0, 1), x uniform on (−2, 2)⁴ and σ(x) = 0.1 + 0.9/(1 +
exp(−2x₁)), so that x₄ plays no part. Each method of regression that has defaults for all of its keys is fitted as
``BayesianRegressor(method)`` to 300 rows, at four addresses. The coverage of its central 90 % intervals is exact, by
the law, on 4,000 new rows: of all, of the quarter with the least noise (quiet) and of that with the most (noisy).
"""

import sys
import time
import warnings
from pathlib import Path
from typing import Final

import numpy as np
from scipy.stats import norm

from bdl_pipe import BayesianRegressor
from bdl_pipe.errors import ConfigError
from bdl_pipe.registry import METHODS
from bdl_pipe.seeds import Seed
from benchmarks import written
from pipeline.core import provenance
from pipeline.core.records import device_name

OUT: Final = Path("results/coverage.md")
ROWS, NEW, ADDRESSES, LEVEL = 300, 4_000, 4, 0.9
HEAD: Final = ("method", "all", "quiet", "noisy", "NLL above the law's", "seconds")


def main() -> None:
    """Write the page."""
    warnings.simplefilter("ignore")
    lines, started = [], time.perf_counter()
    known = [name for name, method in METHODS.items() if "regression" in method.tasks and "student" in method.stages]
    for method in known:
        began = time.process_time()
        try:
            found = np.array([scores(method, number) for number in range(ADDRESSES)])
        except ConfigError as error:  # a key without a default
            print(f"{method}: {error}", flush=True)
            continue
        seconds = (time.process_time() - began) / ADDRESSES
        shares, excess = 100 * found[:, :3].mean(0), found[:, 3]
        error = excess.std(ddof=1) / ADDRESSES**0.5
        cells = [*(f"{share:.0f}" for share in shares), f"{excess.mean():.3f} ± {error:.3f}", f"{seconds:.1f}"]
        lines.append([f"`{method}`", *cells])
        print(*lines[-1], flush=True)
    facts = {
        "commit": provenance.commit(),
        "device": device_name("cpu"),
        "seconds": round(time.perf_counter() - started),
    }
    OUT.write_text(written.page("Coverage by the size of the noise", __doc__, facts, written.table(HEAD, lines)))


def law(rows: int, rng: Seed) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return inputs, targets, their means and their deviations."""
    random = rng.numpy()
    x = random.uniform(-2, 2, size=(rows, 4))
    mean, sd = np.sin(2 * x[:, 0]) + x[:, 1] ** 2 / 2 + x[:, 2], 0.1 + 0.9 / (1 + np.exp(-2 * x[:, 0]))
    return x, mean + sd * random.normal(size=rows), mean, sd


def scores(method: str, number: int) -> tuple[float, float, float, float]:
    """Return the coverage of all rows and of the quarters of the least and the largest noise, and the NLL's excess."""
    x, y, _, _ = law(ROWS, Seed(number).fold("train"))
    new, targets, mean, sd = law(NEW, Seed(number).fold("new"))
    model = BayesianRegressor(method, random_state=number).fit(x, y)
    low, high = model.predict_interval(new, level=LEVEL)
    held, (least, most) = norm.cdf((high - mean) / sd) - norm.cdf((low - mean) / sd), np.quantile(sd, [0.25, 0.75])
    excess = float((norm(mean, sd).logpdf(targets) - model.log_prob(new, targets)).mean())
    return float(held.mean()), float(held[sd <= least].mean()), float(held[sd >= most].mean()), excess


if __name__ == "__main__":
    sys.exit(main())
