"""The public names: the exports of ``import bdl_pipe``, which the docs show. The stub ``public.pyi`` lists them.

Like the registry this is a table of names, and no result depends on it. Each name is imported on first use, so that
``import bdl_pipe`` is fast and does not import torch.
"""

import ast
import importlib
from pathlib import Path
from typing import Any, Final


def _places() -> dict[str, str]:
    """Return name -> its module, and ``:name`` if it has another name there, from the stub's relative imports."""
    places, modules = dict[str, str](), dict[str | None, str]()
    for node in ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.level:
            for alias in node.names:
                if node.module is None:
                    modules[alias.asname] = alias.name
                else:
                    places[alias.name] = node.module
        elif isinstance(node, ast.Assign):
            name, value = ast.unparse(node.targets[0]), ast.unparse(node.value)
            module, _, attribute = value.partition(".")
            places[name] = f"{modules[module]}:{attribute}"
    return places


PLACES: Final = _places()


def get(name: str) -> Any:
    """Return the object behind a public name.

    Raises:
        AttributeError: there is no such name.
    """
    if name == "__all__":
        return sorted(PLACES)
    if name == "__version__":
        from importlib import metadata

        try:  # the version is not in a file here, because results depend on the files
            return metadata.version("bdl-pipe")
        except metadata.PackageNotFoundError:
            return "0+unknown"
    if name not in PLACES:
        raise AttributeError(f"module {__package__!r} has no attribute {name!r}")
    module, _, attribute = PLACES[name].partition(":")
    return getattr(importlib.import_module(f".{module}", __package__), attribute or name)
