"""Command lines of the project are parsed and not run."""

from collections.abc import Sequence

import click

from pipeline import cli


def parse(argv: Sequence[str]) -> click.Context:
    """Parse arguments without running the verb, and return the verb's context.

    Raises:
        click.UsageError: the arguments are wrong.
    """
    command: click.Command = cli.verbs
    context, name, words = None, cli.PROGRAM, list(argv)
    while isinstance(command, click.Group):
        context = click.Context(command, parent=context, info_name=name, **command.context_settings)
        subcommand_object, subcommand, words = command.resolve_command(context, words)
        assert subcommand_object is not None and subcommand is not None
        name, command = subcommand_object, subcommand
    return command.make_context(name, words, parent=context)
