"""``load_dataset`` returns the rows that the source of this name reads."""

import numpy as np
import pytest

from bdl_pipe import ConfigError, load_dataset
from bdl_pipe.data.catalog import Named


@pytest.mark.parametrize("name", ["digits", "boston"])
def test_load_dataset_returns_the_rows_of_the_named_source(name: str) -> None:
    raw, read = load_dataset(name), Named(name).read()
    assert raw.origin == read.origin and raw.classes == read.classes
    np.testing.assert_array_equal(raw.train.inputs, read.train.inputs)
    np.testing.assert_array_equal(raw.train.targets, read.train.targets)


def test_an_unknown_name_is_refused_with_the_known_names() -> None:
    with pytest.raises(ConfigError, match=r"name\.name must be one of .*digits"):
        load_dataset("digit")
