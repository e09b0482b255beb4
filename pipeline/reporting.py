"""The report stage: what lies where, for the report's own code."""

from . import places, provenance, report, stage
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
            record=places.provenance("student", row.key),
        )
        for row in params.of("student")
    ]
    coresets = [
        report.CoresetInfo(row.key, row.entry.dataset, row.method.name, places.artifact("coreset", row.key))
        for row in params.of("coreset")
    ]
    facts = {"commit": provenance.commit(), "seed": params.seed, "device": stage.device_name(settings.device)}
    report.build(runs, coresets, places.REPORT, provenance=facts, dpi=params.report.figures_dpi)
