"""Values as readers see them."""

from collections.abc import Callable

import pytest

from bdl_pipe.metrics import COSTS, DETECTION, METRICS, metric_of, written


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (written.size, 999, "999 B"),
        (written.size, 33_000, "33 kB"),
        (written.size, 6.1e8, "610 MB"),
        (written.size, 2.5e9, "2.50 GB"),
        (written.seconds, 0.012, "12 ms"),
        (written.seconds, 0.0998, "100 ms"),
        (written.seconds, 0.0062, "6.2 ms"),
        (written.seconds, 4.2, "4.2 s"),
        (written.seconds, 131.4, "131 s"),
        (written.seconds, 1200, "20 min"),
        (written.count, 650, "650"),
        (written.count, 7_750_000, "7.75 M"),
        (written.percent, 0.91456, "91.46"),
    ],
)
def test_figures_are_written_for_people(write: Callable[[float], str], value: float, text: str) -> None:
    assert write(value) == text


def test_a_metric_knows_how_it_is_written() -> None:
    assert [written.writer(cost)(1500.0) for cost in COSTS] == ["1.5 k", "1.5 kB", "25 min", "25 min", "1.5 kB"]
    assert written.writer(METRICS["accuracy"])(0.5) == "50.00" and written.writer(METRICS["nll"])(0.5) == "0.500"
    assert [metric_of(metric.name) for metric in (*COSTS, *DETECTION, METRICS["nll"])] == [
        *COSTS,
        *DETECTION,
        METRICS["nll"],
    ]
