"""``python -m pipeline run STAGE KEY``: one stage in this process, for a debugger; ``run all``: all of them, here."""

from argparse import Namespace

from bdl_pipe.errors import UserError

from ..core.params import load
from ..core.settings import Settings
from ..plan import plan
from ..run import body, remote
from ..run import runner as run
from ..tracking import artifact_store


def main(args: Namespace) -> int:
    """Run the stage; return 1 if a stage of ``all`` failed.

    Raises:
        UserError: the key is missing, unknown or too much, or the stage fails.
    """
    if args.stage in ("all", "report") and args.key:
        raise UserError(f"run {args.stage} takes no key, got {args.key}")
    if args.stage not in ("all", "report") and not args.key:
        raise UserError(f"run {args.stage} needs the key of a row")
    params, settings = load(), Settings.read(executor=args.executor)
    remote.require(settings.remote)
    artifact_store.require(settings)
    if args.stage != "all":
        stage = plan.one(args.stage, args.key or "", params)
        body.ensure(stage, params, args.executor, force=True)
        print(f"{stage.name}: done", flush=True)
        return 0
    outcome = run.here(plan.plan(params), params, args.executor)
    for name, lines in outcome.failed.items():
        print(f"FAILED {name}: {lines[-1]}", flush=True)
    return 1 if outcome.failed else 0
