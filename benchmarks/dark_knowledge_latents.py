"""results/dark_knowledge/latents.md: how much of a teacher's functions a student with a latent keeps, and why not more.

    python -m pipeline apply params/comparison.yaml
    python -m pipeline repro teacher@boston-sghmc
    python -m benchmarks.dark_knowledge_latents        # goes on where it stopped; rows are in latents.csv

*kept* is the share of Σ_x Var f(x), over the teacher's draws, that a + B(x) z with B = (1/S) Σ_s f_s z_sᵀ has. This is
the fixed point of the loss for given latents z_s: no network and no optimiser is in it. It is computed at the probe
inputs of the embedding, at the training rows, and at new inputs of the student data generator. Of all latents of d
dimensions none keeps more at the probe inputs than the share of the d largest eigenvalues. *explained* is what a fitted
student has: 1 − Σ_s Σ_x (f_s − E f − B z_s)² / Σ_s Σ_x (f_s − E f)². The difference of both is what the network has
not learned; *error of a* is Σ_x (a − E f)² over the same variance. Test rows are scored last. The
rows with all draws in a step were chosen by what they explain at training rows, and joined the list after split 0 had
been scored on test rows for the teacher and four other students.
"""

import csv
import itertools
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from bdl_pipe import artifacts
from bdl_pipe.dark_knowledge import distil, functions, teachers
from bdl_pipe.dark_knowledge.inputs import Generator
from bdl_pipe.data.fitdata import FitData
from bdl_pipe.evaluation import score_clean
from bdl_pipe.evaluation.gathered import USUAL
from bdl_pipe.metrics.joint import names
from bdl_pipe.posterior import NetworkDraws, Posterior, Predictor
from bdl_pipe.progress import Silent
from bdl_pipe.seeds import Seed
from bdl_pipe.sgmcmc.method import average
from bdl_pipe.training.loop import run_steps
from benchmarks import stored_rows, written
from pipeline.core import places, provenance, records
from pipeline.core.load import load
from pipeline.prepared import folders

OUT: Final = Path("results/dark_knowledge")
TEACHER: Final = "boston-sghmc"
RUN: Final = "boston-latent"
DIMENSIONS: Final = (2, 4, 8, 16, 32, 64, 128, 256, 399)
NEW: Final = 1000  # new inputs at which shares are computed
SPLITS: Final = {"shares": 5, "students": 3}
SCORES: Final = ("nll", names(20)[0], "reference_kl", "reference_sd_ratio")
_FITTED: Final = ("explained_rows", "bias_rows", "explained_new", "bias_new")
COLUMNS: Final = ("part", "split", "name", "dimension", "probe", "rows", "new", *_FITTED, *SCORES, "seconds")
ROWS: Final = {"probe": 455, "probe_at": "rows"}
WIDE: Final = {**ROWS, "dimension": 399, "share": 0.9}
STUDENTS: Final[Mapping[str, Mapping[str, Any]]] = {  # changes of the latent of params/comparison.yaml
    "latent of 16": {},
    "latent of 16, probes at training rows": ROWS,
    "latent that keeps 0.9": WIDE,
    "latent of 16, all draws in a step": {"draws_per_step": 400},
    "latent of 16, probes at training rows, all draws in a step": {**ROWS, "draws_per_step": 400},
    "latent that keeps 0.9, all draws in a step": {**WIDE, "draws_per_step": 400},
}
Row = dict[str, Any]


def kept(values: Tensor, latents: Tensor) -> float:
    """Return the share of the trace of the draws' covariance at some inputs that the best linear map of latents has.

    Args:
        values: the functions at these inputs [draw, input].
        latents: z of each function, with mean 0 and covariance I [draw, latent].
    """
    values, latents = values.double(), latents.double()
    centred = values - values.mean(0)
    return float((latents.T @ centred / len(values)).square().sum() / centred.square().mean(0).sum())


def explained(values: Tensor, fitted: Tensor) -> float:
    """Return 1 minus the squared error of fitted functions over the variance of functions, both [draw, input]."""
    values, fitted = values.double(), fitted.double()
    return float(1 - (values - fitted).square().sum() / (values - values.mean(0)).square().sum())


def linear() -> Iterator[Row]:
    """Yield the shares of a teacher with Gaussian weights of 60 cosine features, beside the bound of its law."""
    rng, features = Seed(0).fold("latents", "linear"), 60
    generator = rng.generator()
    frequencies, phases = torch.randn(3, features, generator=generator), 6.3 * torch.rand(features, generator=generator)
    deviations = torch.arange(1, features + 1) ** -0.5

    def at(inputs: Tensor) -> Tensor:
        return (inputs @ frequencies + phases).cos() * deviations

    many, new = (at(torch.randn(count, 3, generator=generator)) for count in (20_000, NEW))
    sizes = torch.linalg.eigvalsh(many.T.double() @ many.double() / len(many)).flip(0)
    for draws, probes in ((50, 50), (50, 1000), (400, 50), (400, 1000)):
        weights = torch.randn(draws, features, generator=generator)
        probe = at(torch.randn(probes, 3, generator=generator))
        for dimension in (4, 16, 32):
            latents = functions.embed((weights @ probe.T)[..., None].double(), dimension)
            yield {
                "name": f"{draws} draws, {probes} probe inputs",
                "dimension": dimension,
                "probe": kept(weights @ probe.T, latents),
                "rows": float(sizes[:dimension].sum() / sizes.sum()),
                "new": kept(weights @ new.T, latents),
            }


class Split:
    """One split of boston: its training rows, the teacher's posterior, and the teacher's functions at inputs."""

    def __init__(self, number: int) -> None:
        teacher = artifacts.load(places.artifact("teacher", TEACHER), "teacher")
        self.number, self.settings = number, load().run("student", RUN).config
        self.data: FitData = folders.load_fit(places.artifact("prepare", "boston"), number, final=True)
        chains = [name for name in teacher.names() if name.startswith(f"{number}-")]
        self.posterior: NetworkDraws = average([teacher.state(name) for name in chains])
        rows, _ = self.data.rows("train", "cpu").slice(0, len(self.data.train))
        self.inputs = {"rows": rows, "new": self.generator().draw(NEW, Seed(0).fold("latents", "new", number))}

    def generator(self, noise: float | None = None) -> Generator:
        inputs = self.settings.inputs
        return Generator(inputs if noise is None else replace(inputs, noise=noise), self.data)

    def functions(self, inputs: Tensor) -> Tensor:
        """Return f of each draw of the teacher [draw, input]."""
        predictive = self.posterior.predict(inputs, rng=Seed(0))
        return predictive.draw_mean[..., 0]  # type: ignore[attr-defined, no-any-return]

    def shares(self) -> Iterator[Row]:
        """Yield the shares that latents of each dimension keep, by the probe inputs of the embedding."""
        rng, noise = Seed(0).fold("latents", "probe", self.number), self.settings.inputs.noise
        probes = {
            f"200 inputs with noise {noise:g}": self.generator().draw(200, rng),
            f"2,000 inputs with noise {noise:g}": self.generator().draw(2000, rng),
            "the training rows": self.inputs["rows"],
        }
        at = {name: self.functions(inputs) for name, inputs in self.inputs.items()}
        for name, inputs in probes.items():
            values = self.functions(inputs)
            latents = functions.embed(values[..., None].double(), DIMENSIONS[-1])
            for dimension in (d for d in DIMENSIONS if d <= latents.shape[1]):
                some = latents[:, :dimension]
                shares = {place: kept(of, some) for place, of in at.items()}
                yield {"name": name, "dimension": dimension, "probe": kept(values, some), **shares}

    def scores(self, posterior: Posterior) -> Row:
        """Return the scores of a posterior on the test rows."""
        test = folders.load_holdout(places.artifact("holdout", "boston"), self.number).test
        result = score_clean(Predictor(posterior, self.data.transform), test, USUAL, Seed(0).fold("scores"))
        return {name: result.metrics[name][0] for name in SCORES if name in result.metrics}

    def student(self, name: str, config: distil.DarkKnowledgeConfig) -> Row:
        """Fit a student and return its row."""
        began, rng = time.process_time(), Seed(0).fold("latents", name, self.number)
        source = teachers.stored(self.posterior, self.data, rng.fold("teacher"))
        learner = distil.FunctionStudent(self.data, source, config, rng)
        task = distil.Distillation(self.data, source, learner, config, rng)
        run_steps(task, config.optimiser, config.steps, Silent())
        posterior = task.posterior()
        assert isinstance(posterior, functions.StudentFunctions)
        row: Row = {"name": name, "seconds": time.process_time() - began}
        latents = learner._coefficients[:, 1:]
        shares, errors = dict[str, float](), dict[str, float]()
        for place, inputs in self.inputs.items():
            values, (mean, factor, _) = self.functions(inputs), posterior.affine(inputs)
            shares[place] = kept(values, latents)
            errors[f"explained_{place}"] = explained(values, values.mean(0) + latents @ factor[..., 0])
            bias = (mean[:, 0] - values.mean(0)).square().sum() / values.var(0, correction=0).sum()
            errors[f"bias_{place}"] = float(bias)
        return row | {"dimension": latents.shape[1]} | shares | errors | self.scores(posterior)


def measured(rows: list[dict[str, str]]) -> Iterator[Row]:
    """Yield the rows that are not among ``rows`` yet."""
    done = {(row["part"], row["split"], row["name"]) for row in rows}
    if not any(part == "linear" for part, *_ in done):
        yield from ({"part": "linear", **row} for row in linear())
    splits = [Split(number) for number in range(SPLITS["shares"])]
    for split in splits:
        if not any(key[:2] == ("shares", str(split.number)) for key in done):
            yield from ({"part": "shares", "split": split.number, **row} for row in split.shares())
    for name, split in itertools.product(("teacher", *STUDENTS), splits[: SPLITS["students"]]):
        if ("students", str(split.number), name) in done:
            continue
        if name == "teacher":
            row: Row = {"name": name, **split.scores(split.posterior)}
        else:
            latent = replace(split.settings.student, **STUDENTS[name])
            row = split.student(name, replace(split.settings, student=latent))
        yield {"part": "students", "split": split.number, **row}


def table(rows: Sequence[Mapping[str, str]], columns: Mapping[str, str], first: str) -> str:
    """Return the means over splits, with their standard errors, of rows of one part as Markdown."""
    lines = list[list[str]]()
    for key in dict.fromkeys((row["name"], row["dimension"] if "probe" in columns else "") for row in rows):
        same = [row for row in rows if row["name"] == key[0] and key[1] in ("", row["dimension"])]
        cells = [cell([row[c] for row in same if row[c]], whole=c == "dimension") for c in columns]
        lines.append([key[0], f"{len(same)}", *cells])
    return written.table([first, "splits", *columns.values()], lines)


def cell(texts: Sequence[str], *, whole: bool) -> str:
    """Return the mean of numbers and, of several that differ, its standard error."""
    numbers = [float(text) for text in texts]
    if not numbers:
        return "–"
    mean = statistics.mean(numbers)
    if whole:
        return f"{mean:.0f}"
    error = statistics.stdev(numbers) / len(numbers) ** 0.5 if len(numbers) > 1 else 0.0
    return f"{mean:.3f} ± {error:.3f}" if error else f"{mean:.3f}"


def page(rows: Sequence[Mapping[str, str]], facts: Mapping[str, Any]) -> str:
    """Return the page of the stored rows."""
    parts = {part: [row for row in rows if row["part"] == part] for part in ("linear", "shares", "students")}
    shares = {"dimension": "d", "probe": "kept at the probe inputs"}
    text = [
        "## A teacher of Gaussian weights, with the bound of its law in closed form",
        table(parts["linear"], {**shares, "rows": "the bound", "new": "kept at new inputs"}, "draws"),
        "## Boston: the fixed point",
        table(parts["shares"], {**shares, "rows": "at training rows", "new": "at new inputs"}, "probe inputs"),
        "## Boston: fitted students",
        table(
            parts["students"],
            {
                "dimension": "d",
                "rows": "kept, training rows",
                "explained_rows": "explained, training rows",
                "bias_rows": "error of a, training rows",
                "new": "kept, new inputs",
                "explained_new": "explained, new inputs",
                "bias_new": "error of a, new inputs",
                "reference_sd_ratio": "sd of f, of the posterior's",
                "reference_kl": "KL to the posterior",
                "nll": "NLL",
                names(20)[0]: "joint NLL of 20",
                "seconds": "CPU s",
            },
            "student",
        ),
    ]
    return written.page("Boston: what a student with a latent keeps", __doc__, facts, *text)


def main() -> None:
    torch.set_num_threads(1)
    stored = OUT / "latents.csv"
    rows = stored_rows.read(stored)
    with open(stored, "a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if not rows:
            writer.writeheader()
        for row in measured(rows):
            writer.writerow({key: f"{v:.5g}" if isinstance(v, float) else v for key, v in row.items()})
            file.flush()
            print(row, flush=True)
    facts = {
        "commit": provenance.commit(),
        "device": f"{records.device_name('cpu')}, 1 thread, torch {torch.__version__}",
        "settings": f"{RUN} of params/comparison.yaml, {load().run('student', RUN).config}",
        "data": f"boston, {records.data_hash('boston')}; {SPLITS['shares']} splits, students {SPLITS['students']}",
        "teacher": f"{TEACHER}, 4 chains of 100 draws, commit {records.read('teacher', TEACHER)['commit']}",
    }
    (OUT / "latents.md").write_text(page(stored_rows.read(stored), facts))


if __name__ == "__main__":
    main()
