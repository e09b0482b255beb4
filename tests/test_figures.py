"""Figures of scores: their lines, their omissions, and their form inside a page."""

import math
import xml.etree.ElementTree as ET

import pandas as pd
import pytest

from bdl_pipe import drawing as look
from bdl_pipe import figures
from bdl_pipe.drawing import Drawing, Mark
from bdl_pipe.figures import Curve, Priced
from bdl_pipe.scores import Estimate

ENDS = {"lower": [0.0, 0.5], "upper": [0.5, 1.0]}
BINS = pd.DataFrame({**ENDS, "count": [25, 75], "confidence": [0.4, 0.9], "accuracy": [0.2, 0.8]})


def priced(name: str, nll: float, **costs: float) -> Priced:
    return Priced(name, Mark(), Estimate(nll, 0.1, 3), costs)


def test_a_reliability_figure_shows_the_bins_and_states_their_mean_gap() -> None:
    drawing = figures.reliability(BINS, "gp", Mark(1))
    top, low = drawing.figure.axes
    assert top.get_title() == "" and top.get_title("left") == "gp"
    assert [list(map(float, line.get_ydata())) for line in top.lines] == [[0, 1], [0.2, 0.8]]
    assert [bar.get_height() for bar in low.patches] == [25, 75]
    assert top.lines[1].get_color() == look.COLOURS[1]
    assert drawing.alt == "Reliability of gp: mean gap between confidence and accuracy 12.50 percentage points"


def test_a_calibration_figure_has_a_line_for_each_method_and_states_its_mean_gap() -> None:
    lines = {"gp": [(0.5, 0.4), (0.9, 0.8)], "vbll": [(0.5, 0.5), (0.9, 0.9)]}
    drawing = figures.calibration(lines, [Mark(0, 0), Mark(1, 1)], "level", "share inside")
    drawn = [[*map(float, line.get_ydata())] for line in drawing.figure.axes[0].lines]
    assert drawn == [[0, 1], [0.4, 0.8], [0.5, 0.9]]
    assert drawing.alt == "share inside against level; mean gap: gp 0.1, vbll 0"
    assert drawing._repr_html_() == drawing.svg("figure")


def test_a_same_class_figure_has_a_plot_for_each_method_and_labels_each_column() -> None:
    points = pd.DataFrame({"joint": [0.9, 0.6, 0.2], "product": [0.8, 0.45, 0.22]}, index=[0, 0.5, 1])
    drawing = figures.same_class([figures.Series(f"method {k}", Mark(k), points) for k in range(9)])
    plots = drawing.figure.axes
    assert [axes.get_title("left") for axes in plots[:9]] == [f"method {k}" for k in range(9)]
    for k, axes in enumerate(plots[:9]):
        (line,) = axes.lines
        assert list(line.get_ydata()) == pytest.approx([0.1, 0.15, -0.02])
        assert line.get_color() == look.COLOURS[k % 10] and axes.get_yscale() == "symlog"
        low, high = axes.get_ylim()
        assert low <= -0.02 and high >= 0.15, "a part of a line is outside"
        assert axes.xaxis.get_tick_params()["labelbottom"] == (k >= 2)
    assert [axes.axison for axes in plots] == [True] * 9 + [False] * 5
    twice = "P(Y₁ = Y₂) of the middle twice, by the joint and by the product"
    assert drawing.alt.startswith(f"{twice}: method 0 0.600 and 0.450,")
    assert len(figures.same_class([figures.Series("gp", Mark(), points)]).figure.axes) == 1


def test_curves_are_in_per_cent_sorted_from_the_highest_without_non_finite_values() -> None:
    def curve(name: str, *means: float) -> Curve:
        return Curve(name, Mark(), [(x, Estimate(mean, None, 1)) for x, mean in enumerate(means)])

    curves = [curve("low", 0.5, 0.25), curve("high", 0.75, math.nan), curve("none", math.nan)]
    drawing = figures.curves(curves, "accuracy", "severity", "accuracy at the end")
    (axes,) = drawing.figure.axes
    assert list(axes.lines[0].get_ydata()) == [75.0] and [50.0, 25.0] in [list(line.get_ydata()) for line in axes.lines]
    assert axes.get_legend_handles_labels()[1] == ["high", "low"] and axes.get_xlabel() == "severity"
    assert drawing.alt == "accuracy at the end: low 25, high 75"
    assert figures.curves([], "nll", "severity", "nothing").alt == "nothing: "


def test_nll_against_costs_omits_costs_without_values_and_spans_a_decade() -> None:
    assert figures.against_costs([priced("a", 1.0, bytes=0.0, fit_seconds=math.inf)], ["bytes", "fit_seconds"]) is None
    some = [priced("a", 1.0, bytes=2000.0), priced("b", 1.5, bytes=3000.0)]
    drawing = figures.against_costs(some, ["fit_seconds", "bytes"])
    assert drawing is not None
    (axes,) = drawing.figure.axes
    low, high = axes.get_xlim()
    assert axes.get_xscale() == "log" and high >= 10 * low and axes.get_ylabel() == "NLL"
    assert drawing.alt == "NLL against cost: a 1, b 1.5; Size: a 2 kB, b 3 kB"
    assert drawing.inches == pytest.approx(1.7 + 2.6)


def test_marks_repeat_after_the_last_colour_and_the_last_shape() -> None:
    assert Mark(0, 0).look() == Mark(len(look.COLOURS), len(look.MARKERS)).look()
    looks = {str(Mark(colour, shape).look()) for colour in range(10) for shape in range(6)}
    assert len(looks) == 60


def test_an_svg_is_one_element_with_its_own_ids_and_the_colours_of_the_page() -> None:
    drawing = Drawing(figures.reliability(BINS, "gp").figure, "less < more")
    svg = drawing.svg("of a/b", {look.INK: "var(--ink)"})
    root = ET.fromstring(svg)
    assert root.get("role") == "img" and root.get("aria-label") == "less < more"
    ids = {element.get("id") for element in root.iter()} - {None}
    assert ids and all(str(name).startswith("of-a-b-") for name in ids)
    assert "var(--ink)" in svg and look.INK not in svg and look.INK in drawing.svg("other")
    assert ">confidence</text>" in svg, "text is text"


def test_traces_have_a_line_for_each_chain_and_state_their_ranges() -> None:
    drawing = figures.traces({"log-likelihood": [[-3.0, -1.0], [-2.0, -2.5]], "prediction": [[0.5], [0.25]]}, "a-sgld")
    first, second = drawing.figure.axes
    assert [list(map(float, line.get_ydata())) for line in first.lines] == [[-3.0, -1.0], [-2.0, -2.5]]
    assert first.get_title("left") == "log-likelihood" and len(second.lines) == 2
    assert drawing.alt == "Traces of a-sgld: log-likelihood -3 to -1, prediction 0.25 to 0.5"
