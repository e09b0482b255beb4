"""What can be exported: each module here is a target, named after the module.

The first line of its docstring says what it writes. Its function ``export(run, to, split, seed)`` writes the new folder
``to``; with a further argument ``paper`` it exports runs of papers, too. ``python -m pipeline export`` lists the
modules, so that a new target is one file.
"""

import ast
from pathlib import Path


def described() -> dict[str, str]:
    """Return the first line of each target's docstring by the target's name; no target is imported."""
    files = (path for path in sorted(Path(__file__).parent.glob("*.py")) if path.stem != "__init__")
    lines = {path.stem: ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "" for path in files}
    return {name: text.partition("\n")[0] for name, text in lines.items()}
