"""``python -m pipeline run STAGE KEY``: one stage in this process, for a debugger; ``run all``: all of them, here."""

from bdl_pipe.errors import UserError

from ..core.load import load
from ..core.settings import Settings
from ..plan import plan
from ..run import body, pool


def run_stage(kind: str, key: str | None = None, executor: str | None = None) -> int:
    """Run the stage; return 1 if a stage of ``all`` failed.

    Raises:
        UserError: the key is missing, unknown or too much, or the stage fails.
    """
    if kind in ("all", "report") and key:
        raise UserError(f"run {kind} takes no key, got {key}")
    if kind not in ("all", "report") and not key:
        raise UserError(f"`run {kind}` needs the name of a run or data set (see: python -m pipeline status --all)")
    params, settings = load(), Settings.read(executor=executor)
    settings.machine.check_methods(params.method_names)
    if kind != "all":
        stage = plan.one(kind, key or "", params)
        body.ensure(stage, params, settings, force=True)
        print(f"{stage.name}: done", flush=True)
        return 0
    stages = plan.plan(params)
    outcome = pool.in_process(stages, pool.stale(stages), params, settings)
    for name, lines in outcome.failed.items():
        print(f"FAILED {name}: {lines[-1]}", flush=True)
    return 1 if outcome.failed else 0
