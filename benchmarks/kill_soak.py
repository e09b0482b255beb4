"""A soak test: kill processes of the graph at random moments: ``python -m benchmarks.kill_soak --kills 100``.

The script runs the graph in a fresh copy of the project by ``python -m pipeline repro`` and, one time in four, by
``dvc repro``. At random moments it ends one of the run's processes by SIGKILL: the driver, DVC, the process that stages
are forked from, a stage, a worker, the raylet or the GCS. After each kill it gives a command again and repairs nothing.
At the end no finished result may have been lost or made again, the artifacts must have the bits of an undisturbed run,
and no process may outlive its run. A ``dvc repro`` repeats results that a killed ``python -m pipeline repro`` had no
time to record with DVC; the script counts these separately.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from hashlib import md5
from pathlib import Path
from typing import Final

import psutil
import pyarrow.parquet as pq
import yaml

ROOT: Final = Path(__file__).resolve().parents[1]
MARK: Final = "BDL_SOAK"
ORPHAN_SECONDS: Final = 30.0  # all other processes must end within this time after their driver
KINDS: Final = ("prepare", "holdout", "trajectory", "teacher", "coreset", "student", "evaluate")
VICTIMS: Final[Mapping[str, Callable[[list[str]], bool]]] = {
    "driver": lambda words: "pipeline" in words and "repro" in words,
    "dvc": lambda words: any(Path(word).name == "dvc" for word in words[:3]),
    "forks": lambda words: any("multiprocessing.forkserver" in word for word in words),
    "worker": lambda words: words[0].startswith("ray::") if words else False,
    "raylet": lambda words: bool(words) and Path(words[0]).name == "raylet",
    "gcs": lambda words: bool(words) and Path(words[0]).name == "gcs_server",
}


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill processes of the graph at random, and see what is lost.")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--mean-seconds", type=float, default=8.0, help="from the start of a run to its kill, on average"
    )
    parser.add_argument("--params", type=Path, default=ROOT / "params.yaml")
    parser.add_argument("--reference", type=Path, help="work/ of an undisturbed run; default: one is made first")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bdl-soak-") as place:
        reference = args.reference or _undisturbed(Path(place) / "reference", args.params)
        soak = Soak(_copy(Path(place) / "soak", args.params), random.Random(args.seed), args.mean_seconds)
        began = time.monotonic()
        while soak.total < args.kills:
            soak.once()
        runs = soak.finish()
        differing = list(different(reference, soak.folder / "work"))
    figures = {
        "kills": dict(sorted(soak.kills.items())),
        "finished before the kills were over, and started anew": soak.rounds,
        "results lost or made again": soak.lost,
        "results made again by dvc repro, which had no record of them": soak.unrecorded,
        "processes that outlived their run": soak.orphans,
        "undisturbed runs until all was up to date": runs,
        "artifacts that differ from an undisturbed run's": differing,
        "seconds": round(time.monotonic() - began),
    }
    print(json.dumps(figures, indent=1))
    return 1 if soak.lost or soak.orphans or differing else 0


class Soak:
    """A project, and the counts of its kills and results."""

    def __init__(self, folder: Path, rng: random.Random, mean: float) -> None:
        self.folder, self._rng, self._mean = folder, rng, mean
        self.kills: Counter[str] = Counter()
        self.lost: list[str] = []
        self.unrecorded: list[str] = []
        self.orphans: list[str] = []
        self.rounds = self._count = 0

    @property
    def total(self) -> int:
        return sum(self.kills.values())

    def once(self) -> None:
        """Run the graph once with one kill; the next run continues."""
        before = _results(self.folder)
        by_dvc = self._count % 4 == 3 and self._readable()  # DVC refuses a dvc.lock that a kill has truncated
        unrecorded = before.keys() - _recorded(self.folder, before) if by_dvc else set[str]()
        process = self._start(by_dvc)
        until = time.monotonic() + self._rng.expovariate(1 / self._mean)
        while process.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        victim = self._victim()
        before |= _results(self.folder)
        if victim is not None:
            name, target = victim
            try:
                target.kill()
            except psutil.Error:
                name = ""
            if name:
                self.kills[name] += 1
                print(f"{self.total}: {name} after {len(_results(self.folder))} results", flush=True)
                if name not in ("driver", "dvc"):  # the run continues, or reports the failure and ends
                    time.sleep(min(self._rng.expovariate(1 / self._mean), 30))
        if process.poll() is None:
            os.killpg(process.pid, 9)
            self.kills["driver"] += 1
        finished = process.wait() == 0
        self._settle()
        after = _results(self.folder)
        for name in (name for name, blob in before.items() if after.get(name) != blob):
            (self.unrecorded if name in unrecorded else self.lost).append(f"{self.total}: {name}")
        if finished:
            self._anew()

    def finish(self) -> int:
        """Run undisturbed until every stage is up to date, and return the number of runs."""
        for run in range(1, 6):
            process = self._start()
            if process.wait() == 0:
                self._settle()
                return run
            self._settle()
        raise SystemExit("five undisturbed runs did not finish the graph")

    def _start(self, by_dvc: bool = False) -> "subprocess.Popen[bytes]":
        self._count += 1
        command = [sys.executable, "-m", "dvc" if by_dvc else "pipeline", "repro"]
        log = open(self.folder / "soak.log", "ab")  # noqa: SIM115
        return subprocess.Popen(
            command, cwd=self.folder, env=_environment(self.folder), stdout=log, stderr=log, start_new_session=True
        )

    def _readable(self) -> bool:
        done = subprocess.run(
            [sys.executable, "-m", "dvc", "stage", "list", "-q"],
            cwd=self.folder,
            env=_environment(self.folder),
            capture_output=True,
            check=False,
        )
        return done.returncode == 0

    def _victim(self) -> tuple[str, psutil.Process] | None:
        """Return a random kind of the running processes, and one process of this kind."""
        there: dict[str, list[psutil.Process]] = {}
        for other in _marked(self.folder):
            try:
                words = other.cmdline()
            except psutil.Error:
                continue
            kind = next((name for name, is_one in VICTIMS.items() if is_one(words)), "other")
            there.setdefault(kind, []).append(other)
        forks = {p.pid: p for p in there.pop("forks", [])}  # a stage is a fork of this process, under the same name
        for pid, other in forks.items():
            there.setdefault("stage" if _parent(other) in forks else "forkserver", []).append(forks[pid])
        there.pop("other", None)
        if not there:
            return None
        kind = self._rng.choice(sorted(there))
        return kind, self._rng.choice(sorted(there[kind], key=lambda p: p.pid))

    def _settle(self) -> None:
        """Wait for the run's processes to end; a process that does not is an orphan."""
        until = time.monotonic() + ORPHAN_SECONDS
        while (left := list(_marked(self.folder))) and time.monotonic() < until:
            time.sleep(0.2)
        for process in left:
            try:
                self.orphans.append(f"{self.total}: {' '.join(Path(word).name for word in process.cmdline())[:120]}")
                process.kill()
            except psutil.Error:
                pass

    def _anew(self) -> None:
        """Start the graph again from nothing, since it is finished before all kills are done."""
        self.rounds += 1
        for name in ("work", ".state", ".dvc/cache", "mlruns"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        (self.folder / "dvc.lock").unlink(missing_ok=True)


def _parent(process: psutil.Process) -> int:
    try:
        return int(process.ppid())
    except psutil.Error:
        return 0


def different(reference: Path, work: Path) -> Iterator[str]:
    """Yield the artifacts that differ from the reference in a bit; costs in scores are not compared."""
    for kind in KINDS:
        for place in sorted((reference / kind).glob("*/manifest.json")):
            other = work / kind / place.parent.name
            if kind == "evaluate":
                same = other.is_dir() and _scores(place.parent) == _scores(other)
            else:
                same = (other / "manifest.json").is_file() and (
                    other / "manifest.json"
                ).read_bytes() == place.read_bytes()
            if not same:
                yield f"{kind}/{place.parent.name}"


def _scores(folder: Path) -> list[tuple[object, ...]]:
    table = pq.read_table(folder / "scores.parquet").to_pylist()
    return [tuple(row.values()) for row in table if row["set"] != "cost"]


def _results(folder: Path) -> dict[str, bytes]:
    """Return stage -> the record of its result's inputs, for every existing result."""
    place = folder / "work" / "identity"
    return {str(p.relative_to(place)): p.read_bytes() for p in place.rglob("*.json") if not p.name.startswith(".")}


def _recorded(folder: Path, results: Mapping[str, bytes]) -> set[str]:
    """Return the stages with results that have the hash in ``dvc.lock``."""
    lock = folder / "dvc.lock"
    stages = yaml.safe_load(lock.read_text())["stages"].values() if lock.is_file() else ()
    hashes = {out["path"]: out["md5"] for stage in stages for out in stage.get("outs", ())}
    return {name for name, blob in results.items() if hashes.get(f"work/identity/{name}") == md5(blob).hexdigest()}


def _marked(folder: Path) -> Iterator[psutil.Process]:
    """Yield every process that was started for the project in ``folder``."""
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                yield process
        except psutil.Error:
            continue


def _environment(folder: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("BDL_", "RAY_"))}
    path = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
    places = os.pathsep.join([str(folder / "src"), str(folder)])
    return kept | {
        MARK: str(folder),
        "PYTHONPATH": places,
        "PATH": path,
        "DVC_NO_ANALYTICS": "1",
        "BDL_CHECKPOINT_SECONDS": "2",
    }


def _copy(folder: Path, params: Path) -> Path:
    """Make a fresh clone of the last commit, with ``params`` as its params.yaml."""
    subprocess.run(["git", "clone", "-q", str(ROOT), str(folder)], check=True)
    shutil.copy(params, folder / "params.yaml")
    return folder


def _undisturbed(folder: Path, params: Path) -> Path:
    _copy(folder, params)
    subprocess.run(
        [sys.executable, "-m", "pipeline", "repro"],
        cwd=folder,
        env=_environment(folder),
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return folder / "work"


if __name__ == "__main__":
    sys.exit(main())
