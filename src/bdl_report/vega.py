"""Figures of the report's pages as Vega-Lite specifications: the parts of all figures.

``templates/vega.js`` is copied beside the pages and draws them in the browser: Vega, Vega-Lite and Vega-Embed, as
``vl_convert.javascript_bundle()`` of vl-convert-python 1.9.0 returns them. A colour is CSS, so that figures follow the
page from light to dark. The signal ``hidden`` has the kinds of runs that the reader hides, see ``report.js``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

MUTED, LINE = "var(--muted)", "var(--line)"
CONFIG: Final = {
    "background": None,
    "font": "system-ui, -apple-system, Roboto, Arial, sans-serif",
    "view": {"stroke": None},
    "axis": {"labelColor": MUTED, "titleColor": MUTED, "gridColor": LINE, "domainColor": LINE, "tickColor": LINE}
    | {
        "titleFontWeight": 400,
        "labelFontSize": 11,
        "titleFontSize": 11,
        "labelLimit": 130,
        "labelOverlap": True,
        "labelSeparation": 6,
    },
    "title": {
        "color": "var(--ink)",
        "subtitleColor": MUTED,
        "anchor": "start",
        "fontSize": 13,
        "fontWeight": 600,
        "frame": "group",
    },
    "text": {"color": "var(--ink)", "fontSize": 11},
    "rule": {"color": MUTED},
}
DOT: Final = {"type": "point", "filled": True, "opacity": 1}
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Chart:
    """A figure.

    Attributes:
        spec: the Vega-Lite specification.
        alt: the description, for readers who do not see the figure.
        names: name -> (colour, kinds of the run), for the legend.
        kinds: the kinds of the run that the figure is of, see :meth:`bdl_report.tables.Table.kinds`.
        inches: the largest width.
    """

    spec: Mapping[str, Any]
    alt: str
    names: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    kinds: str = ""
    inches: float = 5.5


def chart(layers: Sequence[Mapping[str, Any]], rows: Rows, title: Any, alt: str, **more: Any) -> Chart:
    """Return a figure of layers, as wide as its place on the page.

    Args:
        more: fields of :class:`Chart`, and ``params``, ``only`` and ``height`` of the specification.
    """
    kinds = [{"filter": f"!(datum.{kind} && indexof(hidden, '{kind}') >= 0)"} for kind in ("coreset", "untied")]
    data = [{k: float(f"{v:.5g}") if isinstance(v, float) else v for k, v in row.items()} for row in rows]
    spec = {"title": title, "description": alt, "width": "container", "height": more.pop("height", 260)}
    spec |= {"autosize": {"type": "fit-x", "contains": "padding"}, "data": {"values": data}, "layer": layers}
    spec |= {"transform": [*kinds, *({"filter": one} for one in more.pop("only", ()))]}
    spec |= {"params": [{"name": "hidden", "value": []}, *more.pop("params", ())]}
    return Chart(spec, alt, **more)


def layer(
    mark: str | Mapping[str, Any], only: str = "", told: Mapping[str, str] | None = None, **encoding: Any
) -> dict[str, Any]:
    """Return a layer; the name of a field stands for its quantity.

    Args:
        only: the condition of the rows that it shows.
        told: field -> title of what is shown of a row under the pointer, after its name.
    """
    of = {name: {"field": value} if isinstance(value, str) else value for name, value in encoding.items()}
    if "color" not in of and "text" not in of:
        of["color"] = {"field": "colour", "type": "nominal", "scale": None}
    if told:
        of["tooltip"] = [{"field": k, "title": v} for k, v in {"name": "run", **told}.items()]
    return {"mark": mark, "encoding": of, "transform": [{"filter": only}] if only else []}


def axis(name: str, title: str | None = None, *, scale: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """Return the encoding of a quantity."""
    return {"field": name, "type": "quantitative", "title": title, "scale": scale or {"zero": False}, "axis": more}


def names_of(order: Sequence[str] | Mapping[str, str]) -> dict[str, Any]:
    """Return the encoding of a row for each run, in an order."""
    return {"field": "name", "type": "nominal", "title": None, "sort": order}


def fixed(mark: str = "rule", **at: float) -> dict[str, Any]:
    """Return a layer with one dashed line, or one area of chance, at these places."""
    look = {"strokeDash": [4, 3], "strokeWidth": 1} if mark == "rule" else {"opacity": 0.25}
    encoding = {name: {"datum": value} for name, value in at.items()}
    return {"data": {"values": [{}]}, "mark": {"type": mark, "color": MUTED, **look}, "encoding": encoding}


def fence(values: Sequence[float]) -> float:
    """Return the end of an axis for losses: the largest that is no outlier by Tukey's (1977) rule on the upper side."""
    low, high = np.percentile(values, [25, 75])
    return max(value for value in values if value <= high + 1.5 * (high - low))
