"""The cost of a posterior: stored numbers, bytes, seconds, peak memory."""

import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
import torch

from ..artifacts import State
from .metric import Metric

COSTS = (
    Metric("parameters", "Parameters", "numbers stored for prediction", better=-1, unit="count"),
    Metric("bytes", "Size", "bytes stored for prediction", better=-1, unit="bytes"),
    Metric(
        "fit_seconds",
        "Fit",
        "time of one fit with all upstream stages; on a CPU with one thread, processor time",
        better=-1,
        unit="seconds",
    ),
    Metric("seconds_per_1000", "Per 1,000", "time of 1,000 predictions", better=-1, unit="seconds"),
    Metric("peak_bytes", "Peak memory", "peak memory of the fitting process", better=-1, unit="bytes"),
)
_PROC = Path("/proc/self")


def stored_parameters(state: State) -> int:
    """Count the floating-point numbers in the state: weights, variances, running statistics, of all draws."""
    return sum(t.numel() for t in state.tensors.values() if t.is_floating_point())


def stored_bytes(state: State) -> int:
    """Return the size of the state's safetensors file."""
    return len(safetensors.torch.save({k: v.detach().cpu().contiguous() for k, v in state.tensors.items()}))


def clock(device: torch.device | str = "cpu") -> Callable[[], float]:
    """Return the clock that measures a cost, in seconds.

    With one thread on a CPU it is the processor time of the process, which does not depend on other processes;
    otherwise it is wall-clock time.
    """
    alone = torch.device(device).type == "cpu" and torch.get_num_threads() == 1
    return time.process_time if alone else time.perf_counter


def seconds(work: Callable[[], object], device: torch.device | str = "cpu", repeats: int = 3) -> float:
    """Return the median time of ``work`` by :func:`clock`, after one run that is not counted; waits for the GPU."""
    work()
    times, now = [], clock(device)
    for _ in range(repeats):
        _wait(device)
        start = now()
        work()
        _wait(device)
        times.append(now() - start)
    return statistics.median(times)


@dataclass
class Peak:
    """The largest memory of a block; ``bytes`` is set when the block of :func:`peak_bytes` ends."""

    bytes: int = 0


@contextmanager
def peak_bytes(device: torch.device | str = "cpu") -> Iterator[Peak]:
    """Measure the largest memory held during a block: ``with peak_bytes() as peak: ...; peak.bytes``.

    On a GPU it is the memory that torch allocated there. Otherwise it is the resident memory of the whole process,
    libraries included; if the kernel cannot reset the peak, it is the peak since the process began.
    """
    peak, cuda, restarted = Peak(), torch.device(device).type == "cuda", False
    if cuda:
        torch.cuda.reset_peak_memory_stats(device)
    else:
        with suppress(OSError):
            (_PROC / "clear_refs").write_text("5", encoding="utf-8")  # proc(5): sets the peak to the present size
            restarted = True
    try:
        yield peak
    finally:
        peak.bytes = torch.cuda.max_memory_allocated(device) if cuda else _resident(restarted)


def _resident(restarted: bool) -> int:
    if restarted:
        for line in (_PROC / "status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def _wait(device: torch.device | str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
