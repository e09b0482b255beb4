"""Run texts of Python in fresh processes: forks that have imported libraries and nothing of the project.

A process of its own would import torch for two or three seconds first, and free its modules for one second last.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.end_to_end import forked

ROOT = Path(__file__).parents[1]
_EACH = """
import gc, json, os, sys, traceback
import {imports}
gc.freeze()
for text, out in json.load(sys.stdin):
    if os.fork() == 0:
        for number, path in ((1, out), (2, out + ".err")):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
        code = 1
        try:
            exec(compile(text, out, "exec"), {{"__name__": "__main__"}})
            code = 0
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # freeing all imported modules one by one would take longer than most texts
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)  # a fork would print what is not flushed
"""


def run(folder: Path, text: str, *arguments: str) -> str:
    """Return what ``text`` prints in ``folder``; it must end without an error."""
    (folder / "fresh_text.py").write_text(text)
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    code, out, error = forked.run(folder, environment, ["-m", "fresh_text", *arguments])
    assert code == 0, error
    return out


def run_each(
    texts: Sequence[str],
    folder: Path,
    imports: str,
    environment: Mapping[str, str],
    python: Path = Path(sys.executable),
) -> list[tuple[int, str, str]]:
    """Run each text in ``folder``, in its own fork of one process that has imported ``imports``.

    Return the exit code, stdout and stderr of each.
    """
    outs = [folder / f"{number}.out" for number in range(len(texts))]
    done = subprocess.run(
        [python, "-c", _EACH.format(imports=imports)],
        input=json.dumps([[text, str(out)] for text, out in zip(texts, outs, strict=True)]),
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
        check=True,
        timeout=500,
    )
    codes = map(int, done.stdout.split())
    ends = zip(codes, outs, strict=True)
    return [(code, out.read_text(), Path(f"{out}.err").read_text()) for code, out in ends]
