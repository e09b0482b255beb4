"""``python -m pipeline repro``: bring every result up to date, several stages at once, and print the comparison.

What it makes is what a plain ``dvc repro`` makes, and DVC is told of it. A stage that fails stops what depends on it,
and nothing else.
"""

import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from bdl_pipe.errors import UserError

from ..core import places
from ..core.params import Params, load, unwatched
from ..core.settings import Settings
from ..plan import plan, sources
from ..plan.plan import Plan, Stage
from ..run import client, dvc, remote
from ..run import runner as run
from ..run.scheduler import Outcome
from ..tracking import artifact_store
from ..work.choose import preflight


def main(args: Namespace) -> int:
    """Run what is out of date; return 1 if a stage failed.

    Raises:
        UserError: params.yaml, the environment, or a target is wrong; nothing has run then.
    """
    settings, params = Settings.read(), load()
    for line in unwatched(params):
        print(f"warning: {line}", file=sys.stderr)
    preflight(settings)
    remote.require(settings.remote)
    artifact_store.require(settings)
    dvc.mend()
    sources.write(params)
    everything = plan.plan(params)
    stages = plan.matching(args.targets, everything)
    why = run.stale(everything)
    todo = stages.keys() & why.keys()
    if not todo:
        print(f"nothing to do: all {len(stages)} results are up to date")
        _record(everything, why)
        run.push_rest(stages, settings.remote)
        _point(why)
        return 0
    print(f"{len(todo)} of {len(stages)} stages to run, {args.jobs} at once", flush=True)
    host = run.start_host()
    with _parent_run() as tell:
        try:
            host.join()
            outcome = run.ensure_all(stages, params, jobs=args.jobs)
        except client.Lost as error:
            raise UserError(str(error)) from None
        finally:
            _record(everything, run.stale(everything))
        tell(outcome)
    code = _close(outcome, everything, params)
    run.push_rest(stages, settings.remote)
    return code


def _record(stages: Plan, why: Mapping[str, str]) -> None:
    """Let DVC know what is up to date. If it cannot be told, no result is lost."""
    if not dvc.installed():
        return
    problem = dvc.record(stages, [name for name in stages if name not in why])
    if problem is not None:
        print(f"warning: DVC has not recorded the results, which are in place ({problem})", file=sys.stderr)


@contextmanager
def _parent_run() -> Iterator[Callable[[Outcome], None]]:
    """Open the tracked run that every stage's run belongs to."""
    from ..tracking import experiments

    experiments.initialise()
    parent, status = experiments.start_parent("repro"), ["KILLED"]

    def tell(outcome: Outcome) -> None:
        status[0] = "FAILED" if outcome.failed else "FINISHED"

    try:
        yield tell
    finally:
        experiments.end_parent(parent, status[0])


def _close(outcome: Outcome, everything: Plan, params: Params) -> int:
    """Print what happened, the table, and where to look further; return 1 if a stage failed."""
    for name, lines in outcome.failed.items():
        print(f"\nFAILED {name}:", file=sys.stderr)
        print("\n".join(f"    {line}" for line in lines), file=sys.stderr)
    if outcome.skipped:
        print(f"not run, because they need those: {', '.join(sorted(outcome.skipped))}", file=sys.stderr)
    why = run.stale(everything)
    _table(everything, params, outcome, why)
    print(f"{len(outcome.done)} stages done in {outcome.seconds:.0f} s" + _counts(outcome))
    _point(why)
    return 1 if outcome.failed else 0


def _counts(outcome: Outcome) -> str:
    same = f", {len(outcome.same)} came out up to date" if outcome.same else ""
    lost = f", {len(outcome.failed)} failed, {len(outcome.skipped)} not run" if outcome.failed else ""
    return same + lost


def _table(everything: Plan, params: Params, outcome: Outcome, why: Mapping[str, str]) -> None:
    """Print the comparison: the report's, if it is of these params, else of the runs that are; and what is missing."""
    from rich.console import Console

    from ..report import headlines, terminal
    from ..stages.report import run_info

    if "report" not in why:
        terminal.show(headlines([run_info(run, params) for run in params.of("student")]), Console())
        return
    runs = [stage for stage in everything.values() if stage.kind == "evaluate"]
    fresh = {stage.key for stage in runs if stage.name not in why}
    missing = {stage.key: _missing(stage, everything, why, outcome) for stage in runs if stage.name in why}
    infos = [run_info(run, params) for run in params.of("student") if run.key in fresh]
    terminal.show_runs(infos, missing, Console())


def _missing(stage: Stage, everything: Plan, why: Mapping[str, str], outcome: Outcome) -> str:
    """Say why a run has no scores of these params: the stage that failed, or what has not been run."""
    for name in (*plan.ancestors(everything, [stage.name]), stage.name):
        if name in outcome.failed:
            return f"{name} failed: {(outcome.failed[name] or ['it said nothing'])[-1]}"
    return why[stage.name]


def _point(why: Mapping[str, str]) -> None:
    page = places.REPORT / "index.html"
    if "report" not in why:
        print(f"report: {page.absolute()}")
    print("tracking page: make ui")
