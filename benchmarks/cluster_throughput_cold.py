"""``python -m benchmarks.cluster_throughput_cold``: seconds from submission to a task's first step, nothing started."""

import time

from benchmarks.cluster_throughput import nothing
from pipeline.core.settings import Settings
from pipeline.work import choose
from pipeline.work.display import Display
from pipeline.work.executor import Task

if __name__ == "__main__":
    executor, start = choose(Settings()), time.time()
    with Display("cold") as display:
        (done,) = executor.map(nothing, [Task("a", 0)], shared={}, display=display)
    executor.close()
    print(float(done.result.tensors["at"][0]) - start)
