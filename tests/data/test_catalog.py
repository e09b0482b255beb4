"""The catalogue: params.yaml can name every source, wrong sources are refused, and new sources can be registered."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bdl_pipe import config, load_dataset
from bdl_pipe.data import catalog, sources
from bdl_pipe.data.catalog import CATALOG, OPTIONS, Entry, Named
from bdl_pipe.data.config import DatasetConfig, ood_source
from bdl_pipe.data.examples import Examples
from bdl_pipe.data.raw import Raw, Source
from bdl_pipe.errors import ConfigError, DataError
from pipeline.prepared import folders
from tests.case_files import cases_of, tupled
from tests.preparing import SECTION, dataset_of, prepare_at

cases = cases_of(__file__)

SHAPE = (2, 4, 3)
TABLE = {"name": "table", "path": "t.csv", "target": ["y"], "task": "regression"}
ALL = re.escape(", ".join((*CATALOG, *OPTIONS)))
pytestmark = pytest.mark.usefixtures("forgotten_plugins")  # sources that a test registers are removed after it


def rows(count: int = 30) -> Examples:
    random = np.random.default_rng(0)
    return Examples(random.integers(0, 256, (count, *SHAPE), dtype=np.uint8), np.arange(count, dtype=np.int64) % 3)


def entry(path: Path, **changed: Any) -> Entry:
    """An entry for the images in the file ``path``."""

    def of_path() -> Raw:
        images = np.frombuffer(path.read_bytes(), np.uint8).reshape(-1, *SHAPE)
        return Raw(str(path), "classification", "image", Examples(images, rows().targets), None, ("a", "b", "c"))

    constants = ((0.25, 0.5), (0.5, 2.0))
    return replace(Entry(of_path, "image", "classification", 3, SHAPE, constants), **changed)


@pytest.mark.parametrize("name", CATALOG)
def test_every_entry_can_be_read_from_params(name: str) -> None:
    dataset = dataset_of({"name": name})
    assert dataset.source == Named(name) and isinstance(dataset.source, Source) and dataset.source.files() == ()
    assert (dataset.task, dataset.source.kind) == (CATALOG[name].task, CATALOG[name].kind)
    section = config.to_mapping(dataset)
    assert section["source"] == {"name": name}
    assert config.read(DatasetConfig, section, "d") == dataset


@pytest.mark.parametrize("name", CATALOG)
def test_published_constants_are_accepted_only_for_sets_that_have_them(name: str) -> None:
    if CATALOG[name].published is not None:
        assert dataset_of({"name": name}, normalise="published").normalise == "published"
        return
    table = "train, robust or none for a table"
    rule = table if CATALOG[name].kind == "table" else f"train or none: {name} has no published constants"
    with pytest.raises(ConfigError, match=f"datasets.d.normalise must be {rule}, got 'published'"):
        dataset_of({"name": name}, normalise="published")


@cases("options", "name keys")
def test_every_source_with_options_can_be_read_from_params(name: str, keys: dict[str, Any]) -> None:
    dataset = dataset_of({"name": name, **keys})
    assert type(dataset.source) is OPTIONS[name] and isinstance(dataset.source, Source)
    assert dataset.source.files() == (Path(keys["path"]),)
    assert config.read(DatasetConfig, config.to_mapping(dataset), "d") == dataset
    assert dataset.task == {"uci": "regression"}.get(name, "classification")
    assert dataset.source.kind == ("table" if name in ("uci", "table") else "image")


def test_prepare_reads_a_registered_source(tmp_path: Path) -> None:
    path = tmp_path / "mine.bin"
    path.write_bytes(rows().inputs.tobytes())
    CATALOG.add("mine", entry(path), __name__)
    dataset = dataset_of({"name": "mine"}, normalise="published", ood=["mine2"])
    CATALOG.add("mine2", entry(path), __name__)
    fit, holdout = prepare_at(tmp_path, dataset)
    data, held = folders.load_fit(fit, 0, final=True), folders.load_holdout(holdout, 0)
    assert data.search is not None and (len(data.search.train), len(data.search.validation)) == (22, 5)
    stored = np.concatenate([data.train.inputs, held.test.inputs])
    assert sorted(row.tobytes() for row in stored) == sorted(row.tobytes() for row in rows().inputs)
    expected = (data.train.inputs[:, 1] / 255 - 0.5) / 2.0
    np.testing.assert_allclose(data.tensors("train")[0][:, 1].numpy(), expected, atol=1e-6)
    np.testing.assert_array_equal(held.ood()["mine2"].inputs, rows().inputs)


@cases("rows", "changes message")
def test_rows_that_contradict_their_entry_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.bin"
    path.write_bytes(rows().inputs.tobytes())
    CATALOG.add("mine", entry(path, **tupled(changes)), __name__)
    with pytest.raises(DataError, match=f"mine.bin: the {message}"):
        sources.load(Named("mine"))


def test_an_unknown_name_is_refused_with_the_known_names() -> None:
    with pytest.raises(ConfigError, match=r"name\.name must be one of .*digits"):
        load_dataset("digit")
    with pytest.raises(ConfigError, match=r"name must be one of fashion_mnist, .*, got 'cifar'"):
        Named("cifar")
    with pytest.raises(ConfigError, match=r"o must name a data set \(known: "):  # it has options, so no name suffices
        ood_source("table", {}, "o")
    assert catalog.Noise().files() == ()


@cases("keys", "changes message")
def test_keys_that_break_a_rule_are_refused_in_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("ALL", ALL)) as caught:
        dataset_of(**{"source": TABLE} | changes)
    assert "\n" not in str(caught.value)


def test_a_table_is_accepted_and_a_data_set_without_a_source_is_refused() -> None:
    assert dataset_of(TABLE, targets="centre").task == "regression"
    with pytest.raises(ConfigError, match=r"datasets\.d\.source is missing"):
        config.read(DatasetConfig, SECTION, "datasets.d")
