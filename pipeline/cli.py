"""The command line: ``python -m pipeline VERB``; ``--help`` lists the verbs.

A user's mistake is one line on stderr and exit code 2. Nothing is imported before it is needed.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bdl_pipe.errors import UserError

MODULES: Final = {  # a verb's module, where it is not in verbs
    "tune": "search.every",
    "study": "search.study",
    "paper": "papers.run",
    "add": "add.verb",
    "predict": "verbs.export",
    "run": "verbs.run_stage",
    "upgrade": "upgrade",
}
STAGES: Final = ("prepare", "trajectory", "teacher", "coreset", "student", "evaluate", "report")


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, and hand over to the module of the verb: its ``main(args)`` returns an exit code or None."""
    args = parser().parse_args(argv)
    try:
        if args.verb == "repro":
            from .verbs.repro import repro

            return repro(args.targets, args.jobs)
        if args.verb == "status":
            from .verbs.status import status

            return status(args.all) or 0
        if args.verb == "run":
            from .verbs.stage import run_stage

            return run_stage(args.stage, args.key, args.executor)
        return importlib.import_module(f"pipeline.{MODULES.get(args.verb, f'verbs.{args.verb}')}").main(args) or 0
    except UserError as error:
        print(f"{args.verb}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{args.verb}: interrupted", file=sys.stderr)
        return 130


def parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    top = argparse.ArgumentParser(prog="python -m pipeline", description="Run, search, predict.")
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")
    verbs.add_parser("check", help="read all of params.yaml, and say ok or what is wrong")
    repro = verbs.add_parser("repro", help="run every stage whose result is out of date, several at once")
    repro.add_argument("-j", "--jobs", type=_positive, default=3, metavar="N", help="stages at once (default 3)")
    repro.add_argument("targets", nargs="*", metavar="STAGE", help="only these and what they need, as in dvc.yaml")
    attach = verbs.add_parser("attach", help="find the jobs that a command has left on a cluster, and go on with them")
    attach.add_argument("-j", "--jobs", type=_positive, default=3, metavar="N", help="stages at once, at least")
    status = verbs.add_parser("status", help="which stages are out of date, and why")
    status.add_argument("--all", action="store_true", help="list the others, too")
    run = verbs.add_parser("run", help="run one stage (or all) here, without DVC")
    run.add_argument("stage", choices=(*STAGES, "all"))
    run.add_argument("key", nargs="?", help="a run of the stage's section, or a data set")
    run.add_argument("--executor", choices=("inline", "ray"), help="default: BDL_EXECUTOR, or ray")
    add = verbs.add_parser("add", help="look at a file of yours, and add it with a run of each method")
    add.add_argument("path", type=Path, metavar="FILE", help="CSV, Parquet, .npz or a folder of images")
    add.add_argument("--target", nargs="+", metavar="COLUMN", help="of a table: what is predicted")
    add.add_argument("--task", choices=("classification", "regression"), help="default: by the target")
    add.add_argument("--methods", nargs="+", metavar="METHOD", help="only these; default: all that fit")
    add.add_argument("--leave-out", nargs="+", default=[], metavar="COLUMN", help="columns that are no features")
    add.add_argument("--size", type=_positive, metavar="PIXELS", help="a side that images of a folder are brought to")
    add.add_argument("--skip-broken", action="store_true", help="leave out files that are no readable images")
    add.add_argument("--splits", type=_positive, metavar="N", help="default: by the number of rows")
    add.add_argument("--minutes", type=_positive, default=10, metavar="M", help="about how long it may take (10)")
    add.add_argument("--log", action=argparse.BooleanOptionalAction, help="fit logarithms of the targets, or not")
    add.add_argument("--name", help="of the data set in params.yaml; default: the file's")
    add.add_argument(
        "--calibration", type=_share, default=0, metavar="SHARE", help="of the training rows, to recalibrate on (0)"
    )
    add.add_argument("--tune", type=_positive, metavar="N", help="then search every method, with N trials each")
    add.add_argument("--dry-run", action="store_true", help="say what would be added, and write nothing")
    remove = verbs.add_parser("remove", help="take a data set and all runs on it out of params.yaml")
    remove.add_argument("name", help="a key of datasets")
    paper = verbs.add_parser("paper", help="run a paper's table under its protocol, and print ours beside the paper's")
    paper.add_argument("table", metavar="PAPER:TABLE", help="such as vbll:table2; its numbers: params/paper/")
    paper.add_argument("--dataset", metavar="A,B", help="only these; default: all that the params file has")
    paper.add_argument("--method", metavar="X,Y", help="run only these (the paper's names or ours)")
    paper.add_argument("--splits", type=_positive, metavar="N", help="of each data set, in place of the file's number")
    paper.add_argument("--executor", choices=("inline", "ray"), help="default: BDL_EXECUTOR, or ray")
    tune = verbs.add_parser("tune", help="search a method's declared space on validation data")
    tune.add_argument("method", help="a key of methods, or all of the data set's, one after the other")
    tune.add_argument("--dataset", required=True)
    tune.add_argument("--samples", type=_positive, required=True, metavar="N", help="trials")
    tune.add_argument(
        "--scheduler",
        choices=("asha", "pbt"),
        help="asha (default): weak trials end; pbt: they go on as strong ones do",
    )
    tune.add_argument("--run", help="the run whose branch is searched; default: the first of this method")
    tune.add_argument("--max-concurrent", type=_positive, metavar="N", help="trials at once")
    tune.add_argument("--resume", action="store_true", help="go on with a search that was stopped")
    tune.add_argument("--apply", action="store_true", help="merge the winner into params.yaml")
    study = verbs.add_parser("study", help="fit every point of a grid, and plot validation scores against each axis")
    study.add_argument("file", type=Path, metavar="FILE.yaml", help="such as params/study/inducing-figure4.yaml")
    study.add_argument("--max-concurrent", type=_positive, metavar="N", help="trials at once")
    study.add_argument("--resume", action="store_true", help="go on with a study that was stopped")
    predict = verbs.add_parser("predict", help="predict new rows with a fitted posterior")
    predict.add_argument("run", help="a key of runs")
    predict.add_argument("--input", required=True, type=Path, metavar="FILE")
    predict.add_argument("--output", required=True, type=Path, metavar="FILE.parquet")
    predict.add_argument("--split", type=int, default=0, help="of a data set with several splits")
    predict.add_argument("--seed", type=int, default=0, help="of a run with several seeds")
    predict.add_argument("--level", type=float, metavar="P", help="of conformal sets or intervals (0.9)")
    predict.add_argument(
        "--paper", metavar="PAPER:TABLE", help="a run of this paper's table, in place of params.yaml's"
    )
    export = verbs.add_parser("export", help="write a coreset, or a fitted model that MLflow serves, as a folder")
    export.add_argument("what", choices=("coreset", "model"))
    export.add_argument("run", help="a key of runs; for a coreset also of coresets")
    export.add_argument("--to", required=True, type=Path, metavar="DIR", help="new or empty")
    export.add_argument("--split", type=int, default=0, help="of a data set with several splits")
    export.add_argument("--seed", type=int, default=0, help="of a run with several seeds")
    export.add_argument("--paper", metavar="PAPER:TABLE", help="a model of a run of this paper's table")
    apply = verbs.add_parser("apply", help="merge an overlay of params/ into params.yaml, comments kept")
    apply.add_argument("overlay", type=Path, metavar="FILE.yaml")
    upgrade = verbs.add_parser(
        "upgrade", help="give old keys and values of params files their present names; nothing else changes"
    )
    upgrade.add_argument("files", nargs="*", type=Path, metavar="FILE.yaml", help="default: params.yaml")
    ui = verbs.add_parser("ui", help="the tracking page, on this project's store")
    ui.add_argument("--host", default="127.0.0.1")
    ui.add_argument("--port", type=_positive, default=5000)
    return top


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"must be in [0, 1), got {text}")
    return value


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be >= 1, got {text}")
    return value
