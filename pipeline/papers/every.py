"""``python -m pipeline paper all``: all pages with available scores, from the comparison or from stored CSV files.

The command runs no stage and does not check whether results are up to date; a page states the commit of its scores.
"""

import json
from pathlib import Path
from typing import Any

from bdl_pipe import scores
from bdl_pipe.scores import RunScores
from bdl_report.papers import stored, survey
from bdl_report.papers.comparison import Comparison, Ours

from ..core import places, provenance, records
from ..core.params_files import read_params
from .facts import RESULTS, made


def every(missing: bool) -> int:
    """Write all pages with available scores or CSV files, or print the missing cells; return 0."""
    if missing:
        params_files = survey.sources(Path("params.yaml"), Path("params"), read_params)
        print(*survey.report(survey.survey(RESULTS, params_files), _took()), sep="\n")
        return 0
    done = places.identity("evaluate", "any").parent.glob("*.json")  # written last, by finished stages
    runs = [_scored(path.stem) for path in sorted(done)]
    for path, comparison in stored.of_default_run(runs):
        if stored.poorer(RESULTS / path, comparison):
            print(f"not changed, since the runs here fill fewer of its cells: {RESULTS / path}")
        else:
            stored.write(RESULTS / path, comparison, _facts(comparison))
    print(*(f"written: {path}" for path in stored.rewrite(RESULTS)), sep="\n")
    return 0


def _scored(key: str) -> Ours:
    """Return a run, as described by its stored scores."""
    table = scores.read(places.artifact("evaluate", key) / "scores.parquet")
    of = table.slice(0, 1).to_pylist()[0]
    return Ours(key, of["dataset"], of["method"], of["setting"], RunScores(table))


def _facts(comparison: Comparison) -> dict[str, Any]:
    """Collect the provenance of a page of the comparison from its records."""
    keys = list(dict.fromkeys(line.run for line in comparison.lines if line.ran and line.run))
    of = {key: json.loads(places.identity("evaluate", key).read_text(encoding="utf-8"))["params"] for key in keys}
    return {
        "command": "python -m pipeline paper all",
        "runs": ", ".join(keys),
        "params": f"params.yaml, sha256 of what these evaluations read of it {provenance.digest(of)}",
        "seed": ", ".join(sorted({str(params["seed"]) for params in of.values()})),
        **made(keys, comparison.table.names.datasets[comparison.dataset]),
    }


def _took() -> dict[str, float]:
    """Read the seconds of the fits of every run with a record, including upstream fits."""
    fitted = [path.name.removesuffix(".run.json") for path in places.artifact("student", "").glob("*.run.json")]
    return {key: sum(records.read("student", key)["total_seconds"].values()) for key in fitted}
