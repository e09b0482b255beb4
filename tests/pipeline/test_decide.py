"""The stage kind decide: a stage for each entry, tasks that resume, and digests of the methods and files it reads."""

from pathlib import Path
from unittest.mock import DEFAULT, Mock

import pyarrow.parquet as pq
import pytest
import yaml

from bdl_decisions import decide, table
from bdl_pipe import plugins
from bdl_pipe.errors import UserError
from pipeline.core.load import typed
from pipeline.core.model import Params
from pipeline.core.settings import Settings
from pipeline.plan import plan, sources
from pipeline.stages import decide as body
from pipeline.work.executor import Inline
from tests.test_docs import plugin_files

ROOT = Path(__file__).parents[2]
TASK = {"name": "optimisation", "function": "branin", "evaluations": 8, "candidates": 40}
AGENTS = {"linear": {"rule": "thompson", "method": "linear", "updates": True}, "chance": {"rule": "uniform"}}
ENTRY = {"task": TASK, "agents": AGENTS, "seeds": 2}


def params(**decisions: object) -> Params:
    raw = yaml.safe_load((ROOT / "params.yaml").read_text())
    return typed({**raw, "decisions": decisions})


def test_each_entry_is_a_stage_that_only_the_report_needs() -> None:
    before, after = plan.plan(params()), plan.plan(params(one=ENTRY, two=ENTRY))
    assert set(after) - set(before) == {"decide@one", "decide@two"}
    assert all(dict(after[name].digests) == dict(stage.digests) for name, stage in before.items())
    needed = {name: stage.needs - before[name].needs for name, stage in after.items() if name in before}
    assert {name: needs for name, needs in needed.items() if needs} == {"report": {"decide@one", "decide@two"}}
    assert after["decide@one"].params == {"seed": 0, "decisions.one": ENTRY}
    with pytest.raises(UserError, match=r"^decisions.three is not an entry \(known: one\)$"):
        plan.one("decide", "three", params(one=ENTRY))


def test_a_digest_depends_on_the_methods_and_on_the_files_that_are_read(tmp_path: Path) -> None:
    rows = tmp_path / "t.csv"
    rows.write_text("a,y\n1,2\n2,3\n")
    source = {"name": "table", "path": str(rows), "target": ["y"], "task": "regression"}

    def digest(method: str) -> str:
        agents = {"a": {"rule": "thompson", "method": method}}
        entry = {"task": {"name": "table_optimisation", "source": source}, "agents": agents}
        return sources.decide_digest("key", params(key=entry))

    assert digest("linear") != digest("gp")
    before = digest("linear")
    rows.write_text("a,y\n1,2\n2,4\n")
    assert digest("linear") != before


def test_an_interrupted_stage_resumes_and_makes_the_same_curves(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = params(key=ENTRY)
    stage, watched = plan.one("decide", "key", loaded), Mock(wraps=decide)
    watched.side_effect = [DEFAULT, DEFAULT, KeyboardInterrupt, DEFAULT, DEFAULT]
    monkeypatch.setattr(body, "decide", watched)
    with pytest.raises(KeyboardInterrupt):
        body.run(stage, loaded, Inline(Settings()), Settings())
    store = body.run(stage, loaded, Inline(Settings()), Settings())
    asked = [call.args[2:4] for call in watched.call_args_list]
    assert asked == [("linear", 0), ("chance", 0), ("linear", 1), ("linear", 1), ("chance", 1)]
    curves = pq.read_table("work/decide/key/curves.parquet")
    entry = loaded.decisions["key"]
    expected = table(decide(entry, "key", agent, seed, 0) for seed in range(2) for agent in AGENTS)
    assert curves.equals(expected)
    store.clear()


def test_the_task_of_a_plugin_runs_and_its_module_is_part_of_the_entry(forgotten_plugins: None) -> None:
    Path("plugins").mkdir()
    Path("plugins/prices.py").write_text(plugin_files()["plugins/prices.py"])
    raw = yaml.safe_load((ROOT / "params.yaml").read_text())
    agents = {"uniform": {"rule": "uniform"}, "oracle": {"rule": "oracle"}}
    raw |= {"plugins": ["plugins/prices.py"]}
    raw |= {"decisions": {"prices": {"task": {"name": "prices", "rounds": 60}, "agents": agents}}}
    loaded = typed(raw)
    assert plugins.loaded()[-1].module in loaded.decisions["prices"].modules()
    played = decide(loaded.decisions["prices"], "prices", "oracle", 0, 0)
    assert played.tensors["regret"][-1].tolist() == [45.0, 0.0]
