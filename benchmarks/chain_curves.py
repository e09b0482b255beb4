"""results/dark_knowledge: chains against what they cost and against temperature: NLL of their average, R-hat, bulk ESS.

    python -m pipeline repro prepare@boston
    python -m benchmarks.chain_curves boston            # five kernels, T = 0.01, 0.1, 0.3 and 1
    python -m pipeline repro teacher@KEY                # the first entry of teachers on fashion_mnist, or --teacher
    python -m benchmarks.chain_curves fashion_mnist     # its own kernel, T = 0.01, 0.1 and 1
    python -m benchmarks.chain_curves boston --draw     # the picture alone, from the stored table

Network, prior, minibatches and chains are those of the teacher in params.yaml. On boston every kernel has ``PASSES``
passes over the rows and one rate on their mean loss, that of the toy problems (a cycle begins at four times the rate;
HMC finds its own step). On Fashion-MNIST the sampler and its steps are the teacher's, too. Split 0, all rows that a
final fit sees. Test rows are scored and choose nothing.

The average is over the draws of all chains since burn-in, a quarter of each chain (on Fashion-MNIST: the teacher's).
R-hat and ESS are ArviZ's (rank-normalised split R-hat, bulk ESS), of p(true class) or E[y] at the first ``WATCHED``
test rows, the worst of them. A pass is one gradient of every row.
"""

import argparse
import csv
import itertools
import math
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import matplotlib
import torch
from matplotlib.figure import Figure
from torch import Tensor

from bdl_pipe import artifacts, config
from bdl_pipe.artifacts import State
from bdl_pipe.data import prepared
from bdl_pipe.data.examples import Examples
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.errors import Diverged
from bdl_pipe.evaluation import references
from bdl_pipe.evaluation.distance import distances
from bdl_pipe.method import fan_in
from bdl_pipe.posterior import NetworkDraws
from bdl_pipe.predictive import Categorical, Gaussian
from bdl_pipe.progress import Silent
from bdl_pipe.seeds import Seed
from bdl_pipe.sgmcmc.method import SgmcmcConfig, average, teacher
from bdl_pipe.sgmcmc.sampler import SamplerConfig
from bdl_pipe.sgmcmc.sampling import kept_steps
from bdl_pipe.sgmcmc.schedules import Thinning
from benchmarks.toys.methods import RATE
from pipeline.core import places, provenance, records
from pipeline.core.load import load
from pipeline.core.model import Params, Run

OUT: Final = Path(__file__).resolve().parents[1] / "results" / "dark_knowledge"
TEMPERATURES: Final = {"boston": (0.01, 0.1, 0.3, 1.0), "fashion_mnist": (0.01, 0.1, 1.0)}
PASSES: Final = 1000  # of each kernel on boston
DRAWS: Final = 60  # of a chain
POINTS: Final = 12  # of a curve
WATCHED: Final = 32
_PLAIN: Final = {"name": "scaled", "rate": RATE}
_CYCLES: Final = {"name": "scaled", "rate": 4 * RATE, "cycle": PASSES / 10, "exploration": 0.3}  # in epochs
KERNELS: Final[Mapping[str, Mapping[str, Any]]] = {
    "sgld": {"kernel": {"name": "sgld"}, "step_size": _PLAIN},
    "sghmc": {"kernel": {"name": "sghmc", "friction": 0.05}, "step_size": _PLAIN},
    "sgnht": {"kernel": {"name": "sgnht", "friction": 0.05}, "step_size": _PLAIN},
    "cyclical sghmc": {"kernel": {"name": "sghmc", "friction": 0.05}, "step_size": _CYCLES},
    "hmc": {"kernel": {"name": "hmc", "leapfrogs": 50, "jitter": 0.2, "acceptance": 0.8}, "step_size": _PLAIN},
}
COLUMNS: Final = ("kernel", "temperature", "passes", "nll", "rhat", "ess", "kl", "noise_worst", "seconds")
PANELS: Final = {"nll": "NLL of the average", "rhat": "R-hat", "ess": "bulk ESS"}
Row = Mapping[str, str]


@dataclass(frozen=True)
class Chains:
    """The data and the settings of chains on a teacher's posterior."""

    teacher: Run
    data: FitData
    test: Examples
    count: int
    starts: Sequence[State]  # the states of the trajectories that chains begin at; empty: fresh weights

    @classmethod
    def read(cls, name: str, key: str | None, params: Params) -> "Chains":
        """Read the prepared rows of a data set, and its teacher ``key`` or its first one."""
        runs = [run for run in params.of("teacher") if run.spec.dataset == name and key in (None, run.key)]
        if not runs:
            raise SystemExit(f"teachers: there must be an entry {key or 'on'} {name}")
        run, starts = runs[0], list[State]()
        if source := run.sources.get("trajectory"):
            found = artifacts.load(places.artifact("trajectory", source), "trajectory")
            known = params.run("trajectory", source).spec.seeds
            each = [fan_in("cyclic", chain, known)[0] for chain in range(run.spec.seeds)]
            starts = [found.state(f"0-{seed}") for seed in each]
        data = prepared.load_fit(places.artifact("prepare", name), 0, final=True)
        test = prepared.load_holdout(places.artifact("holdout", name), 0).test
        return cls(run, data, test, run.spec.seeds, starts)

    def passes(self, sampler: SamplerConfig) -> float:
        """Return how many passes over all rows a step's gradients are."""
        share = min(1.0, (sampler.batch or math.inf) / len(self.data.train))
        if sampler.control_variates is not None:
            return 2 * share + 1 / sampler.control_variates
        return share * getattr(sampler.kernel, "leapfrogs", 1)

    def run(self, name: str, settings: SgmcmcConfig) -> Iterator[dict[str, Any]]:
        """Run the chains, and yield a row at each point of their curve."""
        began, inputs = time.process_time(), [{"trajectory": [state]} for state in self.starts] or [{}] * self.count
        rngs = [Seed(0).fold("chain_curves", name, chain) for chain in range(self.count)]
        states = teacher([self.data] * self.count, inputs, settings, rngs=rngs, report=Silent())
        seconds, precision = time.process_time() - began, settings.target.precision(self.data)
        schedule = settings.sampler.schedule(len(self.data.train), precision)
        kept, each = kept_steps(settings.thinning, schedule), self.passes(settings.sampler)
        if len(kept) < POINTS:
            raise SystemExit(f"{name}: keeps {len(kept)} draws, fewer than the {POINTS} points of a curve")
        scored = [self.scored(NetworkDraws.from_state(state)) for state in states]
        likelihood, watched = (torch.stack(part) for part in zip(*scored, strict=True))  # [chain, draw, row]
        for point in range(1, POINTS + 1):
            draws = len(kept) * point // POINTS
            nll = math.log(self.count * draws) - likelihood[:, :draws].flatten(0, 1).logsumexp(0).mean()
            rhat, ess = diagnose(watched[:, :draws])
            last = point == POINTS
            yield {
                "passes": round(kept[draws - 1] * each, 1),
                "nll": round(float(nll), 4),
                "rhat": round(rhat, 4),
                "ess": round(ess, 1),
                "kl": self.divergence(states) if last else "",
                "noise_worst": round(max(float(s.config["noise_worst"]) for s in states), 3) if last else "",
                "seconds": round(seconds, 1) if last else "",
            }

    @torch.no_grad()
    def scored(self, draws: NetworkDraws) -> tuple[Tensor, Tensor]:
        """Return log p(y | x, θ) in original units [draw, row], and what is watched [draw, watched row]."""
        likelihood, watched = [], []
        rows, targets = self.data.transform.inputs(self.test.inputs), torch.tensor(self.test.targets)
        for x, y in zip(rows.split(500), targets.split(500), strict=True):
            predictive = draws.predict(x)
            if isinstance(predictive, Categorical):
                of = predictive.draw_log_probs
                likelihood.append(of.gather(-1, y[None, :, None].expand(len(of), -1, 1))[..., 0].double())
                watched.append(likelihood[-1].exp())
                continue
            assert isinstance(predictive, Gaussian)
            shift, scale = self.data.transform.shift, self.data.transform.scale
            assert shift is not None and scale is not None
            whole, y = predictive.rescale(shift, scale), y.double()
            mean, variance = whole.draw_mean.double(), whole.draw_variance.double()
            likelihood.append((-0.5 * ((y - mean).square() / variance + (2 * math.pi * variance).log())).sum(-1))
            watched.append(mean[..., 0])
        return torch.cat(likelihood, 1), torch.cat(watched, 1)[:, :WATCHED]

    def divergence(self, states: Sequence[State]) -> float | str:
        """Return the KL from the stored posterior (of T = 1) of these rows to the draws' average; empty without one."""
        if (truth := references.find(self.test, self.data.transform)) is None:
            return ""
        predictive = average(states).predict(self.data.transform.inputs(self.test.inputs))
        assert isinstance(predictive, Gaussian)
        return round(float(distances(truth.predictive(), predictive)[0].mean()), 4)


def diagnose(watched: Tensor) -> tuple[float, float]:
    """Return the worst R-hat and the least bulk ESS of [chain, draw, row]; NaN of fewer than four draws."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        import arviz
    if watched.shape[1] < 4 or len(watched) < 2:
        return math.nan, math.nan
    columns = watched.double().numpy()
    each = [columns[..., row] for row in range(columns.shape[-1])]
    return max(float(arviz.rhat(c)) for c in each), min(float(arviz.ess(c)) for c in each)


def variants(name: str, chains: Chains, passes: float | None) -> Iterator[tuple[str, SgmcmcConfig]]:
    """Yield the kernels with their settings at T = 1, of ``passes`` passes or as many as they have."""
    own: SgmcmcConfig = chains.teacher.config
    if name == "boston":
        for kernel, more in KERNELS.items():
            batch = None if kernel == "hmc" else own.sampler.batch
            sampler = config.read(SamplerConfig, {**more, "batch": batch}, kernel)
            steps = round((passes or PASSES) / chains.passes(sampler))
            yield kernel, replace(own, sampler=sampler, thinning=thinning(steps, steps // 4))
        return
    steps, burn_in = own.thinning.steps, own.thinning.burn_in
    if passes:
        burn_in, steps = (max(4, round(passes / chains.passes(own.sampler) * s / steps)) for s in (burn_in, steps))
    kind = "cyclical " if hasattr(own.sampler.step_size, "cycle") and own.sampler.step_size.cycle else ""
    yield kind + own.sampler.kernel.name, replace(own, thinning=thinning(steps, burn_in))


def thinning(steps: int, burn_in: int) -> Thinning:
    """Return the thinning that keeps about ``DRAWS`` positions."""
    return Thinning(steps, burn_in, max(1, (steps - burn_in) // DRAWS))


def page(name: str, rows: Sequence[Row], facts: Mapping[str, Any]) -> str:
    """Write the page: the last point of each curve."""
    head = ["kernel", "T", "passes", "NLL", "R-hat", "bulk ESS", "KL to the posterior", "noise, worst", "CPU s"]
    text = [f"# {name}: chains against their cost and against temperature", __doc__.partition("\n\n    ")[0]]
    text += [__doc__.split("\n\n", 2)[2].strip(), f"![{name}](curves-{name}.png)"]
    ends = [list(of)[-1] for _, of in itertools.groupby(rows, key=lambda row: (row["kernel"], row["temperature"]))]
    cells = [[row[column] or "–" for column in COLUMNS] for row in ends]
    text.append("\n".join(f"| {' | '.join(row)} |" for row in [head, ["---", *["---:"] * 8], *cells]))
    text.append("\n".join(f"- {key}: {fact}" for key, fact in facts.items()))
    return "\n\n".join(text) + "\n"


def draw(name: str, rows: Sequence[Row]) -> None:
    """Draw the curves against passes (of several kernels: at T = 1), and their ends against temperature."""
    kernels = list(dict.fromkeys(row["kernel"] for row in rows))
    lines = {key: list(of) for key, of in itertools.groupby(rows, lambda row: (row["kernel"], row["temperature"]))}
    with matplotlib.rc_context({"font.size": 8, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(11, 5.4), layout="constrained")
        for column, (key, title) in enumerate(PANELS.items()):
            above, below = (figure.add_subplot(2, 3, 3 * row + column + 1) for row in (0, 1))
            for (kernel, heat), of in lines.items():
                if len(kernels) == 1 or float(heat) == 1:
                    x, y = [float(row["passes"] or "nan") for row in of], [float(row[key] or "nan") for row in of]
                    above.plot(x, y, ".-", label=kernel if len(kernels) > 1 else f"T = {heat}")
            for kernel in kernels:
                ends = [(float(heat), float(of[-1][key] or "nan")) for (k, heat), of in lines.items() if k == kernel]
                below.plot(*zip(*ends, strict=True), ".-", label=kernel)
            above.set(title=title, xlabel="passes over the rows", yscale="linear" if key == "nll" else "log")
            below.set(xlabel="temperature", xscale="log", yscale="linear" if key == "nll" else "log")
            (above if column == 0 else below).legend(fontsize=7, frameon=False)
        figure.savefig(OUT / f"curves-{name}.png", dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=[*TEMPERATURES])
    parser.add_argument("--teacher", help="an entry of teachers; by default the data set's first")
    parser.add_argument("--passes", type=float, help="shorter chains, whose results are shown and not stored")
    parser.add_argument("--draw", action="store_true", help="only draw the stored table")
    chosen = parser.parse_args()
    name, stored = chosen.name, OUT / f"curves-{chosen.name}.csv"
    torch.set_num_threads(1)
    if not chosen.draw:
        chains, diverged = Chains.read(name, chosen.teacher, load()), list[str]()
        rows = list[dict[str, Any]]()
        for (kernel, settings), heat in itertools.product(variants(name, chains, chosen.passes), TEMPERATURES[name]):
            hot = replace(settings, sampler=replace(settings.sampler, temperature=heat))
            try:
                rows += ({"kernel": kernel, "temperature": heat, **row} for row in chains.run(f"{kernel} {heat}", hot))
                print(rows[-1], flush=True)
            except Diverged as error:
                diverged.append(f"{kernel} at T = {heat}: {error}")
                print(diverged[-1], flush=True)
        facts = {
            "commit": provenance.commit(),
            "device": f"{records.device_name('cpu')}, {torch.get_num_threads()} thread, torch {torch.__version__}",
            "teacher": f"{chains.teacher.key}, {chains.count} chains, {len(chains.data.train):,} training rows, "
            f"{len(chains.test):,} test rows; {chains.teacher.config.target}",
            "diverged": "; ".join(diverged) or "none",
        }
        if chosen.passes:
            return
        with open(stored, "w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        (OUT / f"curves-{name}.md").write_text(page(name, list(read(stored)), facts))
    draw(name, list(read(stored)))


def read(stored: Path) -> Iterator[Row]:
    """Read the stored table."""
    with open(stored, newline="") as file:
        yield from csv.DictReader(file)


if __name__ == "__main__":
    main()
