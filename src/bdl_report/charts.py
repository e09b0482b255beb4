"""The figures of the report's pages, from stored scores."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from bdl_pipe.metrics.pit import band
from bdl_pipe.metrics.standings import Standing
from bdl_pipe.metrics.table import metric_of
from bdl_pipe.metrics.written import listed, percent, writer
from bdl_pipe.scores import Estimate, Quantity

from .tables import Table
from .vega import DOT, MUTED, Chart, Rows, axis, chart, fence, fixed, layer, names_of

if TYPE_CHECKING:
    import pandas as pd

COSTS: Final = {  # a cost of a run -> its name beside a figure of NLL
    "seconds_per_1000": "time to predict 1,000 rows",
    "fit_seconds": "time to fit",
    "bytes": "size",
}
_DASHES: Final = [[1, 0], [7, 3], [2, 2]]
_LINEAR: Final = 0.01  # Above this value the axis of a difference of probabilities is logarithmic.


def of_run(table: Table, key: str, **values: Any) -> dict[str, Any]:
    """Return a row of a figure's data: values with the run's name, its look and its kinds."""
    kinds = dict.fromkeys(table.kinds(key).split(), True)
    return {"name": table.names[key], **table.looks[key]._asdict(), **kinds, **values}


def runs(table: Table, keys: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return run -> its name, its look and its kinds, as :func:`lines` takes them."""
    return {key: of_run(table, key) for key in keys}


def legend(rows: Iterable[Mapping[str, Any]]) -> dict[str, tuple[str, str]]:
    """Return the names in a figure with their colours and kinds."""
    return {r["name"]: (r["colour"], " ".join(kind for kind in ("coreset", "untied") if kind in r)) for r in rows}


def differences(table: Table, standings: Sequence[Standing]) -> Chart:
    """Draw each run's NLL minus the best run's, with its interval; outliers are written at the axis's end.

    The interval of a run with fewer than three seeds on one split is unknown: dots have two standard errors over test
    rows in its place.
    """
    rows, values = Rows(), {one.candidate.key: one.to_best for one in standings}
    gaps = [0.0 if gap is None else gap.mean for gap in values.values()]
    end = fence(gaps)
    for (key, gap), mean in zip(values.items(), gaps, strict=True):
        known = gap is None or math.isfinite(gap.half)
        half = gap.half if gap and known else 2 * gap.error if gap and math.isfinite(gap.error) else 0.0
        words = "the best" if gap is None else f"± {half:.3f}" if known else "unknown: too few seeds"
        row = {"mean": mean, "low": mean - half, "high": mean + half, "known": known, "interval": words}
        row |= {"nll": f"{table.finite(Quantity('nll'))[key].mean:.4f}", "difference": f"{mean:+.4f}"}
        rows.append(of_run(table, key, **row, beyond=f"{mean:+.2f} →" if mean > end else ""))
    inside = [row for row in rows if not row["beyond"]]
    low, high = min(row["low"] for row in inside), max(row["high"] for row in inside)
    span = [low - 0.02 * (high - low), high + 0.04 * (high - low)]
    y, x = names_of([row["name"] for row in rows]), axis("mean", "NLL minus the best NLL", scale={"domain": span})
    ends, told = {"y": y, "x": x | {"field": "low"}, "x2": "high"}, {"nll": "NLL", "difference": "difference"}
    told |= {"interval": "95 % interval"}
    layers = [
        fixed(x=0),
        layer({"type": "rule", "clip": True, "strokeWidth": 2.5}, "datum.known", told, **ends),
        layer({"type": "rule", "clip": True, "strokeDash": [2, 3]}, "!datum.known", told, **ends),
        layer({**DOT, "size": 80, "clip": True}, "", told, x=x, y=y),
        layer({"type": "text", "align": "right"}, "datum.beyond", y=y, x={"value": {"expr": "width"}}, text="beyond"),
    ]
    alt = f"NLL minus the best NLL: {listed((row['name'], row['mean']) for row in rows)}"
    return chart(layers, rows, "How far from the best?", alt, height={"step": 22})


def pareto(table: Table) -> Chart | None:
    """Draw NLL against a cost that the reader chooses, with the Pareto front; None if no run has a cost.

    The front, the best run and outliers have labels; outliers are above the axis and are drawn at its end.
    """
    nll, rows = table.finite(Quantity("nll")), Rows()
    end = fence([of.mean for of in nll.values()]) if nll else 0.0
    for cost, name in COSTS.items():
        paid = {key: of.mean for key, of in table.finite(Quantity(cost, "cost")).items() if key in nll and of.mean > 0}
        best, fronts = math.inf, 0
        for key in sorted(paid, key=lambda key: (paid[key], nll[key].mean)):
            front, best = nll[key].mean < best, min(best, nll[key].mean)
            error, outlier = nll[key].error or 0.0, nll[key].mean > end
            label = table.names[key] + (f" ↑ {nll[key].mean:.2f}" if outlier else "")
            y, half, price = min(nll[key].mean, end), 0.0 if outlier else error, writer(metric_of(cost))(paid[key])
            row: dict[str, Any] = {"of": name, "cost": paid[key], "paid": price, "front": front, "nll": y}
            row |= {"low": y - half, "high": y + half, "exact": f"{nll[key].mean:.4f}"}
            fronts += front
            row |= {"label": label if front or outlier else "", "above": outlier or (front and fronts % 2 == 1)}
            rows.append(of_run(table, key, **row))
    if not rows:
        return None
    costs = list(dict.fromkeys(row["of"] for row in rows))
    low, high = min(row["low"] for row in rows), max(row["high"] for row in rows)
    x = axis("cost", scale={"type": "log", "nice": False, "padding": 34}, tickCount=5, grid=False)
    x["axis"]["labelExpr"] = "format(datum.value, '~s') + (cost === 'size' ? 'B' : 's')"
    height = axis("nll", "NLL", scale={"domain": [low, high + 0.05 * (high - low)], "nice": True}, tickCount=6)
    staircase = {"type": "line", "interpolate": "step-after", "strokeDash": [4, 3]}
    names = {"type": "text", "dy": {"expr": "datum.above ? -11 : 14"}}
    layers = [
        layer(staircase, "datum.front", x=x, y=height, color={"value": MUTED}),
        layer("rule", x=x, y=height | {"field": "low"}, y2="high"),
        layer({**DOT, "size": 90}, "", {"exact": "NLL", "paid": "cost"}, x=x, y=height),
        layer(names, x=x, y=height, text="label"),
    ]
    choice = {"name": "cost", "value": costs[0], "bind": {"input": "select", "options": costs, "name": "Cost "}}
    means = listed((table.names[key], of.mean) for key, of in nll.items())
    on_front = "; ".join(f"{n}: {', '.join(r['name'] for r in rows if r['of'] == n and r['front'])}" for n in costs)
    title, alt = {"text": {"expr": "'NLL against ' + cost"}}, f"NLL: {means}. Pareto front by {on_front}"
    more = {"params": [choice], "only": ["datum.of === cost"], "names": legend(runs(table, nll).values())}
    return chart(layers, rows, title, alt, height=290, **more)


def lines(
    named: Mapping[str, Mapping[str, Any]],
    points: Mapping[str, Iterable[tuple[float, float, float]]],
    titles: tuple[str, str, str],
    alt: str,
    *,
    log: bool = False,
    dots: bool = False,
    at: float = math.inf,
    rules: Sequence[float] = (),
    diagonal: bool = False,
) -> Chart:
    """Draw lines with their standard errors.

    Args:
        named: key -> name and look, as :func:`runs` returns them.
        points: key -> (place, value, standard error), from left to right; values that are not finite are left out.
        titles: of the figure, of the horizontal and of the vertical axis.
        alt: describes the last value of each line.
        log: whether the axis of values is logarithmic.
        dots: whether each point is marked, and has its error as a whisker in place of a band.
        at: the place whose value is described in place of the last.
        rules: values with a line across.
        diagonal: whether a line shows where both axes are equal.
    """
    rows, ends = Rows(), dict[str, float]()
    for key, of_line in points.items():
        shown = [(x, y, e) for x, y, e in of_line if math.isfinite(y) and (y > 0 or not log)]
        for place, value, e in shown:
            low = max(value - e, value / 10) if log else value - e
            rows.append({**named[key], "x": place, "y": value, "low": low, "high": value + e})
        if shown:
            ends[str(named[key]["name"])] = max((p for p in shown if p[0] <= at), default=shown[0])[1]
    x = axis("x", titles[1], scale={"zero": False, "nice": False}, tickCount=6, grid=False)
    y = axis("y", titles[2], scale={"type": "log"} if log else {"zero": False}, format="~g")
    if dots:
        x["axis"]["values"] = sorted({row["x"] for row in rows})
    of: dict[str, Any] = {"x": x, "detail": "name"}
    told = {"x": titles[1], "y": titles[2]}
    dash = {"field": "dash", "type": "nominal", "legend": None, "scale": {"domain": [0, 1, 2], "range": _DASHES}}
    layers = [
        layer({"type": "line", "strokeWidth": 1.8}, "", told, **of, y=y, strokeDash=dash),
        layer("rule" if dots else {"type": "area", "opacity": 0.13}, **of, y=y | {"field": "low"}, y2="high"),
        *([layer(DOT, "", told, **of, y=y)] if dots else []),
        *(fixed(y=value) for value in rules),
        *([fixed(x=0, y=0, x2=1, y2=1)] if diagonal else []),
    ]
    return chart(layers, rows, titles[0], f"{alt}: {listed(ends.items())}", names=legend(rows))


def small(table: Table, key: str, rows: Rows, layers: Sequence[Mapping[str, Any]], alt: str) -> Chart:
    """Return a small figure of one run."""
    title = {"text": table.names[key], "fontSize": 12}
    data = [of_run(table, key, **row) for row in rows]
    return chart(layers, data, title, alt, height=150, kinds=table.kinds(key), inches=2.4)


def reliability(table: Table, key: str, bins: "pd.DataFrame") -> Chart:
    """Draw accuracy against confidence by bin; a point's area is the bin's share of the predictions."""
    some, share = bins[bins["count"] > 0], bins["count"] / bins["count"].sum()
    points = zip(some["confidence"], some["accuracy"], share[some.index], strict=True)
    rows = [{"x": x, "y": y, "share": part} for x, y, part in points]
    unit = {"domain": [0, 1]}
    at: dict[str, Any] = {"x": axis("x", "confidence", scale=unit, tickCount=3)}
    at["y"] = axis("y", "accuracy", scale=unit, tickCount=3)
    size = {"field": "share", "type": "quantitative", "legend": None, "scale": {"domain": [0, 1], "range": [12, 500]}}
    told = {"x": "confidence", "y": "accuracy", "share": "share"}
    dot = layer({**DOT, "opacity": 0.75}, "", told, **at, size=size)
    layers = [fixed(x=0, y=0, x2=1, y2=1), layer({"type": "line", "strokeWidth": 1.4}, **at), dot]
    gap = percent(float((share * (bins.accuracy - bins.confidence).abs()).sum()))
    alt = f"Reliability of {table.names[key]}: mean gap between confidence and accuracy {gap} percentage points"
    return small(table, key, rows, layers, alt)


def pit(table: Table, key: str, count: "pd.Series") -> Chart:
    """Draw the histogram of F(y), the predictive's distribution function at each target, with the band of chance."""
    bins, total = len(count), int(count.sum())
    low, high = band(total, bins)
    rows = [{"x": i / bins, "end": (i + 1) / bins, "y": int(value)} for i, value in enumerate(count)]
    y = axis("y", None, scale={"domain": [0, 1.05 * max(high, int(count.max()))]}, tickCount=3)
    x = axis("x", "F(y)", scale={"domain": [0, 1]}, tickCount=3, grid=False)
    bar = {"type": "bar", "opacity": 0.75, "binSpacing": 2}
    bars = layer(bar, "", {"y": "targets"}, x=x | {"bin": "binned"}, x2="end", y=y)
    layers = [fixed("rect", y=low, y2=high), bars]
    outside, shares = int(((count < low) | (count > high)).sum()), ", ".join(percent(value / total) for value in count)
    alt = f"F(y) of {table.names[key]} in {bins} bins, %: {shares}; {outside} outside of the band of chance"
    return small(table, key, rows, layers, alt)


def coverage(table: Table, counts: Mapping[str, "pd.Series"]) -> Chart:
    """Draw the share of targets in central intervals against their level, from the histograms of F(y)."""
    points = {}
    for key, count in counts.items():
        bins, half = count.to_numpy(np.float64) / count.sum(), len(count) // 2
        levels = range(half + 1)
        points[key] = [(2 * k / len(bins), float(bins[half - k : len(bins) - half + k].sum()), 0.0) for k in levels]
    titles = ("Coverage of central intervals", "level of the interval", "share of targets inside")
    at = (len(next(iter(counts.values()))) - 2) / len(next(iter(counts.values())))
    return lines(
        runs(table, points),
        points,
        titles,
        f"Share of targets in {100 * at:.0f} % intervals",
        diagonal=True,
        at=at + 1e-9,
    )


def rejection(table: Table, bins: Mapping[str, "pd.DataFrame"]) -> Chart | None:
    """Draw the mean cost of a row where a prediction is rejected unless its confidence makes accepting it cheaper.

    A rejection costs 1 and a wrong answer c, which the reader chooses. Chow's (1970) rule accepts predictions with a
    confidence of at least 1 − 1/c. The edges of the bins of confidence are the values of 1 − 1/c, so that the rule is
    exact. The cost is low only if probabilities are both informative and calibrated.
    """
    edges = sorted({float(e) for b in bins.values() for e in b["lower"] if 0.5 < e < 1})
    rows, last = Rows(), len(edges) - 1
    for key, number in ((key, number) for key in bins for number in range(len(edges))):
        cost, shares = 1 / (1 - edges[number]), bins[key]["count"] / bins[key]["count"].sum()
        wrong, accepted = shares * (1 - bins[key]["accuracy"]).fillna(0), bins[key]["lower"] >= edges[number] - 1e-9
        mean, rejected = float(cost * wrong[accepted].sum() + shares[~accepted].sum()), float(shares[~accepted].sum())
        row = {"at": number, "cost": mean, "all": float(cost * wrong.sum()), "rejected": f"{100 * rejected:.1f} %"}
        rows.append(of_run(table, key, **row))
    if not rows:
        return None
    y, x = (
        names_of({"field": "cost", "op": "min"}),
        axis("cost", "mean cost of a row; a rejection costs 1", scale={"zero": True}),
    )
    told = {"cost": "cost", "rejected": "rejected", "all": "cost without rejection"}
    layers = [
        layer({"type": "bar", "height": {"band": 0.6}, "opacity": 0.85}, "", told, x=x, y=y),
        layer({"type": "tick"}, "", told, x=x | {"field": "all"}, y=y, color={"value": "var(--ink)"}),
    ]
    costs = [round(1 / (1 - edge), 2) for edge in edges]
    slider = {"input": "range", "min": 0, "max": last, "step": 1, "name": "Cost of a wrong answer "}
    title = {"text": {"expr": f"'A wrong answer costs ' + format({costs}[at], '.3~g') + ' rejections'"}}
    ends = [(row["name"], row["cost"]) for row in rows if row["at"] == last]
    alt = f"Mean cost of a row if a wrong answer costs {costs[-1]:.3g} rejections: {listed(ends)}"
    params = [{"name": "at", "value": last // 2, "bind": slider}]
    return chart(layers, rows, title, alt, params=params, only=["datum.at === at"], height={"step": 22})


def traces(functionals: Mapping[str, Sequence[Sequence[float]]], name: str) -> list[Chart]:
    """Draw the trace of each chain, a figure for each functional [chain][draw]."""
    drawn = []
    for title, chains in functionals.items():
        rows = [
            {"draw": draw + 1, "value": value, "name": f"chain {number + 1}", "colour": f"var(--m{number % 10})"}
            for number, values in enumerate(chains)
            for draw, value in enumerate(values)
        ]
        at = {"x": axis("draw", "draw", tickMinStep=1, format="d"), "y": axis("value")}
        layers = [layer({"type": "line", "point": {"size": 22}}, "", {"value": "value"}, **at)]
        low, high = min(map(min, chains)), max(map(max, chains))
        alt = f"Traces of {name}: {title} {low:.3g} to {high:.3g}"
        drawn.append(chart(layers, rows, {"text": title, "subtitle": name}, alt, height=200, inches=4.0))
    return drawn


def same_class(table: Table, points: Mapping[str, "pd.DataFrame"]) -> list[Chart]:
    """Draw P(Y₁ = Y₂) along a line between two inputs, under the joint minus under the product, for each run.

    The axis is linear up to 0.01 and logarithmic above.
    """
    gaps = {key: of["joint"] - of["product"] for key, of in points.items()}
    ends = [(float(gap.min()), float(gap.max())) for gap in gaps.values()]
    domain = [min(0.0, *(low for low, _ in ends)), max(0.1, *(high for _, high in ends))]
    scale, drawn = {"type": "symlog", "constant": _LINEAR, "domain": domain}, list[Chart]()
    y = axis("y", scale=scale, values=[0, _LINEAR, 0.1, 1], format="~g")
    layers = [layer("line", "", {"y": "joint − product"}, x=axis("x", "place of the second input", tickCount=3), y=y)]
    for key, gap in gaps.items():
        middle = points[key].iloc[len(gap) // 2]
        texts = f"{middle['joint']:.3f} by the joint and {middle['product']:.3f} by the product"
        rows = [{"x": x, "y": y} for x, y in zip(gap.index.tolist(), gap.tolist(), strict=True)]
        drawn.append(small(table, key, rows, layers, f"P(Y₁ = Y₂) of the middle twice, {table.names[key]}: {texts}"))
    return drawn


def detection(table: Table, found: Mapping[str, Mapping[str, tuple[float, float]]], title: str) -> Chart:
    """Draw the AUROC of each score of each run: the best one with its name and its standard error, the others pale.

    Args:
        found: run -> score -> AUROC and its standard error, both in per cent.
    """
    rows = Rows()
    for key, of in found.items():
        best = max(of, key=lambda score: of[score][0])
        for score, (mean, error) in of.items():
            error = error if math.isfinite(error) else 0.0
            row = {"score": score, "auroc": mean, "best": score == best, "low": mean - error, "high": mean + error}
            rows.append(of_run(table, key, **row, label=score if score == best else ""))
    y, x = names_of([table.names[key] for key in found]), axis("auroc", "AUROC %")
    size = {"condition": {"test": "datum.best", "value": 90}, "value": 35}
    dot = {**DOT, "opacity": {"expr": "datum.best ? 1 : 0.35"}}
    layers = [
        fixed(x=50),
        layer("rule", "datum.best", x=x | {"field": "low"}, x2="high", y=y),
        layer(dot, "", {"score": "score", "auroc": "AUROC %"}, x=x, y=y, size=size),
        layer({"type": "text", "align": "left", "dx": 8}, "datum.best", x=x, y=y, text="label"),
    ]
    ends = ((f"{row['name']} by {row['label']}", row["auroc"]) for row in rows if row["best"])
    return chart(layers, rows, title, f"{title}: {listed(ends)}", height={"step": 22})


def estimates(points: Iterable[tuple[int, Estimate]], metric: str) -> list[tuple[float, float, float]]:
    """Return places with means and errors, in the unit of the metric's label."""
    scale = 100 if metric_of(metric).percent else 1
    return [(x, scale * of.mean, scale * (of.error or 0.0)) for x, of in points]
