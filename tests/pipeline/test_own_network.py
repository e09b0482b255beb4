"""A user's network file and saved weights: the stages that a change makes stale, and the errors before any work."""

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn

from bdl_pipe import plugins
from bdl_pipe.config import merge
from bdl_pipe.errors import ConfigError
from pipeline.core.load import typed, unwatched
from pipeline.stages.report import run_info
from tests.end_to_end.conftest import FORKED, PARAMS
from tests.pipeline.params_cases import written
from tests.pipeline.test_plugin_stages import digests

MINE = '''
"""A network as its author wrote it."""

from torch import nn


def build(input_shape, hidden=12):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))
'''


def own_params() -> dict[str, Any]:
    """The tiny project, with runs on the user's weights."""
    return merge(yaml.safe_load(PARAMS), written("own network"))


def write_own(folder: Path, text: str = MINE, seed: int = 0) -> None:
    """Write the network file, and weights that torch alone has made, without code of this project."""
    for name in ("plugins", "data"):
        (folder / name).mkdir(exist_ok=True)
    (folder / "plugins/mine.py").write_text(text)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10))
        torch.save(network.state_dict(), folder / "data/mine.pt")
    (folder / "params.yaml").write_text(yaml.safe_dump(own_params()))


@pytest.fixture
def folder(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(plugins, "_loaded", {})
    write_own(here)
    return here


@pytest.mark.process
@FORKED
@pytest.mark.parametrize(
    ("change", "stale"),
    [
        ({"text": MINE + "\n# a remark\n"}, {"digits-mine", "digits-on", "digits-sgd", "boston-sgd"}),
        ({"seed": 1}, {"digits-mine"}),
    ],
)
def test_a_change_makes_only_the_stages_that_read_the_file_stale(
    folder: Path, change: dict[str, Any], stale: set[str]
) -> None:
    """DVC knows the files of a method, not of a run: the network file of one run of sgd counts for all runs of sgd."""
    before = digests(folder)
    write_own(folder, **change)
    after = digests(folder)
    assert before.keys() == after.keys()
    assert {name for name in before if before[name] != after[name]} == {f"trajectory@{key}" for key in stale}


def test_a_missing_file_is_named_before_any_work(folder: Path) -> None:
    Path("data/mine.pt").unlink()
    with pytest.raises(ConfigError, match=r"methods.pretrained must name existing files in .*'data/mine.pt'"):
        typed(own_params())
    Path("plugins/mine.py").unlink()
    plugins._loaded.clear()  # as a new process
    with pytest.raises(ConfigError, match=r"methods.pretrained.network.path must be a file that can be imported"):
        typed(own_params())


def test_weights_outside_data_and_plugins_are_named_as_unwatched_and_the_report_names_the_network(folder: Path) -> None:
    assert not any("pretrained" in line for line in unwatched(typed(own_params())))
    Path("data/mine.pt").rename("mine.pt")
    raw = merge(own_params(), {"methods": {"pretrained": {"weights": "mine.pt"}}})
    (line,) = (line for line in unwatched(typed(raw)) if "pretrained" in line)
    assert line.startswith("methods.pretrained: mine.pt is outside data/ and plugins/")
    params = typed(raw)
    assert run_info(params.run("student", "digits-mine-deterministic"), params).network == "python"
