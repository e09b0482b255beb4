"""The stage ``scores``: metrics, curves and OOD figures of stored predictions, with no new fit or prediction."""

from collections import defaultdict
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bdl_pipe import artifacts, scores
from bdl_pipe.metrics import ood, stored, table
from bdl_pipe.metrics.pit import pit_histogram
from bdl_pipe.metrics.selective import risk_coverage
from bdl_pipe.scores import Quantity, Score
from bdl_pipe.seeds import Seed

from ..core import places
from ..core.model import Params
from ..core.settings import Settings
from ..plan.plan import Stage
from ..work.executor import Executor

_COVERAGES: Final = np.arange(1, 101) / 100
_BINS: Final = 10


def run(stage: Stage, params: Params, executor: Executor, settings: Settings) -> None:
    """Make ``work/scores/<key>``: scores.parquet, risk.parquet, for regression pit.parquet, for OOD sets ood.parquet.

    A metric's random numbers have the same address in all runs, so that runs are compared in pairs.
    """
    run, place = params.run("student", stage.key), places.artifact("scores", stage.key)
    evaluated = artifacts.load(places.artifact("evaluate", stage.key), "evaluate").path
    figures, tables = list[Score](), defaultdict[str, list[pa.Table]](list)
    for at, fit in stored.read(evaluated / "predictions.parquet", Seed(params.seed).fold("scores")):
        figures += [Score(*at, Quantity(name), *figure) for name, figure in table.scores(fit).items()]
        for name, curve in curves(fit).items():
            tables[name].append(scores.of_fit(curve, *at))
    tables["scores"].append(scores.table(run.spec.dataset, run.method.name, run.spec.setting, figures))
    if (rows := evaluated / "unfamiliar.parquet").is_file():
        tables["ood"] = [ood.to_table(ood.result(stage.key, run.spec.dataset, dict(ood.read(rows))))]
    about = {"evaluate": artifacts.sha256(evaluated / artifacts.MANIFEST), "seed": params.seed}
    with artifacts.publish(place, "scores", about=about) as folder:
        for name, parts in tables.items():
            pq.write_table(pa.concat_tables(parts), folder / f"{name}.parquet")


def curves(fit: stored.Stored) -> dict[str, pa.Table]:
    """Return a fit's curves by name, as tables for figures.

    ``risk``: the risk at each coverage of 1 %, 2 % … 100 %. ``pit``, where F(y) of one output is stored: counts of F(y)
    in ten bins of equal width.
    """
    curve = risk_coverage(fit.losses, fit.uncertainty)
    tables = {"risk": pa.table({"coverage": _COVERAGES, "risk": [curve.risk_at(float(at)) for at in _COVERAGES]})}
    if isinstance(fit, stored.StoredValues) and fit.pit is not None:
        count = pit_histogram(fit.pit, _BINS).count
        tables["pit"] = pa.table({"bin": np.arange(_BINS), "count": count})
    return tables
