"""The library's wheel, in an environment of its declared dependencies alone."""

import re
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from .wheel import PROJECT, ROOT, installed, run

pytestmark = [pytest.mark.process, pytest.mark.slow]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the interpreter of an environment with the wheel and the declared dependencies."""
    return installed(tmp_path_factory.mktemp("installation"))


def test_at_most_ten_dependencies_are_declared() -> None:
    assert len(PROJECT["dependencies"]) <= 10


def test_arviz_0_23_4_is_allowed_and_arviz_1_0_0_is_excluded() -> None:
    (arviz,) = (r for r in map(Requirement, PROJECT["optional-dependencies"]["pipeline"]) if r.name == "arviz")
    assert "0.23.4" in arviz.specifier and "1.0.0" not in arviz.specifier


def test_packages_of_the_pipeline_are_absent(python: Path) -> None:
    text = "import importlib.util as u; print(*[n for n in ('ray', 'mlflow', 'dvc', 'pandas', 'tensorflow_datasets',"
    text += " 'matplotlib', 'gpytorch', 'optuna', 'arviz', 'pipeline', 'stages') if u.find_spec(n)])"
    done = run(python, "-c", text)
    assert done.returncode == 0 and not done.stdout.strip(), done.stdout + done.stderr


def test_every_module_and_every_method_imports_except_modules_of_extras(python: Path) -> None:
    text = """
import importlib, pkgutil, bdl_pipe
absent = {}
for module in pkgutil.walk_packages(bdl_pipe.__path__, "bdl_pipe."):
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        absent[module.name] = error.name
extras = {"baselines.gaussian_processes": "gpytorch", "figures": "matplotlib", "report": "matplotlib"}
assert absent == {f"bdl_pipe.{name}": package for name, package in extras.items()}, absent
assert len(list(bdl_pipe.METHODS.values())) == len(bdl_pipe.METHODS) > 40
for name in bdl_pipe.__all__:
    getattr(bdl_pipe, name)
"""
    done = run(python, "-c", text)
    assert done.returncode == 0, done.stderr


def test_the_wheel_has_every_file_of_the_library(python: Path) -> None:
    """Also templates, figures of papers and stored draws, which modules read from their own folders."""
    (wheel,) = python.parents[2].glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("bdl_pipe/")}
    files = (path.relative_to(ROOT / "src") for path in (ROOT / "src/bdl_pipe").rglob("*") if path.is_file())
    assert packed == {path.as_posix() for path in files if "__pycache__" not in path.parts}


def test_the_error_for_an_absent_extra_shows_how_to_install_it(python: Path) -> None:
    done = run(python, "-c", "from bdl_pipe.baselines.of_gpytorch import processes; processes()")
    assert "UserError" in done.stderr and "pip install 'bdl-pipe[gp]'" in done.stderr.splitlines()[-1]


def test_the_command_says_that_the_pipeline_needs_a_clone_of_the_project(python: Path) -> None:
    command = python.parent / "bdl-pipe"
    if not command.exists():  # pip puts the scripts of --target beside the packages
        (command,) = python.parents[1].rglob("bin/bdl-pipe")
    done = run(python, str(command), "repro")
    assert done.returncode == 2 and not done.stdout
    (line,) = done.stderr.splitlines()
    assert "must be a clone of the project" in line and "git clone" in line


@pytest.mark.parametrize("page", ["README.md", "docs/api.md"])
def test_documented_examples_run(python: Path, page: str) -> None:
    blocks = (ROOT / page).read_text().split("```python\n")[1:]
    assert blocks
    for block in blocks:
        done = run(python, "-c", block.split("```")[0])
        assert done.returncode == 0, done.stderr
        assert re.search(r"tensor|Size|\d", done.stdout)


def test_the_estimators_run_and_a_table_without_pandas_names_its_extra(python: Path) -> None:
    text = """
import numpy as np
from bdl_pipe import BayesianClassifier, BayesianRegressor, compare
x = np.random.default_rng(0).normal(size=(60, 2))
print(BayesianRegressor("vbll", pace=0.02).fit(x, x[:, 0]).predict_interval(x[:2]))
print(BayesianClassifier("linear").fit(x, x[:, 0] > 0).predict_proba(x[:2]))
found = compare(x, x[:, 0] + x[:, 1] ** 2, ["linear", "constant"], cv=2)
print(found.verdict)
found.table
"""
    done = run(python, "-c", text)
    assert "has the lowest NLL." in done.stdout
    assert "ImportError: tables of a comparison need pandas: pip install 'bdl-pipe[figures]'" in done.stderr
