"""The comparison of runs as a terminal shows it."""

import copy
import io
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from rich.console import Console

from bdl_pipe import artifacts, report, scores
from bdl_pipe.evaluation.choice import LONGER
from bdl_pipe.report.columns import Cell, Grid
from bdl_pipe.yaml_files import read_yaml
from pipeline.core import places
from pipeline.core.load import typed
from pipeline.core.model import Params
from pipeline.stages import comparison
from pipeline.stages.report import run_info
from tests.report.report_cases import ROWS, row_scores

TOY = Grid(
    ["Method", "Setting", "NLL", "Parameters"],
    [
        [Cell("vbpc"), Cell("ipc1"), Cell("0.635", "± 0.016", 0.635, best=True, paper="0.47 ± 0.03"), Cell("35.2 k")],
        [Cell("random_coreset"), Cell("ipc1"), Cell("1.483", "± 0.016", 1.483), Cell("35.2 k")],
    ],
    "toy",
    sources=["VBPC, table 1"],
    remarks=["toy-sgld: the chains disagree. Runs: toy-sgld"],
)
MARKDOWN = """## toy

| Method | Setting | NLL | Parameters |
| --- | --- | ---: | ---: |
| vbpc | ipc1 | **0.635 ± 0.016** [paper 0.47 ± 0.03] | 35.2 k |
| random_coreset | ipc1 | 1.483 ± 0.016 | 35.2 k |

- [paper]: VBPC, table 1, as printed there
- toy-sgld: the chains disagree. Runs: toy-sgld
"""


def printed(width: int, **how: Any) -> str:
    console = Console(file=io.StringIO(), width=width, **{"force_terminal": True, "color_system": None, **how})
    report.show([TOY], console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_without_a_terminal_the_comparison_is_printed_as_markdown() -> None:
    assert printed(30, force_terminal=False) == MARKDOWN + "\n"


def test_only_the_best_figure_is_bold() -> None:
    assert re.findall("\x1b\\[1m(.*?)\x1b", printed(80, color_system="standard"))[-1].strip() == "0.635 ± 0.016"
    assert "\x1b[1m1.483" not in printed(80, color_system="standard")


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_no_line_is_cut_or_wrapped(width: int) -> None:
    lines = printed(width).splitlines()
    assert all(len(line) <= width for line in lines) and "…" not in "".join(lines)
    assert sum("random_coreset" in line for line in lines) == 1


def test_columns_that_do_not_fit_are_named() -> None:
    assert "in the report: NLL, Parameters" in printed(30)
    wide = printed(80)
    assert "in the report" not in wide and "35.2 k" in wide and "0.635 ± 0.016" in wide and "**" not in wide


def test_a_papers_figure_does_not_count_as_a_remark() -> None:
    assert "remarks: 1, in report" in printed(80)


FITTED = ("boston-deterministic", "boston-ensemble")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Params:
    """The default params, the scores of two of their runs, and a report that shows neither of the two runs."""
    monkeypatch.chdir(tmp_path)
    params = typed(copy.deepcopy(read_yaml(Path(__file__).parents[2] / "params.yaml")))
    for key, case in zip(FITTED, ROWS, strict=False):
        with artifacts.publish(places.artifact("evaluate", key), "evaluate") as folder:
            figures = row_scores(case, np.random.default_rng(0))
            pq.write_table(scores.table("boston", case[0], "small", figures), folder / "scores.parquet")
    Path("report").mkdir()
    Path("report/comparison.md").write_text(MARKDOWN)
    places.record("student", FITTED[0]).parent.mkdir(parents=True)
    record = {"seconds": {}, "peak_bytes": {}, "total_seconds": {}, "warnings": ["[odd] the fit | is odd"]}
    places.record("student", FITTED[0]).write_text(json.dumps(record))
    return params


def shown(
    fresh: Sequence[str], missing: Mapping[str, str], params: Params, width: int = 100, terminal_: bool = True
) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=terminal_, color_system=None)
    runs = [run_info(run, params) for run in params.of("student") if run.key in fresh]
    report.show_runs(runs, missing, console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_runs_up_to_date_are_shown_and_other_runs_are_listed_with_their_reasons(project: Params) -> None:
    text = shown(FITTED[:1], {"boston-swag": "trajectory@boston-swa failed", FITTED[1]: "student@x failed"}, project)
    head, row, *_, last, other, third = text.splitlines()[1:]
    assert text.startswith("boston") and head.split()[:3] == ["Method", "Setting", "Splits"] and "RMSE" in head
    assert row.split()[:3] == ["deterministic", "small", "5"] and "±" in row
    assert "ensemble" not in row and "random_coreset" not in text, "an older table, or a run that is not up to date"
    assert "- [odd] the fit | is odd. Runs: boston-deterministic" in text
    assert last == "2 of 3 runs are not in this comparison:"
    assert (other, third) == ("  boston-swag: trajectory@boston-swa failed", f"  {FITTED[1]}: student@x failed")


def test_missing_runs_of_one_reason_share_a_line(project: Params) -> None:
    text = shown(FITTED, {"boston-swag": "stopped", "boston-gp": "stopped"}, project)
    assert text.splitlines()[-2:] == ["2 of 4 runs are not in this comparison:", "  boston-swag, boston-gp: stopped"]


def test_of_many_missing_runs_of_one_reason_eight_are_named(project: Params) -> None:
    text = shown(FITTED, {f"boston-{number}": "stopped" for number in range(12)}, project)
    named = ", ".join(f"boston-{number}" for number in range(8))
    assert text.splitlines()[-2:] == [
        "12 of 14 runs are not in this comparison:",
        f"  {named} and 4 more: stopped",
    ]


def test_missing_or_damaged_scores_are_listed_and_hide_no_other_run(project: Params) -> None:
    stored = places.artifact("evaluate", FITTED[0]) / "scores.parquet"
    stored.write_bytes(b"PAR1")
    text = shown([*FITTED, "boston-gp"], {}, project)
    assert "deterministic" not in text.split("runs are not in")[0] and "ensemble" in text
    assert f"  {FITTED[0]}: {stored}: is truncated or altered" in text
    assert "  boston-gp: no result: the evaluation is absent" in text and "2 of 3 runs are not in" in text


def test_with_no_run_to_show_only_the_reasons_are_printed(project: Params) -> None:
    assert shown([], {"boston-gp": "prepare@boston failed"}, project).splitlines() == [
        "1 of 1 runs are not in this comparison:",
        "  boston-gp: prepare@boston failed",
    ]


def test_without_a_terminal_the_whole_table_is_printed_as_in_the_report(project: Params) -> None:
    text = shown(FITTED, {"boston-gp": "stopped"}, project, width=40, terminal_=False)
    assert "| deterministic | small | 5 | " in text and "Peak memory |" in text
    assert "- [odd] the fit | is odd. Runs: boston-deterministic" in text and "1 of 3 runs are not in this" in text


def test_a_run_has_its_own_warnings_and_the_warnings_of_its_input(project: Params) -> None:
    run = next(run for run in project.of("student") if run.sources)
    ((kind, key),) = run.sources.items()
    for at, warning in (((kind, key), "R-hat 1.3"), (("student", run.key), "own")):
        record = {"seconds": {}, "peak_bytes": {}, "total_seconds": {}, "warnings": [warning]}
        places.record(*at).parent.mkdir(parents=True, exist_ok=True)
        places.record(*at).write_text(json.dumps(record))
    assert run_info(run, project).warnings == ("own", f"{key}: R-hat 1.3")


def test_a_run_states_what_ended_its_fits_or_the_fits_of_its_input(project: Params) -> None:
    """The epochs of a run's own states tell it, else of its trajectory's; for chains that are too short, a warning."""
    for kind, key, count in (("student", "boston-vbll", 1), ("trajectory", "boston-sgd", 3)):
        with artifacts.publish(places.artifact(kind, key), kind) as folder:
            for seed in range(count):
                artifacts.write_state(folder / f"0-{seed}", artifacts.State({"w": torch.zeros(1)}, {"epochs": 3}))
            artifacts.write_state(folder / "transform-0", artifacts.State({"w": torch.zeros(1)}, {}))
    ended = {key: run_info(project.run("student", key), project).ended for key in ("boston-vbll", "boston-ensemble")}
    assert ended == {"boston-vbll": ("schedule",), "boston-ensemble": ("schedule",) * 3}
    chains = project.run("student", "boston-chains")
    assert run_info(chains, project).ended == ()
    record = {"seconds": {}, "peak_bytes": {}, "total_seconds": {}, "warnings": [f"chains disagree: {LONGER}"]}
    places.record("student", chains.key).write_text(json.dumps(record))
    assert run_info(chains, project).ended == ("chains",)


def test_the_mlflow_description_of_a_run_holds_only_its_own_warnings(project: Params) -> None:
    about = {one.key: one.about for one in comparison.of(project).runs}
    assert about.keys() == {*FITTED}
    assert [key for key, text in about.items() if "\n- [odd] the fit | is odd\n" in text] == [FITTED[0]]
