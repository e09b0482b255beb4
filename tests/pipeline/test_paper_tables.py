"""A paper's printed figures and how ours stand beside them: names, differences, the terminal."""

import io
import math
from pathlib import Path

import pytest
from rich.console import Console

from bdl_pipe.errors import ConfigError
from pipeline import papers, params
from pipeline.papers import Printed, compare, show
from pipeline.papers.compare import Cell, Line, Mean

ROOT = Path(__file__).parents[2]


def cell(ours: Mean | None, value: str, error: str = "") -> Cell:
    return Cell(ours, Printed(value, error))


def test_differences_in_combined_standard_errors() -> None:
    assert cell(Mean(2.0, 0.3, 20), "1.50", "0.40").z == pytest.approx(1.0)  # √(0.09 + 0.16) = 0.5
    assert not cell(Mean(3.0, 0.3, 20), "1.50", "0.40").far  # exactly 3
    assert cell(Mean(3.01, 0.3, 20), "1.50", "0.40").far and cell(Mean(-0.01, 0.3, 20), "1.50", "0.40").far
    assert cell(Mean(math.nan, math.nan, 20), "1.50", "0.40").far
    assert cell(Mean(2.0, 0.5, 20), "1.50", "0.00").z == pytest.approx(1.0)
    for unknown in (
        cell(None, "1.5", "0.4"),
        cell(Mean(2, None, 1), "1.5", "0.4"),
        cell(Mean(2, 0.0, 2), "1.5", "0.0"),
    ):
        assert unknown.z is None and not unknown.far
    assert cell(Mean(2, 0.3, 2), "1.5").z is None and Cell(Mean(2, 0.3, 2)).z is None


def test_disagreement_is_said_with_its_size() -> None:
    far = {"nll": cell(Mean(2.48, 0.08, 20), "1.80", "0.06"), "rmse": cell(Mean(1.50, 0.10, 20), "1.42", "0.05")}
    near = {"nll": cell(Mean(2.50, 0.08, 20), "2.41", "0.06"), "rmse": cell(None, "2.83", "0.16")}
    lines = [
        Line("VBLL", "run", "", True, far),
        Line("RBF GP", "run", "", True, near),
        Line("GBLL", None, "", False, {}),
    ]
    assert show.agreement(papers.load("vbll:table2"), lines).splitlines() == [
        "ours − paper (in combined standard errors; ! beyond 3: 1 of 3)",
        "  VBLL disagrees: NLL +0.68 (+6.8 !), RMSE +0.08 (+0.7)",
        "  RBF GP agrees: NLL +0.09 (+0.9)",
    ]


def test_members_of_a_split_are_averaged_before_the_error() -> None:
    scores = [
        {"split": "test", "metric": "nll", "seed": split * 1000 + member, "value": 10.0 * split + member}
        for split in range(3)
        for member in range(2)
    ]
    found = compare.mean(scores, "test", "nll", fold=1000)
    assert found == Mean(10.5, pytest.approx(10 / math.sqrt(3)), 3)
    assert compare.mean(scores, "test", "nll", scale=100).n == 6  # type: ignore[union-attr]
    assert compare.mean(scores, "test", "nll", scale=100).value == pytest.approx(1050)  # type: ignore[union-attr]
    assert compare.mean(scores, "test", "rmse") is None


@pytest.mark.parametrize("name", ["table1", "table2", "table3", "table4"])
def test_every_name_of_a_table_has_a_counterpart(name: str) -> None:
    table = papers.load(f"vbll:{name}")
    for dataset, methods in table.figures.items():
        assert dataset in table.names.datasets
        for method, figures in methods.items():
            for metric, printed in figures.items():
                split, score = table.score(metric, method)
                assert split == "test" or split.startswith("ood:")
                assert score and float(printed.value) > 0 and float(printed.error) >= 0


def test_figures_of_the_paper_by_hand() -> None:
    """Read off the printed tables."""
    second, first = papers.load("vbll:table2"), papers.load("vbll:table1").figures["CIFAR10"]
    assert second.figures["Energy"]["Dropout"]["nll"] == Printed("1.33", "0.00")
    assert second.figures["Boston"]["VBLL"]["rmse"] == Printed("1.42", "0.05")
    assert papers.load("vbll:table3").figures["Yacht"]["MAP"]["nll"] == Printed("5.14", "1.62")
    assert first["D-VBLL"]["accuracy"] == Printed("96.4", "0.12")
    assert first["G-VBLL-MAP"].keys() == {"auroc:SVHN", "auroc:CIFAR100"}
    assert [len(second.figures[d]) for d in second.figures] == [10, 10, 10]
    assert papers.load("vbll:table1").score("auroc:SVHN", "G-VBLL-MAP") == ("ood:svhn", "auroc_refit_density")
    assert papers.load("vbll:table1").score("auroc:SVHN", "DNN") == ("ood:svhn", "auroc")


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("name, dataset", [("table1", "CIFAR10"), ("table3", "Yacht")])
def test_a_terminal_of_any_width_shows_all(name: str, dataset: str, width: int) -> None:
    table = papers.load(f"vbll:{name}")
    lines = [
        Line(method, "run", "", True, {m: Cell(Mean(12.3456, 1.5, 20), f.get(m)) for m in table.metrics(dataset)}, 3.0)
        for method, f in table.figures[dataset].items()
    ]
    console = Console(width=width, record=True, file=io.StringIO())
    show.terminal(table, dataset, lines, console)
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= width and "…" not in text
    for figures in table.figures[dataset].values():
        for metric, printed in figures.items():
            assert printed.text in text and table.title(metric) in text


def test_every_params_file_of_a_table_is_right() -> None:
    for path in sorted(ROOT.glob("params/paper/vbll-*.yaml")):
        table = papers.load(path.stem.replace("-", ":", 1))
        found = params.load(path)
        known = {table.names.datasets[name] for name in table.figures}
        assert {row.entry.dataset for row in found.of("student")} <= known
        assert f"python -m pipeline paper {table}" in path.read_text()


def test_a_name_without_a_counterpart_is_told(tmp_path: Path) -> None:
    for name in ("vbll.yaml", "vbll.csv"):
        (tmp_path / name).write_bytes((papers.HERE / name).read_bytes())
    text = (tmp_path / "vbll.yaml").read_text()
    (tmp_path / "vbll.yaml").write_text(text.replace("  SWAG: {method: swag}\n", ""))
    with pytest.raises(ConfigError, match=r"vbll\.csv: SWAG has no counterpart in the paper's yaml"):
        papers.load("vbll:table2", tmp_path)
