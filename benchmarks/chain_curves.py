"""results/dark_knowledge: NLL of the chains' average, R-hat and bulk ESS, by cost and by temperature.

    python -m benchmarks.chain_curves boston            # of prepare@boston: five kernels, T = 0.01, 0.1, 0.3, 1
    python -m pipeline repro teacher@KEY                # the first entry of teachers on fashion_mnist, or --teacher
    python -m benchmarks.chain_curves fashion_mnist     # its own kernel, T = 0.01, 0.1 and 1

Network, prior, ``BATCH`` and number of chains are the teacher's in params.yaml. On boston every kernel makes ``PASSES``
passes over the rows, with the toy problems' rate on the mean loss (a cycle starts at four times this rate; HMC finds
its own step size and uses all rows in each step). On Fashion-MNIST the sampler and its steps are the teacher's, too.
The rows are all rows of split 0 that a final fit uses. Test rows are scored but choose nothing.

The average is over the draws of all chains after burn-in, which is a quarter of each chain (on Fashion-MNIST the
teacher's burn-in). R-hat and ESS are ArviZ's (rank-normalised split R-hat, bulk ESS) for p(true class) or E[y] at the
first ``WATCHED`` test rows; the worst row counts. A pass computes one gradient of every row.
"""

import argparse
import itertools
import math
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import matplotlib
import torch
from matplotlib.figure import Figure
from torch import Tensor

from bdl_pipe import artifacts, config
from bdl_pipe.data.examples import Examples
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.errors import Diverged, require
from bdl_pipe.evaluation import references
from bdl_pipe.evaluation.references import distances
from bdl_pipe.method import fan_in
from bdl_pipe.posterior import NetworkDraws
from bdl_pipe.predictive import Categorical, Gaussian
from bdl_pipe.progress import Silent
from bdl_pipe.seeds import Seed
from bdl_pipe.sgmcmc import diagnostics
from bdl_pipe.sgmcmc.method import SgmcmcConfig, average, teacher
from bdl_pipe.sgmcmc.sampler import SamplerConfig
from bdl_pipe.sgmcmc.sampling import kept_steps
from bdl_pipe.sgmcmc.schedules import Thinning
from benchmarks import stored_rows, written
from benchmarks.toys.methods import RATE
from benchmarks.toys.problems import OUT
from pipeline.core import places, provenance, records
from pipeline.core.load import load
from pipeline.core.model import Params, Run
from pipeline.prepared import folders

TEMPERATURES: Final = {"boston": (0.01, 0.1, 0.3, 1.0), "fashion_mnist": (0.01, 0.1, 1.0)}
PASSES: Final = 10_000  # number of passes of each kernel over boston's rows
DRAWS: Final = 60  # draws per chain
POINTS: Final = 12  # points per curve
WATCHED: Final = 32
_PLAIN: Final = {"name": "scaled", "rate": RATE}
_CYCLES: Final = {"name": "scaled", "rate": 4 * RATE, "cycle": PASSES / 10, "exploration": 0.3}  # cycle: in epochs
KERNELS: Final[Mapping[str, Mapping[str, Any]]] = {
    "sgld": {"kernel": {"name": "sgld"}, "step_size": _PLAIN},
    "sghmc": {"kernel": {"name": "sghmc", "friction": 0.05}, "step_size": _PLAIN},
    "sgnht": {"kernel": {"name": "sgnht", "friction": 0.05}, "step_size": _PLAIN},
    "cyclical sghmc": {"kernel": {"name": "sghmc", "friction": 0.05}, "step_size": _CYCLES},
    "hmc": {"kernel": {"name": "hmc", "leapfrogs": 50, "jitter": 0.2, "acceptance": 0.8}, "step_size": _PLAIN},
}
COLUMNS: Final = ("kernel", "temperature", "passes", "nll", "rhat", "ess", "kl", "noise_worst", "seconds")


@dataclass(frozen=True)
class Chains:
    """The data of ``count`` chains, and the ends of trajectories at which they begin; without ends, fresh weights."""

    data: FitData
    test: Examples
    count: int
    starts: Sequence[artifacts.State]

    @classmethod
    def read(cls, run: Run, params: Params) -> "Chains":
        """Read the inputs of a teacher of params.yaml, on split 0."""
        starts, name = list[artifacts.State](), run.spec.dataset
        if source := run.sources.get("trajectory"):
            found, known = places.artifact("trajectory", source), params.run("trajectory", source).spec.seeds
            ends = artifacts.load(found, "trajectory")
            starts = [ends.state(f"0-{seed}") for c in range(run.spec.seeds) for seed in fan_in("cyclic", c, known)]
        data = folders.load_fit(places.artifact("prepare", name), 0, final=True)
        return cls(data, folders.load_holdout(places.artifact("holdout", name), 0).test, run.spec.seeds, starts)

    def passes(self, sampler: SamplerConfig) -> float:
        """Return the cost of a step's gradients in passes over all rows."""
        share = min(1.0, (sampler.batch or math.inf) / len(self.data.train))
        return share * getattr(sampler.kernel, "leapfrogs", 1)

    def run(self, name: str, settings: SgmcmcConfig) -> Iterator[dict[str, Any]]:
        """Run the chains, and yield a row at each point of their curve."""
        began, inputs = time.process_time(), [{"trajectory": [state]} for state in self.starts] or [{}] * self.count
        rngs = [Seed(0).fold("chain_curves", name, chain) for chain in range(self.count)]
        states = teacher([self.data] * self.count, inputs, settings, rngs=rngs, report=Silent())
        seconds, precision = time.process_time() - began, settings.target.precision(self.data)
        setting = settings.sampler.setting(len(self.data.train), precision)
        schedule = setting.schedule(setting.value)
        kept, each = kept_steps(settings.thinning, schedule), self.passes(settings.sampler)
        require(len(kept) >= POINTS, name, f"must keep the {POINTS} draws of a curve's points", len(kept))
        scored = [self.scored(NetworkDraws.from_state(state)) for state in states]
        likelihood, watched = (torch.stack(part) for part in zip(*scored, strict=True))  # [chain, draw, row]
        noise = max(float(state.config["noise_worst"]) for state in states)
        ended = {"kl": self.divergence(states), "noise_worst": round(noise, 3), "seconds": round(seconds, 1)}
        for point in range(1, POINTS + 1):
            draws = len(kept) * point // POINTS
            nll = math.log(self.count * draws) - likelihood[:, :draws].flatten(0, 1).logsumexp(0).mean()
            rhat, ess = diagnose(watched[:, :draws])
            yield {
                "passes": round(kept[draws - 1] * each, 1),
                "nll": round(float(nll), 4),
                "rhat": round(rhat, 4),
                "ess": round(ess, 1),
                **(ended if point == POINTS else {}),
            }

    @torch.no_grad()
    def scored(self, draws: NetworkDraws) -> tuple[Tensor, Tensor]:
        """Return log p(y | x, θ) in original units [draw, row], and the watched quantity [draw, watched row]."""
        likelihood, watched = [], []
        rows, targets = self.data.transform.inputs(self.test.inputs), torch.tensor(self.test.targets)
        shift, scale = self.data.transform.shift, self.data.transform.scale
        for x, y in zip(rows.split(500), targets.split(500), strict=True):
            predictive = draws.predict(x)
            if isinstance(predictive, Categorical):
                of = predictive.draw_log_probs.double()
                likelihood.append(of.gather(-1, y[None, :, None].expand(len(of), -1, 1))[..., 0])
                watched.append(likelihood[-1].exp())
            else:
                assert isinstance(predictive, Gaussian) and shift is not None and scale is not None
                whole = predictive.rescale(shift, scale)
                mean, sd = whole.draw_mean.double(), whole.draw_variance.double().sqrt()
                likelihood.append(torch.distributions.Normal(mean, sd).log_prob(y.double()).sum(-1))
                watched.append(mean[..., 0])
        return torch.cat(likelihood, 1), torch.cat(watched, 1)[:, :WATCHED]

    def divergence(self, states: Sequence[artifacts.State]) -> float | str:
        """Return KL(the stored posterior, of T = 1 ‖ the average) at the test rows; empty if no posterior is stored."""
        if (truth := references.find(self.test, self.data.transform)) is None:
            return ""
        predictive = average(states).predict(self.data.transform.inputs(self.test.inputs))
        assert isinstance(predictive, Gaussian)
        return round(float(distances(truth.predictive(), predictive)[0].mean()), 4)


def diagnose(watched: Tensor) -> tuple[float, float]:
    """Return the worst R-hat and the least bulk ESS of [chain, draw, row]; NaN for too few draws."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        import arviz
    if watched.shape[1] < diagnostics.FEWEST_DRAWS or len(watched) < diagnostics.FEWEST_CHAINS:
        return math.nan, math.nan
    each = [watched[..., row].numpy() for row in range(watched.shape[-1])]
    return max(float(arviz.rhat(c)) for c in each), min(float(arviz.ess(c)) for c in each)


def variants(name: str, own: SgmcmcConfig, chains: Chains, passes: float | None) -> Iterator[tuple[str, SgmcmcConfig]]:
    """Yield the kernels with their settings at T = 1, of ``passes`` passes; None means their usual number."""
    if name == "boston":
        for kernel, more in KERNELS.items():
            batch = None if kernel == "hmc" else own.sampler.batch
            sampler = config.read(SamplerConfig, {**more, "batch": batch}, kernel)
            steps = round((passes or PASSES) / chains.passes(sampler))
            every = max(1, (steps - steps // 4) // DRAWS)
            yield kernel, replace(own, sampler=sampler, thinning=Thinning(steps, steps // 4, every))
        return
    steps, burn_in = own.thinning.steps, own.thinning.burn_in
    if passes:
        burn_in, steps = (max(4, round(passes / chains.passes(own.sampler) * s / steps)) for s in (burn_in, steps))
    thinning = Thinning(steps, burn_in, max(1, (steps - burn_in) // DRAWS))
    yield own.sampler.kernel.name, replace(own, thinning=thinning)


def page(name: str, rows: Sequence[Mapping[str, str]], facts: Mapping[str, Any], batch: int | None) -> str:
    """Write the page: the last point of each curve, and the rows of a chain's step: ``batch`` rows, or all."""
    head = ["kernel", "T", "passes", "NLL", "R-hat", "bulk ESS", "KL to the posterior", "noise, worst", "CPU s"]
    about = __doc__.split("\n\n", 2)[2].strip()
    seen = f"minibatches of {batch} rows" if batch else "all rows in each step"
    for word, text in (("BATCH", seen), ("PASSES", f"{PASSES:,}"), ("WATCHED", f"{WATCHED}")):
        about = about.replace(f"``{word}``", text)
    text = [f"# {name}: chains against their cost and against temperature", about, f"![{name}](curves-{name}.png)"]
    cells = [[row[column] or "–" for column in COLUMNS] for row in rows if row["seconds"]]
    return "\n\n".join([*text, written.table(head, cells), written.listed(facts)]) + "\n"


def draw(name: str, rows: Sequence[Mapping[str, str]]) -> None:
    """Draw the curves against passes (of several kernels: at T = 1), and their ends against temperature."""
    kernels = list(dict.fromkeys(row["kernel"] for row in rows))
    lines = {key: list(of) for key, of in itertools.groupby(rows, lambda row: (row["kernel"], row["temperature"]))}
    with matplotlib.rc_context({"font.size": 8, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(11, 5.4), layout="constrained")
        for column, (key, title) in enumerate((("nll", "NLL of the average"), ("rhat", "R-hat"), ("ess", "bulk ESS"))):
            above, below = (figure.add_subplot(2, 3, 3 * row + column + 1) for row in (0, 1))
            for (kernel, heat), of in lines.items():
                if len(kernels) == 1 or float(heat) == 1:
                    points = [(float(row["passes"]), float(row[key])) for row in of]
                    above.plot(*zip(*points, strict=True), ".-", label=kernel if len(kernels) > 1 else f"T = {heat}")
            for kernel in kernels:
                ends = [(float(heat), float(of[-1][key])) for (k, heat), of in lines.items() if k == kernel]
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
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    name, params, diverged, rows = chosen.name, load(), list[str](), list[dict[str, Any]]()
    keys = [run.key for run in params.of("teacher") if run.spec.dataset == name]
    run = params.run("teacher", chosen.teacher or keys[0])
    chains = Chains.read(run, params)
    kernels = variants(name, run.config, chains, chosen.passes)
    for (kernel, settings), heat in itertools.product(kernels, TEMPERATURES[name]):
        hot = replace(settings, sampler=replace(settings.sampler, temperature=heat))
        try:
            rows += ({"kernel": kernel, "temperature": heat, **row} for row in chains.run(f"{kernel} {heat}", hot))
        except Diverged as error:
            diverged.append(f"{kernel} at T = {heat}: {error}")
        print(kernel, heat, rows[-1:], diverged, flush=True)
    if not chosen.passes:
        facts = {
            "commit": provenance.commit(),
            "device": f"{records.device_name('cpu')}, {torch.get_num_threads()} thread, torch {torch.__version__}",
            "teacher": f"{run.key}, {chains.count} chains; {run.config.target}; {run.config.sampler}",
            "diverged": "; ".join(diverged) or "none",
        }
        stored_rows.write(stored := OUT / f"curves-{name}.csv", COLUMNS, rows)
        table = stored_rows.read(stored)
        (OUT / f"curves-{name}.md").write_text(page(name, table, facts, run.config.sampler.batch))
        draw(name, table)


if __name__ == "__main__":
    main()
