"""Coresets × protocols in the report: each run's cell, the floor (random images), and the remarks below the table."""

import csv
import io
import math
from dataclasses import replace
from pathlib import Path

import pytest

import bdl_report
from bdl_report import CoresetInfo, RunInfo, cross, tables
from tests.report.report_cases import of_values, write_run

# coreset -> method, images a class, seconds, {protocol: (accuracies, NLLs) of the seeds}
CORESETS = {
    "d-random": ("random_coreset", 1, 0.02, {"nn": ([0.50, 0.52], [1.5, 1.7]), "krr": ([0.45], [1.8])}),
    "d-frepo": ("frepo", 1, 60.0, {"nn": ([0.70, 0.72], [1.0, 1.2]), "krr": ([0.60], [1.9])}),
    "d-bpc": ("bpc_fkl", 1, 100.0, {"nn": ([0.51, 0.51], [1.4, 1.4])}),
    "d-frepo10": ("frepo", 10, 120.0, {"nn": ([0.80, 0.82], [0.6, 0.7])}),
}


def coreset(key: str) -> CoresetInfo:
    method, ipc, seconds, _ = CORESETS[key]
    return CoresetInfo(key, "d", method, Path("none"), ipc, seconds)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[RunInfo]:
    root, runs = tmp_path_factory.mktemp("cross"), []
    for key, (*_, protocols) in CORESETS.items():
        info = coreset(key)
        for protocol, (accuracies, nlls) in protocols.items():
            values = {"accuracy": accuracies, "nll": nlls}
            if protocol == "nn" and key != "d-bpc":
                values["batch_nll"] = [nll + 0.1 for nll in nlls]
            run = write_run(root, "d", protocol, info.key.removeprefix("d-"), of_values(values))
            runs.append(replace(run, coreset=info))
    return runs


def table_of(made: list[RunInfo]) -> bdl_report.Grid:
    (headline,) = [h for h in bdl_report.headlines(bdl_report.gather(made)) if "coresets" in h.title]
    return headline


def test_rows_are_coresets_and_columns_are_scores_under_protocols(made: list[RunInfo]) -> None:
    table = table_of(made)
    protocols = ["nn acc. %", "nn NLL", "nn batch NLL", "krr acc. %", "krr NLL"]
    assert table.head == ["Coreset", "Method", "ipc", "Distilled in", *protocols]
    rows = {row[0].text: [cell.figure for cell in row[1:]] for row in table.rows}
    assert rows == {
        "random": ["random_coreset", "1", "20 ms", "51.00 ± 1.00", "1.600 ± 0.100", "1.700 ± 0.100", "45.00", "1.800"],
        "frepo": ["frepo", "1", "60 s", "71.00 ± 1.00", "1.100 ± 0.100", "1.200 ± 0.100", "60.00", "† 1.900"],
        "bpc": ["bpc_fkl", "1", "100 s", "† 51.00 ± 0.00", "1.400 ± 0.000", "—", "—", "—"],
        "frepo10": ["frepo", "10", "120 s", "81.00 ± 1.00", "0.650 ± 0.050", "0.750 ± 0.050", "—", "—"],
    }
    assert [row[0].text for row in table.rows if row[5].best] == ["frepo"]  # the lowest NLL among coresets of one size


def test_a_column_is_a_protocol_even_if_the_method_makes_its_own_coreset(tmp_path: Path) -> None:
    """VBPC's own runs and random images share VBPC's student, hence a column; ridge regression is a protocol like nn.

    ``coreset_vi`` has a column, too: VBPC's posterior with a scale of the logits, which VBPC's own student lacks.
    """
    names, scores = ["vbpc", "coreset_nn", "coreset_krr", "random_coreset", "coreset_vi"], of_values({"accuracy": 0.5})
    of = {name: coreset("d-random" if name == "random_coreset" else "d-frepo") for name in names}
    runs = [replace(write_run(tmp_path, "d", name, of[name].key, scores), coreset=of[name]) for name in names]
    assert table_of(runs).remarks[0] == "† frepo is no better than random images of its size: vbpc acc. %"
    shown = ["vbpc acc. %", "coreset_nn acc. %", "coreset_krr acc. %", "coreset_vi acc. %"]
    assert table_of(runs).head[4:] == shown
    assert table_of(runs[:4]).head[4:] == ["vbpc acc. %", "coreset_nn acc. %", "coreset_krr acc. %"]


def test_remarks_name_coresets_that_do_not_beat_random_images_or_have_none(tmp_path: Path, made: list[RunInfo]) -> None:
    """A tie, as in bpc's accuracy, does not beat random images; frepo10 has no random coreset of its size."""
    assert table_of(made).remarks == [
        "† frepo is no better than random images of its size: krr NLL",
        "† bpc is no better than random images of its size: nn acc. %",
        "no random baseline of the same size to compare with: frepo10 (nn)",
    ]
    better = [run for run in made if run.coreset and run.coreset.key in ("d-random", "d-frepo") and run.method == "nn"]
    assert table_of(better).remarks == []
    broken = replace(write_run(tmp_path, "d", "nn", "nan", of_values({"nll": math.nan})), coreset=made[2].coreset)
    (remark,) = table_of([made[0], broken]).remarks
    assert remark == "† frepo is no better than random images of its size: nn NLL"


def test_a_table_needs_two_coresets_or_two_protocols(made: list[RunInfo]) -> None:
    for some, there in (
        (made[:1], False),
        (made[:2], True),  # one coreset under two protocols
        ([made[0], made[2]], True),  # two coresets under one protocol
        ([replace(run, coreset=None) for run in made], False),
    ):
        assert any("coresets" in h.title for h in bdl_report.headlines(bdl_report.gather(some))) is there


def test_a_second_network_has_a_row_below_and_its_own_random_images_as_floor(
    tmp_path: Path, made: list[RunInfo]
) -> None:
    """With the second network frepo is worse than random images, though better than random images with the first."""
    second = []
    for run, accuracy in ((made[0], 0.9), (made[2], 0.8)):
        other = write_run(tmp_path, "d", "nn", f"{run.setting} resnet", of_values({"accuracy": accuracy}))
        second.append(replace(other, coreset=run.coreset))
    table = table_of([made[0], made[2], *second])
    assert [(row[0].text, row[4].figure) for row in table.rows] == [
        ("frepo (frepo)", "71.00 ± 1.00"),
        ("frepo (frepo resnet)", "† 80.00"),
        ("random (random)", "51.00 ± 1.00"),
        ("random (random resnet)", "90.00"),
    ]


def test_every_cell_is_in_the_csv_with_its_floor_and_the_page_has_the_notes(
    tmp_path: Path, made: list[RunInfo]
) -> None:
    cross.write_csv(tables.gather(made), tmp_path / "c.csv")
    text = (tmp_path / "c.csv").read_text()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert text.startswith("dataset,coreset,method,ipc,seconds,protocol,run,metric,mean,error,n,floor\n")
    assert len(rows) == 15
    at = {(row["run"], row["metric"]): row for row in rows}
    frepo = at["d-nn-frepo", "nll"]
    assert (frepo["coreset"], frepo["ipc"], float(frepo["seconds"]), frepo["protocol"]) == ("d-frepo", "1", 60.0, "nn")
    expected = [pytest.approx(v) for v in (1.1, 0.1, 1.6)]
    assert [float(frepo[name]) for name in ("mean", "error", "floor")] == expected
    assert at["d-nn-random", "nll"]["floor"] == "" == at["d-krr-frepo", "nll"]["error"]
    cross.write_csv(tables.gather([]), tmp_path / "none.csv")
    assert (tmp_path / "none.csv").read_text().count("\n") == 1
    bdl_report.build(made, tmp_path / "out", provenance={}, dpi=110)
    page = (tmp_path / "out/index.html").read_text()
    assert page.count("<h3>Coresets under each protocol</h3>") == 1
    assert '<p class="note">† bpc is no better than random images of its size: nn acc. %</p>' in page
    assert "## d: coresets under each protocol" in (tmp_path / "out/comparison.md").read_text()


def test_a_coreset_of_unknown_size_and_time_shows_dashes_and_has_no_floor(made: list[RunInfo]) -> None:
    unknown = [replace(run, coreset=run.coreset and replace(run.coreset, ipc=None, seconds=None)) for run in made[:3]]
    for random in (made[:2], unknown[:2]):
        grid = table_of([*random, unknown[2]])
        row = next(row for row in grid.rows if row[0].text == "frepo")
        assert [cell.text for cell in row[2:5]] == ["—", "—", "71.00"]
        none = "no random baseline of the same size to compare with: frepo (nn)"
        assert grid.remarks == [none]
