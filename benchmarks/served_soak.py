"""Exported models, served by ``mlflow models serve`` to many clients at once: are answers right, and is memory flat?

    python -m benchmarks.served_soak --to results/scale/served.md

For each method the script fits a table of 300 rows, exports the fit by ``python -m pipeline export model`` and serves
it. First one client sends each of 64 requests, of 1 to 8 rows; these are the answers alone. Then 32 clients send 10,000
of these requests, and each answer is compared, byte by byte, with the answer alone to the same request. Throughput is
that of the whole system: clients and server share the machine. Memory is the resident memory of the server's processes,
after the first tenth of the requests of the 32 clients and after the last. The command fails if an answer differs or if
memory grows by more than 16 MB.
"""

import argparse
import hashlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
import psutil

from pipeline.core.provenance import commit
from pipeline.core.records import device_name

METHODS: Final[Mapping[str, str]] = {  # method -> the target's column
    "swag": "y",
    "tabm": "y",
    "ciber_last": "y",
    "sgmcmc": "y",
    "ensemble": "label",
}
ROWS: Final = 300
PACE: Final = 0.05
BODIES: Final = 64
MOST_GROWTH: Final = 16e6  # bytes
_STARTS: Final = 120.0  # seconds that a server may take to answer
_FLAT_AFTER: Final = 0.1  # share of the requests before the first measurement of memory


@dataclass(frozen=True)
class Soak:
    """The figures of one served model.

    Attributes:
        differ: the number of answers that differ from the answer alone, errors included.
        one, many: requests per second of one client and of all clients.
        before, after: bytes of the server's resident memory.
    """

    method: str
    differ: int
    one: float
    many: float
    before: int
    after: int

    @property
    def right(self) -> bool:
        return self.differ == 0 and self.after - self.before <= MOST_GROWTH

    def line(self) -> str:
        """Return the figures as a line of the page's table."""
        memory = f"{self.before / 1e6:.0f} MB | {self.after / 1e6:.0f} MB"
        speed = f"{self.one:.0f} | {self.many:.0f} | {self.many / self.one:.2f}"
        return f"| {self.method} | {self.differ} | {speed} | {memory} |"


def table(rows: int, seed: int) -> pd.DataFrame:
    """Return rows with three numbers, a category, a target of numbers and a label."""
    random = np.random.default_rng(seed)
    frame = pd.DataFrame(random.normal(size=(rows, 3)), columns=["a", "b", "c"])
    frame["kind"] = random.choice(["brick", "stone", "wood"], rows)
    signal_ = frame["a"] - frame["b"] ** 2 + (frame["kind"] == "wood")
    frame["y"] = 20 + signal_ + 0.3 * random.normal(size=rows)
    frame["label"] = np.where(signal_ + 0.5 * random.normal(size=rows) > 0, "up", "down")
    return frame


def exported(method: str, folder: Path) -> Path:
    """Fit a method to the table, and return the folder of its exported model."""
    from bdl_pipe import BayesianClassifier, BayesianRegressor

    frame, target = table(ROWS, 0), METHODS[method]
    estimator = BayesianRegressor if target == "y" else BayesianClassifier
    fitted = estimator(method, pace=PACE).fit(frame.drop(columns=["y", "label"]), frame[target])
    fitted.save(folder / "work" / "student" / method)
    command = [sys.executable, "-m", "pipeline", "export", "model", method, "--to", f"{method}-model"]
    subprocess.run(command, cwd=folder, env=_environment(), check=True, stdout=subprocess.DEVNULL)
    return folder / f"{method}-model"


@contextmanager
def served(model: Path) -> Iterator[tuple[psutil.Process, int]]:
    """Serve a model; yield the server's process and its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "models", "serve", "-m", str(model), "-p", str(port)]
    with (model.parent / "server.log").open("w") as log:
        server = subprocess.Popen(
            [*command, "--env-manager", "local"],
            env=_environment(),
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        end = time.monotonic() + _STARTS
        while not _answers(port):
            if server.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"the server did not start:\n{(model.parent / 'server.log').read_text()}")
            time.sleep(0.5)
        yield psutil.Process(server.pid), port
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait()


def bodies() -> list[bytes]:
    """Return requests of 1 to 8 rows that no fit has seen."""
    frame = table(8 * BODIES, 1).drop(columns=["y", "label"])
    parts = [frame.iloc[8 * number : 8 * number + 1 + number % 8] for number in range(BODIES)]
    return [json.dumps({"dataframe_split": part.to_dict(orient="split", index=False)}).encode() for part in parts]


def compared(
    ask: Callable[[int], Callable[[bytes], bytes]],
    requests: Sequence[bytes],
    alone: Sequence[bytes],
    clients: int,
    after: Callable[[int], None] = lambda _: None,
) -> int:
    """Send each request by one of several clients; return the number of answers that differ from the answers alone.

    Args:
        ask: client -> the function that sends a request and returns the answer.
        alone: the answer alone to the same request.
        after: is called with the number of answers so far, after each answer.
    """
    numbers, lock, differ, done = iter(range(len(requests))), threading.Lock(), 0, 0

    def client(number: int) -> None:
        nonlocal differ, done
        send = ask(number)
        while True:
            with lock:
                at = next(numbers, None)
            if at is None:
                return
            try:
                wrong = send(requests[at]) != alone[at]
            except (OSError, http.client.HTTPException):
                wrong, send = True, ask(number)
            with lock:
                differ, done = differ + wrong, done + 1
                after(done)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return differ


def soak(method: str, folder: Path, count: int, clients: int) -> Soak:
    """Serve one method, and return the figures."""
    with served(exported(method, folder)) as (server, port):
        different = bodies()

        def ask(_: int) -> Callable[[bytes], bytes]:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
            return lambda body: _sent(connection, body)

        alone = [_sent(http.client.HTTPConnection("127.0.0.1", port, timeout=120), body) for body in different]
        if any(not answer.startswith(b'{"predictions"') for answer in alone):
            raise SystemExit(f"{method}: {alone[0].decode()[:500]}")
        few, many = max(1, count // 20), count
        order = np.random.default_rng(2).integers(BODIES, size=few + many)
        sent, meant = [different[i] for i in order], [alone[i] for i in order]
        began = time.perf_counter()
        differ = compared(ask, sent[:few], meant[:few], 1)
        one, memory = few / (time.perf_counter() - began), list[int]()

        def after(done: int) -> None:
            if done in (max(1, round(_FLAT_AFTER * many)), many):
                memory.append(resident(server))

        began = time.perf_counter()
        differ += compared(ask, sent[few:], meant[few:], clients, after)
        return Soak(method, differ, one, many / (time.perf_counter() - began), memory[0], memory[-1])


def resident(process: psutil.Process) -> int:
    """Return the bytes of resident memory of a process and its descendants."""
    return sum(each.memory_info().rss for each in [process, *process.children(recursive=True)])


def _sent(connection: http.client.HTTPConnection, body: bytes) -> bytes:
    connection.request("POST", "/invocations", body, {"Content-Type": "application/json"})
    return connection.getresponse().read()


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/ping")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def _environment() -> dict[str, str]:
    """Return the environment of the export and of the server: one thread, no tracking."""
    own = {"OMP_NUM_THREADS": "1", "MLFLOW_DISABLE_TELEMETRY": "true", "BDL_TRACKING": "off"}
    left = {name: value for name, value in os.environ.items() if name != "MLFLOW_TRACKING_URI"}
    root = str(Path(__file__).resolve().parents[1])
    path = os.pathsep.join(filter(None, [root, f"{root}/src", os.environ.get("PYTHONPATH")]))
    return left | own | {"PYTHONPATH": path, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def main() -> int:
    """Soak each method, and write a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS), metavar="METHOD")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--to", type=Path, help="write the page there")
    args = parser.parse_args()
    heads = ["method", "answers that differ", "requests/s, one client", f"{args.clients} clients", "ratio"]
    lines = [f"| {' | '.join([*heads, 'memory at the start', 'at the end'])} |", "| --- " + "| ---: " * 6 + "|"]
    print("\n".join(lines), flush=True)
    found, began, at = list[Soak](), time.monotonic(), commit()
    for method in args.methods:
        with tempfile.TemporaryDirectory(prefix="bdl-served-") as folder:
            found.append(soak(method, Path(folder), args.requests, args.clients))
        lines.append(found[-1].line())
        print(lines[-1], flush=True)
    if args.to:
        args.to.write_text(page(lines, at, args.requests, args.clients, time.monotonic() - began), encoding="utf-8")
    return 0 if all(each.right for each in found) else 1


def page(lines: Sequence[str], at: str, requests: int, clients: int, seconds: float) -> str:
    """Return the page of the figures."""
    data = hashlib.sha256(table(ROWS, 0).to_csv(index=False).encode()).hexdigest()
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("mlflow", "torch"))
    facts: Sequence[Any] = [
        f"Commit {at}; {device_name('cpu')}, {os.cpu_count()} cores, one thread of torch; {versions}.",
        f"{requests:,} requests of {clients} clients a method; `pace={PACE}`; {seconds:.0f} s in all; "
        f"{os.getloadavg()[0]:.1f} processes were running at the end, and a busy machine lowers the throughput.",
        f"Data: the script's table of {ROWS} rows, as CSV sha256 {data}.",
    ]
    return "\n".join(["# Served to many clients", "", str(__doc__).strip(), "", *lines, "", *facts]) + "\n"


if __name__ == "__main__":
    raise SystemExit(main())
