"""The evaluate stage: every seed of a run on test rows, corrupted rows, other data, and its cost.

Tasks: for each (split, seed) one on the test rows (with the OOD sets, whose scores are compared
with those of the test rows, and the transfer sets) and one on each corruption.
"""

from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from bdl_pipe import artifacts, evaluation
from bdl_pipe.artifacts import State
from bdl_pipe.data import prepared, store
from bdl_pipe.data.transform import Transform
from bdl_pipe.evaluation import EvaluateConfig, Scores
from bdl_pipe.posterior import Predictor, prediction_address
from bdl_pipe.progress import Report
from bdl_pipe.recalibration import Recalibration
from bdl_pipe.registry import POSTERIORS, RECALIBRATION
from bdl_pipe.seeds import Seed

from ..core import places, records, scores
from ..core.curves import Curve
from ..core.model import Params, Run
from ..core.scores import Quantity, Score, Set
from ..core.settings import Settings
from ..plan.plan import Stage
from ..work.display import Display
from ..work.executor import Executor, Task
from ..work.store import Store
from . import fit


@dataclass(frozen=True)
class EvalTask:
    """A task's payload: one fit, asked about the test rows or about one corruption."""

    split: int
    seed: int
    corruption: str | None
    config: EvaluateConfig
    rng: Seed
    device: str


@dataclass(frozen=True)
class EvalResult:
    """A task's result: scores, (value, n) by the quantity that they measure, and tables of the test rows."""

    scores: dict[Quantity, tuple[float, int]]
    tables: dict[str, pa.Table]

    def state(self) -> State:
        """Return it as executors keep results: the tables as Arrow streams."""
        rows = [[*astuple(of), float(value), int(n)] for of, (value, n) in self.scores.items()]
        return State({name: _stream(table) for name, table in self.tables.items()}, {"scores": rows})

    @classmethod
    def of(cls, state: State) -> Self:
        """Undo :meth:`state`."""
        scores = {Quantity(*of): (value, n) for *of, value, n in state.config["scores"]}
        tables = {name: pa.ipc.open_stream(stream.numpy()).read_all() for name, stream in state.tensors.items()}
        return cls(scores, tables)


def run(stage: Stage, params: Params, executor: Executor, settings: Settings) -> None:
    """Make ``work/evaluate/<key>``: scores.parquet, predictions.parquet, calibration.parquet."""
    key = stage.key
    run = params.run("student", key)
    place = places.artifact("evaluate", key)
    shared, tasks = _plan(run, params, settings)
    inputs = [places.artifact(kind, name) for kind, name in (("student", key), ("holdout", run.spec.dataset))]
    about = {"student": key, "evaluate": params.raw["evaluate"], "seed": params.seed}
    of_work = {**about, "code": dict(stage.digests)}
    store = Store(places.checkpoints("evaluate", key), fit.identity(of_work, settings, inputs))
    store.open()
    with Display(f"evaluate {key}", Curve("evaluate", key).metrics) as display:
        done = executor.map(answer, tasks, shared=shared, display=display, store=store, where="try")
    answers = [(task.payload, EvalResult.of(each.result)) for task, each in zip(tasks, done, strict=True)]
    figures = list(_figures(run, answers))
    places.sweep(place)
    with artifacts.publish(place, "evaluate", about=about) as folder:
        table = scores.table(run.spec.dataset, run.method.name, run.spec.setting, figures)
        pq.write_table(table, folder / "scores.parquet")
        for name, parts in _tables(answers).items():
            pq.write_table(pa.concat_tables(parts), folder / f"{name}.parquet")
    store.clear()


def answer(question: EvalTask, shared: Mapping[str, Any], report: Report) -> State:
    """Do the work of a task: score one fit; see :class:`EvalResult`."""
    return _answer(question, shared).state()


def _answer(question: EvalTask, shared: Mapping[str, Any]) -> EvalResult:
    at, config, rng, device = f"{question.split}-{question.seed}", question.config, question.rng, question.device
    fitted = _fitted(
        shared[f"state-{at}"], shared[f"transform-{question.split}"], shared.get(f"recalibration-{at}"), device
    )
    if question.corruption is not None:
        shifted = dict[Quantity, tuple[float, int]]()
        for severity, file in shared[f"corrupted-{question.corruption}"].items():
            rows = store.loads(file, f"corrupted/{question.corruption}-{severity}.arrow").examples
            of_rows = evaluation.score_classification(fitted, rows, config, rng, device)
            shifted |= _of("corrupted", of_rows, name=question.corruption, severity=severity)
        return EvalResult(shifted, {})
    test = shared[f"test-{question.split}"]
    clean = evaluation.score_clean(fitted, test, config, rng, device)
    answers = _of("test", clean.metrics)
    for name, other in shared["ood"].items():
        by_score = evaluation.score_ood(fitted, other.inputs, clean.in_distribution_scores, config, rng, device)
        for score, metrics in by_score.items():
            answers |= _of("ood", metrics, name=name, score=score)
    for name, other in shared["transfer"].items():
        answers |= _of("transfer", evaluation.score_classification(fitted, other, config, rng, device), name=name)
    answers |= _of("cost", evaluation.measure_cost(fitted, test.inputs, config, rng, device))
    tables = {"predictions": clean.predictions}
    if clean.calibration is not None:
        tables["calibration"] = clean.calibration
    return EvalResult(answers, tables)


def _of(
    where: Set, metrics: Scores, *, name: str | None = None, severity: int | None = None, score: str | None = None
) -> dict[Quantity, tuple[float, int]]:
    return {Quantity(metric, where, name, severity, score): figure for metric, figure in metrics.items()}


def _fitted(state: State, transform: State, recalibration: State | None, device: str) -> Predictor:
    posterior = POSTERIORS[state.config["posterior"]].from_state(state, device)
    again = None if recalibration is None else Recalibration.from_state(recalibration)
    return Predictor(posterior, Transform.from_state(transform), recalibration=again)


def _plan(run: Run, params: Params, settings: Settings) -> tuple[dict[str, Any], list[Task]]:
    """Plan the shared data and the tasks.

    Files stand in place of the corrupted rows: each is read by the task that scores it.
    """
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
        for seed in range(run.spec.seeds):
            state = f"state-{split}-{seed}"
            shared[state] = student.state(f"{split}-{seed}")
            again, more = f"{RECALIBRATION}-{split}-{seed}", tuple[str, ...]()
            if again in student.names():
                shared[again], more = student.state(again), (again,)
            rng = prediction_address(params.seed, run.key, split, seed)
            for corruption in (None, *corruptions):
                question = EvalTask(split, seed, corruption, params.evaluate, rng, settings.device)
                data = (f"test-{split}", "ood", "transfer") if corruption is None else (f"corrupted-{corruption}",)
                name, needs = f"{split}-{seed}-{corruption or 'test'}", (state, f"transform-{split}", *data, *more)
                size = len(held.test) + clean if corruption is None else sizes[corruption]
                tasks.append(Task(name, question, needs, size=size))
    return shared, tasks


def _figures(run: Run, answers: list[tuple[EvalTask, EvalResult]]) -> Iterator[Score]:
    """Yield every figure; the costs of the fit come from the student's record."""
    record = records.read("student", run.key)
    for question, answer in answers:
        figures = answer.scores
        if question.corruption is None:
            figures = figures | _of("cost", _fit_cost(record, f"{question.split}-{question.seed}"))
        for of, (value, n) in figures.items():
            yield Score(question.split, question.seed, of, float(value), int(n))


def _fit_cost(record: Mapping[str, Any], fit: str) -> Scores:
    """Return the seconds of one fit, with all that it was made from, and the memory that took."""
    if not record:
        return {}
    return {"fit_seconds": (record["total_seconds"][fit], 1), "peak_bytes": (float(record["peak_bytes"][fit]), 1)}


def _stream(table: pa.Table) -> torch.Tensor:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return torch.frombuffer(bytearray(sink.getvalue()), dtype=torch.uint8)


def _tables(answers: list[tuple[EvalTask, EvalResult]]) -> dict[str, list[pa.Table]]:
    """Return the fits' tables, each with its ``split`` and ``seed`` as the first columns."""
    parts: dict[str, list[pa.Table]] = {}
    for question, answer in answers:
        for name, table in answer.tables.items():
            for i, (column, number) in enumerate((("split", question.split), ("seed", question.seed))):
                table = table.add_column(i, column, pa.array([number] * len(table), pa.int32()))
            parts.setdefault(name, []).append(table)
    return parts
