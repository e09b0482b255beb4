"""The evaluate stage: every member of a run on test rows, corrupted rows, other data, and its cost.

Tasks: for each (split, member) one on the test rows (with the OOD sets, whose scores are compared
with those of the test rows, and the transfer sets) and one on each corruption.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from bdl_pipe import artifacts, evaluation
from bdl_pipe.artifacts import State
from bdl_pipe.data import prepared, store
from bdl_pipe.data.transform import Transform
from bdl_pipe.evaluation import EvaluateConfig, Scores
from bdl_pipe.posterior import Predictor, prediction_address
from bdl_pipe.progress import Report
from bdl_pipe.registry import POSTERIORS
from bdl_pipe.seeds import Seed

from ..core import places
from ..core.executors import Executor, Task
from ..core.executors.display import Display
from ..core.params import Params, Run
from ..core.settings import Settings
from . import fit, records

COLUMNS: Final = ("dataset", "method", "setting", "seed", "split", "metric", "value", "n")


@dataclass(frozen=True)
class Question:
    """The payload of a task: one member, asked about the test rows or about one corruption."""

    split: int
    member: int
    corruption: str | None
    config: EvaluateConfig
    rng: Seed
    device: str


@dataclass(frozen=True)
class Answer:
    """Scores by the comparison's ``split``, and tables of the test rows."""

    scores: dict[str, Scores]
    tables: dict[str, pa.Table]


def evaluate(key: str, params: Params, executor: Executor, settings: Settings) -> None:
    """Make ``work/evaluate/<key>``: scores.parquet, predictions.parquet, calibration.parquet."""
    from ..tracking import experiments

    run = params.run("student", key)
    place = places.artifact("evaluate", key)
    shared, tasks = _plan(run, params, settings)
    deps = [str(places.artifact(kind, name)) for kind, name in (("student", key), ("holdout", run.spec.dataset))]
    about = {"student": key, "evaluate": params.raw["evaluate"], "seed": params.seed}
    about_run = fit.tags(run, params)
    numbers = {
        **{name: about_run[name] for name in ("dataset", "method", "setting")},
        **fit.facts(run, params)["config"],
    }
    with experiments.stage_run("evaluate", key, about_run, numbers, deps) as tracked:
        with Display(f"evaluate {key}") as display:
            done = executor.map(answer, tasks, shared=shared, display=display, light=None)
        answers = [(task.payload, made.result) for task, made in zip(tasks, done, strict=True)]
        rows = list(_rows(run, answers, params))
        places.sweep(place)
        with artifacts.publish(place, "evaluate", about=about) as folder:
            table = pa.Table.from_pylist(rows)
            pq.write_table(table, folder / "scores.parquet")
            for name, parts in _tables(run, answers, params).items():
                pq.write_table(pa.concat_tables(parts), folder / f"{name}.parquet")
        tracked.metrics(experiments.final_scores(rows))


def answer(question: Question, shared: Mapping[str, Any], report: Report) -> Answer:
    """The work of a task."""
    at, config, rng, device = f"{question.split}-{question.member}", question.config, question.rng, question.device
    fitted = _fitted(shared[f"state-{at}"], shared[f"transform-{question.split}"], device)
    if question.corruption is not None:
        found = {}
        for severity, file in shared[f"corrupted-{question.corruption}"].items():
            where = f"corrupted:{question.corruption}:{severity}"
            rows = store.loads(file, f"corrupted/{question.corruption}-{severity}.arrow").examples
            found[where] = evaluation.score_classification(fitted, rows, config, rng, device)
        return Answer(found, {})
    test = shared[f"test-{question.split}"]
    clean = evaluation.score_clean(fitted, test, config, rng, device)
    found = {"test": clean.metrics}
    for name, other in shared["ood"].items():
        inside = clean.in_distribution_scores
        found[f"ood:{name}"] = evaluation.score_ood(fitted, other.inputs, inside, config, rng, device)
    for name, other in shared["transfer"].items():
        found[f"transfer:{name}"] = evaluation.score_classification(fitted, other, config, rng, device)
    found["cost"] = evaluation.measure_cost(fitted, test.inputs, config, rng, device)
    tables = {"predictions": clean.predictions}
    if clean.calibration is not None:
        tables["calibration"] = clean.calibration
    return Answer(found, tables)


def seed_of(split: int, member: int, splits: int, members: int) -> int:
    """The comparison's ``seed``: the member, or the split where there are several."""
    if splits == 1:
        return member
    return split if members == 1 else split * 1000 + member


def _fitted(state: State, transform: State, device: str) -> Predictor:
    posterior = POSTERIORS[state.config["posterior"]].from_state(state, device)
    return Predictor(posterior, Transform.from_state(transform))


def _plan(run: Run, params: Params, settings: Settings) -> tuple[dict[str, Any], list[Task]]:
    """The shared data, with files in place of the corrupted rows: each is read by the task that scores it."""
    student = artifacts.load(places.artifact("student", run.key), "student")
    shared: dict[str, Any] = {}
    tasks = []
    splits = range(params.datasets[run.spec.dataset].splits)
    holdouts = prepared.load_holdouts(places.artifact("holdout", run.spec.dataset), splits)
    jobs = holdouts[0].corruptions()
    corruptions = dict.fromkeys(job.name for job in jobs)
    sizes = {name: sum(len(holdouts[0].corrupted(*job)) for job in jobs if job.name == name) for name in corruptions}
    shared |= {"ood": holdouts[0].ood(), "transfer": holdouts[0].transfer()}
    for job in jobs:
        file = holdouts[0].corrupted_file(job.name, job.severity)
        shared.setdefault(f"corrupted-{job.name}", {})[job.severity] = file
    clean = sum(len(part) for part in (*shared["ood"].values(), *shared["transfer"].values()))
    for split, held in enumerate(holdouts):
        shared[f"test-{split}"] = held.test
        shared[f"transform-{split}"] = student.state(f"transform-{split}")
        for member in range(run.spec.seeds):
            state = f"state-{split}-{member}"
            shared[state] = student.state(f"{split}-{member}")
            rng = prediction_address(params.seed, run.key, split, member)
            for corruption in (None, *corruptions):
                question = Question(split, member, corruption, params.evaluate, rng, settings.device)
                data = (f"test-{split}", "ood", "transfer") if corruption is None else (f"corrupted-{corruption}",)
                name, needs = f"{split}-{member}-{corruption or 'test'}", (state, f"transform-{split}", *data)
                size = len(held.test) + clean if corruption is None else sizes[corruption]
                tasks.append(Task(name, question, needs, size=size))
    return shared, tasks


def _seed(question: Question, run: Run, params: Params) -> int:
    return seed_of(question.split, question.member, params.datasets[run.spec.dataset].splits, run.spec.seeds)


def _rows(run: Run, answers: list[tuple[Question, Answer]], params: Params) -> Iterator[dict[str, Any]]:
    """The tidy rows: one figure each; the costs of the fit come from the student's provenance."""
    record = records.read("student", run.key)
    for question, found in answers:
        seed = _seed(question, run, params)
        scores = dict(found.scores)
        if question.corruption is None:
            scores["cost"] = scores["cost"] | _fit_cost(record, f"{question.split}-{question.member}")
        for split, metrics in scores.items():
            for metric, (value, n) in metrics.items():
                facts = (
                    run.spec.dataset,
                    run.method.name,
                    run.spec.setting,
                    seed,
                    split,
                    metric,
                    float(value),
                    int(n),
                )
                yield dict(zip(COLUMNS, facts, strict=True))


def _fit_cost(record: Mapping[str, Any], member: str) -> Scores:
    """Seconds to fit one member, with all that it was made from, and the memory that took."""
    if not record:
        return {}
    return {"fit_seconds": (record["total_seconds"][member], 1), "peak_bytes": (float(record["peak_bytes"][member]), 1)}


def _tables(run: Run, answers: list[tuple[Question, Answer]], params: Params) -> dict[str, list[pa.Table]]:
    """The members' tables, each with its ``seed`` as the first column."""
    parts: dict[str, list[pa.Table]] = {}
    for question, found in answers:
        for name, table in found.tables.items():
            seed = pa.array([_seed(question, run, params)] * len(table), pa.int64())
            parts.setdefault(name, []).append(table.add_column(0, "seed", seed))
    return parts
