"""Grids of hyperparameters: their points, and the table and the figure of scores at them."""

import io
import itertools
from collections.abc import Callable
from typing import Any

import matplotlib
import pytest

from bdl_pipe.config import read
from bdl_pipe.errors import ConfigError
from bdl_report import grids
from bdl_report.grids import GridConfig, Panel, Point, Result, keys_of, mean_of, results_of, rows, values_of, written
from tests.refusals import refused

BASE = {"inner.shift+more": -3.0, "log": ""}
GRID = {
    "grid": {"inner.shift+more": [-3.0, -2.25, 1.0], "log": ["", "log.txt"]},
    "seeds": 2,
    "names": {"inner.shift+more": "shift"},
    "metrics": ["nll", "rmse"],
    "figure": [{"x": "inner.shift+more", "lines": "log"}, {"x": "log", "at": {"inner.shift+more": 1}}],
}
ABOUT: dict[str, Any] = {"base": BASE, "figure": [{"x": "inner.shift+more"}, {"x": "log"}]}
PLAIN = {"figure": [{"x": "*"}], "names": {}}  # the figure of a grid with one axis


def config_of(**changes: Any) -> GridConfig:
    (only, *_) = changes.get("grid") or ["none"]
    figure = [{**panel, "x": panel["x"].replace("*", only)} for panel in changes.get("figure", GRID["figure"])]
    return read(GridConfig, {**GRID, **changes, "figure": figure}, "study")


def results(config: GridConfig, score: Callable[[Point, int], dict[str, float]]) -> list[Result]:
    fits = itertools.product(config.points(), range(config.seeds))
    return [Result({**values_of(point), "seed": seed}, score(point, seed)) for point, seed in fits]


def test_an_axis_may_set_several_keys() -> None:
    assert keys_of("weights.rows+cols") == ("weights.rows", "weights.cols")
    assert keys_of("weights.rows + training.batch") == ("weights.rows", "training.batch")
    assert keys_of("draws+validation_draws") == ("draws", "validation_draws")
    assert values_of({"a.b+c": 2, "d": None}) == {"a.b": 2, "a.c": 2, "d": None}
    assert [written(v) for v in (None, True, 0.03, 1e-5, 16, "a")] == ["null", "true", "0.03", "1e-05", "16", "a"]


def test_every_point_is_tried_with_every_seed() -> None:
    config = config_of()
    points = [[shift, log] for shift in (-3.0, -2.25, 1.0) for log in ("", "log.txt")]
    assert [list(point.values()) for point in config.points()] == points
    samples, first = config.samples(), {"inner.shift": -3.0, "inner.more": -3.0, "log": ""}
    assert samples[:2] == [first | {"seed": 0}, first | {"seed": 1}] and len(samples) == 12
    ended = [Result(sample, {}) for sample in reversed(samples)]
    assert results_of(ended, {"inner.shift+more": 1.0, "log": "log.txt"}) == [ended[1], ended[0]]


def test_points_about_a_base_differ_in_one_axis_and_are_named_by_it() -> None:
    config = config_of(**ABOUT)
    points = [tuple(point.values()) for point in config.points()]
    assert points == [(-3.0, ""), (-2.25, ""), (1.0, ""), (-3.0, "log.txt")]
    assert [config.label(point) for point in config.points()] == ["base", "shift -2.25", "shift 1", "log log.txt"]


def test_a_grid_that_cannot_be_tried_or_shown_is_refused() -> None:
    for changes, message in refused("grids"):
        with pytest.raises(ConfigError, match=message):
            config_of(**({**PLAIN, **changes} if changes.get("grid") else changes))


def test_the_mean_and_error_are_over_the_seeds_that_did_not_diverge() -> None:
    ended = [Result({"a": 1, "seed": s}, scores) for s, scores in enumerate([{"nll": 1.0}, {"nll": 3.0}, {}])]
    mean = mean_of(results_of(ended, {"a": 1}), "nll")
    assert mean is not None and (mean.mean, mean.error, mean.n) == (2.0, 1.0, 2)
    assert mean_of(ended[2:], "nll") is None


def test_the_table_has_a_row_for_each_point() -> None:
    def score(point: Point, seed: int) -> dict[str, float]:
        return {} if point["log"] else {"nll": float(point["inner.shift+more"]) + seed}

    config = config_of(**ABOUT)
    ended = results(config, score)
    assert rows(config, ended, ["nll"]) == [
        ["Point", "fits", "nll"],
        ["base", "2 of 2", "-2.5000 ± 0.5000"],
        ["shift -2.25", "2 of 2", "-1.7500 ± 0.5000"],
        ["shift 1", "2 of 2", "1.5000 ± 0.5000"],
        ["log log.txt", "0 of 2", "—"],
    ]


@pytest.mark.parametrize("changes", [{}, ABOUT], ids=["grid", "about a base"])
def test_the_figure_is_a_function_of_the_results(changes: dict[str, Any]) -> None:
    def drawn(slope: float) -> bytes:
        config, blob = config_of(**changes), io.BytesIO()
        ended = results(config, lambda point, seed: {"nll": float(point["inner.shift+more"]) + slope * seed})
        with matplotlib.rc_context({"svg.hashsalt": "x"}):
            grids.draw(config, ended).savefig(blob, format="svg", metadata={"Date": None})
        return blob.getvalue()

    assert drawn(1.0) == drawn(1.0) != drawn(2.0)
    assert grids.draw(config_of(), []).axes, "a figure of fits that all diverged"


def test_a_panel_shows_its_lines_at_the_values_of_the_other_axes() -> None:
    config = GridConfig({"a": (1, 2), "b": (3, 4)}, 1, ("nll",), (Panel("a", lines="b"), Panel("b", at={"a": 2})))
    ended = results(config, lambda point, seed: {"nll": 10.0 * int(point["a"]) + int(point["b"])})  # type: ignore
    by_line, at = grids.draw(config, ended).axes
    assert [list(line.get_ydata()) for line in by_line.lines] == [[13, 23], [14, 24]]
    assert [list(line.get_ydata()) for line in at.lines] == [[23, 24]] and at.get_title() == "a = 2"
