"""Which runs a search fits once and which in every trial, for runs with several inputs."""

from contextlib import chdir
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from bdl_pipe.method import StageSpec
from bdl_pipe.progress import Silent
from bdl_pipe.seeds import Seed
from pipeline.core.load import load as load_params
from pipeline.core.load import typed
from pipeline.core.model import Params, Run
from pipeline.core.settings import Settings
from pipeline.plan.plan import one
from pipeline.search import branch_of, load_data, make_upstream
from pipeline.stages import prepare
from pipeline.work.executor import Inline
from tests.pipeline.fake_work import REGISTRY, walk
from tests.pipeline.test_params import several

SETTINGS = Settings(executor="inline")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("branch")
    raw = several()
    raw["runs"]["b-pair"]["seeds"] = 1
    (folder / "params.yaml").write_text(yaml.safe_dump(raw))
    with chdir(folder):
        prepare.run(one("prepare", "boston", load()), load(), Inline(SETTINGS), SETTINGS)
    return folder


def load(**methods: Any) -> Params:
    return load_params(Path("params.yaml"), REGISTRY | methods)


def names(runs: tuple[Run, ...]) -> list[str]:
    return [f"{run.kind}/{run.key}" for run in runs]


def test_the_chain_begins_at_the_first_run_of_the_method(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(prepared)
    found = branch_of(load(), "pair", "boston", "b-pair", SETTINGS)
    assert names(found.upstream) == ["trajectory/b-walk"]
    assert names(found.runs) == ["coreset/b-pair", "student/b-pair"]
    whole = branch_of(load(), "walk", "boston", "b-pair", SETTINGS)
    assert whole.upstream == ()
    assert names(whole.runs) == ["trajectory/b-walk", "coreset/b-pair", "student/b-pair"]


def test_a_trial_gets_the_upstream_fits_and_its_own_coreset(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run takes both trajectories, which are fitted once, and the trial's own coreset."""
    monkeypatch.chdir(prepared)
    loaded = load()
    found = branch_of(loaded, "pair", "boston", "b-pair", SETTINGS)
    data = load_data(found, loaded, SETTINGS)
    upstream = make_upstream(found, data, loaded, SETTINGS)
    ((run, trajectories),) = upstream.items()
    assert run == ("trajectory", "b-walk") and len(trajectories) == 2
    configs = found.configs({"steps": 3})
    coreset = found.make(data, upstream, configs, Silent())
    made = found.finish(coreset, data, configs, upstream)
    assert torch.equal(made.tensors["coreset"], coreset.tensors["x"])
    assert torch.equal(made.tensors["trajectories"], torch.stack([t.tensors["x"] for t in trajectories]))
    shared = typed(several(), REGISTRY)  # two seeds of the run, each of which takes one of the two trajectories
    upstream = make_upstream(branch_of(shared, "pair", "boston", "b-pair", SETTINGS), data, shared, SETTINGS)
    assert [len(states) for states in upstream.values()] == [1]
    again = [walk(data, {}, loaded.run("trajectory", "b-walk").config, rng=r, report=Silent()) for r in rngs(loaded)]
    assert all(torch.equal(a.tensors["x"], b.tensors["x"]) for a, b in zip(again, trajectories, strict=True))


def rngs(loaded: Params) -> list[Seed]:
    return [Seed(loaded.seed).fold("tune", "trajectory", "b-walk", 0, seed) for seed in range(2)]


def test_each_seed_of_an_upstream_run_has_its_own_input(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trajectory that continues from another one has as many seeds; each continues the same seed of the other."""
    monkeypatch.chdir(prepared)
    stages = REGISTRY["walk"].stages | {
        "trajectory": StageSpec(walk, needs={"trajectory": "one_to_one"}, input_optional=True),
        "student": StageSpec(walk, needs={"trajectory": "all"}),
    }
    raw = several()
    raw["trajectories"]["b-next"] = raw["trajectories"]["b-walk"] | {
        "input": "trajectory/b-walk",
        "override": {"steps": 4},
    }
    raw["runs"] = {"b-run": raw["runs"]["b-run"] | {"seeds": 1, "method": "all", "input": "trajectory/b-next"}}
    raw["methods"]["all"] = {"steps": 1}
    known = REGISTRY | {name: replace(REGISTRY["walk"], name=name, stages=stages) for name in ("walk", "all")}
    loaded = typed(raw, known)
    asked = ("all", "boston", None, SETTINGS)
    found = branch_of(loaded, *asked)
    assert names(found.upstream) == ["trajectory/b-walk", "trajectory/b-next"]
    data = load_data(found, loaded, SETTINGS)
    upstream = make_upstream(found, data, loaded, SETTINGS)
    assert [s.config["count"] for s in upstream["trajectory", "b-walk"]] == [0, 0]
    assert [s.config["count"] for s in upstream["trajectory", "b-next"]] == [1, 1]
    raw["methods"]["walk"]["steps"] += 1  # The first run changes; the run that is made from it is fitted again, too.
    monkeypatch.setenv("WALK_LOG", str(tmp_path / "steps"))
    changed = typed(raw, known)
    make_upstream(branch_of(changed, *asked), data, changed, SETTINGS)
    assert (tmp_path / "steps").read_text().count("\n") == 2 * (6 + 4)
