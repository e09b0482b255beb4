"""Figures of the papers' tables, as tests name them."""

import functools
from collections.abc import Callable

from pipeline import papers
from pipeline.papers import Printed


def printed_in(paper: str) -> Callable[[int, str, str, str], Printed]:
    """The figure of ``paper`` by number of a table, data set, method and metric."""
    tables = functools.cache(lambda number: papers.load(f"{paper}:table{number}").figures)
    return lambda number, dataset, method, metric: tables(number)[dataset][method][metric]
