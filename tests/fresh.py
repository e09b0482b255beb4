"""Run a text of Python in a fresh process: a fork that has imported libraries and nothing of the project.

A process of its own would import torch for two or three seconds first.
"""

import os
from pathlib import Path

from tests.end_to_end import forked

ROOT = Path(__file__).parents[1]


def run(folder: Path, text: str, *arguments: str) -> str:
    """Return what ``text`` prints in ``folder``; it must end without an error."""
    (folder / "fresh_text.py").write_text(text)
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    code, out, error = forked.run(folder, environment, "fresh_text", arguments)
    assert code == 0, error
    return out
