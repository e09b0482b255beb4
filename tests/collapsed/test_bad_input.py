"""Values, widths and settings that the integrals cannot take are refused with the rule and the value."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from bdl_pipe.collapsed import integrals
from bdl_pipe.collapsed.integrals import few_uniforms, many_uniforms
from bdl_pipe.collapsed.integrals.uniform_logits import log_expected_softmax
from tests.refusals import refusal, refused

from .cases import double

TABLE = refused("collapsed")
BOX = {"y": 0.0, "centre": 0.0, "half_widths": [1.0, 1.0], "radius": 1.0}
ONE_WEIGHT = {"logits": [0.0, 0.0, 0.0], "index": 0, "low": 0.0, "high": 1.0, "feature": 1.0}
CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {  # function, valid arguments
    "triangular_density": (few_uniforms.triangular_density, BOX),
    "log_density": (many_uniforms.log_density, BOX),
    "cdf": (many_uniforms.cdf, BOX),
    "Piecewise": (integrals.Piecewise, {}),
    "expect": (
        few_uniforms.expect,
        {"piecewise": integrals.triangular(double(1.0)), "centre": 0.0, "half_widths": [1.0]},
    ),
    "softmax_one": (few_uniforms.softmax_one, ONE_WEIGHT),
    "log_expected_softmax": (log_expected_softmax, {"centre": [0.0, 1.0], "half_widths": [[1.0], [1.0]]}),
    "cubic_sigmoid": (integrals.cubic_sigmoid, {}),
    "radius": (integrals.radius, {}),
}


def tensors(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values with a tensor for each list, and for each number that is no setting."""
    of_numbers = ("y", "centre", "feature")
    return {k: double(v) if isinstance(v, list) or k in of_numbers else v for k, v in values.items()}


@pytest.mark.parametrize("name", TABLE)
def test_bad_input_is_refused_with_its_rule(name: str) -> None:
    function, valid = CALLS[name]
    for changes, message in TABLE[name]:
        error = refusal(function, **tensors(valid | changes))
        assert error.startswith(("DataError: ", "ConfigError: ")) and message in error, error
    indices = torch.tensor([0, -1])
    if name == "softmax_one":
        assert "got -1" in refusal(function, **tensors(valid) | {"index": indices})
