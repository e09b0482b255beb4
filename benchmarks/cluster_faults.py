"""The cost of a fault on a cluster: ``python -m benchmarks.cluster_faults --to results/cluster_faults.md``.

A cluster of two nodes, each with its own network and without the project, fits a trajectory of two seeds and a
posterior from it. After the first checkpoint one fault is caused. For each fault the table has the terminal's output,
the seconds beside an undisturbed run, and whether the artifacts equal the undisturbed run's bit for bit. If the command
fails, the fault is repaired (the head is started again, space is freed) and the same command is run again; nothing else
is done. Needs Linux and root.
"""

import argparse
import signal
import sys
import tempfile
from pathlib import Path

from benchmarks import namespaces
from benchmarks.faults.kinds import FAULTS
from benchmarks.faults.observe import observe, undisturbed
from benchmarks.faults.page import page
from benchmarks.faults.scene import prepared


def main() -> int:
    """Cause the chosen faults, and report the effects of each."""
    parser = argparse.ArgumentParser(description="Let one thing after the other go wrong on a cluster.")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=[fault.name for fault in FAULTS])
    parser.add_argument("--quick", action="store_true", help="leave out the partition of five minutes")
    parser.add_argument("--epochs", type=int, default=120, help="of the trajectory (120)")
    parser.add_argument("--to", type=Path, metavar="FILE.md", help="a page; what it has of other faults is kept")
    args = parser.parse_args()
    if missing := namespaces.missing():
        raise SystemExit(missing)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # and leave nothing behind
    wanted = [f for f in FAULTS if (f.name in args.only if args.only else not (args.quick and f.name.endswith("-300")))]
    seen = []
    with tempfile.TemporaryDirectory(prefix="bdl-f") as place:
        project = prepared(Path(place) / "prepared", args.epochs)
        seconds, expected = undisturbed(project)
        print(f"undisturbed: {seconds:.0f} s, {len(expected)} files", flush=True)
        for fault in wanted:
            seen.append(observe(fault, project, expected))
            last = seen[-1]
            print(f"{fault.name}: {'as it should' if last.well else 'NOT AS IT SHOULD'}: codes {last.codes},", end=" ")
            print(f"{last.told:.0f} s to the end, {last.seconds:.0f} s in all, {last.left} processes left,", end=" ")
            print("the same bits" if last.same else "OTHER BITS", flush=True)
            for lines in last.lines:
                print("".join(f"    | {line}\n" for line in lines[-12:]), flush=True)
            if args.to:
                args.to.write_text(page(args.to.read_text() if args.to.exists() else "", project, seconds, seen))
    return 0 if all(s.well for s in seen) else 1


if __name__ == "__main__":
    sys.exit(main())
