"""The public names: each exists, and the package declares that it is typed."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import bdl_pipe
from bdl_pipe import public
from tests import fresh

ROOT = Path(__file__).parents[1]


def test_every_public_name_exists_in_its_module_and_in_the_docs() -> None:
    page = (ROOT / "docs/api.md").read_text()
    for name, place in public.PLACES.items():
        value, (module, _, other) = getattr(bdl_pipe, name), place.partition(":")
        assert value is getattr(sys.modules[f"bdl_pipe.{module}"], other or name), name
        assert name in bdl_pipe.__all__ and name in dir(bdl_pipe), name
        assert f"`{name}`" in page or f"`{name}(" in page, name


def test_no_public_name_hides_a_module_and_an_unknown_name_is_an_error() -> None:
    modules = {path.stem for path in (ROOT / "src/bdl_pipe").iterdir()}
    assert not modules & public.PLACES.keys()
    with pytest.raises(AttributeError, match="module 'bdl_pipe' has no attribute 'nothing'"):
        _ = bdl_pipe.nothing
    with pytest.raises(ImportError):
        exec("from bdl_pipe import nothing")


@pytest.mark.process
def test_a_star_import_brings_every_name_and_a_plain_import_brings_no_torch(tmp_path: Path) -> None:
    text = "import sys, bdl_pipe; bdl_pipe.__version__; dir(bdl_pipe); assert 'torch' not in sys.modules;"
    text += "assert 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", text], check=True)
    assert public.PLACES.keys() <= {*fresh.run(tmp_path, "from bdl_pipe import *; print(*dir())").split()}


def test_the_package_is_typed_and_has_the_version_of_its_distribution() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert (ROOT / "src/bdl_pipe/py.typed").is_file()
    data = ["py.typed", "*.pyi", "evaluation/references/*.safetensors"]
    assert sorted(project["tool"]["setuptools"]["package-data"]["bdl_pipe"]) == sorted(data)
    from importlib import metadata

    assert bdl_pipe.__version__ == metadata.version("bdl-pipe")
