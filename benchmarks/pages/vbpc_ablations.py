"""results/vbpc/ablations-beside-the-paper.md: the sign of each effect in the study ``vbpc-ablations`` and in the paper.

    python -m benchmarks.pages.vbpc_ablations

An effect is the score of what is taken away or varied minus that of the setting that is the default there. The
paper's are of CIFAR-100 at ten images a class (Lee et al. 2025, tables 13 and 15 to 20). A sign is ``0`` where an
effect is within twice its standard error, of both scores; the paper's ± is taken for one. Of two seeds that calls
18 % of null effects of ours real.
"""

import csv
import math
from dataclasses import dataclass
from pathlib import Path

OUT = Path("results/vbpc")
Score = tuple[float, float]  # mean, standard error


@dataclass(frozen=True)
class Ablation:
    """What a table of the paper varies, its default, and what stands for its values here.

    Attributes:
        axis: of the study.
        base: the study's value of the default.
        values: a value of the study -> the paper's own, accuracy in % and NLL.
        default: the paper's, of its default.
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
    with (OUT / "ablations.csv").open() as file:
        rows = list(csv.DictReader(file))
    base = {ablation.axis: ablation.base for ablation in ABLATIONS}
    own_base = scores(rows, base)
    lines = ["# VBPC's ablations, ours beside the paper's", "", (__doc__ or "").partition("\n")[2].strip(), ""]
    lines.append(f"Ours by default: {_pair(own_base)}; the paper's: {_pair(ABLATIONS[0].default)}.")
    lines += ["", "| table | what | ours: accuracy, NLL | effect | the paper's | effect | signs agree |"]
    lines.append("| ---: | --- | --- | --- | --- | --- | --- |")
    for ablation in ABLATIONS:
        for value, (name, *published) in ablation.values.items():
            own = scores(rows, base | {ablation.axis: value})
            ours = [effect(a, b) for a, b in zip(own, own_base, strict=True)]
            theirs = [effect(a, b) for a, b in zip(published, ablation.default, strict=True)]
            signs = [[sign(e) for e in side] for side in (ours, theirs)]
            agree = ", ".join("yes" if a == b else "no" for a, b in zip(*signs, strict=True))
            what = f"{ablation.what}: {value}" + (f" ({name})" if name not in ("", value) else "")
            cells = [str(ablation.table), what, _pair(own), ", ".join(signs[0])]
            lines.append(f"| {' | '.join([*cells, _pair(published), ', '.join(signs[1]), agree])} |")
    (OUT / "ablations-beside-the-paper.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines[5:]))


def scores(rows: list[dict[str, str]], point: dict[str, str]) -> tuple[Score, Score]:
    """Return accuracy in % and NLL at a point, each with its standard error over seeds."""
    mine = [row for row in rows if all(row[axis] == value for axis, value in point.items())]
    if not mine:
        raise SystemExit(f"{OUT / 'ablations.csv'}: has no row at {point}")

    def over(values: list[float]) -> Score:
        mean = sum(values) / len(values)
        squares = sum((value - mean) ** 2 for value in values)
        return mean, math.sqrt(squares / (len(values) - 1) / len(values)) if len(values) > 1 else math.nan

    return over([100 * float(row["accuracy"]) for row in mine]), over([float(row["nll"]) for row in mine])


def effect(score: Score, default: Score) -> Score:
    """Return the difference and its standard error."""
    return score[0] - default[0], math.hypot(score[1], default[1])


def sign(found: Score) -> str:
    """Return +, - or 0."""
    return "0" if abs(found[0]) <= 2 * found[1] else "+" if found[0] > 0 else "-"


def _pair(pair: "tuple[Score, Score] | list[Score]") -> str:
    (accuracy, a_error), (nll, n_error) = pair
    return f"{accuracy:.1f} ± {a_error:.1f}, {nll:.3f} ± {n_error:.3f}"


if __name__ == "__main__":
    main()
