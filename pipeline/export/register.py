"""Register fitted posteriors in MLflow: ``python -m pipeline register [RUN]...``.

A registered model is a data set, such as ``boston``, and its versions are fitted runs. The alias of a run's newest
version is the run's key; the alias ``champion`` is the run that the report's verdict takes by the NLL. So
``mlflow.pyfunc.load_model("models:/boston@champion")`` predicts with it, and ``mlflow models serve`` serves it.
"""

from collections.abc import Collection
from functools import partial
from typing import Final

from bdl_pipe import artifacts, logged_artifact
from bdl_pipe.config import nearest
from bdl_pipe.errors import UserError

from .. import tracking
from ..core import places
from ..core.model import Params
from ..plan import plan
from ..run import pool
from ..stages import comparison
from .targets import model

CHAMPION: Final = "champion"
_UNUSABLE: Final = "the models are not registered: tracking is off, or its store cannot be used"


def register(keys: Collection[str], params: Params) -> list[str]:
    """Register runs, and return a line for each; without keys, the run that each verdict takes.

    A run whose artifact is registered already gets its aliases only.

    Raises:
        UserError: a run is unknown or has no up-to-date scores, the verdict takes no run, or the store cannot be used.
    """
    stale = pool.stale(plan.plan(params))
    compared = comparison.of(params, stale)
    scored = {run.key: one for one in compared for run in one.runs}
    for key in keys:
        if why := stale.get(f"evaluate@{key}"):
            raise UserError(f"{key}: its scores are not up to date ({why}); make repro")
        if key not in scored:
            raise UserError(f"{key}: is not a run with scores{nearest(key, scored)}")
    chosen = list(keys) or [one.taken for one in compared if one.taken]
    if not chosen:
        raise UserError("no run has up-to-date scores: python -m pipeline repro")
    published = tracking.compare(lambda: compared)
    if published is None:
        raise UserError(_UNUSABLE)
    lines = []
    for key in chosen:
        one, student = scored[key], places.artifact("student", key)
        digest = artifacts.sha256(student / artifacts.MANIFEST)
        aliases = [key, *([CHAMPION] if key == one.taken else [])]
        with model.quiet():
            run_id = published[one.dataset].runs[key]
            contents = partial(logged_artifact.contents, student)
            version = tracking.tolerate(partial(tracking.register, one.dataset, run_id, digest, aliases, contents))
        if version is None:
            raise UserError(_UNUSABLE)
        lines.append(f"models:/{one.dataset}/{version}: {key} (aliases: {', '.join(aliases)})")
    return lines
