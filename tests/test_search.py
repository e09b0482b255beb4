"""A search by any optimiser: samples become configs; tests/pipeline/test_tune.py tests the score of validation rows."""

import pytest

from bdl_pipe import config, search
from bdl_pipe.errors import ConfigError
from bdl_pipe.registry import METHODS
from tests.cases import CONFIGS

METHOD = METHODS["sgmcmc"]
PRESENT = config.read(METHOD.config, CONFIGS["sgmcmc", "regression"], "sgmcmc")


def test_sampled_values_are_nested_rounded_and_compared() -> None:
    assert search.nested({"a.b": 1.0, "a.c": 2.0, "d": 3.0}) == {"a": {"b": 1.0, "c": 2.0}, "d": 3.0}
    assert search.rounded(0.00123456) == 0.001235
    assert search.rounded(12345) == 12345 and type(search.rounded(3)) is int
    assert search.same({"a": 1.00001, "b": 2}, {"a": 1.0}) and not search.same({"a": 1.1}, {"a": 1.0})


def test_a_sample_replaces_the_hyperparameters_of_the_config() -> None:
    ends = {key: low if scale == "integer" else float(low) for key, (low, _, scale) in METHOD.search.items()}
    sampled = search.sampled_config(METHOD, PRESENT, ends)
    assert search.hyperparameters(METHOD, sampled) == ends != search.hyperparameters(METHOD, PRESENT)
    key = next(iter(ends))
    outside = search.sampled_config(METHOD, PRESENT, {key: METHOD.search[key][1] * 2})
    assert search.hyperparameters(METHOD, outside) is None
    with pytest.raises(ConfigError, match=rf"^methods\.sgmcmc\.{key} "):
        search.sampled_config(METHOD, PRESENT, {key: "high"})
