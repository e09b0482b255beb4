"""The stand-ins for UCI's sets: their declared sizes, their params files and the words on their pages."""

import re
from pathlib import Path

import pyarrow.csv
import pytest

from bdl_pipe.data.sources.uci import UCI_SIZES
from bdl_pipe.errors import DataError
from bdl_report import papers
from bdl_report.papers.comparison import Ours, compare
from bdl_report.papers.pages import markdown
from bdl_report.papers.survey import STAND_INS as SUFFIX
from benchmarks.stand_ins import STAND_INS, write
from benchmarks.your_data import fetch
from pipeline.core.params_files import read_params
from pipeline.papers import read

ROOT = Path(__file__).parents[1]
BY_NAME = {stand_in.name: stand_in for stand_in in STAND_INS}
FILES = sorted((ROOT / "params/paper").glob(f"*{SUFFIX}.yaml"))
SIZE = re.compile(r"([\d,]+)(?: of ([\d,]+))? rows of (\d+) columns \(\w+ ([\d,]+) of (\d+)\)")


def number(text: str) -> int:
    return int(text.replace(",", ""))


def test_a_note_states_the_rows_and_columns_of_the_set_and_of_its_stand_in() -> None:
    for paper in ("ciber:table1", "vbll:table2"):
        names = papers.load(paper).names
        for theirs, ours in names.stand_ins["all"].items():
            if ours not in BY_NAME:
                continue
            stand_in, size = BY_NAME[ours], SIZE.search(names.stand_in_notes[ours].replace("\n", " "))
            assert size is not None and stand_in.of == names.datasets[theirs]
            written, whole, columns, rows, features = (number(text or size[1]) for text in size.groups())
            assert (written, columns) == (stand_in.rows, stand_in.table.columns)
            assert whole in (stand_in.table.rows, stand_in.rows) and (rows, features) == UCI_SIZES[stand_in.of]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_of_stand_ins_has_every_stand_in_of_its_table_and_each_built_method(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So ``--stand-in`` without ``--dataset`` runs the table's sets; DKL is a plugin that the repository lacks."""
    monkeypatch.chdir(ROOT)
    paper, _, number_of = path.stem.removesuffix(SUFFIX).partition("-")
    request = read(papers.load(f"{paper}:{number_of}"), None, None, None, True)
    table = request.table
    assert f"python -m pipeline paper {table} --stand-in" in path.read_text()
    assert request.kind == "stand-in" and request.root == Path("work/paper") / path.stem
    assert {table.names.datasets[name] for name in request.datasets} == {*request.params.datasets}
    assert {*request.datasets} == {name for name in table.figures if papers.load(str(table)).on_stand_ins(name)}
    for dataset in request.datasets:
        built = {name for name in table.figures[dataset] if table.names.methods[name].method not in (None, "dkl")}
        ours = [run for run in request.runs if run.dataset == table.names.datasets[dataset]]
        assert {name for name in built if any(run.stands_for(name, table) for run in ours)} == built


def test_a_page_states_its_stand_in_and_no_network_of_images() -> None:
    table = papers.load("ciber:table1").on_stand_ins("Yacht")
    assert table is not None
    page = markdown(compare(table, "Yacht", [Ours("a", "penguins-333", "swag")], "stand-in"), {})
    assert "333 rows of 6 columns (Yacht 308 of 6)" in page and "VGG" not in page


def test_a_written_stand_in_has_rows_and_columns_without_gaps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package's table is made up here, with gaps and a text; order is kept, no row comes twice."""
    import pandas as pd

    stand_in = BY_NAME["mathachieve-1000"]
    frame = pd.DataFrame(
        {"School": 7, "Minority": "No", "Sex": "Male", "SES": range(1200), "MathAch": 1.5, "MEANSES": 0.5}
    )
    frame.loc[:99, "MEANSES"] = None
    monkeypatch.setattr(fetch, "read", lambda table: frame)
    written = pyarrow.csv.read_csv(write(stand_in, tmp_path))
    assert written.num_rows == 1000 and "School" not in written.column_names
    assert written.num_columns == stand_in.table.columns + 1
    rows = written["SES"].to_pylist()
    assert rows == sorted({*rows}) and rows[0] >= 100 and rows != [*range(100, 1100)]
    frame.loc[:300, "MEANSES"] = None
    with pytest.raises(DataError, match=r"mathachieve-1000: must have 1000 rows without a gap, got 899"):
        write(stand_in, tmp_path)


def test_the_files_name_the_columns_that_are_written() -> None:
    for path in FILES:
        for key, dataset in read_params(path)["datasets"].items():
            source = dataset["source"]
            if source["name"] == "table":
                assert source["path"] == f"data/stand_ins/{key}.csv" and source["target"] == [BY_NAME[key].table.target]
                assert len(source.get("columns", {})) in (0, BY_NAME[key].table.columns)
