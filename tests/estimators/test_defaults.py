"""The settings that stand beside each method equal params.yaml, so that an estimator fits what the pipeline fits.

``test_plan.py`` compares whole runs, with what follows from a data set's size.
"""

from pathlib import Path
from typing import Any, Final

import pytest

from bdl_pipe.config import merge, read
from bdl_pipe.evaluation import USUAL, EvaluateConfig
from bdl_pipe.registry import METHODS
from bdl_pipe.yaml_files import read_yaml
from pipeline.core.params_files import read_params

ROOT: Final = Path(__file__).parents[2]
FILES: Final = ("params/inducing-convnet.yaml", "params/coresets.yaml", "params.yaml")  # the last one is preferred
PARAMS: Final[dict[str, Any]] = {name: s for file in FILES for name, s in read_params(ROOT / file)["methods"].items()}
UNSET: Final = {"pretrained", "vbll_bnn", "d_vbll_bnn", "g_vbll_bnn", "fcg_w"}  # The user sets all their keys.


def test_every_method_has_a_section_or_is_listed_as_unset() -> None:
    assert {*PARAMS, *UNSET} == {*METHODS}
    assert not any(METHODS[name].settings for name in UNSET)


@pytest.mark.parametrize("name", sorted({*METHODS} - UNSET))
def test_the_settings_of_a_method_equal_its_section(name: str) -> None:
    """They are the whole section, but for what follows from the size of the data."""
    method, section = METHODS[name], PARAMS[name]
    typed = read(method.config, section, f"methods.{name}")
    assert read(method.config, merge(section, method.settings), f"methods.{name}") == typed
    if method.default is None and not method.upstream:
        assert read(method.config, method.settings, f"methods.{name}") == typed


def test_estimators_are_scored_with_the_section_evaluate() -> None:
    assert read(EvaluateConfig, read_yaml(ROOT / "params.yaml")["evaluate"], "evaluate") == USUAL
