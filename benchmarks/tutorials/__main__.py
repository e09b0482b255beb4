"""Run tutorials and write their pages, ``docs/tutorials/*.md``, with pictures: ``python -m benchmarks.tutorials``.

Each script runs in its own process, as many in parallel as there are cores. ``NAME…`` runs only the scripts with a name
that begins so. With ``--check`` nothing is written: the scripts must run, and must print and draw in the same cells as
in the pages.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .page import index, page, page_of, pictures_of, shape
from .script import FOLDER, ROOT, scripts


def execute(script: Path, folder: Path) -> list[dict[str, Any]]:
    """Run a script in a fresh process; return each cell's output and pictures, which lie in ``folder``.

    Raises:
        SystemExit: the script failed.
    """
    command = [sys.executable, "-m", "benchmarks.tutorials.execute", str(script), str(folder)]
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    env = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}
    env.pop("MLFLOW_TRACKING_URI", None)  # a tutorial reads the runs of its own copy of the project
    done = subprocess.run(command, cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{done.stderr[-4000:]}\n{script.name} failed")
    found: list[dict[str, Any]] = json.loads((folder / "cells.json").read_text())
    return found


def write(script: Path, found: list[dict[str, Any]], folder: Path) -> None:
    """Write the page of a script that has run, and its pictures."""
    for old in pictures_of(script):
        old.unlink()
    (FOLDER / "images").mkdir(exist_ok=True)
    for number, picture in enumerate([picture for cell in found for picture in cell["pictures"]], 1):
        shutil.copy(folder / picture["file"], FOLDER / "images" / f"{script.stem}-{number}.png")
    page_of(script).write_text(page(script, found))


def compare(script: Path, found: list[dict[str, Any]]) -> str:
    """Return the differences between a page and its script's output; none if cells, texts and pictures are the same."""
    stored, made = page_of(script).read_text(), page(script, found)
    return "" if shape(stored) == shape(made) else f"{page_of(script).name} is not what {script.name} makes"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the named tutorials, or all; return 1 if a tutorial failed or its page differs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tutorials", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args(argv)
    chosen = [s for s in scripts() if not options.names or s.name.startswith(tuple(options.names))]

    def one(script: Path) -> str:
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as name:
            try:
                found = execute(script, Path(name))
            except SystemExit as error:
                return str(error)
            if options.check:
                problem = compare(script, found)
            else:
                problem = ""
                write(script, found, Path(name))
        print(f"{time.perf_counter() - start:5.0f} s  {script.name}", flush=True)
        return problem

    with ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0)))) as pool:
        problems = [problem for problem in pool.map(one, chosen) if problem]
    if not options.check and not problems:
        (FOLDER / "index.md").write_text(index())
    print("\n".join(problems), file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
