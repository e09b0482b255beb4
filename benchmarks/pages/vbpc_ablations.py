"""results/vbpc/ablations-beside-the-paper.md: the effects in the study ``vbpc-ablations`` beside the paper's effects.

    python -m benchmarks.pages.vbpc_ablations

An effect is the score of a varied setting minus the score of the default setting. The paper's effects are on CIFAR-100
at ten images a class (Lee et al. 2025, tables 13 and 15 to 20). Ours are means over seeds of the difference within a
seed, since both settings have the same seeds, with the standard error of this mean. The paper does not print its seeds,
so we take its two errors as independent, and its ± as a standard error. A sign is ``0`` if an effect is within twice
its error. With two seeds this rule calls 30 % of our null effects real (Student's t with one degree of freedom), half
of them with either sign. An effect of the paper is *found* if ours has the same sign.
"""

import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from benchmarks import stored_rows, written

OUT = Path("results/vbpc")
Score = tuple[float, float]  # mean, standard error
SCORES = {"accuracy": 1, "nll": 0}  # a column -> 1 if it is in %
CALLED = 1 - 2 / math.pi * math.atan(2)  # chance that |t| > 2 with one degree of freedom


@dataclass(frozen=True)
class Ablation:
    """The varied setting of one of the paper's tables, its default, and the study's values for it.

    Attributes:
        axis: the study's axis.
        base: the study's value for the default.
        values: a value of the study -> the paper's accuracy in % and NLL.
        default: the paper's accuracy in % and NLL for its default.
    """

    table: int
    what: str
    axis: str
    base: str
    values: dict[str, tuple[str, Score, Score]]
    default: tuple[Score, Score] = ((49.4, 0.1), (2.07, 0.02))


ABLATIONS = (
    Ablation(13, "images start from noise", "coreset.start", "random", {"noise": ("noise", (48.4, 0.4), (2.20, 0.03))}),
    Ablation(
        15,
        "age T of the pool's networks",
        "coreset.pool.steps",
        "100",
        {"200": ("200", (48.7, 0.2), (2.16, 0.03)), "400": ("400", (48.0, 0.2), (2.22, 0.04))},
    ),
    Ablation(16, "labels are not learned", "coreset.label_lr", "0.3", {"null": ("", (23.5, 1.2), (4.92, 0.06))}),
    Ablation(
        17,
        "no noise while distilling",
        "coreset.augmentation.operations.noise",
        "0.1",
        {"0": ("", (48.5, 0.4), (2.22, 0.06))},
    ),
    Ablation(
        18,
        "precision γ",
        "gamma",
        "100",
        {
            "10": ("10", (48.5, 0.2), (2.30, 0.03)),
            "1000": ("1000", (49.4, 0.4), (2.14, 0.04)),
            "10000": ("10000", (49.0, 0.5), (2.10, 0.02)),
        },
    ),
    Ablation(
        19,
        "precision ρ",
        "rho",
        "10",
        {
            "1": ("1", (49.0, 0.3), (2.10, 0.02)),
            "100": ("100", (49.0, 0.2), (2.20, 0.03)),
            "1000": ("1000", (47.5, 0.4), (2.35, 0.04)),
        },
    ),
    Ablation(
        20,
        "steps T' of the trunk, a share of the default's",
        "student.steps",
        "50",
        {
            "10": ("400 of 2,000", (48.9, 0.3), (2.16, 0.01)),
            "20": ("800", (49.2, 0.3), (2.09, 0.01)),
            "30": ("1,200", (49.4, 0.3), (2.07, 0.01)),
            "40": ("1,600", (49.5, 0.2), (2.07, 0.01)),
        },
    ),
)


def main() -> None:
    """Read the study and write the page."""
    text = page(stored_rows.read(OUT / "ablations.csv"))
    (OUT / "ablations-beside-the-paper.md").write_text(text)
    print(text)


def page(rows: list[dict[str, str]]) -> str:
    """Return the page of a study's rows."""
    base = {ablation.axis: ablation.base for ablation in ABLATIONS}
    table, counts = list[str](), Counter[str]()
    for ablation in ABLATIONS:
        for value, (name, *published) in ablation.values.items():
            point = base | {ablation.axis: value}
            ours = [paired(rows, point, base, score) for score in SCORES]
            theirs = [independent(a, b) for a, b in zip(published, ablation.default, strict=True)]
            verdicts = [verdict(sign(a), sign(b)) for a, b in zip(ours, theirs, strict=True)]
            counts.update(verdicts)
            what = f"{ablation.what}: {value}" + (f" ({name})" if name not in ("", value) else "")
            cells = [str(ablation.table), what, _pair(ours), _pair(theirs), ", ".join(verdicts)]
            table.append(f"| {' | '.join(cells)} |")
    effects = counts["found"] + counts["not found"] + counts["the other sign"]
    without = counts["neither"] + counts["ours alone"]
    told = (
        f"Of the paper's {effects} effects {counts['found']} are found here, {counts['the other sign']} with the other "
        f"sign; by chance {CALLED * effects / 2:.1f} would be found. Of the {without} pairs without an effect in the "
        f"paper {counts['ours alone']} have one here, of which chance alone gives {CALLED * without:.1f}."
    )
    own = [over([100**percent * float(row[s]) for row in at(rows, base)]) for s, percent in SCORES.items()]
    return "\n".join(
        [
            "# VBPC's ablations, ours beside the paper's",
            "",
            written.about(__doc__),
            "",
            f"Ours by default: {_pair(own)}; the paper's: {_pair(ABLATIONS[0].default)}.",
            "",
            told,
            "",
            "| table | what | our effect: accuracy in points, NLL | the paper's | accuracy, NLL |",
            "| ---: | --- | --- | --- | --- |",
            *table,
            "",
        ]
    )


def at(rows: list[dict[str, str]], point: dict[str, str]) -> list[dict[str, str]]:
    """Return the rows at a point, one for each seed, in the order of seeds."""
    mine = [row for row in rows if all(row[axis] == value for axis, value in point.items())]
    if not mine:
        raise SystemExit(f"{OUT / 'ablations.csv'}: has no row at {point}")
    return sorted(mine, key=lambda row: int(row["seed"]))


def over(values: list[float]) -> Score:
    """Return the mean and its standard error."""
    mean = sum(values) / len(values)
    squares = sum((value - mean) ** 2 for value in values)
    return mean, math.sqrt(squares / (len(values) - 1) / len(values)) if len(values) > 1 else math.nan


def paired(rows: list[dict[str, str]], point: dict[str, str], base: dict[str, str], score: str) -> Score:
    """Return the mean over seeds of the difference of a score within each seed, and its standard error."""
    there, here = at(rows, point), at(rows, base)
    if [row["seed"] for row in there] != [row["seed"] for row in here]:
        raise SystemExit(f"{OUT / 'ablations.csv'}: {point} has other seeds than the default")
    unit = 100 ** SCORES[score]
    return over([unit * (float(a[score]) - float(b[score])) for a, b in zip(there, here, strict=True)])


def independent(score: Score, default: Score) -> Score:
    """Return the difference of two independent scores and its standard error."""
    return score[0] - default[0], math.hypot(score[1], default[1])


def sign(found: Score) -> str:
    """Return +, - or 0."""
    return "0" if abs(found[0]) <= 2 * found[1] else "+" if found[0] > 0 else "-"


def verdict(ours: str, theirs: str) -> str:
    """Return the comparison of our sign with the paper's, in words."""
    if theirs == "0":
        return "neither" if ours == "0" else "ours alone"
    return "found" if ours == theirs else "not found" if ours == "0" else "the other sign"


def _pair(pair: "tuple[Score, Score] | list[Score]") -> str:
    (accuracy, a_error), (nll, n_error) = pair
    return f"{accuracy:.2f} ± {a_error:.2f}, {nll:.3f} ± {n_error:.3f}"


if __name__ == "__main__":
    main()
