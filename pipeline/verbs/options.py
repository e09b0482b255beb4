"""Types of options, and the options that several verbs of the command line share."""

from pathlib import Path
from typing import Any, Final

import click

COUNT: Final = click.IntRange(min=1)
PATH: Final = click.Path(path_type=Path)
EXECUTOR: Final = click.option("--executor", type=click.Choice(("inline", "ray")), help="Default: BDL_EXECUTOR or ray.")
JOBS: Final = click.option("-j", "--jobs", type=COUNT, default=3, metavar="N", help="Stages at once (default 3).")
TRIALS: Final = click.option("--max-concurrent", type=COUNT, metavar="N", help="Trials at once.")
RESUME: Final = click.option("--resume", is_flag=True, help="Go on with what was stopped.")
TO: Final = click.option("--to", required=True, type=PATH, metavar="DIR", help="New or empty.")
SPLIT: Final = click.option("--split", type=int, default=0, help="The split, for a data set with several.")
SEED: Final = click.option("--seed", type=int, default=0, help="The seed, for a run with several.")
PAPER: Final = click.option(
    "--paper", metavar="PAPER:TABLE", help="A run of this paper's table, in place of params.yaml's."
)


class _Share(click.FloatRange):
    """A share in [0, 1). NaN, which lies in every range of click, is refused."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        share = super().convert(value, param, ctx)
        if share != share:
            self.fail("nan is not in the range 0<=x<1.", param, ctx)
        return share


SHARE: Final = _Share(0, 1, max_open=True)


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
