"""What MLflow shows of a stage's run: params, tags and metrics, all from the plan and from the files of the stage."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from bdl_pipe import artifacts, config, scores
from bdl_pipe.scores import RunScores

from ..core import curves, places
from ..core.model import FIT_KINDS, Params
from ..core.storage import hide
from ..plan.plan import Stage
from . import store

TRACKED: Final = (*FIT_KINDS, "evaluate")
IDENTITY: Final = "identity"  # the tag with the hash of the identity file, by which the store knows a result


@dataclass
class StageRun:
    """A run of a stage, and its place in MLflow's store.

    Attributes:
        identity, record, curve: files of the stage; they are named here once, since ``places`` may change.
        run_id: of the run in the store; empty: it is not there yet.
        shown: the time up to which the curve is in the store; a curve of an earlier run is older than this run.
    """

    stage: Stage
    identity: Path
    record: Path
    curve: Path
    run_id: str = ""
    shown: float = 0.0

    @classmethod
    def of(cls, stage: Stage) -> Self:
        """Take a stage, and name its files where they lie now."""
        about = stage.kind, stage.key
        return cls(stage, places.identity(*about), places.record(*about), places.curve(*about))

    def digest(self) -> str:
        """Return the hash of the identity file, which no other result has."""
        return artifacts.sha256(self.identity)

    def start(self, client: Any, experiment: str, params: Params, tags: Mapping[str, str], started: float) -> None:
        """Make the run, with its params and the tags by which runs are filtered."""
        stage = self.stage
        run = params.run("student" if stage.kind == "evaluate" else stage.kind, stage.key)
        about = {"dataset": run.spec.dataset, "method": run.spec.method, "setting": run.spec.setting}
        made = [path.parent if path.name == artifacts.MANIFEST else path for path in stage.reads]
        inputs = {f"sha256.{path}": digest for path in made if (digest := _hash(path))}
        own = {"stage": stage.kind, "key": stage.key, **about, "seed": str(params.seed), **inputs}
        self.run_id = store.create(client, experiment, f"{stage.kind} {stage.key}", {**tags, **own}, started)
        numbers = {**(about if stage.kind == "evaluate" else {}), **config.to_mapping(run.config)}
        store.log(client, self.run_id, params=store.flatten(numbers))
        self.shown = started

    def follow(self, client: Any) -> None:
        """Write the points that the stage has measured since the last call."""
        points = curves.read(self.curve, self.shown)
        store.log(client, self.run_id, [(name, x, at.time, at.step) for at in points for name, x in at.metrics.items()])
        self.shown = max([self.shown, *(at.time for at in points)])

    def end(self, client: Any, status: str, ended: float, lines: Sequence[str] = ()) -> None:
        """Write the results, or the last lines of a stage that failed, and end the run."""
        self.follow(client)
        if status == "FINISHED":
            record = json.loads(self.record.read_text()) if self.stage.kind != "evaluate" else {}
            metrics = ((name, value, ended, 0) for name, value in self._metrics(record))
            store.log(client, self.run_id, metrics, tags=self._results(record))
        elif lines:
            store.log(client, self.run_id, tags={"error": hide("\n".join(lines))})
        client.set_terminated(self.run_id, status, round(1000 * ended))

    def _metrics(self, record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
        if self.stage.kind == "evaluate":
            yield from final_scores(RunScores(scores.read(self.stage.makes[0] / "scores.parquet"))).items()
        else:
            yield from record["metrics"].items()
            yield "fit_seconds", sum(record["seconds"].values())

    def _results(self, record: Mapping[str, Any]) -> dict[str, str]:
        """Collect the tags of a result: the link to its artifact, and what its record says."""
        place = self.stage.makes[0]
        tags = {IDENTITY: self.digest(), "artifact": str(place), "artifact.sha256": _hash(place)}
        if record:
            tags |= {"device": record["device"], "warnings": "\n".join(record["warnings"]), **commit(record["commit"])}
        if self.stage.kind == "student":
            tags[store.NOTE] = (
                f"The fitted posterior is `{place}`. `python -m pipeline export model {self.stage.key} --to DIR` "
                "writes it as a model that MLflow loads and serves."
            )
        return {name: text for name, text in tags.items() if text}


def final_scores(stored: RunScores) -> dict[str, float]:
    """Average the scores of a run to its final metrics, named alike for every method.

    ``test/accuracy``, ``corrupted/accuracy`` (the mean over corruptions and severities), ``ood/<set>/auroc``,
    ``transfer/<set>/accuracy``, ``cost/fit_seconds``: each is the mean over splits and seeds.
    """
    values = defaultdict[str, list[float]](list)
    for of in stored.quantities:
        place = f"{of.set}/{of.name}" if of.set in ("ood", "transfer") else of.set
        values[f"{place}/{of.title}"] += [value for group in stored.groups(of) for value in group]
    return {name: sum(found) / len(found) for name, found in sorted(values.items())}


def commit(name: str) -> dict[str, str]:
    """Return the tags that name a commit, here and on MLflow's page."""
    return {"git_commit": name, "mlflow.source.git.commit": name.removesuffix("-dirty")} if name else {}


def _hash(place: Path) -> str:
    """Hash the manifest of an artifact, which holds the hash of every file in it; empty where there is none."""
    manifest = place / artifacts.MANIFEST
    return artifacts.sha256(manifest) if manifest.is_file() else ""
