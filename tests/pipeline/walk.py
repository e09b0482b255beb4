"""Stages in the test's own process, one after the other, where a test's fakes and interrupts reach them."""

from collections.abc import Mapping
from contextlib import chdir
from pathlib import Path
from typing import Any

import yaml

from bdl_pipe.errors import UserError
from bdl_pipe.method import Method
from pipeline.core.load import load
from pipeline.core.model import Params
from pipeline.core.settings import Settings
from pipeline.plan.plan import Plan, one, plan
from pipeline.run import body
from pipeline.run.pool import Outcome

Registry = Mapping[str, Method] | None
INLINE = Settings(executor="inline", tracking=False)


def prepared(folder: Path, raw: Mapping[str, Any], dataset: str = "boston", registry: Registry = None) -> Path:
    """Write params.yaml into the folder, prepare the data set, and return the folder."""
    (folder / "params.yaml").write_text(yaml.safe_dump(dict(raw), sort_keys=False))
    with chdir(folder):
        stage("prepare", dataset, registry)
    return folder


def stage(kind: str, key: str = "", registry: Registry = None) -> None:
    """Bring one stage of params.yaml up to date."""
    params = load(registry=registry)
    body.ensure(one(kind, key, params), params, INLINE)


def walk() -> None:
    """Bring every stage of params.yaml up to date."""
    params = load()
    for each in plan(params).values():
        body.ensure(each, params, INLINE)


def run(
    stages: Plan,
    todo: Mapping[str, str],
    params: Params,
    *others: object,
    **options: object,
) -> Outcome:
    """Run stages as ``pool.run`` does, up to the first failure; the caller has set the root."""
    outcome = Outcome()
    for name in todo:
        try:
            if body.ensure(stages[name], params, INLINE):
                outcome.done.append(name)
                print(f"{name}: done")
        except UserError as error:
            outcome.failed[name] = [str(error)]
            break
    return outcome
