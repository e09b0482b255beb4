"""The verbs of the command line that check and change params.yaml, run and list stages, and serve the tracking page.

``repro`` makes the same results as a plain ``dvc repro``, and records them with DVC. A failed stage stops only the
stages that depend on it.
"""

import os
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from bdl_pipe.config import merge
from bdl_pipe.errors import UserError
from bdl_pipe.yaml_files import read_yaml

from . import job, tracking
from .add import FOLDER
from .core import overlays, places
from .core.load import load, typed, unwatched
from .core.model import Params
from .core.settings import Settings
from .core.storage import hide
from .plan import plan, sources
from .plan.plan import Plan, Stage
from .run import dvc, pool
from .run.pool import Outcome
from .work import preflight

_SERVER: Final = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # Job execution would start eight processes, and there are no jobs.
}


def check() -> None:
    """Check params.yaml, the environment and machine.yaml, and warn of files that DVC does not watch.

    Raises:
        UserError: the first value that breaks its rule.
    """
    params = _read(Settings.read())
    print(f"ok: data sets: {len(params.datasets)}, runs: {len(params.runs)}")


def apply(path: Path) -> None:
    """Merge an overlay into params.yaml.

    Raises:
        UserError: the overlay cannot be read, or the merged file would break a rule.
    """
    lines = overlays.apply(path)
    print(f"params.yaml: {'changed by' if lines else 'has all of'} {path}; now make repro")
    for line in lines:
        print(f"  {line}")


def remove(name: str) -> None:
    """Remove a data set, the runs on it and its overlay in params/data; existing results stay on disk.

    Raises:
        UserError: there is no such data set, or the rest of params.yaml would break a rule.
    """
    counts = overlays.remove(name)
    (FOLDER / f"{name}.yaml").unlink(missing_ok=True)
    print(f"params.yaml: without {name} ({', '.join(f'{count} {section}' for section, count in counts.items())})")


def repro(targets: Sequence[str] = (), jobs: int = pool.JOBS, values: Sequence[str] = ()) -> int:
    """Run the stages that are out of date; return 1 if a stage failed.

    Args:
        values: ``key=value``, each written into params.yaml first, which then describes the results, as DVC requires.

    Raises:
        UserError: params.yaml, the environment, a target or a value is wrong; no stage has run.
    """
    settings = Settings.read()
    if values and targets:  # a value may add the stage that a target names, and a wrong target must change nothing
        plan.matching(targets, plan.plan(typed(merge(read_yaml(overlays.PARAMS), overlays.read_values(values)))))
    for line in overlays.set_values(values) if values else ():
        print(f"params.yaml: {line}")
    if settings.jobs and settings.executor == "ray":
        return job.send(settings, ["repro", "-j", str(jobs), *targets])
    began = dvc.sources_hash()
    params = _read(settings)
    preflight(settings)
    sources.write(params)
    everything = plan.plan(params)
    stages = plan.matching(targets, everything)
    why = pool.stale(everything)
    if settings.remote and why.keys() & stages.keys():
        dvc.require_remote()
        _record(everything, why, began)
        dvc.take()
        why = pool.stale(everything)
    todo = {name: reason for name, reason in why.items() if name in stages}
    if not todo:
        print(f"nothing to do: all {len(stages)} results are up to date")
        _share(everything, why, settings, began)
        _point(why)
        return 0
    from .stages import comparison  # here: the report's figures take half a second to import

    print(f"{len(todo)} of {len(stages)} stages to run, {jobs} at once", flush=True)
    with tracking.opened(settings, params, "repro") as tracker:
        outcome = pool.run(everything, todo, params, settings, tracker, jobs=jobs)
        tracker.compare(lambda: comparison.of(params, outcome.left(why)))
    unfinished = outcome.left(why)
    if settings.machine.track.models and settings.tracking and "report" not in unfinished:
        _register(params)
    _show(outcome, everything, unfinished, params)
    _share(everything, unfinished, settings, began)
    _point(unfinished)
    return 1 if outcome.failed else 0


def status(every: bool = False) -> None:
    """Print a line for each stage that is out of date; with ``every``, for all stages."""
    stages = plan.plan(load())
    why = pool.stale(stages)
    for name in stages:
        if name in why or every:
            print(f"{name}: {why.get(name, 'is up to date')}")
    print(f"{len(why)} of {len(stages)} stages are out of date" if why else f"all {len(stages)} are up to date")


def ui(host: str, port: int) -> int:
    """Serve MLflow's page for this project's store until an interrupt.

    Raises:
        UserError: params.yaml is wrong, there is no store, or MLflow is not installed.
    """
    from .stages import comparison

    params = load()
    compared = tracking.compare(lambda: comparison.of(params, pool.stale(plan.plan(params))))
    if compared is None:
        why = "cannot be opened" if Settings.read().tracking else "is not used: BDL_TRACKING is off"
        raise UserError(f"the tracking store {hide(tracking.store_uri())} {why}")
    for dataset, published in compared.items():
        print(f"{dataset}: http://{host}:{port}/{tracking.link(published.experiment)}")
    print("(the server answers after up to a minute; Ctrl-C ends it)", flush=True)
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", tracking.store_uri()]
    command += ["--host", host, "--port", str(port), "--workers", "1"]
    return subprocess.run(command, env={**os.environ, **_SERVER}, check=False).returncode


def _read(settings: Settings) -> Params:
    """Read params.yaml, check machine.yaml against it, and warn of files that DVC does not watch."""
    params = load()
    settings.machine.check_methods(params.method_names)
    for line in unwatched(params):
        print(f"warning: {line}", file=sys.stderr)
    return params


def _share(stages: Plan, why: Collection[str], settings: Settings, began: str) -> None:
    """Record up-to-date stages with DVC, and push them. If either fails, the results stay on disk."""
    _record(stages, why, began)
    if settings.remote and (problem := dvc.push()):
        print(
            f"warning: the results are not pushed: {problem}; give the same command again to push them", file=sys.stderr
        )


def _record(stages: Plan, why: Collection[str], began: str) -> None:
    """Record up-to-date stages with DVC. DVC reads the present files, so stages of other params or data are left out.

    Args:
        began: the result of ``dvc.sources_hash`` from before params.yaml was read.
    """
    fresh = [name for name in stages if name not in why]
    same = dvc.sources_hash() == began
    if not same:
        done = len(fresh)
        try:
            stages = plan.plan(load())
            late = pool.stale(stages)
            fresh = [name for name in fresh if name in stages and name not in late]
        except UserError:  # the next command prints it
            fresh = []
        if len(fresh) < done:
            what = f"{done - len(fresh)} stages are not recorded in dvc.lock; run make repro again"
            print(f"warning: params.yaml or data changed during the run: {what}", file=sys.stderr)
    problem = dvc.record(stages, fresh, with_sources=same)
    if problem is not None:
        print(f"warning: DVC has not recorded the results, which are in place ({problem})", file=sys.stderr)


def _show(outcome: Outcome, everything: Plan, why: Mapping[str, str], params: Params) -> None:
    """Print the failed stages, the table, and the counts."""
    for name, lines in outcome.failed.items():
        print(f"\nFAILED {name}:", file=sys.stderr)
        print("\n".join(f"    {line}" for line in lines), file=sys.stderr)
    if outcome.skipped:
        print(f"not run, because a stage that they need failed: {', '.join(sorted(outcome.skipped))}", file=sys.stderr)
    _table(everything, params, outcome, why)
    same = f", {len(outcome.same)} came out up to date" if outcome.same else ""
    lost = f", {len(outcome.failed)} failed, {len(outcome.skipped)} not run" if outcome.failed else ""
    print(f"{len(outcome.done)} stages done in {outcome.seconds:.0f} s{same}{lost}")


def _table(everything: Plan, params: Params, outcome: Outcome, why: Mapping[str, str]) -> None:
    """Print the report's comparison or, if the report is out of date, the runs with scores and why others have none."""
    from rich.console import Console

    from bdl_report import gather, headlines, show, show_runs

    from .stages.report import infos, run_info

    if "report" not in why:
        show(headlines(gather(infos(params))), Console())
        return
    runs = [stage for stage in everything.values() if stage.kind == "evaluate"]
    fresh = {stage.key for stage in runs if stage.name not in why}
    missing = {stage.key: _missing(stage, everything, why, outcome) for stage in runs if stage.name in why}
    show_runs([run_info(run, params) for run in params.of("student") if run.key in fresh], missing, Console())


def _register(params: Params) -> None:
    """Register the posterior of each run; a failure is a warning, since the results are in place."""
    from .export.register import register

    try:
        print(*register([run.key for run in params.of("student")], params), sep="\n")
    except UserError as error:
        print(f"warning: {error}", file=sys.stderr)


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
