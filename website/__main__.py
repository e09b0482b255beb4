"""Write the generated parts of README.md and docs/: ``python -m website``.

``--check`` writes nothing and fails where a page differs; tests/test_site.py does the same.
"""

import sys
from pathlib import Path
from typing import Final

from benchmarks.pages import method_costs

from . import api, house, method_pages, parameters, readme, stored
from .blocks import filled, names, write

ROOT: Final = Path(__file__).parents[1]


def pages() -> dict[Path, str]:
    """Return the up-to-date text of every page with a generated part."""
    modules = (parameters, method_pages, readme, house, stored)
    parts = {name: text for module in modules for name, text in module.blocks().items()}
    texts = {ROOT / path: text for path, text in {**api.pages(), **readme.badges()}.items()}
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = path.read_text()
        if names(text):
            texts[path] = filled(text, parts)
    methods = ROOT / method_costs.TABLE
    texts[methods] = method_costs.with_costs(methods.read_text(), stored.DEFAULT_RUN.read_text())
    return texts


if __name__ == "__main__":
    sys.exit(write(pages()))
