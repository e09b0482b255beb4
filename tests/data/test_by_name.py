"""A data set by its name is what its source reads."""

import numpy as np
import pytest

from bdl_pipe import ConfigError, load_dataset
from bdl_pipe.data.catalog import Named


@pytest.mark.parametrize("name", ["digits", "boston"])
def test_it_is_what_the_source_reads(name: str) -> None:
    raw, read = load_dataset(name), Named(name).read()
    assert raw.origin == read.origin and raw.classes == read.classes
    np.testing.assert_array_equal(raw.train.inputs, read.train.inputs)
    np.testing.assert_array_equal(raw.train.targets, read.train.targets)


def test_an_unknown_name_is_one_line() -> None:
    with pytest.raises(ConfigError, match=r"name\.name must be one of .*digits"):
        load_dataset("digit")
