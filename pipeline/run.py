"""``python -m pipeline run STAGE KEY``: stages without DVC, for a debugger or a machine without it."""

import importlib
from argparse import Namespace

from bdl_pipe.errors import UserError

from .core import shell
from .core.params import FIT_KINDS, Params, load


def main(args: Namespace) -> None:
    """Raises UserError where the key is missing, unknown or too much, or a stage fails."""
    todo = everything(load()) if args.stage == "all" else [(args.stage, args.key)]
    if args.stage in ("all", "report") and args.key:
        raise UserError(f"run {args.stage} takes no key, got {args.key}")
    if args.stage not in ("all", "report") and not args.key:
        raise UserError(f"run {args.stage} needs the key of a row")
    with shell.opened(args.executor) as (params, executor, settings):
        for kind, key in todo:
            run = importlib.import_module(f"stages.{kind}").run
            run(*([key] if key else []), params, executor, settings)
            print(f"{kind} {key or ''}: done", flush=True)


def everything(params: Params) -> list[tuple[str, str | None]]:
    """Every stage, each after what it needs."""
    used = dict.fromkeys(row.entry.dataset for row in params.rows.values())
    todo: list[tuple[str, str | None]] = [("prepare", key) for key in used]
    todo += [(kind, row.key) for kind in FIT_KINDS for row in params.of(kind)]
    todo += [("evaluate", row.key) for row in params.of("student")]
    return [*todo, ("report", None)]
