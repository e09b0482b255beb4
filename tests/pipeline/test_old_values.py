"""Params files with names of old: refused with the way out, and rewritten by ``upgrade``, every other byte kept."""

import argparse
from pathlib import Path

import pytest
import yaml

from bdl_pipe.errors import ConfigError, DataError
from pipeline import upgrade
from pipeline.core import old_keys
from tests.pipeline.test_params import GOOD, changed, read

ROOT = Path(__file__).parents[2]
OLD = """\
datasets:                     # of images
  photos:
    source: {name: cifar10}
    normalise: paper          # published constants
  others: {source: {name: svhn}, "normalise": "paper", whiten: false}
  paper: {source: {name: boston}, normalise: train, path: paper}
methods:
  sgd: {epochs: 3, keep: 2, normalise: paper, optimiser: {name: adamw, rate: 1.0e-2}}
runs:
  photos-paper: {dataset: photos, method: sgd, members: 3}
"""
NEW = """\
datasets:                     # of images
  photos:
    source: {name: cifar10}
    normalise: published          # published constants
  others: {source: {name: svhn}, "normalise": "published", whiten: false}
  paper: {source: {name: boston}, normalise: train, path: paper}
methods:
  sgd: {epochs: 3, snapshots: 2, normalise: paper, optimiser: {name: adamw, lr: 1.0e-2}}
runs:
  photos-paper: {dataset: photos, method: sgd, seeds: 3}
"""


def test_names_of_old_are_rewritten_and_nothing_else() -> None:
    assert upgrade.upgraded(OLD, Path("p.yaml")) == (NEW, 5)
    assert upgrade.upgraded(NEW, Path("p.yaml")) == (NEW, 0)


def test_the_overlay_of_a_study_is_rewritten_too() -> None:
    study = "method: vbll\noverlay:\n  datasets:\n    d: {normalise: paper}\n"
    assert upgrade.upgraded(study, Path("s.yaml")) == (study.replace("paper", "published"), 1)


def test_files_are_rewritten_in_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    old.write_text(OLD)
    new.write_text(NEW)
    assert upgrade.main(argparse.Namespace(files=[old, new])) == 0
    assert old.read_text() == new.read_text() == NEW
    assert capsys.readouterr().out == f"{old}: 5 old names rewritten\n{new}: has no old name\n"


def test_no_file_is_rewritten_where_one_is_not_yaml(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(OLD)
    bad.write_text("a: [")
    with pytest.raises(DataError, match=r"bad\.yaml: is not YAML"):
        upgrade.main(argparse.Namespace(files=[good, bad]))
    assert good.read_text() == OLD


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (
            "datasets.boston.normalise",
            "paper",
            "datasets.boston.normalise paper is now called published: python -m pipeline upgrade rewrites the file",
        ),
        (
            "runs.b-run.members",
            3,
            "runs.b-run.members is now called seeds: python -m pipeline upgrade rewrites the file",
        ),
    ],
)
def test_params_with_names_of_old_are_refused_with_the_way_out(
    place: str, value: object, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, changed(place, value))
    assert str(caught.value) == message


def test_names_of_today_are_not_refused() -> None:
    old_keys.refuse(GOOD)
    old_keys.refuse(yaml.safe_load(NEW))
    old_keys.refuse({"datasets": None, "methods": ["sgd"], "runs": {"a": 3}})  # what ``typed`` itself refuses


@pytest.mark.parametrize("path", [ROOT / "params.yaml", *sorted((ROOT / "params").rglob("*.yaml"))], ids=str)
def test_the_projects_own_files_have_no_name_of_old(path: Path) -> None:
    assert upgrade.upgraded(path.read_text(), path)[1] == 0
