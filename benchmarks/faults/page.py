"""A page of the observed effects."""

import datetime
import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Final

from benchmarks.faults.kinds import FAULTS
from benchmarks.faults.observe import Observed
from benchmarks.faults.scene import COMMAND
from pipeline.core.records import device_name

_LINES: Final = 8  # printed lines of a terminal
_HEADER: Final = """\
| fault | exit codes | fault to command's end | then | all seconds | undisturbed | bits | left | load | commit |
| --- | --- | ---: | --- | ---: | ---: | --- | ---: | ---: | --- |"""


def page(earlier: str, project: Path, undisturbed: float, seen: list[Observed]) -> str:
    """Write the outcomes in a clone as a page, together with the other faults of an ``earlier`` page.

    Args:
        undisturbed: seconds of the run without a fault.
    """
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=project, capture_output=True, text=True, check=True)
    rows, parts = _earlier(earlier)
    for s in seen:
        codes, bits = " then ".join(map(str, s.codes)), "the same" if s.same else "**others**"
        cells = [s.fault.what, codes, f"{s.told:.0f} s", s.fault.cured or "nothing", f"{s.seconds:.0f} s"]
        cells += [f"{undisturbed:.0f} s", bits, str(s.left), f"{s.load:.0f}", commit.stdout[:8]]
        rows[s.fault.what] = f"| {' | '.join(cells)} |"
        parts[s.fault.what] = "\n".join(_block(lines[-_LINES:]) for lines in s.lines)
    order = [fault.what for fault in FAULTS if fault.what in rows]
    versions = ", ".join(f"{name} {version(name)}" for name in ("ray", "torch"))
    return f"""# Faults of a cluster

    python -m benchmarks.cluster_faults --to results/cluster_faults.md

Two nodes of one core each, in network, mount and process namespaces of one machine; the second has neither the
project nor its sources. `{" ".join(("python", *COMMAND[1:]))}` fits two seeds of a trajectory, one on each node, and a
posterior from them, with a checkpoint each second. The fault happens when both seeds have a checkpoint (those of the
object store and of the head's disk: before the command). Where the command fails, what stands under "then" is done, and
the same command is given again. Ray's health checks are as Ray has them. Bits: of all artifacts, beside those of an
undisturbed run. Load: of the machine, which others used, too; it stretches the seconds, those of the undisturbed run as
well.

{_HEADER}
{chr(10).join(rows[what] for what in order)}

{device_name("cpu")}, {os.cpu_count()} cores, {versions}, Python {platform.python_version()}, Linux
{platform.release().split("-")[0]}, {datetime.date.today().isoformat()}.

## The last lines of the terminal

{chr(10).join(f"### {what}{chr(10) * 2}{parts[what]}" for what in order)}"""


def _earlier(page: str) -> tuple[dict[str, str], dict[str, str]]:
    """Read the rows and the terminal output of a page, by fault."""
    rows = {line[2:].partition(" | ")[0]: line for line in page.splitlines() if line.startswith("| ")}
    parts = [part.partition("\n\n") for part in page.split("\n### ")[1:]]
    return rows, {what: text.rstrip("\n") + "\n" for what, _, text in parts}


def _block(lines: list[str]) -> str:
    return "```\n" + "\n".join(line[:200] for line in lines) + "\n```\n"
