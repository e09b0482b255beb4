"""The command line: ``python -m pipeline VERB``; ``--help`` lists the verbs.

A user's mistake is one line on stderr and exit code 2. Each verb imports its module inside its function, so that a
command imports only what it needs.
"""

import math
import sys
from collections.abc import Sequence
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any, Final

import click

from bdl_pipe.errors import UserError

from .export import targets

PROGRAM: Final = "python -m pipeline"
COUNT: Final = click.IntRange(min=1)
PATH: Final = click.Path(path_type=Path)
TRIALS: Final = click.option("--max-concurrent", type=COUNT, metavar="N", help="Trials at once.")
RESUME: Final = click.option("--resume", is_flag=True, help="Continue a stopped search or study.")
TO: Final = click.option("--to", required=True, type=PATH, metavar="DIR", help="New or empty.")
SPLIT: Final = click.option("--split", type=int, default=0, help="The split, for a data set with several.")
SEED: Final = click.option("--seed", type=int, default=0, help="The seed, for a run with several.")
PAPER: Final = click.option(
    "--paper", metavar="PAPER:TABLE", help="Take the run from this paper's table, not from params.yaml."
)


class ListsCommand(click.Command):
    """A command with options that take several words: ``--target A B``, as well as ``--target A --target B``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Repeat such an option before each of its words, and parse the result."""
        lists = {name for p in self.params if isinstance(p, click.Option) and p.multiple for name in p.opts}
        words: list[str] = []
        option = ""
        for word in args:
            if word.startswith("-"):
                option = word if word in lists else ""
            elif option and words[-1] != option:
                words.append(option)
            words.append(word)
        return super().parse_args(ctx, words)


def _share(context: click.Context, option: click.Parameter, share: float | None) -> float | None:
    """Refuse NaN, which click accepts in every range."""
    if share is not None and math.isnan(share):
        raise click.BadParameter("nan is not in the range 0<=x<1.")
    return share


def main(argv: Sequence[str] | None = None) -> int:
    """Run the verb that the arguments name, and return the exit code: 2 for a user's mistake, 130 for Ctrl-C."""
    words = list(sys.argv[1:] if argv is None else argv)
    verb = next(iter(words), PROGRAM)
    try:
        with verbs.make_context(PROGRAM, words) as context:
            return verbs.invoke(context) or 0
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else PROGRAM
        print(f"{verb}: {error.format_message()}\nTry: {command} --help", file=sys.stderr)
        return 2
    except UserError as error:
        print(f"{verb}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{verb}: interrupted", file=sys.stderr)
        return 130


@click.group(no_args_is_help=False, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
def verbs() -> None:
    """Run, search, predict."""


@verbs.command
def check() -> None:
    """Check all of params.yaml, and print ok or the first error."""
    from .verbs import check

    check()


@verbs.command
@click.option("-j", "--jobs", type=COUNT, default=3, metavar="N", help="Stages at once (default 3).")
@click.argument("words", nargs=-1, metavar="[KEY=VALUE | STAGE]...")
def repro(jobs: int, words: tuple[str, ...]) -> int:
    """Run every stage whose result is out of date, several at once.

    KEY=VALUE: first write this value into params.yaml, such as methods.vbpc.gamma=50. STAGE: run only these stages and
    the stages that they need, named as in dvc.yaml.
    """
    from .verbs import repro

    return repro([word for word in words if "=" not in word], jobs, [word for word in words if "=" in word])


@verbs.command
def attach() -> int:
    """Find the job that a command left on a cluster, and follow it until it ends."""
    from . import job
    from .core.settings import Settings

    return job.attach(Settings.read())


@verbs.command(context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, required=True)
def job(command: tuple[str, ...]) -> int:
    """Run a command of the project as one Ray job: job -- COMMAND...

    RAY_ADDRESS=http://host:8265 names the cluster.
    """
    from . import job
    from .core.settings import Settings

    return job.send(Settings.read(), command)


@verbs.command
@click.option("--all", "all_stages", is_flag=True, help="List all stages.")
def status(all_stages: bool) -> None:
    """List the stages that are out of date, and why."""
    from .verbs import status

    status(all_stages)


@verbs.command(cls=ListsCommand)
@click.argument("path", type=PATH, metavar="FILE")
@click.option("--target", multiple=True, metavar="COLUMN...", help="Columns of a table to predict.")
@click.option("--task", type=click.Choice(("classification", "regression")), help="Default: decided by the target.")
@click.option(
    "--methods", multiple=True, metavar="METHOD...", help="Compare only these. Default: all that fit the data."
)
@click.option("--leave-out", multiple=True, metavar="COLUMN...", help="Columns that are not features.")
@click.option(
    "--decimal", type=click.Choice((".", ",")), help="Decimal point of a CSV file. Default: decided by its cells."
)
@click.option("--thousands", type=click.Choice((",", ".", "'", " ")), help="Separator of thousands of a CSV file.")
@click.option("--size", type=COUNT, metavar="PIXELS", help="Resize a folder's images to this side length.")
@click.option("--skip-broken", is_flag=True, help="Leave out files that are not readable images.")
@click.option("--splits", type=COUNT, metavar="N", help="Default: decided by the number of rows.")
@click.option("--split-by", metavar="date:COLUMN", help="Test the latest rows; group:COLUMN keeps groups together.")
@click.option("--minutes", type=COUNT, default=10, metavar="M", help="Approximate time limit of the comparison (10).")
@click.option("--log/--no-log", default=None, help="Fit logarithms of the targets, or not.")
@click.option("--name", help="The data set's key in params.yaml; default: the file's name.")
@click.option(
    "--calibration",
    type=click.FloatRange(0, 1, max_open=True),
    callback=_share,
    metavar="SHARE",
    help="Share of rows to recalibrate on. Default: decided by task and rows.",
)
@click.option("--tune", "samples", type=COUNT, metavar="N", help="Then search every method, with N trials each.")
@click.option("--dry-run", is_flag=True, help="Say what would be added, and write nothing.")
def add(samples: int | None, dry_run: bool, **options: Any) -> int:
    """Inspect your file, and add it with a run of each method.

    FILE: CSV, Parquet, .npz or a folder of images.
    """
    from .add import Request, add

    dataset = add(Request(**options), dry_run)
    if samples is None or dry_run:
        return 0
    from .search.tune import ALL, tune

    return tune(ALL, dataset=dataset, samples=samples, apply=True)


@verbs.command
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
def remove(names: tuple[str, ...]) -> None:
    """Remove data sets and all runs on them from params.yaml.

    NAME: a key of datasets.
    """
    from .verbs import remove

    for name in names:
        remove(name)


@verbs.command
@click.argument("table", metavar="PAPER:TABLE")
@click.option("--dataset", metavar="A,B", help="Only these data sets. Default: all in the params file.")
@click.option("--method", metavar="X,Y", help="Run only these (the paper's names or ours).")
@click.option("--splits", type=COUNT, metavar="N", help="Splits of each data set, in place of the file's number.")
@click.option("--stand-in", is_flag=True, help="Run on our stand-ins for sets that we do not have.")
@click.option("--missing", is_flag=True, help="With all: write nothing; list finished and missing cells.")
def paper(
    table: str, dataset: str | None, method: str | None, splits: int | None, stand_in: bool, missing: bool
) -> int:
    """Run a paper's table under its protocol, and print our results beside the paper's.

    PAPER:TABLE: such as vbll:table2; its hyperparameters are in params/paper/. all: run nothing, and write every page
    for which the comparison has scores or a CSV file is stored.
    """
    if table == "all" and not (dataset or method or splits or stand_in):
        from .papers import every

        return every(missing)
    if table == "all" or missing:
        raise UserError("paper: all takes no --dataset, --method, --splits, --stand-in; a table takes no --missing")
    from .papers import paper

    return paper(table, dataset, method, splits, stand_in)


@verbs.command(cls=ListsCommand)
@click.argument("method")
@click.option("--dataset", required=True)
@click.option("--samples", type=COUNT, required=True, metavar="N", help="Trials.")
@click.option(
    "--scheduler", type=click.Choice(("asha", "pbt", "medianstopping", "fifo")), default="asha", help="Default: asha."
)
@click.option(
    "--algorithm",
    type=click.Choice(("optuna", "random", "hyperopt", "bayesopt", "hebo", "nevergrad")),
    default="optuna",
    help="Default: optuna. All but random need a package of their name.",
)
@click.option("--metric", multiple=True, default=("nll",), help="The score to optimise, then others to report (nll).")
@click.option("--space", multiple=True, metavar="KEY=LOW:HIGH:SCALE", help="Search these keys; log, linear, integer.")
@click.option("--tensorboard", is_flag=True, help="Also write event files for TensorBoard.")
@click.option("--run", help="The run to search. Default: the method's first run.")
@TRIALS
@RESUME
@click.option("--apply", is_flag=True, help="Merge the winner into params.yaml.")
def tune(method: str, **options: Any) -> int:
    """Search a method's declared space on validation data.

    METHOD: a key of methods, or all: the data set's methods, one after the other. asha stops weak trials; pbt
    continues them from checkpoints of strong trials.
    """
    from .search.tune import tune

    return tune(method, **options)


@verbs.command
@click.argument("file", type=PATH, metavar="FILE.yaml")
@TRIALS
@RESUME
def study(file: Path, max_concurrent: int | None, resume: bool) -> int:
    """Fit every point of a grid, and plot validation scores against each axis.

    FILE.yaml: such as params/study/inducing-figure4.yaml.
    """
    from .search.study import study

    return study(file, max_concurrent=max_concurrent, resume=resume)


@verbs.command
@click.argument("run")
@click.option("--input", "source", required=True, type=PATH, metavar="FILE")
@click.option("--output", required=True, type=PATH, metavar="FILE.parquet")
@SPLIT
@SEED
@click.option("--level", type=float, metavar="P", help="Level of conformal sets or intervals (0.9).")
@PAPER
def predict(
    run: str, source: Path, output: Path, split: int, seed: int, level: float | None, paper: str | None
) -> None:
    """Predict new rows with a fitted posterior.

    RUN: a key of runs.
    """
    from .export.predict import predict

    predict(run, source, output, split, seed, level, paper)


@verbs.command(epilog="".join(f"{name}: {line}\n\n" for name, line in targets.described().items()))
@click.argument("what", type=click.Choice(list(targets.described())))
@click.argument("run")
@TO
@SPLIT
@SEED
@PAPER
def export(what: str, run: str, to: Path, split: int, seed: int, paper: str | None) -> None:
    """Write a coreset or a fitted posterior as a folder that others can use.

    WHAT: see below. RUN: a key of runs or, for a coreset, of coresets.
    """
    write = import_module(f"pipeline.export.targets.{what}").export
    if paper is None:
        return write(run, to, split, seed)
    if "paper" not in signature(write).parameters:
        raise UserError(f"{what} takes no --paper")
    return write(run, to, split, seed, paper)


@verbs.command
@click.argument("runs", nargs=-1, metavar="[RUN]...")
def register(runs: tuple[str, ...]) -> None:
    """Register fitted posteriors as models in MLflow.

    RUN: a key of runs. Default: the run that the report's verdict takes, for each data set, with the alias champion.
    """
    from .core.load import load
    from .export.register import register

    print(*register(runs, load()), sep="\n")


@verbs.command
@click.argument("overlay", type=PATH, metavar="FILE.yaml")
def apply(overlay: Path) -> None:
    """Merge an overlay of params/ into params.yaml, and keep comments."""
    from .verbs import apply

    apply(overlay)


@verbs.command
@click.option("--host", default="127.0.0.1", help="Default: 127.0.0.1.")
@click.option("--port", type=click.IntRange(1, 65535), default=5000, help="Default: 5000.")
def ui(host: str, port: int) -> int:
    """Serve the tracking page for this project's store."""
    from .verbs import ui

    return ui(host, port)
