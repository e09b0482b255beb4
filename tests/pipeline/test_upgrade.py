"""Old keys of params files: refused with their present names, and rewritten in place by a command."""

from pathlib import Path

import pytest
import yaml

from bdl_pipe.errors import ConfigError, DataError
from pipeline import cli
from pipeline.core import old_keys
from pipeline.upgrade import upgraded

OLD = """\
# members: and rate: in a comment stay
methods:
  sgd:
    keep: 3        # snapshots
    after: 0
    parts: 1
    optimiser: {name: adamw, rate: 1.0e-2, clip: 1.0}   # rate
    augmentation: {choose: all, operations: {flip: 0.5}}
    choose: null
  dropout:
    rate: 0.1
    learn: &learn {epochs: 2, choose: {every: 1}, optimiser: {rate: 3.0e-3}}
  bnn:
    learn: *learn
  gp: {rate: 0.1}
  vbpc: {coreset: {rate: 0.1, label_rate: 0.2, pool: {"rate": 0.3}}, student: {rate: 0.4, augmentation: {choose: one}}}
  ensemble_u: {weights: {members: 5}}
runs:
  a: {method: ensemble_u, members: 2, override: {weights: {members: 3}, learn: {choose: null}}}
  b: {method: sgd, members: 1, override: {keep: 2}}
"""
NEW = """\
# members: and rate: in a comment stay
methods:
  sgd:
    snapshots: 3        # snapshots
    extra_epochs: 0
    snapshots_per_epoch: 1
    optimiser: {name: adamw, lr: 1.0e-2, grad_clip_norm: 1.0}   # rate
    augmentation: {choose: all, operations: {flip: 0.5}}
    early_stopping: null
  dropout:
    rate: 0.1
    training: &learn {epochs: 2, early_stopping: {every: 1}, optimiser: {lr: 3.0e-3}}
  bnn:
    training: *learn
  gp: {lr: 0.1}
  vbpc: {coreset: {lr: 0.1, label_lr: 0.2, pool: {"lr": 0.3}}, student: {lr: 0.4, augmentation: {choose: one}}}
  ensemble_u: {weights: {members: 5}}
runs:
  a: {method: ensemble_u, seeds: 2, override: {weights: {members: 3}, training: {early_stopping: null}}}
  b: {method: sgd, seeds: 1, override: {snapshots: 2}}
"""
STUDY = """\
method: sgd
overlay:
  runs: {a: {method: sgd, members: 1}}
grid:
  optimiser.rate+clip: [1, 2]
  keep: [1]
names: {optimiser.rate+clip: η, keep: K}
figure:
  - {x: keep, lines: "optimiser.rate+clip"}
"""
NEW_STUDY = """\
method: sgd
overlay:
  runs: {a: {method: sgd, seeds: 1}}
grid:
  optimiser.lr+grad_clip_norm: [1, 2]
  snapshots: [1]
names: {optimiser.lr+grad_clip_norm: η, snapshots: K}
figure:
  - {x: snapshots, lines: "optimiser.lr+grad_clip_norm"}
"""


@pytest.mark.parametrize(("old", "new"), [(OLD, NEW), (STUDY, NEW_STUDY)], ids=["params", "study"])
def test_old_keys_and_nothing_else_are_rewritten_once(old: str, new: str) -> None:
    text, count = upgraded(old, Path("params.yaml"))
    assert text == new and count > 0
    assert upgraded(new, Path("params.yaml")) == (new, 0)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("runs.a.members", "runs.a.members is now called seeds: python -m pipeline upgrade rewrites the file"),
        ("methods.sgd.keep", "methods.sgd.keep is now called snapshots"),
        ("methods.sgd.optimiser.rate", "methods.sgd.optimiser.rate is now called lr"),
        ("methods.dropout.learn", "methods.dropout.learn is now called training"),
        ("methods.gp.rate", "methods.gp.rate is now called lr"),
        ("runs.b.override.keep", "runs.b.override.keep is now called snapshots"),
    ],
)
def test_an_old_key_is_refused_with_its_present_name(key: str, message: str) -> None:
    raw = yaml.safe_load(NEW)
    old_keys.refuse(raw)
    *above, last = key.split(".")
    section = raw
    for name in above:
        section = section.setdefault(name, {})
    section[last] = 1
    with pytest.raises(ConfigError) as caught:
        old_keys.refuse(raw)
    assert str(caught.value).startswith(message)


def test_the_command_rewrites_files_and_leaves_others_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text(OLD)
    Path("new.yaml").write_text(NEW)
    assert cli.main(["upgrade", "params.yaml", "new.yaml"]) == 0
    assert Path("params.yaml").read_text() == NEW
    assert capsys.readouterr().out.splitlines() == ["params.yaml: 20 old names rewritten", "new.yaml: has no old name"]
    assert cli.main(["upgrade"]) == 0
    assert capsys.readouterr().out == "params.yaml: has no old name\n"


def test_a_file_that_cannot_be_read_changes_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text(OLD)
    Path("broken.yaml").write_text("a: [")
    with pytest.raises(DataError, match=r"^broken\.yaml: is not YAML"):
        upgraded(Path("broken.yaml").read_text(), Path("broken.yaml"))
    assert cli.main(["upgrade", "params.yaml", "broken.yaml"]) == 2
    assert Path("params.yaml").read_text() == OLD
