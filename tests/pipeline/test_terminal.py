"""The comparison as a person sees it in a terminal."""

import io

import pytest
from rich.console import Console

from pipeline import terminal

TEXT = """## toy

| Method | Setting | NLL | Parameters |
| --- | --- | ---: | ---: |
| vbpc | ipc1 | **0.635 ± 0.016** [paper 0.47 ± 0.03] | 35.2 k |
| random_coreset | ipc1 | 1.483 ± 0.016 | 35.2 k |

- [paper]: VBPC, table 1, as printed there
- toy-sgld: the chains disagree [toy-sgld]
"""


def printed(width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    terminal.show(TEXT, console)
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_no_line_is_cut_or_wrapped(width: int) -> None:
    lines = printed(width).splitlines()
    assert all(len(line) <= width for line in lines) and "…" not in "".join(lines)
    assert sum("random_coreset" in line for line in lines) == 1


def test_columns_that_do_not_fit_are_named() -> None:
    assert "in the report: NLL, Parameters" in printed(30)
    wide = printed(80)
    assert "in the report" not in wide and "35.2 k" in wide and "0.635 ± 0.016" in wide and "**" not in wide


def test_the_papers_figure_is_no_warning() -> None:
    assert "warnings: 1, in report" in printed(80)
