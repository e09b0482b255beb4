"""``python -m pipeline repro``: what ``dvc repro`` does, several stages at once, on one Ray head.

DVC still decides and records every stage: what is out of date, and what depends on it, is run by
``dvc --wait-for-lock repro -s STAGE``, in processes that need not import anything anew. A stage that
fails stops what depends on it, and nothing else.
"""

import os
import sys
from argparse import Namespace
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bdl_pipe.errors import UserError

from .core import places
from .core.params import load, unwatched
from .core.settings import Settings
from .scheduler import Command, Graph, Outcome, Plan, Process, ancestors, descendants, run

_LIGHT: Final = ("report",)  # stage kinds that never fan out


def main(args: Namespace) -> int:
    """Returns 1 if a stage failed.

    Raises:
        UserError: params.yaml, the environment, or a target is wrong; nothing has run then.
    """
    settings = Settings.read()
    for line in unwatched(load()):
        print(f"warning: {line}", file=sys.stderr)
    graph, changed = _look(args.targets)
    todo = changed | descendants(graph, changed)
    if not todo:
        print("nothing to do: every result is up to date")
        _point()
        return 0
    print(f"{len(todo)} of {len(graph)} stages to run, {args.jobs} at once", flush=True)
    fans_out = any(name.split("@")[0] not in _LIGHT for name in todo)
    start = _starter(len(todo))
    with _parent_run() as tell, _ray(settings, fans_out):
        outcome = run(Plan(graph, frozenset(todo), places.STATE / "seconds.json"), args.jobs, start)
        tell(outcome)
    return _close(outcome)


def _starter(stages: int) -> Callable[[str], Process]:
    """How a stage's process is made: forked from a server, where forks are safe and there is more than one stage."""
    if sys.platform == "linux" and stages > 1:
        from .warm import Server

        return Server().start
    return lambda name: Command([sys.executable, "-m", "dvc", "--wait-for-lock", "repro", "-s", name])


def _look(targets: Collection[str]) -> tuple[Graph, set[str]]:
    """The graph (stage -> what it needs), and what DVC finds changed in it."""
    os.environ.setdefault("DVC_NO_ANALYTICS", "1")
    try:
        from dvc.exceptions import DvcException
        from dvc.repo import Repo
    except ImportError:
        raise UserError("dvc is not installed here: python -m pipeline run all works without it") from None
    try:
        with Repo() as repo:
            stages = repo.index.graph
            graph = {s.addressing: {d.addressing for d in stages.successors(s)} for s in stages.nodes}
            changed = set(repo.status())
    except DvcException as error:
        raise UserError(f"dvc: {' '.join(str(error).split())}") from None
    if targets:
        wanted = {name for target in targets for name in _matching(target, graph)}
        keep = wanted | ancestors(graph, wanted)
        graph = {name: needs for name, needs in graph.items() if name in keep}
    return graph, changed & graph.keys()


def _matching(target: str, graph: Graph) -> list[str]:
    """``teacher@boston-sgld`` is one stage, ``teacher`` all of its kind."""
    found = [name for name in graph if target in (name, name.split("@")[0])]
    if not found:
        raise UserError(f"{target} is not a stage (see: dvc stage list)")
    return found


@contextmanager
def _ray(settings: Settings, fans_out: bool) -> Iterator[None]:
    """One Ray head for all stages, in this process, unless there is a cluster already or no need."""
    if settings.executor != "ray" or not fans_out:
        yield
        return
    from .core.executors.cluster import head

    with head(settings) as address:
        os.environ["RAY_ADDRESS"] = address
        yield


@contextmanager
def _parent_run() -> Iterator[Any]:
    """The tracked run that every stage's run belongs to."""
    from .rows import tracking

    tracking.initialise()
    parent, status = tracking.start_parent("repro"), ["KILLED"]

    def tell(outcome: Outcome) -> None:
        status[0] = "FAILED" if outcome.failed else "FINISHED"

    try:
        yield tell
    finally:
        tracking.end_parent(parent, status[0])


def _close(outcome: Outcome) -> int:
    """What happened, the table, and where to look further."""
    for name, lines in outcome.failed.items():
        print(f"\nFAILED {name}:", file=sys.stderr)
        print("\n".join(f"    {line}" for line in lines), file=sys.stderr)
    if outcome.skipped:
        print(f"not run, because they need those: {', '.join(sorted(outcome.skipped))}", file=sys.stderr)
    _table(places.REPORT / "comparison.md")
    print(f"{len(outcome.done)} stages done in {outcome.seconds:.0f} s" + _counts(outcome))
    _point()
    return 1 if outcome.failed else 0


def _counts(outcome: Outcome) -> str:
    return f", {len(outcome.failed)} failed, {len(outcome.skipped)} not run" if outcome.failed else ""


def _table(path: Path) -> None:
    if path.is_file():
        text = path.read_text()
        if sys.stdout.isatty():
            from rich.console import Console

            from .terminal import show

            show(text, Console())
        else:
            print(text)


def _point() -> None:
    page = places.REPORT / "index.html"
    if page.is_file():
        print(f"report: {page.absolute()}\ntracking page: make ui")
