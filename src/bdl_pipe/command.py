"""The command ``bdl-pipe``: it runs ``python -m pipeline`` of the project in the current folder.

The pipeline is a cloned project, with its graph and its results; an installation of the library does not contain it.
The library does not import the pipeline, so the command finds it in the current folder and runs it as Python would.
"""

import os
import runpy
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

_NONE: Final = "bdl-pipe: {folder} must be a clone of the project, with dvc.yaml: git clone it, cd there, make install"
_LACKS: Final = "bdl-pipe: the pipeline needs the package {name}: pip install -e '.[pipeline]', or make install"


def main() -> None:
    """Run the pipeline's command line; exit with its status, or print one line and exit with 2 if it cannot run."""
    folder = os.getcwd()
    if not all(Path(folder, name).exists() for name in ("dvc.yaml", "pipeline/__main__.py")):
        sys.exit(_refused(_NONE.format(folder=folder)))
    if find_spec("dvc") is None:
        sys.exit(_refused(_LACKS.format(name="dvc")))
    sys.path.insert(0, folder)
    sys.argv[0] = "bdl-pipe"
    runpy.run_module("pipeline", run_name="__main__", alter_sys=True)


def _refused(line: str) -> int:
    print(line, file=sys.stderr)
    return 2
