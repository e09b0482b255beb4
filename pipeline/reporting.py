"""The report stage: what lies where, for the report's own code."""

from . import places, provenance, records, report
from .params import Params
from .settings import Settings


def build(params: Params, settings: Settings) -> None:
    """Make ``report/`` from the stored tables of every run that has been evaluated."""
    runs = [
        report.RunInfo(
            key=row.key,
            dataset=row.entry.dataset,
            method=row.method.name,
            setting=row.entry.setting,
            evaluate=places.artifact("evaluate", row.key),
            record=places.record("student", row.key),
        )
        for row in params.of("student")
    ]
    coresets = [
        report.CoresetInfo(row.key, row.entry.dataset, row.method.name, places.artifact("coreset", row.key))
        for row in params.of("coreset")
    ]
    facts = {"commit": provenance.commit(), "seed": params.seed, "device": records.device_name(settings.device)}
    report.build(runs, coresets, places.REPORT, provenance=facts, dpi=params.report.figures_dpi)
