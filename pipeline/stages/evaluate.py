"""The evaluate stage: score every seed of a run on test rows, corrupted rows and other data, and record its cost.

Each (split, seed) has one task for the test rows with the transfer sets and the OOD sets (OOD scores are compared with
the test rows' scores), and one task for each corruption.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from bdl_pipe import artifacts, evaluation, scores
from bdl_pipe.artifacts import State
from bdl_pipe.data.transform import Transform
from bdl_pipe.evaluation import EvaluateConfig
from bdl_pipe.posterior import Predictor, prediction_address
from bdl_pipe.progress import Report
from bdl_pipe.recalibration import Recalibration
from bdl_pipe.registry import RECALIBRATION, posterior_of
from bdl_pipe.scores import Quantity, Score
from bdl_pipe.seeds import Seed

from ..core import places, records
from ..core.curves import Curve
from ..core.model import Params, Run
from ..core.settings import Settings
from ..plan.plan import Stage
from ..prepared import arrow_rows, folders
from ..work.display import Display
from ..work.executor import Executor, Task
from ..work.store import Store
from . import fit


@dataclass(frozen=True)
class EvalTask:
    """A task's payload: one fit, to score on the test rows or on one corruption."""

    run: tuple[str, str, str]  # data set, method, setting
    split: int
    seed: int
    corruption: str | None
    config: EvaluateConfig
    rng: Seed
    device: str

    def scores(self, figures: Mapping[Quantity, tuple[float, int]]) -> pa.Table:
        """Return the scores of this fit as a table in the stored format."""
        return scores.table(*self.run, (Score(self.split, self.seed, of, *figure) for of, figure in figures.items()))


def run(stage: Stage, params: Params, executor: Executor, settings: Settings) -> Store:
    """Make ``work/evaluate/<key>``: scores.parquet, predictions.parquet, calibration.parquet.

    Returns:
        The checkpoints, which the caller clears once the result is recorded.
    """
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
    tables, record = defaultdict[str, list[pa.Table]](list), records.read("student", key)
    for task, each in zip(tasks, done, strict=True):
        for name, table in read(each.result).items():
            tables[name].append(table)
        if task.payload.corruption is None and record:
            tables["scores"].append(task.payload.scores(_fit_cost(record, task.payload)))
    with artifacts.publish(place, "evaluate", about=about) as folder:
        for name, parts in tables.items():
            pq.write_table(
                pa.concat_tables(parts), folder / f"{name}.parquet", compression="zstd", use_dictionary=False
            )
    return store


def answer(task: EvalTask, shared: Mapping[str, Any], report: Report) -> State:
    """Score one fit, and return tables as Arrow streams, each with the split and the seed."""
    fitted, options, tables = _fitted(task, shared), (task.config, task.rng, task.device), dict[str, pa.Table]()
    if task.corruption is None:
        test, others = shared[f"test-{task.split}"], {name: shared[name] for name in ("ood", "transfer")}
        train = shared.get(f"train-{task.split}")
        figures, clean = evaluation.score_all(fitted, test, *options, **others, train=train)
        tables = {name: scores.of_fit(table, task.split, task.seed) for name, table in clean.tables.items()}
    else:
        name, files = task.corruption, shared[f"corrupted-{task.corruption}"]
        opened = ((level, arrow_rows.loads(file, f"corrupted/{name}-{level}.arrow")) for level, file in files.items())
        figures = evaluation.score_corrupted(fitted, name, ((level, rows.examples) for level, rows in opened), *options)
    tables["scores"] = task.scores(figures)
    return State({name: _stream(table) for name, table in tables.items()})


def read(answer: State) -> dict[str, pa.Table]:
    """Read the tables of an :func:`answer`."""
    return {name: pa.ipc.open_stream(stream.numpy()).read_all() for name, stream in answer.tensors.items()}


def _stream(table: pa.Table) -> torch.Tensor:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return torch.frombuffer(bytearray(sink.getvalue()), dtype=torch.uint8)


def _fitted(task: EvalTask, shared: Mapping[str, Any]) -> Predictor:
    at = f"{task.split}-{task.seed}"
    again, transform = shared.get(f"{RECALIBRATION}-{at}"), Transform.from_state(shared[f"transform-{task.split}"])
    recalibration = None if again is None else Recalibration.from_state(again)
    return Predictor(posterior_of(shared[at], task.device), transform, recalibration=recalibration)


def _plan(run: Run, params: Params, settings: Settings) -> tuple[dict[str, Any], list[Task]]:
    """Plan the shared data and the tasks.

    Corrupted rows are passed as files: the task that scores a file reads it.
    """
    student = artifacts.load(places.artifact("student", run.key), "student")
    shared: dict[str, Any] = {}
    tasks, about = [], (run.spec.dataset, run.method.name, run.spec.setting)
    splits = range(params.datasets[run.spec.dataset].splits)
    holdouts = folders.load_holdouts(places.artifact("holdout", run.spec.dataset), splits)
    shared |= {"ood": holdouts[0].ood(), "transfer": holdouts[0].transfer()}
    sizes = Counter[str]()
    for job in holdouts[0].corruptions():
        shared.setdefault(f"corrupted-{job.name}", {})[job.severity] = holdouts[0].corrupted_file(*job)
        sizes[job.name] += len(holdouts[0].corrupted(*job))
    if shared["ood"]:
        fits = folders.load_fits(places.artifact("prepare", run.spec.dataset), splits, final=True)
        shared |= {
            f"train-{split}": evaluation.training_rows(data.train) for split, data in zip(splits, fits, strict=True)
        }
    clean = sum(len(part) for part in (*shared["ood"].values(), *shared["transfer"].values()))
    for split, held in enumerate(holdouts):
        shared[f"test-{split}"] = held.test
        for seed in range(run.spec.seeds):
            at = f"{split}-{seed}"
            states = [name for name in (at, f"transform-{split}", f"{RECALIBRATION}-{at}") if name in student.names()]
            shared |= {name: student.state(name) for name in states if name not in shared}
            rng = prediction_address(params.seed, run.key, split, seed)
            for corruption in (None, *sizes):
                question = EvalTask(about, split, seed, corruption, params.evaluate, rng, settings.device)
                clean_data = [name for name in (f"test-{split}", f"train-{split}", "ood", "transfer") if name in shared]
                data = clean_data if corruption is None else [f"corrupted-{corruption}"]
                size = len(held.test) + clean if corruption is None else sizes[corruption]
                tasks.append(Task(f"{at}-{corruption or 'test'}", question, (*states, *data), size=size))
    return shared, tasks


def _fit_cost(record: Mapping[str, Any], task: EvalTask) -> dict[Quantity, tuple[float, int]]:
    """Return the recorded seconds of one fit, including its upstream stages, and its peak memory."""
    at = f"{task.split}-{task.seed}"
    costs = {"fit_seconds": record["total_seconds"][at], "peak_bytes": record["peak_bytes"][at]}
    return {Quantity(metric, "cost"): (value, 1) for metric, value in costs.items()}
