"""Settings of methods that do not go together, or have no meaning for a method, are refused with their rule."""

import pytest

from bdl_pipe.config import merge, read
from bdl_pipe.registry import METHODS
from tests.cases import CONFIGS
from tests.refusals import refusal, refused

TABLE = refused("settings")


@pytest.mark.parametrize("case", TABLE)
def test_settings_are_refused_with_their_rule(case: str) -> None:
    method, task = case.split()
    for changes, message in TABLE[case]:
        section = merge(CONFIGS[method, task], changes)
        error = refusal(read, METHODS[method].config, section, f"methods.{method}")
        assert error.startswith("ConfigError: methods.") and message in error, error
