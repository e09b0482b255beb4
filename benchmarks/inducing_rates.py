"""The rate with the best evidence lower bound of a method, on the 1-D regression of the inducing-weight paper.

The paper's 20,000 updates of Adam are at 1e-3, falling to a tenth after 10,000 for some methods (Ritter et al. 2021,
appendix J.1). Here a method is fitted at this rate and at others, and the evidence lower bound of the training rows
shows which fit is nearer to its optimum. NUTS's functions have no part in that; the distance to them is printed, too.

    python -m benchmarks.inducing_rates --only ffg_w --rate "1e-2, then 1e-3"
"""

import argparse
import json
import time
from typing import Final

import torch
from torch import Tensor

from bdl_pipe.inducing import Bayesian
from bdl_pipe.inducing.config import Kind
from bdl_pipe.seeds import Seed
from benchmarks import inducing_methods as methods
from benchmarks import inducing_regression as regression

KINDS: Final[tuple[Kind, ...]] = ("ffg_w", "fcg_w", "ffg_u", "fcg_u", "ensemble_u")
RATES: Final[dict[str, tuple[float, bool | None]]] = {
    "1e-3, as the paper": (1e-3, None),
    "1e-3, then 1e-4": (1e-3, True),
    "1e-2, then 1e-3": (1e-2, True),
}
DRAWS: Final = 400  # draws for the printed bound


def minus_bound(net: Bayesian, x: Tensor, y: Tensor, rng: Seed) -> float:
    """Minus the bound in nats, of all rows ``x``, ``y`` [row]; Ensemble-U's members have R(λ) in place of a KL."""
    noise = net.draw(DRAWS, rng.fold("bound").generator())
    with torch.no_grad():
        return float(methods.Bound(net)(x, y, noise)) * len(y)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=KINDS, nargs="+", default=KINDS)
    parser.add_argument("--rate", choices=RATES, nargs="+", default=tuple(RATES))
    parser.add_argument("--steps", type=int, default=methods.STEPS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    reference, rng = regression.read_reference(), Seed(0)
    x, y, grid = (torch.from_numpy(a) for a in (reference.x, reference.y, reference.grid))
    for kind in options.only:
        for name in options.rate:
            rate, falls = RATES[name]
            start = time.process_time()
            (net,) = methods.fit(kind, x, y, [rng], steps=options.steps, rate=rate, draws=methods.DRAWS, falls=falls)
            seconds = time.process_time() - start
            draws = methods.functions(net, rng)(grid).detach().double().numpy()
            found = {
                "method": kind,
                "rate": name,
                "minus_bound": minus_bound(net, x.float(), y.float(), rng),
                "kl": float(net.kl().detach()),
                "wasserstein": regression.distances(reference.grid, reference.draws, draws),
                "spread": regression.spreads(reference.grid, reference.draws, draws),
                "seconds": seconds,
            }
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
