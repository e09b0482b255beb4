"""The pages ``docs/reference/params-keys.md`` and ``docs/reference/command-line.md``.

The first has every key of ``params.yaml`` that is not a method's own, the second every verb of ``python -m pipeline``,
from its parser. A method's own keys stand on the method's page; sections that several methods share, such as
``optimiser``, stand here.
"""

import inspect
from typing import get_args, get_type_hints

import click

from bdl_pipe import config
from bdl_pipe.data.catalog import CATALOG
from bdl_pipe.data.config import DatasetConfig
from bdl_pipe.evaluation import EvaluateConfig
from bdl_pipe.networks import NetworkConfig
from bdl_pipe.registry import METHODS
from bdl_pipe.sgmcmc.kernels import KernelConfig
from pipeline import cli
from pipeline.core.model import ReportConfig, RunSpec

from .blocks import table
from .keys import anchor, keys, parts, plain


def blocks() -> dict[str, str]:
    """Return the blocks of both pages by name."""
    overview = [[f"[`{name}`](#{name})", command.get_short_help_str(150)] for name, command in _verbs()]
    return {
        "dataset": key_table(DatasetConfig),
        "sources": ", ".join(f"`{name}`" for name in sorted(CATALOG)),
        "run": key_table(RunSpec),
        "evaluate": key_table(EvaluateConfig),
        "report": key_table(ReportConfig),
        "networks": variants(NetworkConfig),
        "kernels": variants(KernelConfig),
        "sections": sections(),
        "verbs": table(["verb", "what it does"], overview),
        "options": "\n\n".join(_verb(*verb) for verb in _verbs()),
    }


def key_table(section: type, sections_at: str = "") -> str:
    """Return the table of a section's keys; ``sections_at``: the page with the sections within it, if another one."""
    rows = []
    for key in keys(section):
        kind = key.kind.replace("(params-keys.md#", f"({sections_at}#") + (f", {key.rule}" if key.rule else "")
        rows.append([f"`{key.name}`", key.meaning, kind, key.default or "required"])
    return table(["key", "meaning", "values", "default"], rows) if rows else "No keys: write `{}`."


def variants(hint: object) -> str:
    """Return a table for each variant of a kind that plugins may add to."""
    texts = []
    for name, section in config._kinds[hint]().items():
        if section.__module__.startswith("bdl_pipe."):
            texts.append(f"#### `{name}` {{#{anchor(section)}}}\n\n{summary(section)}\n\n{key_table(section)}\n")
    return "\n".join(texts)


def sections() -> str:
    """Return a table for each section that lies within a method's."""
    used: dict[type, list[str]] = {}
    for name, method in METHODS.items():
        if method.config.__module__.startswith("bdl_pipe."):
            for part in parts(method.config):
                used.setdefault(part, []).append(f"`{name}`")
    for part in parts(DatasetConfig):
        used.setdefault(part, []).append("`datasets`")
    shared = {cls for kind in (NetworkConfig, KernelConfig) for cls in config._kinds[kind]().values()}
    texts = []
    for part in sorted(set(used) - shared, key=lambda cls: (cls.__module__, cls.__name__)):
        variant = get_args(get_type_hints(part).get("name"))
        title = f"`{{name: {variant[0]}}}` · {part.__name__}" if variant else part.__name__
        texts.append(f"### {title} {{#{anchor(part)}}}\n")
        names = used[part]
        more = f" and {len(names) - 4} more methods" if len(names) > 4 else ""
        texts.append(f"{summary(part)} Used by {', '.join(names[:4])}{more}.\n\n{key_table(part)}\n")
    return "\n".join(texts)


def summary(section: type) -> str:
    """Return the first paragraph of a config's docstring."""
    return plain(inspect.cleandoc(section.__doc__ or "").partition("\n\n")[0])


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
