"""``python -m pipeline repro``, ``run`` and ``status``: run what is out of date, or one stage, or say what would run.

``repro`` makes what a plain ``dvc repro`` makes, and records it with DVC. A stage that fails stops what depends on it,
and nothing else.
"""

import sys
from collections.abc import Collection, Mapping, Sequence

from bdl_pipe.errors import UserError

from .. import job, tracking
from ..core import places
from ..core.load import load, unwatched
from ..core.model import Params
from ..core.settings import Settings
from ..plan import plan, sources
from ..plan.plan import Plan, Stage
from ..run import body, dvc, pool
from ..run.pool import Outcome
from ..stages import comparison
from ..work import preflight


def repro(targets: Sequence[str] = (), jobs: int = pool.JOBS) -> int:
    """Run what is out of date; return 1 if a stage failed.

    Raises:
        UserError: params.yaml, the environment, or a target is wrong; nothing has run then.
    """
    settings = Settings.read()
    if settings.jobs and settings.executor == "ray":
        return job.send(settings, ["repro", "-j", str(jobs), *targets], dvc.take)
    params = load()
    settings.machine.check_methods(params.method_names)
    for line in unwatched(params):
        print(f"warning: {line}", file=sys.stderr)
    preflight(settings)
    sources.write(params)
    everything = plan.plan(params)
    stages = plan.matching(targets, everything)
    why = pool.stale(everything)
    if settings.remote and why.keys() & stages.keys():
        dvc.require_remote()
        _record(everything, why)
        dvc.take()
        why = pool.stale(everything)
    todo = {name: reason for name, reason in why.items() if name in stages}
    if not todo:
        print(f"nothing to do: all {len(stages)} results are up to date")
        _share(everything, why, settings)
        _point(why)
        return 0
    print(f"{len(todo)} of {len(stages)} stages to run, {jobs} at once", flush=True)
    with tracking.opened(settings, params, "repro") as tracker:
        outcome = pool.run(everything, todo, params, settings, jobs=jobs, watcher=tracker)
        tracker.compare(lambda: comparison.of(params))
    left = outcome.left(why)
    _show(outcome, everything, left, params)
    _share(everything, left, settings)
    _point(left)
    return 1 if outcome.failed else 0


def run_stage(kind: str, key: str | None = None, executor: str | None = None) -> int:
    """Run one stage, or all stages, in this process, for a debugger; return 1 if a stage of ``all`` failed.

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
    with tracking.opened(settings, params, "run all") as tracker:
        outcome = pool.in_process(stages, pool.stale(stages), params, settings, tracker)
        tracker.compare(lambda: comparison.of(params))
    for name, lines in outcome.failed.items():
        print(f"FAILED {name}: {lines[-1]}", flush=True)
    return 1 if outcome.failed else 0


def status(every: bool = False) -> None:
    """Print a line for each stage that is out of date; with ``every`` the others, too."""
    stages = plan.plan(load())
    why = pool.stale(stages)
    for name in stages:
        if name in why or every:
            print(f"{name}: {why.get(name, 'is up to date')}")
    print(f"{len(why)} of {len(stages)} stages are out of date" if why else f"all {len(stages)} are up to date")


def _share(stages: Plan, why: Collection[str], settings: Settings) -> None:
    """Record up-to-date stages with DVC, and push them. If either fails, the results stay on disk."""
    _record(stages, why)
    if settings.remote and (problem := dvc.push()):
        print(f"warning: the results are not pushed: {problem}; the same command pushes them", file=sys.stderr)


def _record(stages: Plan, why: Collection[str]) -> None:
    problem = dvc.record(stages, [name for name in stages if name not in why])
    if problem is not None:
        print(f"warning: DVC has not recorded the results, which are in place ({problem})", file=sys.stderr)


def _show(outcome: Outcome, everything: Plan, why: Mapping[str, str], params: Params) -> None:
    """Print what failed, the table, and the counts."""
    for name, lines in outcome.failed.items():
        print(f"\nFAILED {name}:", file=sys.stderr)
        print("\n".join(f"    {line}" for line in lines), file=sys.stderr)
    if outcome.skipped:
        print(f"not run, because a stage that they need failed: {', '.join(sorted(outcome.skipped))}", file=sys.stderr)
    _table(everything, params, outcome, why)
    print(f"{len(outcome.done)} stages done in {outcome.seconds:.0f} s" + _counts(outcome))


def _counts(outcome: Outcome) -> str:
    same = f", {len(outcome.same)} came out up to date" if outcome.same else ""
    lost = f", {len(outcome.failed)} failed, {len(outcome.skipped)} not run" if outcome.failed else ""
    return same + lost


def _table(everything: Plan, params: Params, outcome: Outcome, why: Mapping[str, str]) -> None:
    """Print the report's comparison or, without an up-to-date report, that of the runs with scores, and the others."""
    from rich.console import Console

    from ..report import headlines, show, show_runs
    from ..stages.report import run_info

    if "report" not in why:
        show(headlines([run_info(run, params) for run in params.of("student")]), Console())
        return
    runs = [stage for stage in everything.values() if stage.kind == "evaluate"]
    fresh = {stage.key for stage in runs if stage.name not in why}
    missing = {stage.key: _missing(stage, everything, why, outcome) for stage in runs if stage.name in why}
    infos = [run_info(run, params) for run in params.of("student") if run.key in fresh]
    show_runs(infos, missing, Console())


def _missing(stage: Stage, everything: Plan, why: Mapping[str, str], outcome: Outcome) -> str:
    """Return why a run has no up-to-date scores: the stage that failed, or why it is out of date."""
    for name in (*plan.ancestors(everything, [stage.name]), stage.name):
        if name in outcome.failed:
            return f"{name} failed: {outcome.failed[name][-1]}"
    return why[stage.name]


def _point(why: Collection[str]) -> None:
    page = places.REPORT / "index.html"
    if "report" not in why:
        print(f"report: {page.absolute()}")
    print("tracking page: make ui")
