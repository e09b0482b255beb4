"""The defaults of an installation equal params.yaml, and the overlays for methods without a section in params.yaml.

After a change of these files on purpose, ``python -m tests.estimators.test_defaults`` writes the defaults again.
"""

import json
from pathlib import Path
from typing import Any, Final

import pytest

from bdl_pipe.config import read
from bdl_pipe.estimators import defaults
from bdl_pipe.registry import METHODS
from bdl_pipe.yaml_files import read_yaml
from pipeline.core.params_files import read_params

ROOT: Final = Path(__file__).parents[2]
OTHERS: Final = {  # methods without a section in params.yaml -> the file that has one
    **dict.fromkeys(
        ("bpc_rkl", "bpc_w", "bpc_cd", "fbpc", "rcig", "coreset_vi", "coreset_krr"), ROOT / "params/coresets.yaml"
    ),
    "fcg_u": ROOT / "params/inducing-convnet.yaml",
}
UNSET: Final = {"pretrained", "vbll_bnn", "d_vbll_bnn", "g_vbll_bnn", "fcg_w"}  # The user sets all their keys.


def expected() -> dict[str, Any]:
    params = read_yaml(ROOT / "params.yaml")
    others = {name: read_params(path)["methods"][name] for name, path in OTHERS.items()}
    return {"methods": {**params["methods"], **others}, "evaluate": params["evaluate"]}


def written() -> str:
    return json.dumps(expected(), indent=1) + "\n"


def test_the_installed_defaults_equal_params_yaml_and_the_overlays() -> None:
    assert json.loads(defaults.FILE.read_text()) == expected()


def test_every_method_has_a_section_or_is_listed_as_unset() -> None:
    assert {*expected()["methods"], *UNSET} == {*METHODS}


@pytest.mark.parametrize("name", sorted({*METHODS} - UNSET))
def test_the_default_section_of_a_method_is_valid(name: str) -> None:
    read(METHODS[name].config, defaults.section(name), f"methods.{name}")


def test_a_method_without_a_section_has_no_defaults() -> None:
    assert defaults.section("fcg_w") == {} == defaults.section("of_a_plugin")
    assert defaults.evaluate().calibration_bins == 15


if __name__ == "__main__":
    defaults.FILE.write_text(written())
