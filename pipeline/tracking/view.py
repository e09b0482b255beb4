"""What MLflow's page shows first of the comparison: filter, order, columns and bar charts.

MLflow has no public interface for it: a view is the JSON that its *Share* button stores as a tag of the experiment, and
that a link names. Where a version of MLflow does not know the tag, the link opens the plain list of runs.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class View:
    """A view of the comparison: the runs of one data set, or of all.

    Attributes:
        filter: which runs, in MLflow's words; empty: all.
        order: by what the runs are sorted, smallest first: a param, metric or attribute, such as ``metrics.nll``.
        columns: params and metrics.
        charts: title of a section -> (metric, title) of each of its bar charts.
    """

    key: str
    filter: str
    order: str
    columns: Sequence[str]
    charts: Mapping[str, Sequence[tuple[str, str]]]


def link(experiment: str, view: str) -> str:
    """Return the part of the address after the server's: the experiment's runs in a view."""
    return f"#/experiments/{experiment}/runs?workflowType=machine_learning&viewStateShareKey={view}"


def tags(views: Sequence[View]) -> dict[str, str]:
    """Return the experiment's tags that hold the views."""
    return {f"mlflow.sharedViewState.{view.key}": json.dumps(_state(view), sort_keys=True) for view in views}


def _state(view: View) -> dict[str, Any]:
    sections = [
        {"uuid": f"section-{i}", "name": title, "display": True, "isReordered": True}
        for i, title in enumerate(view.charts)
    ]
    bars = [
        {
            "type": "BAR",
            "uuid": f"bar-{i}-{j}",
            "metricSectionId": f"section-{i}",
            "metricKey": metric,
            "displayName": title,
            "runsCountToCompare": 100,
            "isGenerated": False,
            "deleted": False,
        }
        for i, section in enumerate(view.charts.values())
        for j, (metric, title) in enumerate(section)
    ]
    return {
        "searchFilter": view.filter,
        "selectedColumns": [_column(column) for column in view.columns],
        "compareRunCharts": bars,
        "compareRunSections": sections,
        "runsHiddenMode": "SHOW_ALL",
        "orderByKey": _column(view.order),
        "orderByAsc": True,
        "isAccordionReordered": True,  # otherwise the sections are sorted by name
    }


def _column(name: str) -> str:
    kind, _, rest = name.partition(".")
    return f"{kind}.`{rest}`"
