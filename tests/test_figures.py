"""Figures of scores: their lines, their omissions, and their form inside a page."""

import math
import xml.etree.ElementTree as ET

import pytest

from bdl_pipe import drawing as look
from bdl_pipe import figures
from bdl_pipe.drawing import Drawing, Mark
from bdl_pipe.figures import Priced
from bdl_pipe.scores import Estimate


def priced(name: str, nll: float, **costs: float) -> Priced:
    return Priced(name, Mark(), Estimate(nll, 0.1, 3), costs)


def test_a_calibration_figure_has_a_line_for_each_method_and_states_its_mean_gap() -> None:
    lines = {"gp": [(0.5, 0.4), (0.9, 0.8)], "vbll": [(0.5, 0.5), (0.9, 0.9)]}
    drawing = figures.calibration(lines, [Mark(0, 0), Mark(1, 1)], "level", "share inside")
    drawn = [[*map(float, line.get_ydata())] for line in drawing.figure.axes[0].lines]
    assert drawn == [[0, 1], [0.4, 0.8], [0.5, 0.9]]
    assert drawing.alt == "share inside against level; mean gap: gp 0.1, vbll 0"
    assert drawing._repr_html_() == drawing.svg("figure")


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


def test_an_svg_is_one_element_with_its_own_ids() -> None:
    drawing = Drawing(figures.calibration({"gp": [(0.5, 0.4)]}, [Mark()], "level", "share").figure, "less < more")
    svg = drawing.svg("of a/b")
    root = ET.fromstring(svg)
    assert root.get("role") == "img" and root.get("aria-label") == "less < more"
    ids = {element.get("id") for element in root.iter()} - {None}
    assert ids and all(str(name).startswith("of-a-b-") for name in ids)
    assert ">level</text>" in svg, "text is text"
