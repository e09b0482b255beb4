"""The page ``docs/reference/command-line.md``: every verb of ``python -m pipeline``, from its parser."""

import click

from pipeline import cli

from .blocks import table


def blocks() -> dict[str, str]:
    """Return the blocks of the page by name."""
    overview = [[f"[`{name}`](#{name})", command.get_short_help_str(150)] for name, command in _verbs()]
    return {
        "verbs": table(["verb", "what it does"], overview),
        "options": "\n\n".join(_verb(*verb) for verb in _verbs()),
    }


def _verbs() -> list[tuple[str, click.Command]]:
    return list(cli.verbs.commands.items())


def _verb(name: str, command: click.Command) -> str:
    context = click.Context(command, info_name=name, parent=click.Context(cli.verbs, info_name=cli.PROGRAM))
    usage = " ".join([cli.PROGRAM, name, *command.collect_usage_pieces(context)])
    text = " ".join((command.help or "").split("\n\n")[0].split())
    more = [" ".join(paragraph.split()) for paragraph in (command.help or "").split("\n\n")[1:]]
    records = [p.get_help_record(context) for p in command.get_params(context) if isinstance(p, click.Option)]
    rows = [
        [f"`{record[0]}`", record[1].replace("|", "\\|")] for record in records if record and "--help" not in record[0]
    ]
    options = "\n\n" + table(["option", "meaning"], rows) if rows else ""
    return "\n\n".join([f"## `{name}` {{#{name}}}", text, f"`{usage}`", *more]) + options
