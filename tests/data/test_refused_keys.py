"""Keys of a data set that break a rule or contradict each other: the error names the key, the rule and the value."""

import re
from typing import Any

import pytest

from bdl_pipe import config
from bdl_pipe.data.catalog import CATALOG, OPTIONS
from bdl_pipe.data.config import DatasetConfig
from bdl_pipe.errors import ConfigError
from tests.case_files import cases_of
from tests.preparing import SECTION, dataset_of

cases = cases_of(__file__)
TABLE = {"name": "table", "path": "t.csv", "target": ["y"], "task": "regression"}
ALL = re.escape(", ".join((*CATALOG, *OPTIONS)))


@cases("keys", "changes message")
def test_keys_that_break_a_rule_are_refused_in_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("ALL", ALL)) as caught:
        dataset_of(**{"source": TABLE} | changes)
    assert "\n" not in str(caught.value)


def test_a_table_is_accepted_and_a_data_set_without_a_source_is_refused() -> None:
    assert dataset_of(TABLE, targets="centre").task == "regression"
    with pytest.raises(ConfigError, match=r"datasets\.d\.source is missing"):
        config.read(DatasetConfig, SECTION, "datasets.d")
