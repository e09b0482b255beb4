"""results/dark_knowledge/students.md: students beside the posteriors that they imitate, of params/students.yaml.

    python -m pipeline apply params/students.yaml && python -m pipeline repro report
    python -m benchmarks.pages.students             # in the same folder; it fits and predicts nothing

The columns: the teacher's bytes over the student's; seconds per 1,000 predictions; the student's loss (its NLL or RMSE
minus the teacher's, the teacher's accuracy minus its own, mean over splits); the joint NLL of 20 inputs by dyadic
sampling, with its gap to the product of marginals; the AUROC on images of digits by the mutual information of a
posterior's functions. A plain student is one function and has no mutual information.
"""

from pathlib import Path
from typing import Final

from bdl_pipe.metrics.joint import names
from bdl_pipe.scores import Quantity
from bdl_report import columns, students, tables
from bdl_report.students import beside
from benchmarks import written
from pipeline.core.load import load
from pipeline.core.settings import Settings
from pipeline.stages import report

OUT: Final = Path("results/dark_knowledge/students.md")
_JOINT, _GAP = (Quantity(name) for name in names(20))
_OWN: Final = Quantity("auroc", "ood", "digits", score="mutual_information")
_BOTH: Final = ("student", "teacher")
_COLUMNS: Final = (  # title, quantity, and which of the pair's figures
    ("bytes, teacher over student", Quantity("bytes", "cost"), ("ratio",)),
    ("s per 1,000", Quantity("seconds_per_1000", "cost"), _BOTH),
    ("NLL", Quantity("nll"), (*_BOTH, "lost")),
    ("accuracy", Quantity("accuracy"), ("lost",)),
    ("RMSE", Quantity("rmse"), ("lost",)),
    ("joint NLL of 20", _JOINT, _BOTH),
    ("its gap", _GAP, _BOTH),
    ("AUROC, digits", _OWN, _BOTH),
)


def main() -> None:
    """Write the page from the report of this folder."""
    read = load()
    text = list[str]()
    for part in tables.gather(report.infos(read)).by_dataset().values():
        if students.of(part).runs:
            text += [f"## {part.dataset}", table(part)]
    facts = report.facts(read, Settings.read())
    OUT.write_text(written.page("Students beside their teachers", __doc__, facts, *text))


def table(part: tables.Table) -> str:
    """Return the table of a data set's students as Markdown; a quantity that no student has is left out."""
    runs = students.of(part).runs
    shown = [(title, q, each) for title, q, each in _COLUMNS if any(part.estimate(run.key, q) for run in runs)]
    titles = [f"{title}, {of}".removesuffix(", ratio") for title, _, each in shown for of in each]
    lines = list[list[str]]()
    for run in runs:
        cells = [run.setting, part.names.get(run.imitates or "", run.imitates or columns.NOTHING)]
        for _, quantity, each in shown:
            pair = beside(part.scores[run.key], part.scores.get(run.imitates or ""), quantity)
            cells += [students.CELLS[of](pair, columns.Column(of, quantity)).text for of in each]
        lines.append(cells)
    return written.table(["student", "teacher", *titles], lines, left=2)


if __name__ == "__main__":
    main()
