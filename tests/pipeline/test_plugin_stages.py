"""A change of a plugin makes only the stages stale that use its definitions."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from tests.end_to_end import forked
from tests.end_to_end.conftest import FORKED, PARAMS, ROOT
from tests.test_docs import plugin_files

pytestmark = [pytest.mark.process, FORKED]
DIGESTS = """
import json
from pipeline.core.load import load
from pipeline.plan import plan
print(json.dumps({name: dict(stage.digests) for name, stage in plan.plan(load()).items()}))
"""
SOURCE = """
from dataclasses import dataclass
from typing import Literal
import numpy as np
from bdl_pipe import Examples, Raw, register_source

@dataclass(frozen=True)
class StripesConfig:
    rows: int
    name: Literal["stripes"] = "stripes"

def load(config):
    labels = np.arange(config.rows) % 2
    images = np.zeros((config.rows, 1, 8, 8), np.uint8)
    images[:, :, ::2] = np.where(labels, 200, 20)[:, None, None, None] + np.arange(config.rows)[:, None, None, None] % 7
    return Raw("stripes", "classification", "image", Examples(images, labels), None, ("dark", "light"))

register_source(StripesConfig, load, task="classification", kind="image")
"""
FILES = {"source": SOURCE} | {  # the others are the plugins of the docs
    kind: plugin_files()[f"plugins/{name}.py"]
    for kind, name in (("method", "snapshots"), ("network", "wave"), ("score", "margin"), ("metric", "surely_wrong"))
}


def with_plugins() -> dict[str, object]:
    """The tiny project, with a run on a plugin's data by a plugin's method of a plugin's network, and its score."""
    raw = yaml.safe_load(PARAMS)
    raw["plugins"] = [f"plugins/{name}.py" for name in FILES]
    stripes = {**raw["datasets"]["digits"], "source": {"name": "stripes", "rows": 60}, "ood": ["digits"]}
    raw["datasets"]["stripes"] = {**stripes, "corrupted_images": 0, "transfer": []}
    raw["methods"]["snapshots"] = {"last": 1}
    run = {"dataset": "stripes", "seeds": 1}
    override = {"network": {"name": "wave", "width": 6}}
    raw["trajectories"]["stripes-sgd"] = {**run, "method": "sgd", "input": "prepare/stripes", "override": override}
    row = {**run, "method": "snapshots", "setting": "own", "input": "trajectory/stripes-sgd"}
    raw["runs"]["stripes-snapshots"] = row
    return raw


def digests(folder: Path) -> dict[str, dict[str, str]]:
    return dict(json.loads(said(folder, DIGESTS)))


def said(folder: Path, text: str) -> str:
    """Return what ``python -c text`` prints in the folder."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    code, out, error = forked.run(folder, environment, ["-c", text])
    assert code == 0, error
    return out


def write(folder: Path, params: Mapping[str, object]) -> None:
    (folder / "plugins").mkdir(exist_ok=True)
    for name, text in FILES.items():
        (folder / f"plugins/{name}.py").write_text(text)
    (folder / "params.yaml").write_text(yaml.safe_dump(params))


OWN, METRIC = {"student@stripes-snapshots", "evaluate@stripes-snapshots"}, {"scores@stripes-snapshots", "report"}


@pytest.mark.parametrize(
    ("file", "stale"),
    [
        ("method", OWN),
        # all of sgd, of which one run has this network: DVC knows the code of a method, not of a run
        ("network", OWN | {f"trajectory@{data}-sgd" for data in ("stripes", "digits", "boston")}),
        ("source", {"prepare@stripes"}),
        ("score", {"evaluate@stripes-snapshots", "evaluate@digits-ensemble"}),  # boston has no other data
        ("metric", METRIC | {"scores@digits-ensemble", "scores@boston-deterministic"}),  # no fit and no evaluation
    ],
)
def test_a_change_of_a_plugin_makes_only_the_stages_that_use_it_stale(
    tmp_path: Path, file: str, stale: set[str]
) -> None:
    write(tmp_path, with_plugins())
    before = digests(tmp_path)
    (tmp_path / f"plugins/{file}.py").write_text(FILES[file] + "# a comment\n")
    after = digests(tmp_path)
    assert {name for name in before if before[name] != after[name]} == stale


def test_plugins_that_no_run_uses_change_no_digest(tmp_path: Path) -> None:
    """The files lie there unlisted, and then ``plugins`` lists them; plugins of scores and metrics are left out."""
    write(tmp_path, yaml.safe_load(PARAMS))
    plain = digests(tmp_path)
    raw = yaml.safe_load(PARAMS)
    raw["plugins"] = [f"plugins/{name}.py" for name in FILES if name not in ("score", "metric")]
    write(tmp_path, raw)
    assert digests(tmp_path) == plain


def test_the_closure_of_a_plugin_follows_public_names_and_its_own_modules(tmp_path: Path) -> None:
    text = """
from bdl_pipe import plugins
from pipeline.plan import code
plugins.load(["one.py", "pack.methods"])
print(*code.closure(p.module for p in plugins.loaded()))
print(*(place.name for place in code.shipped()))
"""
    files = {
        "one.py": "import bdl_pipe\nimport helper\nfrom bdl_pipe import Seed\nbdl_pipe.NetworkDraws\n",
        "helper.py": "import json\n",
        "pack/__init__.py": "",
        "pack/methods.py": "from . import inner\n",
        "pack/inner.py": "from bdl_pipe.sgmcmc import schedules\n",
        "pack/unused.py": "",
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    modules, shipped = (line.split() for line in said(tmp_path, text).splitlines())
    assert {"helper", "pack", "pack.methods", "pack.inner", "bdl_pipe.seeds", "bdl_pipe.posterior"} <= {*modules}
    assert "bdl_pipe.sgmcmc.schedules" in modules
    assert not {"pack.unused", "bdl_pipe.registry", "bdl_pipe.public", "json"} & {*modules}
    assert shipped == ["helper.py", "pack"]
